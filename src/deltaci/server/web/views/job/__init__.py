"""The page of a job: its status and reasons, one or two attempts side by side, and their logs."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.job import page

PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/runs/{run}/jobs/{job}", get=page.shown),)
