"""One job: how it is and why, its attempts, one or two at a time, and their logs."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.pages import PageRoute
from deltaci.server.web.views.job import page

PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/runs/{run}/jobs/{job}", get=page.shown),)
