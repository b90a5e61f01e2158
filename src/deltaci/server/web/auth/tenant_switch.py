"""Switch the browser to another tenant that it is signed in to."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from deltaci.core.errors import Refused
from deltaci.server.web.page_request import PageResponse, Redirect
from deltaci.server.web.page_route import AnonymousRequest, PageRoute

# Lists, which every tenant has: who looks at one and switches sees the other tenant's.
LISTS: Final = (
    *("/runs", "/queue", "/workers", "/workstreams", "/merge-queues", "/projects", "/changes", "/templates"),
    *("/secrets", "/keys", "/flaky", "/failure-rules"),
)


async def switch(door: AnonymousRequest) -> PageResponse:
    """Look at another tenant that this browser is signed in to."""
    if door.session is None:
        raise Refused("bad_credential", "you are not signed in; sign in first")
    door.sessions.check_form(door.session, door.form.get("csrf", []), is_any=True)
    session = door.sessions.switch(door.session, door.field("tenant"))
    before = urlsplit(door.request.header(b"referer")).path
    to = door.safe(door.field("to")) or (before if before in LISTS else "/runs")
    cookie = door.sessions.cookie(session, is_secure=door.is_secure)
    return Redirect(to=to, said=f"You are now viewing {session.tenant}.", cookies=(cookie,))


PAGES: Final = (PageRoute(path="/tenant", enter_post=switch),)
