"""`deltaci logs`: print or follow the log of a job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.cli import arguments
from deltaci.cli.completers import complete_job
from deltaci.cli.output import safe, show, span
from deltaci.cli.session import CommandSession, command
from deltaci.client.errors import ApiError
from deltaci.client.logs import LogPart
from deltaci.client.run_refs import RunRef
from deltaci.runner.log.sections import StepMarker, log_nonce, parse_marker

app = typer.Typer(add_completion=False)

MAX_LINE: Final = 100_000


@command(app, "logs")
def logs_command(
    session: CommandSession,
    id: Annotated[
        str,
        typer.Argument(metavar="RUN/JOB[.N]", help="A job, or its attempt number N.", autocompletion=complete_job),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log, through retries, until the job ends.")
    ] = False,
    lease: Annotated[
        int, typer.Option(min=0, help="The number of the lease, if workers were lost; 0: the last one.")
    ] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Print raw bytes, including terminal control sequences.")] = False,
) -> None:
    """Print the log of the last attempt of a job, or of a given attempt.

    Terminal escape sequences in the log are removed, and the step markers
    of the runner are shown as steps, unless --raw is given. With --json,
    each line is an object with its attempt.

    Examples:

      deltaci logs r4c1d/build --follow

      deltaci logs r4c1d/build.1
    """
    if raw and session.is_json:
        raise ValueError("--raw and --json exclude each other: JSON cannot contain raw bytes")
    name, job = _found(session, arguments.in_a_run(id))
    printer = _Printer(session, _raw if raw else None)
    if follow:
        if lease:
            raise ValueError("--lease cannot be used with --follow, which follows all leases")
        for part in session.client.follow_log(name.run, name.job, name.index):
            printer.add(part)
    else:
        index = name.index or max((each.index for each in job.tries), default=0)
        number = lease or next((each.lease for each in job.tries if each.index == index), 0)
        if number:
            data = session.client.log(name.run, name.job, index, lease=lease)
            printer.add(LogPart(attempt=index, lease=number, data=data))
        else:
            print(f"deltaci logs: {safe(id)} has no log: no worker has taken it yet", file=sys.stderr)
    printer.end()


def _found(session: CommandSession, names: tuple[RunRef, ...]) -> tuple[RunRef, api.Job]:
    """The job, by the first reading under which there is one with such an attempt."""
    *others, last = names
    for name in others:
        try:
            job = session.client.job(name.run, name.job)
        except ApiError as error:
            if error.code != "not_found":
                raise
            continue
        if any(each.index == name.index for each in job.tries):
            return name, job
    try:
        return last, session.client.job(last.run, last.job)
    except ApiError as error:
        if others and error.code == "not_found":
            first = others[0]
            error.message = f"there is no job {last.job!r} and no attempt {first.index} of a job {first.job!r}"
        raise


def _raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class _Printer:
    """Prints complete lines with control sequences removed, and a note when another worker or attempt begins."""

    def __init__(self, session: CommandSession, raw: Callable[[bytes], None] | None) -> None:
        self._session = session
        self._raw = raw
        self._at: LogPart | None = None
        self._rest = b""
        self._nonce: str | None = None
        self._is_first = True

    def add(self, part: LogPart) -> None:
        """A part of the log."""
        if self._at is not None and (part.attempt, part.lease) != (self._at.attempt, self._at.lease):
            self._flush()
            self._is_first, self._nonce = True, None
            why = "reassigned to another worker" if part.attempt == self._at.attempt else "retried"
            if not self._session.is_json:
                print(f"--- {why}: attempt {part.attempt}, lease {part.lease}", file=sys.stderr, flush=True)
        self._at = part
        if self._raw is not None:
            self._raw(part.data)
            return
        *lines, self._rest = (self._rest + part.data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > MAX_LINE:  # A line without an end is no reason to keep all of it.
            self._flush()
        sys.stdout.flush()

    def end(self) -> None:
        """The last line may have no end."""
        self._flush()
        sys.stdout.flush()

    def _flush(self) -> None:
        if self._rest:
            self._line(self._rest)
        self._rest = b""

    def _line(self, line: bytes) -> None:
        # What a terminal would overwrite by a carriage return is not shown either.
        text = safe(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace"), MAX_LINE)
        if self._session.is_json:
            assert self._at is not None
            self._session.print_json({"attempt": self._at.attempt, "lease": self._at.lease, "line": text})
            return
        if self._is_first:
            self._is_first, self._nonce = False, log_nonce(line + b"\n")
            if self._nonce is not None:
                return
        mark = parse_marker(line + b"\n", self._nonce) if self._nonce is not None else None
        if mark is None:
            print(text)
        else:
            show(_step(mark))


def _step(mark: StepMarker) -> Text:
    """Where a step begins or ends, as the runner wrote it: no job can write that."""
    if mark.name is not None:
        return Text(f"── {safe(mark.name)}", style="bold")
    took = span(mark.seconds or 0)
    if mark.exit_code == 0:
        return Text(f"── done in {took}", style="dim")
    how = "stopped" if mark.exit_code is None else f"exited with {mark.exit_code}"
    return Text(f"── {how} after {took}", style="red")
