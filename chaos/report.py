"""Writes the figures into docs/reliability.md: `python -m chaos.report`, after `python -m chaos`.

Reads the rows in chaos/out and, if there are any, those of the simulator in sim/out, which have the same format. Only
the text between the two markers is replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from chaos.rows import Row, format_number, outcome

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "reliability.md"
SOURCES: Final = (ROOT / "chaos" / "out", ROOT / "sim" / "out")
BEGIN: Final = "<!-- figures: written by python -m chaos.report -->"
END: Final = "<!-- end of figures -->"
HEAD: Final = "| injected | invariant | figure | must be | kept | note |\n|---|---|---|---|---|---|"


class NoMarkers(Exception):
    """The page has no markers for the figures."""


def read_rows(folders: Iterable[Path]) -> list[Row]:
    """Return all rows in these folders."""
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.json"))]
    return [row for path in files for row in msgspec.json.decode(path.read_bytes(), type=list[Row])]


def format_figures(rows: Sequence[Row]) -> str:
    """Format the figures as Markdown; the result does not depend on the order of the rows."""
    ranked = sorted(rows, key=lambda row: (row.fault.casefold(), row.injected, row.invariant, row.note))
    parts = [format_origin(ranked), summary(ranked)]
    for fault, fault_rows in groupby(ranked, key=lambda row: row.fault):
        parts.append(
            f"### {fault[:1].upper()}{fault[1:]}\n\n{HEAD}\n" + "\n".join(format_row(row) for row in fault_rows)
        )
    return "\n\n".join(parts)


def format_origin(rows: Sequence[Row]) -> str:
    """Say when, of which commit and on which machine the figures were taken."""
    origins = sorted({(row.at, row.commit, row.machine) for row in rows if row.at})
    text = [f"{at}, commit {commit or 'unknown'}, {machine or 'unknown machine'}" for at, commit, machine in origins]
    return f"Taken: {'; '.join(text) or 'nothing yet'}. Run `make chaos` for your own."


def summary(rows: Sequence[Row]) -> str:
    """Count the invariants that hold, in one sentence."""
    held = sum(row.ok is True and row.limit is not None for row in rows)
    missing = sum(row.ok is None for row in rows)
    broken = sum(row.ok is False for row in rows)
    others = len(rows) - held - missing - broken
    faults = len({row.fault for row in rows})
    text = f"{held} invariants held, {broken} broken, {missing} not run there, under {faults} faults"
    return f"{text}; and {others} figures without a limit."


def format_row(row: Row) -> str:
    """Format one row of a table."""
    limit = "" if row.limit is None else f"≤ {format_number(row.limit)}"
    figure = "" if row.figure is None else f"{format_number(row.figure)} {row.unit}"
    cells = (row.injected, row.invariant, figure, limit, outcome(row), row.note)
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"


def replace_figures(page: str, figures: str) -> str:
    """Return the page with these figures between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoMarkers(
            f"the page needs the lines {BEGIN!r} and {END!r}, in this order; put them where the figures belong"
        )
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write the page. Returns 2 if there are no rows or the page cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m chaos.report", description="Write the figures into a page.")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--rows", type=Path, action="append", help="a folder of rows, besides the usual ones")
    options = parser.parse_args(arguments)
    rows = read_rows([*SOURCES, *(options.rows or ())])
    if not rows:
        print("chaos.report: there are no rows; run 'make chaos' first", file=sys.stderr)
        return 2
    try:
        options.page.write_text(replace_figures(options.page.read_text("utf-8"), format_figures(rows)), "utf-8")
    except (OSError, NoMarkers) as error:
        print(f"chaos.report: {error}", file=sys.stderr)
        return 2
    print(f"{len(rows)} rows written to {options.page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
