"""Which address is which page: the table by which the web interface is routed, tested and looked over."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from deltaci.server.web import live
from deltaci.server.web.auth import login, tenant_choice
from deltaci.server.web.page_request import Answer, Redirect, Visit
from deltaci.server.web.pages import PageRoute
from deltaci.server.web.views import job, keys, projects, queue, run, runs, secrets, templates, workers, workstreams


class Found(msgspec.Struct, frozen=True):
    """The page of an address, and what the address leaves open."""

    route: PageRoute
    params: dict[str, str]


async def _home(_: Visit) -> Answer:
    return Redirect(to="/runs")


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path="/", get=_home),
    PageRoute(path="/live", get=live.live),
    *login.PAGES,
    *tenant_choice.PAGES,
    *runs.PAGES,
    *run.PAGES,
    *job.PAGES,
    *queue.PAGES,
    *workers.PAGES,
    *workstreams.PAGES,
    *projects.PAGES,
    *templates.PAGES,
    *secrets.PAGES,
    *keys.PAGES,
)

MAX_PATH_CHARS: Final = 2000  # Nothing of ours is longer, and what is looked for is remembered.
_BY_PARTS: Final = tuple((tuple(each.path.strip("/").split("/")), each) for each in PAGES)


def find(path: str) -> Found | None:
    """The page at this address. What is named goes before what is left open, in the order of the table."""
    return _find(path) if len(path) <= MAX_PATH_CHARS else None


@lru_cache(maxsize=2048)
def _find(path: str) -> Found | None:
    parts = path.removeprefix("/").split("/")
    for wanted, route in _BY_PARTS:
        if len(wanted) != len(parts):
            continue
        params: dict[str, str] = {}
        for want, part in zip(wanted, parts, strict=True):
            if want.startswith("{") and part:
                params[want.strip("{}")] = part
            elif want != part:
                break
        else:
            return Found(route, params)
    return None
