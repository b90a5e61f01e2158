"""Small repositories, written for tests: names with texts, and what discovery makes of them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from deltaci.pipeline.detect import Proposal, propose, wanted

PACKAGE = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n[project]\nname = "x"\n'
PYTEST = "[tool.pytest.ini_options]\naddopts = ''\n"


def proposed(files: Mapping[str, str | None]) -> Proposal:
    """What is proposed for a tree; only the files that were asked for are shown to it."""
    paths = list(files)
    return propose(paths, {path: files[path] for path in wanted(paths)})


def jobs(files: Mapping[str, str | None]) -> dict[str, tuple[str, str]]:
    """For every job, how sure it is and the last thing that it does."""
    return {each.id: (each.confidence, steps(files, each.id)[-1]) for each in proposed(files).findings}


def steps(files: Mapping[str, str | None], job: str) -> list[str]:
    """Everything that a job does."""
    found = next(each.job for each in proposed(files).findings if each.id == job)
    return [step.run or "" for step in found.steps or ()]


def package(scripts: Mapping[str, str], **more: object) -> str:
    """A package.json."""
    return msgspec.json.encode({"name": "x", "scripts": scripts, **more}).decode()
