"""Writes the figures into docs/reliability.md: `python -m chaos.report`, after `python -m chaos`.

Reads the rows in chaos/out and, if there are any, those of the simulator in sim/out, which have the same shape. Only
what is between the two markers is replaced; the rest of the page is written by people.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from chaos.rows import Row, mark, readable

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "reliability.md"
SOURCES: Final = (ROOT / "chaos" / "out", ROOT / "sim" / "out")
BEGIN: Final = "<!-- figures: written by python -m chaos.report -->"
END: Final = "<!-- end of figures -->"
HEAD: Final = "| injected | invariant | figure | must be | kept | note |\n|---|---|---|---|---|---|"


class NoMarkers(Exception):
    """The page does not say where the figures belong."""


def read(folders: Iterable[Path]) -> list[Row]:
    """All rows there are."""
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.json"))]
    return [row for path in files for row in msgspec.json.decode(path.read_bytes(), type=list[Row])]


def drawn(rows: Sequence[Row]) -> str:
    """The figures as Markdown: the same for the same rows, in whatever order they come."""
    ranked = sorted(rows, key=lambda row: (row.fault.casefold(), row.injected, row.invariant, row.note))
    parts = [taken(ranked), summary(ranked)]
    for fault, found in groupby(ranked, key=lambda row: row.fault):
        parts.append(f"### {fault[:1].upper()}{fault[1:]}\n\n{HEAD}\n" + "\n".join(line(row) for row in found))
    return "\n\n".join(parts)


def taken(rows: Sequence[Row]) -> str:
    """When, of what and on what machine."""
    places = sorted({(row.at, row.commit, row.machine) for row in rows if row.at})
    told = [f"{at}, commit {commit or 'unknown'}, {machine or 'unknown machine'}" for at, commit, machine in places]
    return f"Taken: {'; '.join(told) or 'nothing yet'}. Run `make chaos` for your own."


def summary(rows: Sequence[Row]) -> str:
    """How many promises, in one sentence."""
    kept = sum(row.ok is True and row.limit is not None for row in rows)
    missing = sum(row.ok is None for row in rows)
    broken = sum(row.ok is False for row in rows)
    others = len(rows) - kept - missing - broken
    faults = len({row.fault for row in rows})
    told = f"{kept} promises kept, {broken} broken, {missing} not run there, under {faults} faults"
    return f"{told}; and {others} figures of which nothing is promised."


def line(row: Row) -> str:
    """One row of a table."""
    limit = "" if row.limit is None else f"≤ {readable(row.limit)}"
    figure = "" if row.figure is None else f"{readable(row.figure)} {row.unit}"
    cells = (row.injected, row.invariant, figure, limit, mark(row), row.note)
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"


def replaced(page: str, figures: str) -> str:
    """The page with these figures between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoMarkers(
            f"the page needs the lines {BEGIN!r} and {END!r}, in this order; put them where the figures belong"
        )
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write the page; 2 when there is nothing to write, or nowhere."""
    parser = argparse.ArgumentParser(prog="python -m chaos.report", description="Write the figures into a page.")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--rows", type=Path, action="append", help="a folder of rows, besides the usual ones")
    options = parser.parse_args(arguments)
    rows = read([*SOURCES, *(options.rows or ())])
    if not rows:
        print("chaos.report: there are no rows; run 'make chaos' first", file=sys.stderr)
        return 2
    try:
        options.page.write_text(replaced(options.page.read_text("utf-8"), drawn(rows)), "utf-8")
    except (OSError, NoMarkers) as error:
        print(f"chaos.report: {error}", file=sys.stderr)
        return 2
    print(f"{len(rows)} rows written to {options.page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
