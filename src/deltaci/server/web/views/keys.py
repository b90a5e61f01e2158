"""API keys: list, create and revoke. A new key is shown once, in the response to the form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from deltaci.api.schemas.inputs import MAX_PAGE, SCOPES, Scope
from deltaci.api.schemas.records import Key, KeyPage, NewKey
from deltaci.server.web.components import action, badge, card, nothing, path, rows, top, when
from deltaci.server.web.forms import MODULES, STYLES, Form, FormProblem, asked, copied, needed
from deltaci.server.web.markup import (
    Markup,
    a,
    code,
    dd,
    div,
    dl,
    dt,
    fieldset,
    input_,
    join,
    label,
    legend,
    p,
    span,
    strong,
)
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute

HERE: Final = "/keys"
NEW: Final = "/new/key"
MAX_PAGES: Final = 5
DAY: Final = 86400
MAY: Final[Mapping[Scope, str]] = {
    "read": "view everything: runs, logs, artifacts, workers, projects",
    "run": "start, cancel and rerun runs; report pushes; includes read",
    "approve": "approve and reject jobs at approval gates; includes read",
    "admin": "manage projects, templates, secrets and keys; includes all other scopes",
    "runner": "register, drain and resume runners",
}
EXPIRES: Final = (
    (str(7 * DAY), "in 7 days"),
    (str(30 * DAY), "in 30 days"),
    (str(90 * DAY), "in 90 days"),
    (str(365 * DAY), "in a year"),
    ("0", "never, unless revoked"),
)
FRESH: Final = {"scope.read": "on", "expires_seconds": str(90 * DAY)}
HEADINGS: Final = ("Person", "State", "Scopes", "Roles", "Created", "Expires", "")
PERSON: Final = "letters, digits and _ . @ + -, starting with a letter or a digit"


async def listed(visit: PageRequest) -> PageResponse:
    """All of the tenant's keys, the newest first; those that let nobody in any more below."""
    if (stop := needed(visit, "listKeys", "API keys", HERE)) is not None:
        return stop
    keys, is_all = await _all(visit)
    good, over = [each for each in keys if not _end(each)], [each for each in keys if _end(each)]
    return HtmlPage(
        title="API keys",
        here=HERE,
        live={},
        styles=STYLES,
        body=join(
            [
                top("API keys", a("New key", href=NEW, class_="button primary")),
                _table(visit, good, "Active keys")
                if good
                else nothing("There is no active key.", a("Create the first one", href=NEW)),
                card("Inactive", _table(visit, over, "Keys that were revoked or have expired")) if over else None,
                None
                if is_all
                else p("There are more keys: ", code("deltaci key list"), " lists all of them.", class_="quiet"),
            ]
        ),
    )


async def _all(visit: PageRequest) -> tuple[list[Key], bool]:
    """The keys, and whether these are all of them."""
    found: list[Key] = []
    cursor = ""
    for _ in range(MAX_PAGES):
        page = await visit.ask("listKeys", KeyPage, query={"limit": MAX_PAGE, "cursor": cursor})
        found += page.keys
        if page.next is None:
            break
        cursor = page.next
    return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True), page.next is None


