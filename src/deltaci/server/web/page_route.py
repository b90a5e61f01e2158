"""The route of a page, and a request to a page that needs no session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from deltaci.server.request import Request
from deltaci.server.rest.http.request import AppState
from deltaci.server.web.auth.sessions import SessionManager, WebSession
from deltaci.server.web.page_request import Handler, PageResponse

if TYPE_CHECKING:
    from deltaci.server.web.auth.oidc_sign_in import OidcSignIn


class AnonymousRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a page that needs no session, such as the sign-in page."""

    request: Request
    query: Mapping[str, str]
    form: Mapping[str, list[str]]
    session: WebSession | None
    sessions: SessionManager
    parts: AppState
    is_secure: bool
    is_page: Callable[[str], bool]
    oidc: OidcSignIn | None = None

    def field(self, name: str) -> str:
        """What a field of the form says; of many the last one."""
        return self.form[name][-1] if self.form.get(name) else ""

    def safe(self, to: str) -> str:
        """A page of ours that somebody looks at, or nothing: `//elsewhere` and `/\\elsewhere` are not."""
        is_ours = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
        try:
            path = urlsplit(to).path if is_ours else ""
        except ValueError:
            path = ""
        return to if path and not path.startswith("/sign-") and self.is_page(path) else ""


AnonymousHandler = Callable[[AnonymousRequest], Awaitable[PageResponse]]


class PageRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One path with its GET and POST handlers. `enter` and `enter_post` need no session."""

    path: str
    get: Handler | None = None
    post: Handler | None = None
    enter: AnonymousHandler | None = None
    enter_post: AnonymousHandler | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is for somebody who may not be signed in."""
        return self.enter is not None or self.enter_post is not None
