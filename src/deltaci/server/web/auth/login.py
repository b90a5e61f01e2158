"""The pages for signing in and out."""

from __future__ import annotations

from typing import Final

from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.server.auth.callers import Caller
from deltaci.server.auth.credentials import PREFIX
from deltaci.server.web.auth import oidc_sign_in
from deltaci.server.web.auth.sessions import VOUCHED_SECONDS, SessionGrant
from deltaci.server.web.components import logo
from deltaci.server.web.layout import sentence
from deltaci.server.web.markup import (
    Markup,
    a,
    button,
    code,
    div,
    form,
    h1,
    input_,
    label,
    p,
    section,
    small,
)
from deltaci.server.web.page_request import HtmlPage, PageResponse, Redirect
from deltaci.server.web.page_route import AnonymousRequest, PageRoute

MAX_TOKEN_CHARS: Final = 4000


async def sign_in(door: AnonymousRequest) -> PageResponse:
    """The form."""
    return _page(door, door.safe(door.query.get("to", "")))


async def enter(door: AnonymousRequest) -> PageResponse:
    """Somebody shows a key. What is wrong with it is said; the key itself never is."""
    to = door.safe(door.field("to"))
    try:
        grant = await _granted(door, door.field("key").strip())
    except Refused as refused:
        return _page(door, to, refused.message)
    session = await door.sessions.begin([grant], door.session)
    return Redirect(to=to or "/runs", cookies=(door.sessions.cookie(session, is_secure=door.is_secure),))


async def sign_out(door: AnonymousRequest) -> PageResponse:
    """Forget all of it, in this browser and at the server."""
    if door.session is not None:
        door.sessions.check_form(door.session, door.form.get("csrf", []), is_any=True)
        await door.sessions.end(door.session)
    gone = door.sessions.cookie(None, is_secure=door.is_secure)
    return Redirect(to="/sign-in", said="You are signed out.", cookies=(gone,))


async def _granted(door: AnonymousRequest, token: str) -> SessionGrant:
    if not token:
        raise Refused("bad_credential", "the key field is empty; paste your API key")
    if len(token) > MAX_TOKEN_CHARS or not (token.isascii() and token.isprintable()) or " " in token:
        raise Refused("bad_credential", "not an API key: expected one line that begins with dck_")
    if not token.startswith(PREFIX):
        return grant_of(await door.parts.keys.caller(token))
    try:
        link = door.parts.signer.read(token, "enter")
    except Refused as refused:
        if refused.code == "expired_credential":
            raise Refused(refused.code, "the link has expired; run 'deltaci web' to get a new one") from None
        return grant_of(await _operator(door, token))
    expires_at = int((door.sessions.now() + VOUCHED_SECONDS) * SECOND)
    return SessionGrant(tenant=link.tenant, person=link.runner_id, expires_at=expires_at, is_operator=True)


async def _operator(door: AnonymousRequest, token: str) -> Caller:
    try:
        return await door.parts.keys.caller(token)
    except Refused as refused:
        if refused.code == "expired_credential":
            raise Refused(refused.code, "the operator token has expired; run 'deltaci web' to get a new link") from None
        raise Refused(refused.code, "not an operator token of this server") from None


def grant_of(who: Caller) -> SessionGrant:
    """What a session keeps of somebody with a key, or of the operator."""
    if who.key_id:
        return SessionGrant(tenant=who.tenant, person=who.person, key_id=who.key_id)
    return SessionGrant(tenant=who.tenant, person=who.person, expires_at=who.expires_at, is_operator=who.is_operator)


def _page(door: AnonymousRequest, to: str, problem: str = "") -> HtmlPage:
    return HtmlPage(
        title="Sign in",
        body=div(
            logo(),
            h1("Sign in"),
            p(sentence(problem), class_="said bad", role="alert") if problem else None,
            _issuer(door, to),
            _form(to, is_first=door.oidc is None),
            _others(door, to),
            class_="login card",
        ),
        is_bare=True,
        modules=("login.js",),
        styles=("login.css",),
        status=401 if problem else 200,
    )


def _issuer(door: AnonymousRequest, to: str) -> Markup | None:
    """A link, not a form: what a form leads to must be ours, and the issuer is not."""
    if door.oidc is None:
        return None
    return div(
        a(f"Continue with {door.oidc.name}", href=door.oidc.address(to), class_="button primary", id="oidc"),
        p("or", class_="or quiet"),
        class_="stack",
    )


def _form(to: str, *, is_first: bool) -> Markup:
    return form(
        label("API key", for_="key"),
        div(
            input_(
                **{"id": "key", "name": "key", "type": "password", "autocomplete": "current-password"},
                required=True,
                autofocus=is_first,
                maxlength=MAX_TOKEN_CHARS,
                spellcheck="false",
                autocapitalize="none",
                aria_describedby="key-help",
            ),
            button("Show", type="button", id="show-key", aria_pressed="false", aria_controls="key", hidden=True),
            class_="with-button",
        ),
        small(
            p("No key yet? Ask an administrator of this server to create one:"),
            p(code("deltaci key create you --scope run")),
            p("On the server's own machine, no key is needed: ", code("deltaci web")),
            id="key-help",
        ),
        input_(type="hidden", name="to", value=to),
        button("Sign in", type="submit", class_="primary" if is_first else None),
        method="post",
        action="/sign-in",
        class_="stack",
        id="login",
    )


def _others(door: AnonymousRequest, to: str) -> Markup | None:
    """What this browser is signed in to already."""
    if door.session is None:
        return None
    csrf = door.sessions.csrf(door.session)
    lines = [
        form(
            input_(type="hidden", name="csrf", value=csrf),
            input_(type="hidden", name="to", value=to),
            button(f"{each.tenant} as {each.person}", type="submit", name="tenant", value=each.tenant),
            method="post",
            action="/tenant",
        )
        for each in door.session.grants
    ]
    return section(p("This browser is already signed in:", id="already"), *lines, class_="stack already")


PAGES: Final = (
    PageRoute(path="/sign-in", enter=sign_in, enter_post=enter),
    PageRoute(path="/sign-out", enter_post=sign_out),
    *oidc_sign_in.PAGES,
)
