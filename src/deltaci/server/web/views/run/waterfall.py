"""The timing of a run: a row for each job, its phases as bars with a colour and a pattern.

Bars have relative widths. A script extends the bars of running jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from deltaci.api.schemas.records import Job
from deltaci.api.schemas.timeline import JobTimes, Phase, Timeline
from deltaci.audit import timeline as core
from deltaci.server.web.components import path, seconds_text
from deltaci.server.web.markup import Markup, a, div, join, li, ol, p, span, svg, tag, ul

NAMES: Final[Mapping[str, str]] = {
    core.QUEUED: "queued",
    core.STARTING: "starting",
    core.RUNNING: "running",
    core.UPLOADING: "uploading",
    core.APPROVAL: "waiting for approval",
    core.BACKOFF: "waiting to retry",
    core.STOPPING: "stopping",
}
TICKS: Final = 4
BAR: Final = 18
# What each phase is filled with besides its colour; those without a pattern are plain.
_PATTERNS: Final[Mapping[str, tuple[int, str]]] = {
    core.QUEUED: (6, "M0 3h3"),
    core.STARTING: (6, "M0 6l6-6"),
    core.UPLOADING: (6, "M3 0v6"),
    core.APPROVAL: (8, "M0 0l8 8M0 8l8-8"),
    core.BACKOFF: (6, "M2 2h1v1h-1z"),
    core.STOPPING: (5, "M0 0l5 5"),
}


def waterfall(run_id: str, times: Timeline, jobs: Sequence[Job]) -> Markup:
    """The rows of these jobs, and what the bars mean."""
    shown = {each.name for each in jobs}
    rows = [each for each in times.jobs if each.job in shown]
    if not any(each.phases for each in rows):
        return p("No job has started yet.", class_="quiet")
    numbers = {each.job: at for at, each in enumerate(times.jobs)}
    used = {phase.phase for each in rows for phase in each.phases}
    whole = max(0.001, (times.until - times.start).total_seconds())
    critical = set(times.critical) if len(times.critical) > 1 else set()
    return div(
        _patterns(),
        _legend(used, has_critical=bool(critical & shown)),
        div(
            span(class_="fall-name", aria_hidden="true"),
            svg(*_ticks(whole), class_="fall-axis", height=20, aria_hidden="true", id="fall-axis"),
            class_="fall-row",
        ),
        ol(*(_row(run_id, times, each, numbers[each.job], whole, critical) for each in rows), class_="fall"),
        id="waterfall",
        class_="waterfall",
        data_start=_text(times.start),
        data_until=_text(times.until),
        data_goes_on=None if times.is_over else True,
    )


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _ticks(whole: float) -> list[Markup]:
    ends = {0: "start", TICKS: "end"}
    return [
        tag(
            "text",
            seconds_text(whole * n / TICKS) if n else "0",
            x=f"{100 * n / TICKS:g}%",
            y=14,
            text_anchor=ends.get(n, "middle"),
            data_tick=f"{n / TICKS:g}",
        )
        for n in range(TICKS + 1)
    ]


def _row(run_id: str, times: Timeline, row: JobTimes, number: int, whole: float, critical: Collection[str]) -> Markup:
    is_critical = row.job in critical
    bars = [_bar(times, phase, whole) for phase in row.phases]
    return li(
        a(row.job, href=path("runs", run_id, "jobs", row.job), class_="fall-name", title=row.job),
        svg(*bars, class_="fall-bars", height=BAR, aria_hidden="true", id=f"fall-{number}-bars"),
        span(_told(row), ", on the critical path" if is_critical else "", class_="hidden"),
        class_="fall-row critical" if is_critical else "fall-row",
        id=f"fall-{number}",
    )


def _bar(times: Timeline, phase: Phase, whole: float) -> Markup:
    start = (phase.start - times.start).total_seconds()
    end = ((phase.end or times.until) - times.start).total_seconds()
    name = NAMES.get(phase.phase, phase.phase)
    attempt = f"attempt {phase.attempt}, " if phase.attempt > 1 else ""
    lasts = seconds_text(end - start) if phase.end is not None else "running"
    place = {"x": f"{100 * start / whole:.3f}%", "width": f"{100 * max(0.0, end - start) / whole:.3f}%"}
    data = {"data_from": f"{start:.3f}", "data_to": f"{end:.3f}" if phase.end is not None else None}
    return tag(
        "g",
        tag("title", f"{attempt}{name}: {lasts}"),
        tag("rect", y=2, height=BAR - 4, class_=f"phase {phase.phase}", **place, **data),
        tag("rect", y=2, height=BAR - 4, fill=f"url(#phase-{phase.phase})", **place, **data)
        if phase.phase in _PATTERNS
        else None,
    )


def _told(row: JobTimes) -> str:
    """The same in words."""
    said = [
        f"{NAMES.get(each.phase, each.phase)} {seconds_text((each.end - each.start).total_seconds())}"
        if each.end is not None
        else f"{NAMES.get(each.phase, each.phase)} now"
        for each in row.phases
    ]
    return f": {', '.join(said)}" if said else ": it did not run"


def _legend(used: Collection[str], *, has_critical: bool) -> Markup:
    entries = [
        li(
            svg(
                tag("rect", width=20, height=12, class_=f"phase {phase}"),
                tag("rect", width=20, height=12, fill=f"url(#phase-{phase})") if phase in _PATTERNS else None,
                width=20,
                height=12,
                aria_hidden="true",
            ),
            name,
        )
        for phase, name in NAMES.items()
        if phase in used
    ]
    more = li(span(class_="critical-mark", aria_hidden="true"), "critical path") if has_critical else None
    return ul(*entries, more, class_="legend", aria_label="Legend")


def _patterns() -> Markup:
    found = [
        tag(
            "pattern",
            tag("path", d=drawn, class_="mark"),
            id=f"phase-{phase}",
            width=size,
            height=size,
            patternunits="userSpaceOnUse",
        )
        for phase, (size, drawn) in _PATTERNS.items()
    ]
    return svg(tag("defs", join(found)), width=0, height=0, class_="hidden", aria_hidden="true", focusable="false")
