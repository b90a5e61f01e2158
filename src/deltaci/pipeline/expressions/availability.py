"""Which contexts and functions an expression may use under which key of a pipeline file.

Follows GitHub's table "Context availability". `jobs.if` is the `if` of a job, `steps.run` the command of a step. Keys
that are not in the table take no expressions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from deltaci.pipeline.expressions.functions import SIGNATURES, STATUS_FUNCTIONS

_ALWAYS_AVAILABLE: Final = frozenset(SIGNATURES) - STATUS_FUNCTIONS - {"hashfiles"}
_RUN_CONTEXTS: Final = ("github", "inputs", "vars")
_JOB_CONTEXTS: Final = (*_RUN_CONTEXTS, "needs")
_MATRIX_CONTEXTS: Final = (*_JOB_CONTEXTS, "strategy", "matrix")
_PLANNING_CONTEXTS: Final = (*_RUN_CONTEXTS, "strategy", "matrix")  # evaluated when a run is planned
_RUNNER_CONTEXTS: Final = (*_MATRIX_CONTEXTS, "job", "runner", "env")
_STEP_CONTEXTS: Final = (*_RUNNER_CONTEXTS, "steps")


class Availability(Struct, frozen=True):
    """The names of the contexts and functions that an expression under one key of a pipeline file may use."""

    contexts: frozenset[str]
    functions: frozenset[str]


def _available(contexts: Iterable[str], extra_functions: Iterable[str] = ()) -> Availability:
    function_names = _ALWAYS_AVAILABLE | {function_name.lower() for function_name in extra_functions}
    return Availability(
        frozenset(contexts), frozenset(SIGNATURES[function_name].name for function_name in function_names)
    )


AVAILABILITY: Final = {
    "run-name": _available(_RUN_CONTEXTS),
    "concurrency": _available(_RUN_CONTEXTS),
    "env": _available((*_RUN_CONTEXTS, "secrets")),
    "jobs.if": _available(_JOB_CONTEXTS, STATUS_FUNCTIONS),
    "jobs.strategy": _available(_JOB_CONTEXTS),
    "jobs.name": _available(_MATRIX_CONTEXTS),
    "jobs.runs-on": _available(_MATRIX_CONTEXTS),
    "jobs.image": _available(_MATRIX_CONTEXTS),
    "jobs.services": _available(_MATRIX_CONTEXTS),
    "jobs.services.env": _available((*_RUNNER_CONTEXTS, "secrets")),
    "jobs.concurrency": _available(_MATRIX_CONTEXTS),
    "jobs.timeout-minutes": _available(_MATRIX_CONTEXTS),
    "jobs.continue-on-error": _available(_MATRIX_CONTEXTS),
    "jobs.defaults": _available((*_MATRIX_CONTEXTS, "env")),
    "jobs.env": _available((*_MATRIX_CONTEXTS, "secrets")),
    "jobs.artifacts": _available(_STEP_CONTEXTS, ("hashFiles",)),
    "jobs.caches": _available(_RUNNER_CONTEXTS, ("hashFiles",)),
    "jobs.validate": _available(_STEP_CONTEXTS, ("hashFiles",)),
    "jobs.output-path": _available(_PLANNING_CONTEXTS),
    "jobs.outputs": _available((*_STEP_CONTEXTS, "secrets")),
    "steps.if": _available(_STEP_CONTEXTS, (*STATUS_FUNCTIONS, "hashFiles")),
    "steps.name": _available((*_STEP_CONTEXTS, "secrets"), ("hashFiles",)),
    "steps.run": _available((*_STEP_CONTEXTS, "secrets"), ("hashFiles",)),
    "steps.shell": _available(_PLANNING_CONTEXTS),
    "steps.env": _available((*_STEP_CONTEXTS, "secrets"), ("hashFiles",)),
    "steps.with": _available((*_STEP_CONTEXTS, "secrets"), ("hashFiles",)),
    "steps.working-directory": _available((*_STEP_CONTEXTS, "secrets"), ("hashFiles",)),
    "steps.timeout-minutes": _available((*_STEP_CONTEXTS, "secrets"), ("hashFiles",)),
    "steps.continue-on-error": _available((*_STEP_CONTEXTS, "secrets"), ("hashFiles",)),
}
