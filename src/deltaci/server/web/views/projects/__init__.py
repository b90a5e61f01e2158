"""Projects, their changes, failure rules, and flaky tests and jobs."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.projects import changes, deliveries, edit, failures, index, show, start

PAGES: Final[tuple[PageRoute, ...]] = (
    *index.PAGES,
    *show.PAGES,
    *edit.PAGES,
    *start.PAGES,
    *changes.PAGES,
    *deliveries.PAGES,
    *failures.PAGES,
)
