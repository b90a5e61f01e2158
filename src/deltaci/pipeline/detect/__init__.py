"""Detect a pipeline in a repository without a pipeline file. Start reading at `propose`.

Detection has two pure steps: `files_to_read` selects a few files by name; `propose` returns the jobs that all names and
the texts of these files suggest, with their confidence, and a pipeline of the jobs that are not guesses.
`detect_pipeline` returns only the pipeline. The texts of a repository are untrusted: from them, commands contain only
script and target names that are listed here, and names with safe characters.
Imports `core.errors`, `pipeline.model`, `pipeline.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.pipeline import model
from deltaci.pipeline.detect import tasks
from deltaci.pipeline.detect.ecosystems import dotnet, go, java, native, node, php, python, ruby, rust
from deltaci.pipeline.detect.projects import find_projects
from deltaci.pipeline.detect.proposals import LIKELY, JobDraft, Project, Proposal, ProposedJob, weaker
from deltaci.pipeline.detect.tree import MAX_DEPTH, MAX_READ_FILES, Tree, is_third_party, join_path, normalize_paths

__all__ = ["Proposal", "ProposedJob", "detect_pipeline", "files_to_read", "propose"]

MAX_TEST_FILES: Final = 40
PURPOSE_ORDER: Final = ("build", "test", "lint", "types", "format", "clippy")
PIPELINE_NAME: Final = "Discovered"
UPDATE_SUBMODULES: Final = "git submodule update --init --recursive"
_READS_FILE: Final = (
    *(
        python.reads_file,
        node.reads_file,
        go.reads_file,
        rust.reads_file,
        java.reads_file,
        dotnet.reads_file,
        ruby.reads_file,
        php.reads_file,
        native.reads_file,
    ),
    tasks.reads_file,
)


def files_to_read(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of files to read, at most `MAX_READ_FILES`: the least nested first, test files last."""
    candidates: list[tuple[bool, int, str]] = []
    for path in normalize_paths(paths):
        folder, _, file_name = path.rpartition("/")
        if path.count("/") > MAX_DEPTH or is_third_party(path):
            continue
        if any(reads_file(file_name, folder) for reads_file in _READS_FILE):
            candidates.append((re.fullmatch(python.TEST_FILE, file_name) is not None, path.count("/"), path))
    candidates.sort()
    test_paths = [path for is_test, _, path in candidates if is_test][:MAX_TEST_FILES]
    return (*[path for is_test, _, path in candidates if not is_test][: MAX_READ_FILES - MAX_TEST_FILES], *test_paths)


def propose(paths: Iterable[str], text_by_path: Mapping[str, str | None]) -> Proposal:
    """Return the jobs that the paths and texts of a repository suggest.

    `text_by_path` contains the files of `files_to_read`. A missing or None text is treated as empty.
    """
    tree = Tree(paths, text_by_path)
    detected_projects = find_projects(tree)
    proposed_jobs: list[ProposedJob] = []
    used_ids: set[str] = set()
    for project in detected_projects.projects:
        siblings = [
            sibling
            for sibling in detected_projects.projects
            if sibling.folder == project.folder and sibling is not project
        ]
        sibling_purposes = {draft.purpose for sibling in siblings for draft in sibling.drafts}
        for draft in sorted(project.drafts, key=_purpose_order):
            id_parts = [project.folder, project.ecosystem if draft.purpose in sibling_purposes else "", draft.purpose]
            job_id = _unique_id(_job_id("-".join(part for part in id_parts if part)), used_ids)
            proposed_jobs.append(_proposed_job(tree, project, draft, job_id))
    unclear = [
        _with_folder(project, unclear_message)
        for project in detected_projects.projects
        for unclear_message in project.unclear
    ]
    unclear += detected_projects.unclear
    unclear += [f"{path} cannot be parsed and is ignored" for path in sorted(tree.unreadable)]
    included_jobs = {proposed_job.id: proposed_job.job for proposed_job in proposed_jobs if proposed_job.is_included}
    pipeline = model.Pipeline(name=PIPELINE_NAME, jobs=included_jobs) if included_jobs else None
    return Proposal(proposed_jobs=tuple(proposed_jobs), unclear=tuple(map(_printable, unclear)), pipeline=pipeline)


