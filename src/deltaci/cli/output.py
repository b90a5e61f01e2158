"""Terminal output: tables that fit the width, colours only on a terminal, and no control sequences.

Every text that comes from users or jobs must go through `safe`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.core.text import plain_line

MAX_CELL: Final = 500
MIN_FLEXIBLE: Final = 8
PIPED_WIDTH: Final = 160  # Where nobody says how wide it is: wide enough not to cut ids.
COLOURS: Final = {
    "SUCCEEDED": "green",
    "SUCCESS": "green",
    "FAILED": "red",
    "TIMEOUT": "red",
    "CANCELED": "magenta",
    "RUNNING": "cyan",
    "WAITING_APPROVAL": "yellow",
    "PENDING": "dim",
}
MARKS: Final = {
    "SUCCEEDED": "✓",
    "FAILED": "✗",
    "CANCELED": "■",
    "RUNNING": "●",
    "WAITING_APPROVAL": "?",
    "PENDING": "·",
}
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


class _PipeConsole(Console):
    """A Rich console that raises BrokenPipeError instead of exiting on a closed pipe."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which is handled like other errors."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console. Without a terminal it prints no colours and wide lines."""
    is_terminal = sys.stdout.isatty()
    return _PipeConsole(highlight=False, markup=False, emoji=False, width=None if is_terminal else PIPED_WIDTH)


def safe(text: object, most: int = MAX_CELL) -> str:
    """Return the text as one line without control sequences, of limited length."""
    return plain_line(str(text), most)


def status(word: str) -> Text:
    """Return a status with its colour and symbol."""
    mark = MARKS.get(word, "")
    return Text(f"{mark} {safe(word)}".strip(), style=COLOURS.get(word.upper(), ""))


def status_of(record: api.Run | api.Job) -> Text:
    """Return the status of a run or job, marked if it is being cancelled."""
    return status(record.status) + Text(" (canceling)" if record.canceling else "", style="dim")


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """Return how long ago a time is, or in how long it will be."""
    if moment is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def since(moment: datetime | None) -> str:
    """Return how long ago a time is, in the largest unit only, for a table."""
    text = ago(moment)
    words = text.removesuffix(" ago").removeprefix("in ").split()
    if len(words) <= 2:
        return text
    return text.replace(" ".join(words), " ".join(words[:2]))


def span(seconds: float) -> str:
    """Return a duration in its largest unit, and in the next smaller one while that matters."""
    for size, unit in _UNITS:
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            smaller = {"d": (3600, "h"), "h": (60, "min"), "min": (1, "s")}[unit]
            more = rest // smaller[0]
            return f"{whole} {unit} {more} {smaller[1]}" if more and whole < 10 else f"{whole} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{max(seconds, 0.1):.1f} s"


def took(begun: datetime | None, ended: datetime | None) -> str:
    """Return how long something took, or has taken so far."""
    if begun is None:
        return ""
    return span(max(0.0, ((ended or datetime.now(UTC)) - begun).total_seconds()))


class TableOutput:
    """A table without borders.

    A column name starting with `~` marks a flexible column: it is cut if it does not fit and omitted if it is empty.
    `#` marks a column of numbers; `~#` combines both.
    """

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._rows: list[list[Text]] = []

    def add(self, *cells: object) -> None:
        """Add a row. Control sequences are removed from texts."""
        self._rows.append([_cell(each) for each in cells])

    def table(self) -> Table:
        """Return the table for Rich."""
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
        kept = []
        for number, name in enumerate(self._columns):
            longest = max((row[number].cell_len for row in self._rows), default=0)
            is_flexible = name.startswith("~")
            if is_flexible and not longest:
                continue
            kept.append(number)
            made.add_column(
                name.lstrip("~#"),
                justify="right" if "#" in name else "left",
                no_wrap=not is_flexible,
                overflow="ellipsis",
                min_width=min(longest, MIN_FLEXIBLE) if is_flexible else None,
            )
        for row in self._rows:
            made.add_row(*(row[number] for number in kept))
        return made

    def print(self, empty: str) -> None:
        """Print the table, or the text `empty` if it has no rows."""
        show(self.table() if self._rows else empty)


def show(*renderables: RenderableType) -> None:
    """Print these objects. Without a terminal, remove the spaces with which Rich fills lines."""
    out = console()
    if out.is_terminal:
        out.print(*renderables)
        return
    with out.capture() as caught:
        out.print(*renderables)
    print("\n".join(line.rstrip() for line in caught.get().splitlines()))


def _cell(value: object) -> Text:
    # The text itself does not wrap, so that only its column gives way when there is not enough room.
    text = value.copy() if isinstance(value, Text) else Text(safe("" if value is None else value))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Return a table of names and values, without empty values."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in ("", None):
            made.add_row(name, value if isinstance(value, Text) else safe(value, 2000))
    return made


def about(run: api.Run) -> str:
    """Return the title of a run, or else its template and version."""
    if run.title:
        return run.title
    return run.template and f"{run.template}@{run.template_version}"
