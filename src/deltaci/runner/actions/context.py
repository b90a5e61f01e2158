"""What a built-in step works with, and how it fails."""

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

_YES: Final = frozenset({"true", "yes", "on", "1"})
_NO: Final = frozenset({"false", "no", "off", "0", ""})


class JobContext(msgspec.Struct, kw_only=True):
    """One job, as its built-in steps see it."""

    spec: JobSpec
    layout: Layout
    cell: Cell
    log: JobLog
    transfers: Transfers
    caches: Caches
    harvester: OutputCollector
    expressions: JobExpressions
    mirrors: Path
    protocols: tuple[str, ...]  # By which sources may be fetched.
    env: dict[str, str] = {}  # Of the step that runs.
    timeout_seconds: float = 0.0
    paths: list[str] = []  # Folders of programs, the first first; for this step and all after it.
    set_env: dict[str, str] = {}  # Variables for all steps after this one.


class StepFailed(Exception):
    """A built-in step could not do what it was asked for. The code is the job's, if the step ends it."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


BuiltInStep = Callable[[JobContext, dict[str, str]], Awaitable[dict[str, str]]]
"""Does it with these inputs; returns the step's outputs."""


def known(inputs: dict[str, str], names: tuple[str, ...]) -> None:
    """Refuse an input that nobody would look at."""
    for name in inputs:
        if name not in names:
            raise Refused("bad_spec", f"the input {name[:80]!r} is not known here; there are {', '.join(names)}")


def flag(inputs: dict[str, str], name: str, default: bool) -> bool:
    """An input that is yes or no."""
    written = inputs.get(name)
    if written is None:
        return default
    if written.strip().lower() in _YES:
        return True
    if written.strip().lower() in _NO:
        return False
    raise Refused("bad_spec", f"the input {name!r} is {written[:80]!r}; say true or false")


def number(inputs: dict[str, str], name: str, default: int) -> int:
    """An input that is a whole number, not below 0."""
    written = inputs.get(name, "").strip()
    if not written:
        return default
    if not (written.isascii() and written.isdecimal()) or len(written) > 9:
        raise Refused("bad_spec", f"the input {name!r} is {written[:80]!r}; say a whole number")
    return int(written)


def lines(text: str) -> list[str]:
    """The lines of an input that is a list."""
    return [line.strip() for line in text.splitlines() if line.strip()]
