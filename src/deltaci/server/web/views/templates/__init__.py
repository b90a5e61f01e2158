"""Plans to be used again: list, look at each version, start a run from one, change them."""

from __future__ import annotations

from typing import Final

from deltaci.server.web.pages import PageRoute
from deltaci.server.web.views.templates import edited, listed, started, viewed

PAGES: Final[tuple[PageRoute, ...]] = (*listed.PAGES, *viewed.PAGES, *edited.PAGES, *started.PAGES)
