"""HTML components of workstream pages: names, commits, failed rules, progress of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from deltaci.api.schemas.workstreams import FailedRule, WorkstreamSummary
from deltaci.server.web.components import path, tone
from deltaci.server.web.markup import Child, Markup, a, code, dd, div, dl, dt, join, li, span, strong, svg, tag, ul

STYLES: Final = ("workstreams.css",)
HERE: Final = "/workstreams"
QUEUES: Final = "/merge-queues"
COMMIT_CHARS: Final = 9
BAR: Final = 100  # Units of the drawing, across.
_RUN: Final = re.compile(r"\b(merge-[0-9a-f]{8,64}-[0-9a-f]{8,64})\b")
# Of the bar, from left to right: what is done, what went wrong, what goes on. All else is still to come.
_PARTS: Final = ("completed", "failed", "cancelled", "running", "validating", "retrying")


def name_of(line: WorkstreamSummary) -> str:
    """What people call it."""
    return line.title or line.name or line.id


def link(id: str, title: str, /, **attributes: object) -> Markup:
    """The way to a workstream."""
    return a(title or id, href=path("workstreams", id), **attributes)


def commit(name: str) -> Markup:
    """A commit, short; all of it as a title."""
    return code(name[:COMMIT_CHARS], title=name)


def nth(number: int) -> str:
    """`1st`, `2nd`, `13th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def many(count: int, word: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def rule(broken: FailedRule) -> Markup:
    """A rule that did not hold: its name, what was found, what was wanted."""
    return div(
        strong(broken.rule),
        dl(
            dt("found"),
            dd(broken.actual or "nothing"),
            dt("expected"),
            dd(broken.expected or "to hold"),
            class_="facts",
        ),
        class_="rule",
    )


def rules(broken: Iterable[FailedRule]) -> Markup | None:
    """All rules that did not hold, as a list; None for none."""
    told = [li(rule(each)) for each in broken]
    return ul(*told, class_="rules") if told else None


def bar(counts: Mapping[str, int], tasks: int) -> Markup:
    """How far the tasks are, for eyes; `so_far` says it in words."""
    drawn: list[Child] = [tag("rect", x=0, y=0, width=BAR, height=6, class_="all")]
    at = 0.0
    for state in _PARTS:
        width = BAR * counts.get(state, 0) / max(1, tasks)
        if width:
            drawn.append(tag("rect", x=round(at, 2), y=0, width=round(width, 2), height=6, class_=tone(state)))
        at += width
    return svg(
        *drawn,
        class_="bar",
        viewbox=f"0 0 {BAR} 6",
        preserve_aspect_ratio="none",
        aria_hidden="true",
        focusable="false",
    )


def so_far(counts: Mapping[str, int], tasks: int) -> str:
    """How far the tasks are, in words."""
    return f"{counts.get('completed', 0)} of {many(tasks, 'task')}"


def said_of(problem: str) -> Markup:
    """What went wrong, in the words of who said it; a test run that it names is a link."""
    parts = _RUN.split(problem)
    return join(a(part, href=path("runs", part)) if at % 2 else part for at, part in enumerate(parts))


def listed(names: Iterable[str]) -> str:
    """`a, b and c`."""
    known = list(names)
    return f"{', '.join(known[:-1])} and {known[-1]}" if len(known) > 1 else "".join(known)


def to_base(line: WorkstreamSummary) -> Markup:
    """Project and base."""
    project = line.project or "its project"
    return join(
        [span(project), span(" → ", aria_hidden="true"), span(" to ", class_="hidden"), code(line.base or "its base")]
    )
