"""Repositories that the server knows, what happened in them, and how failures are classed."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.pages import PageRoute
from deltaci.server.web.views.projects import changes, edited, failures, listed, started, viewed

PAGES: Final[tuple[PageRoute, ...]] = (
    *listed.PAGES,
    *viewed.PAGES,
    *edited.PAGES,
    *started.PAGES,
    *changes.PAGES,
    *failures.PAGES,
)
