"""`deltaci verify`: verify an event log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from deltaci.audit.verify import FORMATS, NotAnEventLogError, Report, verify

LEGAL, NOT_LEGAL, UNREADABLE = 0, 1, 2
MAX_LINE_BYTES = 16 * 1024 * 1024

app = typer.Typer(add_completion=False)


class LineTooLongError(Exception):
    """A line of the log is longer than any valid line."""


def read_lines(source: BinaryIO, size: list[int]) -> Iterator[bytes]:
    """The lines of a log, one at a time; a line without end must not eat the memory."""
    number = 0
    while line := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise LineTooLongError(f"line {number} is longer than {MAX_LINE_BYTES // 1024 // 1024} MiB; no event is")
        size[0] += len(line)
        yield line


def check_file(file: str, format: str, *, quiet: bool) -> Report:
    """Verify one file, or standard input for `-`. Shows progress on a terminal when it takes long."""
    if file == "-":
        return verify(read_lines(sys.stdin.buffer, [0]), format)
    path = Path(file)
    with path.open("rb") as source:
        size, total = [0], path.stat().st_size
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("verifying"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
            console=console, transient=True,
        )  # fmt: skip
        with bar if console.is_terminal and not quiet else nullcontext():
            task = bar.add_task("verify", total=max(total, 1))
            return verify(read_lines(source, size), format, lambda _: bar.update(task, completed=size[0]))


def show(report: Report, seconds: float, *, limit: int, as_json: bool) -> None:
    """The summary, and what is wrong."""
    if as_json:
        told = {
            "legal": report.is_legal,
            "format": report.format,
            "lines": report.event_count,
            "entities": report.entity_count,
            "violations": report.violation_count,
            "seconds": round(seconds, 3),
            "found": [
                {
                    "line": v.line,
                    "rule": v.rule,
                    "document": v.document,
                    "page": v.page,
                    "found": v.found,
                    "legal": v.legal,
                }
                for v in report.violations[:limit]
            ],
        }
        print(msgspec.json.encode(told).decode())
        return
    for violation in report.violations[:limit]:
        print(violation)
    if report.violation_count > limit:
        print(f"… and {report.violation_count - min(limit, len(report.violations)):,} more (--limit shows more)")
    print(f"{report.summary()} ({seconds:.1f} s)")


@app.command("verify")
def verify_command(
    file: Annotated[str, typer.Argument(help="The log to check; - reads standard input.")],
    format: Annotated[
        str, typer.Option(help=f"The format of the log: {', '.join(FORMATS)}. Default: detected from its first line.")
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of violations to show.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Verify an event log: every transition, owner, number, time and invariant.

    Reads the canonical log, document 003's transitions.jsonl and document 004's job events. Exits with 0 if
    the log is legal, 1 if it is not, and 2 if it cannot be read.
    """
    if format and format not in FORMATS:
        fail(f"unknown format {format!r}; expected one of: {', '.join(FORMATS)}")
    started = time.monotonic()
    try:
        report = check_file(file, format, quiet=json)
    except (NotAnEventLogError, LineTooLongError) as error:
        fail(f"{file}: {error}")
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}; give the path of a log, or - for standard input")
    show(report, time.monotonic() - started, limit=limit, as_json=json)
    raise typer.Exit(LEGAL if report.is_legal else NOT_LEGAL)


def fail(message: str) -> None:
    """Say what is wrong with the call, and leave."""
    print(f"deltaci verify: {message}", file=sys.stderr)
    raise typer.Exit(UNREADABLE)
