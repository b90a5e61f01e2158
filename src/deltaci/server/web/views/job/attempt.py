"""An attempt on the page of its job: facts and log.

A script loads the visible part of the log. Without scripts, the page contains its last lines.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from deltaci.api.routes import ROOT
from deltaci.api.schemas.records import Attempt, Job
from deltaci.core import attempt as attempt_core
from deltaci.core.ids import worker_name
from deltaci.core.text import plain_line
from deltaci.protocol.log_sections import looks_like_marker
from deltaci.protocol.messages import Timings
from deltaci.server.rest.streams.log_tails import LogFile
from deltaci.server.web.components import badge, lasted, nothing, path, stop_unconfirmed, when
from deltaci.server.web.markup import (
    EMPTY,
    Child,
    Markup,
    a,
    code,
    dd,
    div,
    dl,
    dt,
    h2,
    join,
    nav,
    p,
    pre,
    section,
    span,
    tag,
)
from deltaci.server.web.page_request import PageRequest

TAIL_BYTES: Final = 8 * 1024
TAIL_LINES: Final = 40
MAX_LINE: Final = 300
MAX_NAME: Final = 60


def name_of_attempt(attempt: Attempt) -> str:
    """As a tab is called."""
    return f"Attempt {attempt.index}"


async def attempt_part(visit: PageRequest, job: Job, attempt: Attempt, *, is_beside: bool) -> Markup:
    """The attempt, alone or beside another one."""
    wanted = visit.query.get("lease", "")
    number = int(wanted) if wanted.isdecimal() and 0 < int(wanted) <= attempt.lease and not is_beside else attempt.lease
    return section(
        h2(name_of_attempt(attempt), badge(attempt.status, attempt.state), id=f"attempt-{attempt.index}-title"),
        _facts(attempt),
        _leases(visit, attempt, number) if attempt.lease > 1 and not is_beside else None,
        await _log(visit, job, attempt, number, is_beside=is_beside),
        id=f"attempt-{attempt.index}",
        class_="try",
        aria_labelledby=f"attempt-{attempt.index}-title",
    )


def _facts(attempt: Attempt) -> Markup:
    worker, error = worker_name(attempt.worker_id), attempt.error
    report: dict[str, Any] = attempt.report if isinstance(attempt.report, dict) else {}
    began, ended = _times(attempt, report)
    facts: list[tuple[str, Child]] = [
        ("Worker", a(worker, href=path("workers", worker)) if worker else "none yet"),
        ("Began", when(began)),
        ("Took", lasted(began, ended)),
    ]
    if exit_of(report):
        facts.append(("Exit", exit_of(report)))
    if error is not None:
        retried = "retryable" if error.is_retryable else "not retryable"
        facts.append(("Failure", [code(error.failure_class), " by the rule ", code(error.rule), f", {retried}"]))
        if error.line:
            facts.append(("Because of", code(error.line)))
    if attempt.cancel_reason:
        facts.append(("Cancelled", attempt.cancel_reason))
    if attempt.stop_unconfirmed_until is not None:
        facts.append(("Stop", stop_unconfirmed(attempt.stop_unconfirmed_until)))
    if attempt.run_at is not None and (not attempt.lease or attempt.state == attempt_core.STALE):
        facts.append(("Not earlier than", when(attempt.run_at)))
    if attempt.reassign_at is not None:
        facts.append(("Worker silent", ["goes to another worker ", when(attempt.reassign_at)]))
    if attempt.lost_leases:
        facts.append(("Lost leases", f"{attempt.lost_leases}"))
    return dl(*(div(dt(name), dd(value)) for name, value in facts), class_="facts in-line")


def _times(attempt: Attempt, report: dict[str, Any]) -> tuple[datetime | None, datetime | None]:
    """When it began and ended, as its runner says; as the server saw it, until that is told."""
    over = attempt.updated_at if attempt.state in attempt_core.TERMINAL else None
    try:
        told = msgspec.convert(report.get("timings"), Timings)
    except msgspec.ValidationError:
        return attempt.started_at, over
    return told.started_at, told.finished_at


def exit_of(report: dict[str, Any]) -> str:
    """How its steps ended, as far as its runner told it: a signal, or the exit code of the step that failed."""
    if signal := report.get("signal"):
        return f"signal {signal}"
    for step in report.get("steps") or []:
        if isinstance(step, dict) and step.get("exit_code") and not step.get("is_tolerated"):
            name = str(step.get("name") or "")
            short = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
            return f"{step['exit_code']} in {short}" if name else str(step["exit_code"])
    return str(report["exit_code"]) if report.get("exit_code") is not None else ""


def _leases(visit: PageRequest, attempt: Attempt, number: int) -> Markup:
    """Each worker that had the attempt wrote a log of its own."""
    links = [
        a(
            f"Lease {each}",
            href=visit.same(lease=str(each), attempt=str(attempt.index)),
            aria_current="page" if each == number else None,
        )
        for each in range(1, attempt.lease + 1)
    ]
    return nav(*links, class_="tabs", aria_label="Leases of this attempt")


async def _log(visit: PageRequest, job: Job, attempt: Attempt, number: int, *, is_beside: bool) -> Markup:
    if not number:
        return nothing(
            "No worker has taken it yet, so there is no log.", "It appears here as soon as a worker writes it."
        )
    address = f"{ROOT}{path('runs', job.run_id, 'jobs', job.name, 'attempts', attempt.index, 'log')}"
    anchor = f"A{attempt.index}-L" if is_beside else "L"
    error = attempt.error
    # Drawn anew, the page leaves the log to its script: there is no need to send it again.
    is_again = bool(visit.request.header(b"delta-live"))
    return tag(
        "delta-log",
        EMPTY if is_again else await _last_lines(visit, job, attempt, number, address),
        id=f"log-{attempt.index}-{number}{'-beside' if is_beside else ''}",
        data_keep=True,
        data_address=address,
        data_lease=number,
        data_anchor=anchor,
        data_title=f"Log of attempt {attempt.index}" + (f", lease {number}" if attempt.lease > 1 else ""),
        data_failed=error is not None or None,
        data_failure=error.line if error is not None and error.line else None,
    )


async def _last_lines(visit: PageRequest, job: Job, attempt: Attempt, number: int, address: str) -> Markup:
    log = await visit.ask(
        "readLog", LogFile, query={"lease": number}, run=job.run_id, job=job.name, index=attempt.index
    )
    lines = [
        plain_line(line, MAX_LINE)
        for line in (await log.last(TAIL_BYTES)).decode(errors="replace").split("\n")
        if not looks_like_marker(line)
    ]
    return join(
        [
            div(
                p(a("Full log", href=f"{address}?lease={number}"), span(". Last lines:")),
                class_="log-bare",
            ),
            pre("\n".join(lines[-TAIL_LINES:]), tabindex="0", aria_label="Last lines of the log"),
        ]
    )
