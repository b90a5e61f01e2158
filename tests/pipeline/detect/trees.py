"""Helpers for tests of detection: run it on small repositories given as a mapping of paths to texts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from deltaci.pipeline.detect import Proposal, files_to_read, propose

PACKAGE = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n[project]\nname = "x"\n'
PYTEST = "[tool.pytest.ini_options]\naddopts = ''\n"


def proposed(files: Mapping[str, str | None]) -> Proposal:
    """Return the proposal for a repository, reading only the files of `files_to_read`."""
    paths = list(files)
    return propose(paths, {path: files[path] for path in files_to_read(paths)})


def jobs(files: Mapping[str, str | None]) -> dict[str, tuple[str, str]]:
    """Return the confidence and the last command of each proposed job."""
    return {
        proposed_job.id: (proposed_job.confidence, steps(files, proposed_job.id)[-1])
        for proposed_job in proposed(files).proposed_jobs
    }


def steps(files: Mapping[str, str | None], job_id: str) -> list[str]:
    """Return all commands of a proposed job."""
    job = next(proposed_job.job for proposed_job in proposed(files).proposed_jobs if proposed_job.id == job_id)
    return [step.run or "" for step in job.steps or ()]


def package(scripts: Mapping[str, str], **more: object) -> str:
    """Return the text of a package.json with these scripts."""
    return msgspec.json.encode({"name": "x", "scripts": scripts, **more}).decode()
