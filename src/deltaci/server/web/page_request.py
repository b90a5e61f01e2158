"""A request to a page, and the responses that a page can return.

A page reads records only through the API, with the permissions of the person, so that the API's checks apply to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from deltaci.api.routes import ANY_KEY, OPERATOR, ROUTES, RequiredScope
from deltaci.core.errors import Refused
from deltaci.server.auth.callers import Caller
from deltaci.server.request import Request, Send
from deltaci.server.rest.http.app import ApiApp
from deltaci.server.rest.http.request import AppState
from deltaci.server.web.markup import Markup

NEEDS: Final[Mapping[str, RequiredScope]] = {route.id: route.required_scope for route in ROUTES}

T = TypeVar("T")


class HtmlPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page to render. `live` is the query of `/live` whose hints make the browser reload its content."""

    title: str
    body: Markup
    here: str = ""  # The entry of the navigation that it belongs to.
    live: Mapping[str, str] | None = None  # The query of /live: {} for all of the tenant, {"run": ID} for one run.
    modules: tuple[str, ...] = ()  # Scripts of its own, besides what every page has.
    styles: tuple[str, ...] = ()  # The same for style sheets.
    status: int = 200
    keys: tuple[tuple[str, str], ...] = ()  # Single keys of its own, and what they do.
    is_bare: bool = False  # Without navigation, for somebody who is not signed in.


class Redirect(msgspec.Struct, frozen=True, kw_only=True):
    """Send the browser to another page, which shows the message `said` at the top."""

    to: str
    said: str = ""
    is_bad: bool = False
    cookies: tuple[str, ...] = ()
    status: int = 303


class EventStream(msgspec.Struct, frozen=True):
    """A response that writes itself."""

    send: Callable[[Send], Awaitable[None]]


PageResponse = HtmlPage | Redirect | EventStream


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request by a person who is signed in."""

    request: Request
    who: Caller
    params: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, list[str]]
    csrf: str
    api: ApiApp
    parts: AppState
    again: Callable[[], Awaitable[Caller]]  # Who looks, looked at once more.
    origin: str = ""  # Where others reach this server: `https://ci.example.org`.

    async def ask(
        self,
        id: str,
        kind: type[T],
        /,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        once: str = "",
        **params: Any,
    ) -> T:
        """What the API answers to this route; refused as the API refuses. `once` is the idempotency key of a form."""
        answer = await self.api.call_handler(
            self.who, id, self.request, params=params, query=query or {}, body=body or {}, idempotency_key=once
        )
        assert isinstance(answer, kind), f"{id} answers {type(answer).__name__}"
        return answer

    async def is_over(self) -> bool:
        """Whether whoever looks would not be let in again now."""
        try:
            return (await self.again()).tenant != self.who.tenant
        except Refused:
            return True

    def may(self, id: str) -> bool:
        """Whether the API would let this person do it, as far as scopes go."""
        needs = NEEDS[id]
        return needs == ANY_KEY or (self.who.is_operator if needs == OPERATOR else needs in self.who.scopes)

    def field(self, name: str, default: str = "") -> str:
        """What a field of the form says; of many the last one."""
        return self.form[name][-1] if self.form.get(name) else default

    def same(self, **changed: str | None) -> str:
        """The query of this page with changes, as the end of an address; None and "" leave a word out."""
        left = {name: value for name, value in {**self.query, **changed}.items() if value}
        return f"?{urlencode(left)}" if left else "?"


Handler = Callable[[PageRequest], Awaitable[PageResponse]]
