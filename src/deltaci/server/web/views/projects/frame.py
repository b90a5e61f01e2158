"""What the four lists around projects have in common: a head, and the way to each other."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.forms import STYLES
from deltaci.server.web.markup import Child, join
from deltaci.server.web.page_request import Page
from deltaci.server.web.parts import tabs, top

TABS: Final = (
    ("projects", "Projects", "/projects"),
    ("changes", "Changes", "/changes"),
    ("failure-rules", "Failure rules", "/failure-rules"),
    ("flaky", "Flaky", "/flaky"),
)


def framed(title: str, *body: Child, tab: str, beside: Child = None, under: Child = None) -> Page:
    """One of them."""
    return Page(
        title=title,
        here="/projects",
        live={},
        styles=STYLES,
        body=join([top(title, beside, under=under), tabs(TABS, tab), *body]),
    )
