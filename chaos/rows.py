"""What a scenario reports: one row for each promise that was put to the test, with its figure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from rich.table import Table


class NotRun(Exception):
    """This machine cannot do it; the text says what is missing. Not a failure, and never silent."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One promise under one fault. `ok` is None when it could not be tried here; then `note` says why."""

    fault: str
    injected: str
    invariant: str
    figure: float | None
    unit: str
    limit: float | None = None
    ok: bool | None = True
    note: str = ""
    at: str = ""
    commit: str = ""
    machine: str = ""


def measured(
    fault: str, injected: str, invariant: str, figure: float, unit: str, limit: float | None = None, note: str = ""
) -> Row:
    """A figure that must not exceed its limit; one without a limit is for people to read."""
    is_ok = limit is None or figure <= limit
    return Row(
        fault=fault,
        injected=injected,
        invariant=invariant,
        figure=figure,
        unit=unit,
        limit=limit,
        ok=is_ok,
        note=note,
    )


def not_run(fault: str, injected: str, why: str) -> Row:
    """What could not be tried here."""
    return Row(fault=fault, injected=injected, invariant="", figure=None, unit="", ok=None, note=f"not run: {why}")


def broken(fault: str, why: str) -> Row:
    """A scenario that did not come to its end shows nothing, and that is a failure."""
    return Row(fault=fault, injected="", invariant="the scenario comes to its end", figure=1, unit="failures", limit=0,
               ok=False, note=why)  # fmt: skip


def readable(value: float | None) -> str:
    """Three significant digits, and never an exponent for a count."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def mark(row: Row) -> str:
    """One word for people; none for a figure of which nothing is promised."""
    if row.ok is None:
        return "not run"
    if not row.ok:
        return "BROKEN"
    return "" if row.limit is None else "yes"


def table(title: str, rows: Iterable[Row]) -> Table:
    """The rows, for a terminal."""
    drawn = Table("kept", title=title, title_justify="left")
    drawn.add_column("figure", justify="right")
    drawn.add_column("what was promised, under what")
    for row in rows:
        limit = "" if row.limit is None else f" (≤ {readable(row.limit)})"
        told = [row.invariant, f"under: {row.fault}: {row.injected}", row.note]
        drawn.add_row(mark(row), f"{readable(row.figure)} {row.unit}{limit}", "\n".join(filter(None, told)))
    return drawn


def p99(values: Iterable[float]) -> float:
    """The value that 99 of 100 do not exceed; the worst when there are fewer."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))] if ranked else 0.0
