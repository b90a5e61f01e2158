"""Texts of jobs on the page of a run: short ones in full, long ones collapsed; and paged lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from deltaci.api.schemas.inputs import JobName
from deltaci.core.text import plain_line
from deltaci.server.web.markup import Child, Markup, code, dd, details, dl, dt, pre, span, summary
from deltaci.server.web.page_request import PageRequest

STYLES: Final = ("run_tabs.css",)
MAX_PLAIN_CHARS: Final = 160
MAX_SHOWN_CHARS: Final = 5000  # Of each: there may be many on a page, and it must stay small.
MAX_ASKED_CHARS: Final = 200


def told(text: str, name: str) -> Markup:
    """A text of a job, which nothing interprets. One line stays one; more is folded under this name."""
    if len(text) <= MAX_PLAIN_CHARS and "\n" not in text:
        return code(text, class_="told")
    cut = len(text) - MAX_SHOWN_CHARS
    more = f"\n… and {cut} characters more" if cut > 0 else ""
    # A scrolling text must be reachable by keys alone.
    block = pre(text[:MAX_SHOWN_CHARS], more, class_="told", tabindex="0", role="region", aria_label=name)
    return details(summary(name, span(f" {_size(text)}", class_="quiet")), block)


def _size(text: str) -> str:
    count = text.count("\n") + 1
    return f"{count} lines" if count > 1 else f"{len(text)} characters"


def job_asked(visit: PageRequest) -> str | None:
    """The job that somebody filters by. What no job can be called is looked for under a name that none has."""
    asked = visit.query.get("job", "").strip()
    try:
        return msgspec.convert(asked, JobName) if asked else None
    except msgspec.ValidationError:
        return "_" * 100


def text_asked(visit: PageRequest, name: str = "q") -> str:
    """What somebody searches for, as one line that the API takes."""
    return plain_line(visit.query.get(name, ""), MAX_ASKED_CHARS).strip()


def facts(known: Iterable[tuple[str, Child]]) -> Markup:
    """What is known, name by name."""
    return dl(*((dt(name), dd(value)) for name, value in known), class_="facts")
