"""The web interface as an ASGI application: authenticate the request, find the page, render it or an error page.

Every page works without scripts. Scripts are loaded only from this server, and text that a job wrote is always escaped.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from deltaci.api.routes import REFUSALS, REQUEST_ID_HEADER
from deltaci.core.errors import Refused
from deltaci.server.auth.callers import Caller
from deltaci.server.errors import http_error
from deltaci.server.request import Receive, Request, Scope, Send
from deltaci.server.rest.http.app import ApiApp
from deltaci.server.rest.http.request import AppState
from deltaci.server.web import layout, routes
from deltaci.server.web.assets import FIRST_SOURCE, Assets, packed, takes_gzip
from deltaci.server.web.assets import ROOT as ASSETS_ROOT
from deltaci.server.web.auth.oidc_sign_in import OidcSignIn
from deltaci.server.web.auth.sessions import SessionManager, WebSession, cookie_of, set_cookie
from deltaci.server.web.page_request import EventStream, HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import AnonymousRequest
from deltaci.storage.port import Unavailable

MAX_FORM_BYTES: Final = 1024 * 1024
MAX_FORM_FIELDS: Final = 1000
SAID_COOKIE: Final = "deltaci_said"
MAX_SAID_CHARS: Final = 600
MAX_SAID_BYTES: Final = 1200  # Quoted it may be three times as long, and browsers keep 4096 of a cookie.
SAID_SECONDS: Final = 60
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'self' {FIRST_SOURCE}",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types page",
    )
)
SAFE: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
FOREVER: Final = "public, max-age=31536000, immutable"
A_DAY: Final = "public, max-age=86400"
TEXT: Final = "text/plain; charset=utf-8"
READS: Final = ("GET", "HEAD")
WRONG_METHOD: Final = 405
PLAIN: Final = frozenset({"/favicon.ico", "/robots.txt"})
ROBOTS: Final = b"User-agent: *\nDisallow: /\n"
NOT_OURS: Final = ("/runner/", "/openapi.json")
IN_ADDRESSES: Final = "/?#[]@!$&'()*+,;=:%-._~"  # What stays as it is; a line's end, and so a header, never does.


class WebApp:
    """Serves the pages and their assets."""

    def __init__(
        self,
        parts: AppState,
        api: ApiApp,
        sessions: SessionManager,
        public_url: str = "",
        oidc: OidcSignIn | None = None,
    ) -> None:
        self._parts = parts
        self._api = api
        self._sessions = sessions
        self._oidc = oidc
        self._assets = Assets()
        self._public = urlsplit(public_url)
        self._public_url = public_url.rstrip("/")
        api.session_caller = self.visitor

    def serves(self, scope: Scope) -> bool:
        """Whether this is for us: a page, or what somebody before a browser took for one."""
        path: str = scope["path"]
        if path.startswith(ASSETS_ROOT) or path in PLAIN or routes.find(path) is not None:
            return True
        if path.startswith(NOT_OURS):
            return False
        return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])

    def _is_secure(self, request: Request) -> bool:
        """Whether browsers reach us by TLS, which may end at a proxy before us."""
        return request.is_tls or self._public.scheme == "https"

    def _origin(self, request: Request) -> str:
        """The address by which people reach us: what the server was told, or else what the browser says."""
        scheme = "https" if self._is_secure(request) else "http"
        return self._public_url or f"{scheme}://{request.header(b'host')}"

    async def visitor(self, request: Request) -> Caller | None:
        """Who looks at the page that reads the API with this request; None for everybody else.

        Only reads, and not for pages of others: a browser sends them no cookie, and says which site began a request
        wherever it trusts the connection.
        """
        if request.method != "GET" or request.has_header(b"authorization"):
            return None
        if request.header(b"sec-fetch-site") not in ("same-origin", "none", ""):
            return None
        session = self._sessions.read(request, is_secure=self._is_secure(request))
        return await self._sessions.caller(session) if session is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        request.id = f"{random.getrandbits(64):016x}"
        if request.path.startswith(ASSETS_ROOT) or request.path in PLAIN:
            await self._send_asset(request, send)
            return
        session = self._sessions.read(request, is_secure=self._is_secure(request))
        try:
            answer = await self._answer(request, session, scope.get("query_string", b"").decode("latin-1"))
        except Exception as error:
            answer = self._refused(error, request, session)
        if isinstance(answer, EventStream):
            with suppress(ConnectionError):
                await answer.send(send)
        elif isinstance(answer, Redirect):
            await self._send_redirect(answer, request, send)
        else:
            await self._send_page(answer, request, session, send)

    async def _answer(self, request: Request, session: WebSession | None, query: str) -> PageResponse:
        found = routes.find(request.path)
        if found is None:
            raise Refused("not_found", f"there is no page {request.path[:200]!r}")
        wrong = Refused("wrong_method", f"{request.path[:200]!r} does not take {request.method[:20]!r}")
        if request.method not in (*READS, "POST"):
            raise wrong
        is_post = request.method == "POST"
        if is_post:
            check_same_site(request, self._public.netloc)
        asked = {name: values[-1] for name, values in _fields(query, "query", "replace").items()}
        form = await _form(request) if is_post else {}
        if found.route.is_open:
            enter = found.route.enter_post if is_post else found.route.enter
            if enter is None:
                raise wrong
            return await enter(self._door(request, session, asked, form))
        handler = found.route.post if is_post else found.route.get
        if handler is None:
            raise wrong
        if session is None:
            return sign_in_first(request, query)
        try:
            who = await self._sessions.caller(session)
        except Refused as refused:
            return sign_in_first(request, query, refused.message)
        await self._parts.tenants.check_rate(who.tenant)
        if is_post:
            self._sessions.check_form(session, form.get("csrf", []))
        answer = await handler(self._visit(request, session, who, found, asked, form))
        if isinstance(answer, EventStream) and request.method == "HEAD":
            raise wrong  # It would send nothing, for ever.
        return answer

    def _door(
        self, request: Request, session: WebSession | None, query: Mapping[str, str], form: Mapping[str, list[str]]
    ) -> AnonymousRequest:
        return AnonymousRequest(
            request=request,
            query=query,
            form=form,
            session=session,
            sessions=self._sessions,
            parts=self._parts,
            is_secure=self._is_secure(request),
            is_page=is_page,
            oidc=self._oidc,
        )

    def _visit(
        self,
        request: Request,
        session: WebSession,
        who: Caller,
        found: routes.RouteMatch,
        query: Mapping[str, str],
        form: Mapping[str, list[str]],
    ) -> PageRequest:
        return PageRequest(
            request=request,
            who=who,
            params=found.params,
            query=query,
            form=form,
            csrf=self._sessions.csrf(session),
            api=self._api,
            parts=self._parts,
            again=partial(self._sessions.caller, session),
            origin=self._origin(request),
        )

    def _refused(self, error: Exception, request: Request, session: WebSession | None) -> PageResponse:
        code, message, _ = http_error(error, request.id)
        known = REFUSALS.get(code) or REFUSALS["wrong_state"]
        back = back_of(request)
        if request.method == "POST" and session is not None and back and code != "internal":
            return Redirect(to=back, said=layout.sentence(message), is_bad=True)
        hint = known.hint
        if code == "not_found" and session is not None and len(session.grants) > 1:
            hint = f"check the address; the page may belong to another tenant than {session.tenant!r}"
        return layout.problem(known.status, known.title, message[:MAX_SAID_CHARS], hint, request.id)

    # -- what is sent

    async def _send_page(self, page: HtmlPage, request: Request, session: WebSession | None, send: Send) -> None:
        who = None
        if session is not None and not page.is_bare:
            with suppress(Refused, Unavailable):
                who = await self._sessions.caller(session)
        is_live = bool(request.header(b"delta-live"))
        is_secure = self._is_secure(request)
        said = "" if is_live else unquote(cookie_of(request, SAID_COOKIE, is_secure=is_secure))[:MAX_SAID_CHARS]
        csrf = self._sessions.csrf(session) if session is not None else ""
        key = layout.key_of(self._assets, who, csrf)
        etag = f'"{layout.etag_of(page, key)}"'
        is_known = is_live and page.status == 200 and request.header(b"if-none-match") == etag
        headers = {
            **SAFE,
            REQUEST_ID_HEADER: request.id,
            "Content-Type": "text/html; charset=utf-8",
            "Cache-Control": "no-store",
            "ETag": etag,
        }
        if said:
            headers["Set-Cookie"] = set_cookie(SAID_COOKIE, "", 0, is_secure=is_secure)
        if page.status == WRONG_METHOD:
            headers["Allow"] = ", ".join(allowed(request.path))
        if is_known:
            await _send(send, 304, b"", headers)
            return
        body = (
            layout.part(page, key)
            if is_live
            else layout.whole(
                page,
                assets=self._assets,
                who=who,
                others=tuple(enumerate(session.grants)) if session is not None else (),
                current=session.current if session is not None else 0,
                csrf=csrf,
                said=said,
            )
        )
        data = body.encode()
        headers["Vary"] = "Accept-Encoding, Sec-Fetch-Site"
        # Without TLS there is nothing to guess from a size: whoever sees it sees everything.
        site = request.header(b"sec-fetch-site") if is_secure else "none"
        small = packed(data, request.header(b"accept-encoding"), site)
        if small is not None:
            data, headers["Content-Encoding"] = small, "gzip"
        await _send(send, page.status, data, headers, has_body=request.method != "HEAD")

    async def _send_redirect(self, answer: Redirect, request: Request, send: Send) -> None:
        headers: list[tuple[str, str]] = [
            *SAFE.items(),
            (REQUEST_ID_HEADER, request.id),
            ("Cache-Control", "no-store"),
            ("Location", quote(answer.to, safe=IN_ADDRESSES)),
            *(("Set-Cookie", each) for each in answer.cookies),
        ]
        if answer.said:
            short = answer.said[:MAX_SAID_CHARS].encode("utf-8", "replace")[:MAX_SAID_BYTES].decode("utf-8", "ignore")
            told = quote(("!" if answer.is_bad else "") + short)
            cookie = set_cookie(SAID_COOKIE, told, SAID_SECONDS, is_secure=self._is_secure(request))
            headers.append(("Set-Cookie", cookie))
        await _send(send, answer.status, b"", headers)

    async def _send_asset(self, request: Request, send: Send) -> None:
        if request.method not in READS:
            await _send(send, WRONG_METHOD, b"only to be read", {"Content-Type": TEXT, "Allow": "GET, HEAD", **SAFE})
            return
        if request.path == "/robots.txt":
            await _send(send, 200, ROBOTS, {"Content-Type": TEXT, **SAFE}, has_body=request.method == "GET")
            return
        is_icon = request.path == "/favicon.ico"
        found = self._assets.find(self._assets.address("icon.svg") if is_icon else request.path)
        if found is None:
            await _send(send, 404, b"there is no such file", {"Content-Type": TEXT, **SAFE})
            return
        asset, is_current = found
        body = asset.body
        keep = A_DAY if is_icon else FOREVER if is_current else "no-store"
        headers = {**SAFE, "Content-Type": asset.kind, "Cache-Control": keep}
        if asset.packed:
            headers["Vary"] = "Accept-Encoding"
            if takes_gzip(request.header(b"accept-encoding")):
                body, headers["Content-Encoding"] = asset.packed, "gzip"
        await _send(send, 200, body, headers, has_body=request.method == "GET")


def is_page(path: str) -> bool:
    """Whether somebody can look at this address of ours."""
    found = routes.find(path)
    return found is not None and bool(found.route.get or found.route.enter) and path != "/live"


def allowed(path: str) -> list[str]:
    """What can be asked of a page."""
    found = routes.find(path)
    if found is None:
        return []
    route = found.route
    reads = READS if route.get or route.enter else ()
    return [*reads, *(["POST"] if route.post or route.enter_post else [])]


def back_of(request: Request) -> str:
    """The page that a form was on, if it is one of ours."""
    try:
        before = urlsplit(request.header(b"referer"))
    except ValueError:
        return ""
    if not is_page(before.path):
        return ""
    return f"{before.path}?{before.query}" if before.query else before.path


def check_same_site(request: Request, public: str) -> None:
    """Refuse a form that another site sent. A browser says where it comes from; what says nothing is no browser."""
    site = request.header(b"sec-fetch-site")
    try:
        origin = urlsplit(request.header(b"origin")).netloc
    except ValueError:
        origin = ""
    is_here = bool(origin) and origin in (request.header(b"host"), public)
    if site not in ("same-origin", "none") if site else not is_here:
        raise Refused(
            "not_allowed", "nothing was done: another site sent the form; open the page here and submit it again"
        )


def sign_in_first(request: Request, query: str, why: str = "") -> Redirect:
    """The way in, and from there to where somebody wanted to go."""
    wanted = quote(request.path, safe="/")
    if query:
        wanted = f"{wanted}?{query}"
    if request.method == "POST":
        wanted, why = back_of(request) or "/", why or "nothing was done: you are no longer signed in"
    to = f"/sign-in?to={quote(wanted, safe='')}" if wanted != "/" else "/sign-in"
    return Redirect(to=to, said=layout.sentence(why), is_bad=bool(why))


async def _form(request: Request) -> dict[str, list[str]]:
    kind = request.header(b"content-type").partition(";")[0].strip().lower()
    data = await request.body(MAX_FORM_BYTES)
    if kind != "application/x-www-form-urlencoded":
        raise Refused("bad_request", f"the Content-Type is {kind[:100]!r}; forms are application/x-www-form-urlencoded")
    try:
        return _fields(data.decode(), "form", "strict")
    except UnicodeDecodeError as error:
        raise Refused("bad_request", f"the form cannot be read: {error}") from None


def _fields(text: str, what: str, errors: str) -> dict[str, list[str]]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors=errors, max_num_fields=MAX_FORM_FIELDS)
    except ValueError as error:
        raise Refused("bad_request", f"the {what} cannot be read: {error}") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


async def _send(
    send: Send,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | list[tuple[str, str]],
    *,
    has_body: bool = True,
) -> None:
    told: list[tuple[bytes, bytes]] = [
        (name.lower().encode(), value.encode("latin-1", "replace"))
        for name, value in (headers.items() if isinstance(headers, Mapping) else headers)
    ]
    if status != 304:
        told.append((b"content-length", str(len(body)).encode()))
    with suppress(ConnectionError):
        message: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": told}
        await send(message)
        await send({"type": "http.response.body", "body": body if has_body else b""})
