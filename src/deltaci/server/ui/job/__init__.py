"""One job: how it is and why, its attempts, one or two at a time, and their logs."""

from __future__ import annotations

from typing import Final

from deltaci.server.ui.job import page
from deltaci.server.ui.pages import PageRoute

PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/runs/{run}/jobs/{job}", get=page.shown),)
