"""Workstreams: all of them by state, one of them, a new one, and what waits to be merged."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.pages import PageRoute
from deltaci.server.web.views.workstreams import board, create, merging, one

# A new one goes before any other: `new` is nobody's id.
PAGES: Final[tuple[PageRoute, ...]] = (*board.PAGES, *create.PAGES, *one.PAGES, *merging.PAGES)
