"""The layout of every page: head, navigation, messages, and scripts."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from urllib.parse import urlencode

from deltaci.server.auth.callers import Caller
from deltaci.server.web.assets import FIRST, Assets
from deltaci.server.web.auth.sessions import SessionGrant
from deltaci.server.web.components import logo
from deltaci.server.web.markup import (
    Markup,
    a,
    button,
    code,
    details,
    dialog,
    div,
    form,
    h1,
    h2,
    header,
    input_,
    join,
    kbd,
    label,
    main,
    nav,
    p,
    span,
    summary,
    tag,
    text,
)
from deltaci.server.web.page_request import HtmlPage

# What page.js imports: asked for together with it, not after it.
IMPORTED: Final = ("live.js", "morph.js", "stream_slots.js", "times.js", "keys.js")
# The entry, its address, the key that goes there after `g`, and the scope without which it would be empty.
ENTRIES: Final = (
    ("Runs", "/runs", "r", "read"),
    ("Queue", "/queue", "q", "read"),
    ("Workers", "/workers", "w", "read"),
    ("Workstreams", "/workstreams", "s", "read"),
    ("Projects", "/projects", "p", "read"),
    ("Templates", "/templates", "t", "read"),
    ("Secrets", "/secrets", "e", "admin"),
    ("Keys", "/keys", "k", "admin"),
    ("Audit", "/audit", "a", "admin"),
)
SHORTCUTS: Final = (
    ("?", "show this list"),
    ("/", "search"),
    ("j k", "next and previous row of a list"),
    ("Enter", "open the row"),
    *((f"g {key}", name.lower()) for name, _, key, _ in ENTRIES),
)


def whole(
    page: HtmlPage,
    *,
    assets: Assets,
    who: Caller | None,
    others: tuple[tuple[int, SessionGrant], ...],
    current: int,
    csrf: str,
    said: str,
) -> Markup:
    """The document."""
    key = key_of(assets, who, csrf)
    modules = ("page.js", *page.modules)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.title} · Delta CI"),
        tag("link", rel="icon", href=assets.address("icon.svg"), type="image/svg+xml"),
        tag("script", Markup(FIRST)),
        *(tag("link", rel="stylesheet", href=assets.address(name)) for name in ("style.css", *page.styles)),
        *(tag("script", type="module", src=assets.address(name)) for name in modules),
        *(tag("link", rel="modulepreload", href=assets.address(name)) for name in IMPORTED),
    ]
    live = f"/live?{urlencode(page.live)}" if page.live is not None and who is not None else None
    tenant = who.tenant if who is not None else None
    body = [
        a("Skip to the content", href="#main", class_="skip"),
        _header(page, who, others, current, csrf) if who is not None else None,
        div(_said(said), id="said", role="status"),
        main(page.body, id="main", tabindex="-1"),
        _shortcuts(page) if who is not None else None,
    ]
    return join(
        [
            Markup("<!doctype html>"),
            tag(
                "html",
                tag("head", *head),
                tag("body", *body, data_live=live, data_tenant=tenant, class_="bare" if who is None else None),
                lang="en",
                data_key=key,
                data_etag=etag_of(page, key),
            ),
        ]
    )


def part(page: HtmlPage, key: str) -> Markup:
    """What of it changes while somebody looks: a page that is there asks for nothing else."""
    title, content = tag("title", f"{page.title} · Delta CI"), main(page.body, id="main", tabindex="-1")
    return join([Markup("<!doctype html>"), tag("html", tag("head", title), tag("body", content), data_key=key)])


def key_of(assets: Assets, who: Caller | None, csrf: str) -> str:
    """What everything around a page depends on: the build, and who looks. A page with another one is loaded anew."""
    named = (assets.build, csrf, *((who.tenant, who.person, *sorted(who.scopes)) if who is not None else ()))
    return blake2b("\0".join(named).encode(), digest_size=8).hexdigest()


def etag_of(page: HtmlPage, key: str) -> str:
    """What two looks at a page have in common as long as it is the same."""
    return blake2b("\0".join((key, page.title, page.body)).encode(), digest_size=12).hexdigest()


def problem(status: int, title: str, message: str, hint: str, request_id: str) -> HtmlPage:
    """A page that says why there is none."""
    return HtmlPage(
        title=title,
        status=status,
        body=div(
            h1(sentence(title).rstrip(".")),
            p(sentence(message)),
            p(f"What to do: {hint}.") if hint else None,
            div(a("All runs", href="/runs", class_="button"), class_="actions"),
            p("Request ", code(request_id), class_="quiet"),
            class_="problem card stack",
        ),
    )


def sentence(message: str) -> str:
    """What the API says, as people write."""
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith(('.', '…')) else '.'}" if message else ""


def _said(said: str) -> Markup | None:
    if not said:
        return None
    is_bad = said.startswith("!")
    return p(said.removeprefix("!"), class_="said bad" if is_bad else "said", role="alert" if is_bad else None)


def _header(
    page: HtmlPage, who: Caller, others: tuple[tuple[int, SessionGrant], ...], current: int, csrf: str
) -> Markup:
    links = [
        a(name, href=address, aria_current="page" if page.here == address else None, data_go=key)
        for name, address, key, scope in ENTRIES
        if scope in who.scopes
    ]
    return header(
        a(logo(), span("Delta CI"), href="/runs", class_="brand"),
        nav(*links, aria_label="Main", class_="main-nav"),
        _live() if page.live is not None else None,
        _account(who, others, current, csrf),
    )


def _live() -> Markup:
    """Whether what is seen is what is so. It is not seen itself before a script knows."""
    dot = span(class_="dot", aria_hidden="true")
    return span(dot, span("live", id="live-word"), id="live", class_="live", role="status")


def _account(who: Caller, others: tuple[tuple[int, SessionGrant], ...], current: int, csrf: str) -> Markup:
    hidden = input_(type="hidden", name="csrf", value=csrf)
    switches = [
        form(
            hidden,
            button(grant.tenant, type="submit", name="tenant", value=grant.tenant),
            method="post",
            action="/tenant",
        )
        for at, grant in others
        if at != current
    ]
    return details(
        summary(span(who.person, class_="person"), span(who.tenant, class_="tenant"), aria_label="Account"),
        div(
            p("Signed in as ", tag("strong", who.person), " to ", tag("strong", who.tenant)),
            p("Scopes: ", ", ".join(sorted(who.scopes)) or "none", class_="quiet"),
            p("Other tenants") if switches else None,
            *switches,
            p(a("Sign in to another tenant", href="/sign-in")),
            div(
                button("Switch light or dark theme", type="button", id="theme"),
                button("Shortcuts", type="button", command="show-modal", commandfor="shortcuts"),
                form(hidden, button("Sign out", type="submit"), method="post", action="/sign-out"),
                class_="actions",
            ),
            class_="menu",
        ),
        class_="account",
        id="account",
    )


def _shortcuts(page: HtmlPage) -> Markup:
    lines = [
        join([tag("dt", join([kbd(key), text(" ")] for key in keys.split())), tag("dd", does)])
        for keys, does in (*SHORTCUTS, *page.keys)
    ]
    return dialog(
        h2("Keyboard", id="shortcuts-title"),
        tag("dl", *lines, class_="keys"),
        label(input_(type="checkbox", id="shortcuts-on", checked=True), " Enable single-key shortcuts", class_="check"),
        div(button("Close", type="button", command="close", commandfor="shortcuts"), class_="actions"),
        id="shortcuts",
        aria_labelledby="shortcuts-title",
    )
