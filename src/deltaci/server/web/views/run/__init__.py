"""One run, in parts: what it does now, its events, its plan, its tests, what it left behind."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.pages import PageRoute
from deltaci.server.web.views.run import actions, events, overview, plan, results, tests

PAGES: Final[tuple[PageRoute, ...]] = (
    *overview.PAGES,
    *actions.PAGES,
    *events.PAGES,
    *plan.PAGES,
    *tests.PAGES,
    *results.PAGES,
)
