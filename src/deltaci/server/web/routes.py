"""The table of all pages by path. It is used for routing and by tests."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from deltaci.server.web import live
from deltaci.server.web.auth import login, tenant_switch
from deltaci.server.web.page_request import PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views import (
    audit,
    job,
    keys,
    projects,
    queue,
    run,
    runs,
    secrets,
    templates,
    workers,
    workstreams,
)


class RouteMatch(msgspec.Struct, frozen=True):
    """The route of a path, and the values of its parameters."""

    route: PageRoute
    params: dict[str, str]


async def _home(_: PageRequest) -> PageResponse:
    return Redirect(to="/runs")


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path="/", get=_home),
    PageRoute(path="/live", get=live.live),
    *login.PAGES,
    *tenant_switch.PAGES,
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
    *audit.PAGES,
)

MAX_PATH_CHARS: Final = 2000  # Nothing of ours is longer, and what is looked for is remembered.
_BY_PARTS: Final = tuple((tuple(each.path.strip("/").split("/")), each) for each in PAGES)


def find(path: str) -> RouteMatch | None:
    """The page at this address. What is named goes before what is left open, in the order of the table."""
    return _find(path) if len(path) <= MAX_PATH_CHARS else None


@lru_cache(maxsize=2048)
def _find(path: str) -> RouteMatch | None:
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
            return RouteMatch(route, params)
    return None
