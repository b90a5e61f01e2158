"""The job as its steps and actions use it, the exception of a failed action, and the parsing of action inputs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.sandbox import Cell
from deltaci.runner.steps.expressions import JobExpressions
from deltaci.runner.transfers import Transfers
from deltaci.runner.workspace.caches import Caches
from deltaci.runner.workspace.collect_outputs import OutputCollector
from deltaci.runner.workspace.layout import Layout

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0", ""})


class JobContext(msgspec.Struct, kw_only=True):
    """One job on this runner: what its steps and actions use, and the state that they change for later steps."""

    spec: JobSpec
    layout: Layout
    cell: Cell
    log: JobLog
    transfers: Transfers
    caches: Caches
    collector: OutputCollector
    expressions: JobExpressions
    mirrors: Path
    protocols: tuple[str, ...]  # The protocols with which git may fetch sources.
    env: dict[str, str] = {}  # The environment of the current action.
    timeout_seconds: float = 0.0  # Of the current action.
    paths: list[str] = []  # Folders that steps put in front of PATH, for all later steps.
    set_env: dict[str, str] = {}  # Variables that steps set for all later steps.


class StepFailed(Exception):
    """Raised when an action fails. `code` becomes the error code of the job if this failure fails the job."""

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.code = code


Action = Callable[[JobContext, dict[str, str]], Awaitable[dict[str, str]]]
"""Performs a step's `uses` with its inputs and returns the step's outputs."""


def check_inputs(value_by_input: dict[str, str], valid_names: tuple[str, ...]) -> None:
    """Raise `Refused` if an input is not one that the action has."""
    for input_name in value_by_input:
        if input_name not in valid_names:
            raise Refused(
                "bad_spec", f"the input {input_name[:80]!r} is not known; expected one of {', '.join(valid_names)}"
            )


def boolean_input(value_by_input: dict[str, str], input_name: str, default: bool) -> bool:
    """Return an input as a boolean. Raise `Refused` for other values."""
    input_text = value_by_input.get(input_name)
    if input_text is None:
        return default
    if input_text.strip().lower() in _TRUE:
        return True
    if input_text.strip().lower() in _FALSE:
        return False
    raise Refused("bad_spec", f"the input {input_name!r} is {input_text[:80]!r}; expected true or false")


def integer_input(value_by_input: dict[str, str], input_name: str, default: int) -> int:
    """Return an input as a non-negative integer. Raise `Refused` for other values."""
    input_text = value_by_input.get(input_name, "").strip()
    if not input_text:
        return default
    if not (input_text.isascii() and input_text.isdecimal()) or len(input_text) > 9:
        raise Refused("bad_spec", f"the input {input_name!r} is {input_text[:80]!r}; expected a whole number")
    return int(input_text)


def non_empty_lines(text: str) -> list[str]:
    """Return the lines of an input, stripped of white space, without empty ones."""
    return [line.strip() for line in text.splitlines() if line.strip()]
