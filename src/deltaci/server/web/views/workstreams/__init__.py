"""Workstreams: the board, one workstream, a form for a new one, and the merge queues."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.workstreams import board, create, merge_queues, show

# A new one goes before any other: `new` is nobody's id.
PAGES: Final[tuple[PageRoute, ...]] = (*board.PAGES, *create.PAGES, *show.PAGES, *merge_queues.PAGES)
