"""Paged lists: by page number where the whole list is known, by cursor where it is not."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.markup import EMPTY, Child, Markup, a, nav, span
from deltaci.server.web.page_request import PageRequest

FROM: Final = "from"
MAX_DIGITS: Final = 9


def number(text: str, otherwise: int = 0) -> int:
    """A whole number that somebody wrote into an address or a form; what is none, or makes no sense, is `otherwise`."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else otherwise


def start_of(visit: PageRequest, name: str = FROM) -> int:
    """Where the page begins that the address asks for."""
    return number(visit.query.get(name, ""))


def pages(
    visit: PageRequest, start: int, per_page: int, count: int, *, what: str, name: str = FROM, at: str = ""
) -> Markup:
    """The way to the pages before and behind, of a list of which everything is known; `at` is its id on the page."""
    if count <= per_page and not start:
        return EMPTY
    back = min(start, count) - per_page
    last = min(count, start + per_page)
    return _ways(
        a("previous", href=_to(visit, name, str(back) if back > 0 else None, at), rel="prev") if start else None,
        span(f"{start + 1} to {last} of {count}", class_="quiet") if start < count else None,
        a("next", href=_to(visit, name, str(last), at), rel="next") if last < count else None,
        what=f"Pages of {what}",
    )


def onward(
    visit: PageRequest,
    next: str | None,
    *,
    name: str = "cursor",
    first: str = "newest",
    more: str = "older",
    says: Child = None,
) -> Markup:
    """The way to what follows, and back to the beginning, of a list of which only that is known."""
    is_later = bool(visit.query.get(name))
    if not is_later and next is None:
        return EMPTY
    return _ways(
        a(first, href=_to(visit, name, None)) if is_later else None,
        span(says, class_="quiet") if says else None,
        a(more, href=_to(visit, name, next), rel="next") if next is not None else None,
        what="Pages",
    )


def _to(visit: PageRequest, name: str, value: str | None, at: str = "") -> str:
    return visit.same(**{name: value}) + (f"#{at}" if at else "")


def _ways(*links: Child, what: str) -> Markup:
    return nav(*links, class_="more-pages", aria_label=what)
