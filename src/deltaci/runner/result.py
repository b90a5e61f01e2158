"""The result of a job as a message: what it used, and never more than a message may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import structs

from deltaci.protocol import messages as wire
from deltaci.protocol.messages import Complete, RuleResult, StepResult
from deltaci.runner.sandbox import Exit
from deltaci.runner.workspace.collect_outputs import CollectedOutputs


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the steps ended, before anybody was told."""

    exit: Exit
    steps: list[StepResult]
    error_code: str = ""
    summary: str = ""
    brought: CollectedOutputs = msgspec.field(default_factory=CollectedOutputs)
    outputs: dict[str, str] = {}
    is_skipped: bool = False
    verdicts: list[RuleResult] | None = None
    head: str = ""  # The commit that its tree has now.

    @property
    def is_valid(self) -> bool:
        """Whether it went well, and no rule that was looked at is broken."""
        return self.is_success and all(each.is_passed for each in self.verdicts or ())

    @property
    def is_success(self) -> bool:
        """Whether nothing went wrong. A step that took too long may still have ended with 0."""
        return self.exit.exit_code == 0 and not self.exit.is_timed_out and not self.error_code


def cost(wall_seconds: float, last: Exit, log_bytes: int, artifact_bytes: int) -> dict[str, Any]:
    """What the job used. Processor time and memory are those of processes that ended; absent where nobody counts."""
    used: dict[str, Any] = {"wall_seconds": round(wall_seconds, 3)}
    if last.cpu_seconds is not None:
        used["cpu_seconds"] = round(last.cpu_seconds, 3)
    if last.peak_memory_bytes is not None:
        used["peak_memory_bytes"] = last.peak_memory_bytes
    return {**used, "log_bytes": log_bytes, "artifact_bytes": artifact_bytes}


def fitting(said: Complete) -> Complete:
    """The message, with less for people in it if it would be refused as too large: a result must be heard."""
    for cut in _CUTS:
        if len(wire.encode(said)) <= wire.MAX_MESSAGE_BYTES:
            break
        said = cut(said)
    return said


def _short_names(said: Complete) -> Complete:
    return structs.replace(said, steps=[structs.replace(step, name=step.name[:100]) for step in said.steps])


def _short_tail(said: Complete) -> Complete:
    return structs.replace(said, log_tail=[line[:200] for line in said.log_tail[-10:]])


def _no_names(said: Complete) -> Complete:
    return structs.replace(said, steps=[structs.replace(step, name="") for step in said.steps])


def _no_failures(said: Complete) -> Complete:
    return said if said.tests is None else structs.replace(said, tests=structs.replace(said.tests, failures=[]))


def _short_verdicts(said: Complete) -> Complete:
    if said.verdicts is None:
        return said
    short = [
        structs.replace(each, rule=each.rule[:60], actual=each.actual[:60], expected=each.expected[:60])
        for each in said.verdicts
    ]
    return structs.replace(said, verdicts=short)


_CUTS: Final[tuple[Callable[[Complete], Complete], ...]] = (
    _short_names,
    _short_tail,
    _no_names,
    _no_failures,
    _short_verdicts,
)
