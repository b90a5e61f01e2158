"""Templates: list, show versions, edit, and start runs."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.templates import edit, index, show, start

PAGES: Final[tuple[PageRoute, ...]] = (*index.PAGES, *show.PAGES, *edit.PAGES, *start.PAGES)
