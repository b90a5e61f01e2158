"""Zero configuration: what a repository without a pipeline file is built, tested and checked by.

Two steps, both pure: `wanted` says from the names of all files which few should be read; `propose` says from the names
and those texts what was found, how sure that is, and a pipeline of what is sure enough to run. `discovered` does both.
Nothing of a repository's texts comes into a command, except names out of lists that are written here, and names of
files and folders that consist of harmless characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.pipeline import model
from deltaci.pipeline.detect import dotnet, go, java, native, node, php, python, ruby, rust, tasks
from deltaci.pipeline.detect.findings import LIKELY, Draft, Finding, Project, Proposal, weaker
from deltaci.pipeline.detect.projects import find_projects
from deltaci.pipeline.detect.tree import MAX_DEPTH, MAX_READ_FILES, Tree, is_foreign, joined, normal

__all__ = ["Finding", "Proposal", "discovered", "propose", "wanted"]

MAX_TEST_FILES: Final = 40
TASK_ORDER: Final = ("build", "test", "lint", "types", "format", "clippy")
NAME: Final = "Discovered"
SUBMODULES: Final = "git submodule update --init --recursive"
_WANTS: Final = (
    *(python.wants, node.wants, go.wants, rust.wants, java.wants, dotnet.wants, ruby.wants, php.wants, native.wants),
    tasks.wants,
)


def wanted(paths: Iterable[str]) -> tuple[str, ...]:
    """The files whose texts matter, those near the root first; not more than `MAX_READ_FILES`."""
    found: list[tuple[bool, int, str]] = []
    for path in normal(paths):
        folder, _, name = path.rpartition("/")
        if path.count("/") > MAX_DEPTH or is_foreign(path):
            continue
        if any(wants(name, folder) for wants in _WANTS):
            found.append((re.fullmatch(python.TEST_FILE, name) is not None, path.count("/"), path))
    found.sort()
    tests = [path for is_test, _, path in found if is_test][:MAX_TEST_FILES]
    return (*[path for is_test, _, path in found if not is_test][: MAX_READ_FILES - MAX_TEST_FILES], *tests)


def propose(paths: Iterable[str], texts: Mapping[str, str | None]) -> Proposal:
    """What was found, from all names and the texts of the files that were `wanted`; missing ones say nothing."""
    tree = Tree(paths, texts)
    found = find_projects(tree)
    findings: list[Finding] = []
    taken: set[str] = set()
    for project in found.projects:
        others = [each for each in found.projects if each.folder == project.folder and each is not project]
        shared = {draft.task for each in others for draft in each.drafts}
        for draft in sorted(project.drafts, key=_order):
            words = [project.folder, project.ecosystem if draft.task in shared else "", draft.task]
            name = _free(_slug("-".join(word for word in words if word)), taken)
            findings.append(_finding(tree, project, draft, name))
    unclear = [_at(project, each) for project in found.projects for each in project.unclear]
    unclear += found.unclear
    unclear += [f"{path} cannot be read as what it should be; it is left aside" for path in sorted(tree.unreadable)]
    jobs = {finding.id: finding.job for finding in findings if finding.is_run}
    pipeline = model.Pipeline(name=NAME, jobs=jobs) if jobs else None
    return Proposal(findings=tuple(findings), unclear=tuple(map(_plain, unclear)), pipeline=pipeline)


def discovered(paths: Iterable[str], read: Callable[[str], str | None]) -> model.Pipeline:
    """The pipeline of a repository without a file, or a refusal that says what to do."""
    every = normal(paths)
    proposal = propose(every, {path: read(path) for path in wanted(every)})
    if proposal.pipeline is None:
        guesses = (
            f"; it could be: {', '.join(each.what for each in proposal.findings[:5])}" if proposal.findings else ""
        )
        raise Refused(
            "bad_spec",
            f"there is no pipeline file, and nothing was found that is surely a build, test or check{guesses}; "
            "write .deltaci.yml (deltaci init begins one)",
        )
    return proposal.pipeline


def _order(draft: Draft) -> int:
    return TASK_ORDER.index(draft.task) if draft.task in TASK_ORDER else len(TASK_ORDER)


def _finding(tree: Tree, project: Project, draft: Draft, name: str) -> Finding:
    folder = project.folder
    if not folder and tree.has(".gitmodules") and draft.task in ("build", "test"):
        draft = msgspec.structs.replace(
            draft,
            steps=(SUBMODULES, *draft.steps),
            confidence=weaker(draft.confidence, LIKELY),
            reason=draft.reason or "it has git submodules, which a step has to fetch",
        )
    where = model.Defaults(run=model.RunDefaults(working_directory=folder)) if folder else model.Defaults()
    job = model.Job(
        env=dict(draft.env),
        defaults=where,
        checkout=draft.checkout,
        artifacts=draft.artifacts,
        caches=draft.caches,
        steps=tuple(model.Step(run=step) for step in draft.steps),
        paths=_paths(tree, folder),
        network=True,  # What a project needs is fetched by its first steps.
    )
    return Finding(
        id=name,
        what=draft.what,
        where=folder,
        ecosystem=project.ecosystem,
        confidence=draft.confidence,
        job=job,
        evidence=tuple(map(_plain, draft.evidence)),
        reason=_plain(draft.reason),
        hints=tuple(map(_plain, draft.hints)),
    )


def _paths(tree: Tree, folder: str) -> tuple[str, ...] | None:
    """When a project's jobs run: if something in its folder changed, or at the root, where shared settings are.

    Whoever refers to a folder beside it can be affected by anything, and always runs.
    """
    if not folder or any("../" in tree.text(joined(folder, name)) for name in tree.names(folder)):
        return None
    return (f"{folder}/**", "*")


def _slug(text: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:80]
    return found if re.match(r"[A-Za-z_]", found) else f"_{found}"


def _free(name: str, taken: set[str]) -> str:
    free = next(
        each for each in (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))) if each not in taken
    )
    taken.add(free)
    return free


def _at(project: Project, text: str) -> str:
    return f"{project.folder}: {text}" if project.folder else text


def _plain(text: str) -> str:
    """One line of characters that mean nothing to YAML's readers in a comment."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:400]