def detect_pipeline(paths: Iterable[str], text_by_path: Mapping[str, str | None]) -> model.Pipeline:
    """Return the pipeline of the jobs that are certain enough. Raise `Refused` if there are none."""
    proposal = propose(normalize_paths(paths), text_by_path)
    if proposal.pipeline is None:
        possible_jobs = (
            f"; possible jobs: {', '.join(proposed_job.title for proposed_job in proposal.proposed_jobs[:5])}"
            if proposal.proposed_jobs
            else ""
        )
        raise Refused(
            "bad_spec",
            f"there is no pipeline file, and no build, test or check was detected with certainty{possible_jobs}; "
            "write .deltaci.yml (deltaci init creates one)",
        )
    return proposal.pipeline


def _purpose_order(draft: JobDraft) -> int:
    return PURPOSE_ORDER.index(draft.purpose) if draft.purpose in PURPOSE_ORDER else len(PURPOSE_ORDER)


def _proposed_job(tree: Tree, project: Project, draft: JobDraft, job_id: str) -> ProposedJob:
    """Return the job that a draft proposes, in the form of a pipeline file, with the evidence for it."""
    folder = project.folder
    if not folder and tree.has(".gitmodules") and draft.purpose in ("build", "test"):
        draft = msgspec.structs.replace(
            draft,
            steps=(UPDATE_SUBMODULES, *draft.steps),
            confidence=weaker(draft.confidence, LIKELY),
            uncertainty=draft.uncertainty or "it has git submodules, which its first step fetches",
        )
    defaults = model.Defaults(run=model.RunDefaults(working_directory=folder)) if folder else model.Defaults()
    job = model.Job(
        env=dict(draft.env),
        defaults=defaults,
        checkout=draft.checkout,
        artifacts=draft.artifacts,
        caches=draft.caches,
        steps=tuple(model.Step(run=step) for step in draft.steps),
        paths=_path_filter(tree, folder),
        network=True,  # The first steps download the dependencies.
    )
    return ProposedJob(
        id=job_id,
        title=draft.title,
        folder=folder,
        ecosystem=project.ecosystem,
        confidence=draft.confidence,
        job=job,
        evidence=tuple(map(_printable, draft.evidence)),
        uncertainty=_printable(draft.uncertainty),
        hints=tuple(map(_printable, draft.hints)),
    )


def _path_filter(tree: Tree, folder: str) -> tuple[str, ...] | None:
    """Return the path filter of a project: its folder, and the files at the root, which may be shared configuration.

    Return None, so that the job always runs, for the root and for a project whose files refer to other folders.
    """
    if not folder or any("../" in tree.text(join_path(folder, file_name)) for file_name in tree.file_names(folder)):
        return None
    return (f"{folder}/**", "*")


def _job_id(text: str) -> str:
    """Return a valid job id that resembles a text."""
    job_id = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:80]
    return job_id if re.match(r"[A-Za-z_]", job_id) else f"_{job_id}"


def _unique_id(job_id: str, used_ids: set[str]) -> str:
    """Return an id that is not in `used_ids`, with a number appended if necessary, and add it to them."""
    unique_id = next(
        candidate
        for candidate in (job_id, *(f"{job_id}-{suffix_number}" for suffix_number in range(2, len(used_ids) + 3)))
        if candidate not in used_ids
    )
    used_ids.add(unique_id)
    return unique_id


def _with_folder(project: Project, message: str) -> str:
    return f"{project.folder}: {message}" if project.folder else message


def _printable(text: str) -> str:
    """Return a text as one line of at most 400 printable ASCII characters, which is safe in a YAML comment."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:400]
