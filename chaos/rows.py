"""What a scenario reports: one row for each invariant that was tested, with its figure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from rich.table import Table


class NotRun(Exception):
    """This machine cannot run the scenario; the text says what is missing. It is reported, but is not a failure."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One invariant under one fault. `ok` is None if it could not be tested here; then `note` says why."""

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
    """Return a row for a figure that must not exceed its limit; without a limit it is only reported."""
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


def not_run(fault: str, injected: str, reason: str) -> Row:
    """Return a row for something that could not be tested here."""
    return Row(fault=fault, injected=injected, invariant="", figure=None, unit="", ok=None, note=f"not run: {reason}")


def broken(fault: str, reason: str) -> Row:
    """Return a failed row for a scenario that did not complete."""
    return Row(fault=fault, injected="", invariant="the scenario comes to its end", figure=1, unit="failures", limit=0,
               ok=False, note=reason)  # fmt: skip


def format_number(value: float | None) -> str:
    """Format with three significant digits, but counts without an exponent."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def outcome(row: Row) -> str:
    """Return whether the invariant held, in one word; empty for a figure without a limit."""
    if row.ok is None:
        return "not run"
    if not row.ok:
        return "BROKEN"
    return "" if row.limit is None else "yes"


def table(title: str, rows: Iterable[Row]) -> Table:
    """Format the rows as a table for the terminal."""
    result = Table("kept", title=title, title_justify="left")
    result.add_column("figure", justify="right")
    result.add_column("what was promised, under what")
    for row in rows:
        limit = "" if row.limit is None else f" (≤ {format_number(row.limit)})"
        lines = [row.invariant, f"under: {row.fault}: {row.injected}", row.note]
        result.add_row(outcome(row), f"{format_number(row.figure)} {row.unit}{limit}", "\n".join(filter(None, lines)))
    return result


def p99(values: Iterable[float]) -> float:
    """Return the value that 99 of 100 do not exceed; the largest one if there are fewer than 100."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))] if ranked else 0.0
