"""Which contexts and functions there are in which place of a pipeline file, as GitHub documents it for its keys.

A place is named by its key: `jobs.if` is the `if` of a job, `steps.run` the command of a step. What is not in the
table takes no expressions at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from deltaci.pipeline.expressions.functions import SIGNATURES, STATUS

_ANYWHERE: Final = frozenset(SIGNATURES) - STATUS - {"hashfiles"}
_RUN: Final = ("github", "inputs", "vars")
_JOB: Final = (*_RUN, "needs")
_MATRIX: Final = (*_JOB, "strategy", "matrix")
_PLANNED: Final = (*_RUN, "strategy", "matrix")  # filled in when a run is planned
_RUNNING: Final = (*_MATRIX, "job", "runner", "env")
_STEP: Final = (*_RUNNING, "steps")


class Place(Struct, frozen=True):
    """What an expression may mention where it stands."""

    contexts: frozenset[str]
    functions: frozenset[str]


def _place(contexts: Iterable[str], special: Iterable[str] = ()) -> Place:
    names = _ANYWHERE | {name.lower() for name in special}
    return Place(frozenset(contexts), frozenset(SIGNATURES[name].name for name in names))


PLACES: Final = {
    "run-name": _place(_RUN),
    "concurrency": _place(_RUN),
    "env": _place((*_RUN, "secrets")),
    "jobs.if": _place(_JOB, STATUS),
    "jobs.strategy": _place(_JOB),
    "jobs.name": _place(_MATRIX),
    "jobs.runs-on": _place(_MATRIX),
    "jobs.image": _place(_MATRIX),
    "jobs.services": _place(_MATRIX),
    "jobs.services.env": _place((*_RUNNING, "secrets")),
    "jobs.concurrency": _place(_MATRIX),
    "jobs.timeout-minutes": _place(_MATRIX),
    "jobs.continue-on-error": _place(_MATRIX),
    "jobs.defaults": _place((*_MATRIX, "env")),
    "jobs.env": _place((*_MATRIX, "secrets")),
    "jobs.artifacts": _place(_STEP, ("hashFiles",)),
    "jobs.caches": _place(_RUNNING, ("hashFiles",)),
    "jobs.validate": _place(_STEP, ("hashFiles",)),
    "jobs.output-path": _place(_PLANNED),
    "jobs.outputs": _place((*_STEP, "secrets")),
    "steps.if": _place(_STEP, (*STATUS, "hashFiles")),
    "steps.name": _place((*_STEP, "secrets"), ("hashFiles",)),
    "steps.run": _place((*_STEP, "secrets"), ("hashFiles",)),
    "steps.shell": _place(_PLANNED),
    "steps.env": _place((*_STEP, "secrets"), ("hashFiles",)),
    "steps.with": _place((*_STEP, "secrets"), ("hashFiles",)),
    "steps.working-directory": _place((*_STEP, "secrets"), ("hashFiles",)),
    "steps.timeout-minutes": _place((*_STEP, "secrets"), ("hashFiles",)),
    "steps.continue-on-error": _place((*_STEP, "secrets"), ("hashFiles",)),
}