def _end(key: Key) -> str:
    """Why it lets nobody in; empty if it does."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else ""


def _table(visit: PageRequest, keys: list[Key], caption: str) -> Markup:
    return rows(
        HEADINGS, [_line(visit, each) for each in keys], caption=caption, keys=[f"key-{each.id}" for each in keys]
    )


def _line(visit: PageRequest, key: Key) -> list[Markup | str]:
    end = _end(key)
    is_own = key.id == visit.who.key_id
    ends = join([when(key.revoked_at), f" by {key.revoked_by}"]) if key.revoked_at else when(key.expires_at)
    return [
        join(
            [
                span(key.person, span(" · you", class_="quiet") if is_own else None, class_="name"),
                span(key.description, " " if key.description else "", code(key.id), class_="quiet"),
            ]
        ),
        badge(end or "good"),
        ", ".join(key.scopes),
        ", ".join(key.roles),
        join([when(key.created_at), span(f" by {key.created_by}", class_="quiet")]),
        span("never", class_="quiet") if key.expires_at is None and key.revoked_at is None else ends,
        "" if key.revoked_at else _revokes(visit, key, is_own=is_own),
    ]


def _revokes(visit: PageRequest, key: Key, *, is_own: bool) -> Markup:
    return action(
        visit,
        f"revoke-{key.id}",
        "Revoke",
        route="revokeKey",
        to=path("keys", key.id, "revoke"),
        asks=join(
            [
                p("Nobody can use the key ", code(key.id), f" of {key.person} any more. This cannot be undone."),
                p(strong("You are signed in with this key and will be signed out.")) if is_own else None,
            ]
        ),
        is_dangerous=True,
    )


async def revoke(visit: PageRequest) -> PageResponse:
    """Let nobody in with it any more."""
    key = await visit.ask("revokeKey", Key, key=visit.params["key"])
    return Redirect(to=HERE, said=f"The key {key.id} of {key.person} was revoked.")


async def new(visit: PageRequest) -> PageResponse:
    """The form."""
    if (stop := needed(visit, "makeKey", "New API key", HERE)) is not None:
        return stop
    return _form(visit, FRESH)


async def make(visit: PageRequest) -> PageResponse:
    """Make it, and show its secret: now, and never again."""
    values = {name: visit.field(name) for name in visit.form if name != "csrf"}
    seconds = visit.field("expires_seconds")
    answer = await asked(
        visit,
        "makeKey",
        NewKey,
        body={
            "person": visit.field("person").strip(),
            "scopes": [scope for scope in SCOPES if visit.field(f"scope.{scope}")],
            "roles": visit.field("roles").replace(",", " ").split(),
            "description": visit.field("description").strip(),
            "expires_seconds": int(seconds) if seconds.isascii() and seconds.isdecimal() else seconds,
        },
    )
    return _form(visit, values, answer) if isinstance(answer, FormProblem) else _made(visit, answer)


def _form(visit: PageRequest, values: Mapping[str, str], problem: FormProblem | None = None) -> HtmlPage:
    at = problem.path.partition("[")[0] if problem is not None else ""
    if problem is not None and at == "scopes":
        problem = FormProblem(code=problem.code, message="choose at least one scope", path=at)
    form = Form(values, problem, at, not_done="No key was created")
    fields = [
        form.text(
            "person",
            "Person",
            help="Who uses the key. Approvals and events show this name. For a program, enter its name.",
            expects=PERSON,
            required=True,
            maxlength=100,
            autocomplete="off",
        ),
        _scopes(form, problem if at == "scopes" else None),
        div(
            form.choice("expires_seconds", "Expires", EXPIRES, help="A key that expires cannot be forgotten."),
            form.text(
                "roles",
                "Roles",
                help="For approvals that require a role. Separate several with spaces.",
                expects="role names separated by spaces",
                autocomplete="off",
            ),
            class_="fields",
        ),
        form.text("description", "Description", help="What the key is for.", maxlength=1000, autocomplete="off"),
    ]
    return form.page(visit, "New API key", *fields, here=HERE, to=NEW, submit="Create the key")


def _scopes(form: Form, problem: FormProblem | None) -> Markup:
    """What it may do, each with what that means."""
    told = "scopes-problem" if problem is not None else None
    boxes = [
        label(
            input_(
                type="checkbox",
                id="scopes" if scope == SCOPES[0] else f"scope.{scope}",
                name=f"scope.{scope}",
                value="on",
                checked=form.value(f"scope.{scope}") == "on",
                aria_describedby=told,
                aria_invalid="true" if told else None,
                autofocus=bool(told) and scope == SCOPES[0],
            ),
            span(strong(scope), f" – {MAY[scope]}"),
            class_="check",
        )
        for scope in SCOPES
    ]
    return fieldset(
        legend("Scopes"),
        div(*boxes, class_="scopes"),
        p(problem.message, id="scopes-problem", class_="wrong-text") if problem is not None else None,
    )


def _made(visit: PageRequest, key: NewKey) -> HtmlPage:
    return HtmlPage(
        title="Key created",
        here=HERE,
        styles=STYLES,
        modules=MODULES,
        body=join(
            [
                top("Key created"),
                div(
                    p(
                        strong("The key is shown only once."),
                        f" Send it to {key.person} over a private channel; the server stores only a hash.",
                    ),
                    copied("token", "API key", key.token),
                    copied(
                        "command",
                        "For the command line",
                        f"export DELTACI_SERVER={visit.origin} DELTACI_KEY={key.token}",
                    ),
                    p(
                        "Programs send it as ",
                        code("Authorization: Bearer …"),
                        "; people sign in with it at ",
                        code(f"{visit.origin}/sign-in"),
                        ".",
                    ),
                    dl(
                        *(dt("Person"), dd(key.person), dt("Scopes"), dd(", ".join(key.scopes))),
                        *((dt("Roles"), dd(", ".join(key.roles))) if key.roles else ()),
                        *(dt("Expires"), dd(when(key.expires_at, absent="never, unless revoked"))),
                        class_="facts",
                    ),
                    div(a("I have saved it: show all keys", href=HERE, class_="button"), class_="actions"),
                    class_="card once stack",
                    data_after=HERE,
                ),
            ]
        ),
    )


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path=HERE, get=listed),
    PageRoute(path=NEW, get=new, post=make),
    PageRoute(path="/keys/{key}/revoke", post=revoke),
)
