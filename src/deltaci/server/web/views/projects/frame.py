"""The heading and tabs of the four lists about projects."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.components import tabs, top
from deltaci.server.web.forms import STYLES
from deltaci.server.web.markup import Child, join
from deltaci.server.web.page_request import HtmlPage

TABS: Final = (
    ("projects", "Projects", "/projects"),
    ("changes", "Changes", "/changes"),
    ("failure-rules", "Failure rules", "/failure-rules"),
    ("flaky", "Flaky", "/flaky"),
)


def framed(title: str, *body: Child, tab: str, beside: Child = None, under: Child = None) -> HtmlPage:
    """One of them."""
    return HtmlPage(
        title=title,
        here="/projects",
        live={},
        styles=STYLES,
        body=join([top(title, beside, under=under), tabs(TABS, tab), *body]),
    )
