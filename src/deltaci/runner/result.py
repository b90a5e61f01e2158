"""The result of a job, and how the message that reports it is made small enough to be accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import Complete, RuleResult, StepResult
from deltaci.runner.sandbox import Exit
from deltaci.runner.workspace.collect_outputs import CollectedOutputs

STARTUP_CODES: Final = frozenset({"RUNNER_STARTUP", "IMAGE_PULL"})  # The cell did not start: no step can run.


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job: how its steps ended, and the outputs that the runner collected."""

    exit: Exit
    steps: list[StepResult]
    error_code: str = ""
    summary: str = ""
    collected: CollectedOutputs = msgspec.field(default_factory=CollectedOutputs)
    outputs: dict[str, str] = {}
    is_skipped: bool = False
    verdicts: list[RuleResult] | None = None
    head: str = ""  # The commit at the tip of its worktree.
    log_tail: list[str] = []  # The end of the log when the step that failed it had ended; empty if it was no step.

    @property
    def is_valid(self) -> bool:
        """Whether the job succeeded and every checked validation rule passed."""
        return self.is_success and all(verdict.is_passed for verdict in self.verdicts or ())

    @property
    def is_success(self) -> bool:
        """Whether the exit code is 0, the job did not time out, and it has no error code, for example of an upload.

        A step that was stopped at its timeout may still have exit code 0.
        """
        return self.exit.exit_code == 0 and not self.exit.is_timed_out and not self.error_code


def error_code_of(error: Exception | None) -> str:
    """Return `BAD_SPEC` if no runner can run the job, else `RUNNER_STARTUP`: another runner may be able to run it."""
    return "BAD_SPEC" if isinstance(error, Refused) and error.code == "bad_spec" else "RUNNER_STARTUP"


def resource_usage(wall_seconds: float, last_exit: Exit, log_bytes: int, artifact_bytes: int) -> dict[str, Any]:
    """Return the resources that the job used, as the field `cost` of its result.

    CPU time and memory are of ended processes; they are left out if the executor does not measure them.
    """
    usage: dict[str, Any] = {"wall_seconds": round(wall_seconds, 3)}
    if last_exit.cpu_seconds is not None:
        usage["cpu_seconds"] = round(last_exit.cpu_seconds, 3)
    if last_exit.peak_memory_bytes is not None:
        usage["peak_memory_bytes"] = last_exit.peak_memory_bytes
    return {**usage, "log_bytes": log_bytes, "artifact_bytes": artifact_bytes}


def shrink_to_limit(message: Complete) -> Complete:
    """Return the message with parts shortened or removed, step by step, while it is larger than the server accepts.

    Only texts for people and the names of steps and tests are reduced. The result may still be too large.
    """
    for shorten in _REDUCTIONS:
        if len(wire.encode(message)) <= wire.MAX_MESSAGE_BYTES:
            break
        message = shorten(message)
    return message


def _shorten_step_names(message: Complete) -> Complete:
    return structs.replace(message, steps=[structs.replace(step, name=step.name[:100]) for step in message.steps])


def _shorten_log_tail(message: Complete) -> Complete:
    return structs.replace(message, log_tail=[line[:200] for line in message.log_tail[-10:]])


def _drop_step_names(message: Complete) -> Complete:
    return structs.replace(message, steps=[structs.replace(step, name="") for step in message.steps])


def _drop_test_failures(message: Complete) -> Complete:
    return (
        message
        if message.tests is None
        else structs.replace(message, tests=structs.replace(message.tests, failures=[]))
    )


def _shorten_verdicts(message: Complete) -> Complete:
    if message.verdicts is None:
        return message
    shortened_verdicts = [
        structs.replace(verdict, rule=verdict.rule[:60], actual=verdict.actual[:60], expected=verdict.expected[:60])
        for verdict in message.verdicts
    ]
    return structs.replace(message, verdicts=shortened_verdicts)


_REDUCTIONS: Final[tuple[Callable[[Complete], Complete], ...]] = (
    _shorten_step_names,
    _shorten_log_tail,
    _drop_step_names,
    _drop_test_failures,
    _shorten_verdicts,
)
