"""The pages of a run: overview, events, plan, tests, results."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.run import actions, events, overview, plan, results, tests

PAGES: Final[tuple[PageRoute, ...]] = (
    *overview.PAGES,
    *actions.PAGES,
    *events.PAGES,
    *plan.PAGES,
    *tests.PAGES,
    *results.PAGES,
)
