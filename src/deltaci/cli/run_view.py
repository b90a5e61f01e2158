"""The output of `deltaci run`: a line per change in a pipe, a live table on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deltaci.cli.output import COLOURS, MARKS, safe, span
from deltaci.core import job
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.status.steps import step_status

REFRESHES: Final = 8  # a second
MAX_ROWS: Final = 40
TAIL_SHOWN: Final = 20


class LineOutput:
    """Prints a line for every change; with `is_chatty`, also every line that jobs print."""

    def __init__(self, out: Console, *, is_chatty: bool) -> None:
        self._out = out
        self._is_chatty = is_chatty
        self._width = 0

    def expect(self, names: Iterable[str]) -> None:
        """Set the names of the jobs to come, which determine the width of a column."""
        self._width = max((len(name) for name in names), default=0)

    def job_changed(self, job: Job, tail: list[str]) -> None:
        """Print the job's new state, and after a failure the end of its output."""
        if line := told(job, self._width):
            self._out.print(line, soft_wrap=True)
            if not self._is_chatty and tail:
                print_tail(self._out, tail)

    def step_started(self, name: str, step: str) -> None:
        """Print the name of the step if `is_chatty`."""
        if self._is_chatty:
            self._out.print(Text(f"{safe(name):<{self._width}} ▸ {safe(step)}", style="bold"), soft_wrap=True)

    def output_line(self, name: str, line: str) -> None:
        """Print a line of a job's output if `is_chatty`."""
        if self._is_chatty:
            self._out.print(
                Text(f"{safe(name):<{self._width}} │ ", style="dim").append(line, style="not dim"), soft_wrap=True
            )

    def __enter__(self) -> LineOutput:
        return self

    def __exit__(self, *_: object) -> None: ...


class LiveBoard:
    """A live table of running jobs; finished jobs move up into the scrollback of the terminal."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._jobs: dict[str, Job] = {}
        self._names: list[str] = []
        self._steps: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._live = Live(console=out, refresh_per_second=REFRESHES, get_renderable=self._shown, transient=True)
        self._width = 0

    def expect(self, names: Iterable[str]) -> None:
        """Set the names of the jobs to come."""
        self._names = list(names)
        self._width = max((len(name) for name in self._names), default=0)

    def job_changed(self, job: Job, tail: list[str]) -> None:
        """Update the job in the table. Print its outcome when it has ended."""
        name = job.spec.name
        self._jobs[name] = job
        if is_under_way(job):
            self._began.setdefault(name, time.monotonic())
        if is_over(job) and (line := told(job, self._width)):
            self._out.print(line, soft_wrap=True)
            if tail:
                print_tail(self._out, tail)

    def step_started(self, name: str, step: str) -> None:
        """Show the step beside its job."""
        self._steps[name], self._words[name] = step, ""

    def output_line(self, name: str, line: str) -> None:
        """Show the line beside its job."""
        if line.strip():
            self._words[name] = line

    def _shown(self) -> RenderableType:
        open_ = [name for name in self._names if name not in self._jobs or not is_over(self._jobs[name])]
        first = sorted(open_, key=lambda name: name not in self._began)
        table = Table.grid(padding=(0, 1), expand=True)
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        most = max(1, min(MAX_ROWS, self._out.size.height - 3))
        for name in first[:most]:
            table.add_row(*self._row(name))
        if len(first) > most:
            return Group(table, Text(f"  … and {len(first) - most} more", style="dim"))
        return table

    def _row(self, name: str) -> tuple[Text, Text, Text, Text]:
        record = self._jobs.get(name)
        word = step_status(record) if record is not None else "PENDING"
        took = span(time.monotonic() - self._began[name]) if name in self._began else ""
        said = self._words.get(name) or self._steps.get(name, "")
        mark = Text(MARKS.get(word, " "), style=COLOURS.get(word, ""))
        return mark, Text(safe(name)), Text(took, style="dim"), Text(said if name in self._began else "", style="dim")

    def __enter__(self) -> LiveBoard:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def is_over(record: Job) -> bool:
    """Return whether the job has ended."""
    return record.state in job.TERMINAL


def is_under_way(record: Job) -> bool:
    """Return whether a runner executes the job."""
    return record.started_at > 0 and not is_over(record)


def told(record: Job, width: int) -> Text | None:
    """Return a line about the job's present state, or None if there is nothing new to print."""
    word = step_status(record)
    line = Text(f"{MARKS.get(word, ' ')} ", style=COLOURS.get(word, "")).append(
        f"{safe(record.spec.name):<{width}}", style="not dim bold"
    )
    if is_over(record):
        took = f" in {span((record.completed_at - record.started_at) / SECOND)}" if record.started_at else ""
        line.append(f" {word.lower()}{took}")
        if record.last_error is not None:
            error = record.last_error
            line.append(f": {safe(error.message or error.line or error.code)}")
        elif record.reason:
            line.append(f": {REASONS.get(record.reason, safe(record.reason))}")
        return line
    if job.MACHINE.changes(record.state, job.Approve):
        return line.append(" waits for approval")
    return line.append(" runs") if is_under_way(record) else None


REASONS: Final = {
    job.BLOCKED: "a job that it needs did not succeed",
    job.NOT_NEEDED: "it is no longer needed",
    job.RUN_CANCELED: "the run was cancelled",
    job.RUN_TIMEOUT: "the run reached its time limit",
}


def print_tail(out: Console, tail: list[str]) -> None:
    """Print the last lines of a job's output."""
    for line in tail[-TAIL_SHOWN:]:
        out.print(Text("    │ ", style="dim").append(line, style="not dim"), soft_wrap=True)


Ask = Callable[[str], Any]
