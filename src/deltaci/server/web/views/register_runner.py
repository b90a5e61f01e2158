"""The page that adds a runner: it creates a registration token and shows it once, with the command that uses it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from deltaci.api.schemas.records import WorkerToken
from deltaci.server.web.components import path, top, when
from deltaci.server.web.forms import MODULES, STYLES, Form, FormProblem, asked, copied, needed
from deltaci.server.web.markup import a, code, div, join, p, pre, tag
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import AnonymousRequest, PageRoute

PATH: Final = "/runners/new"  # Not below /workers: a worker may have any name.
DEPRECATED_PATH: Final = "/let-in"  # An earlier address of this page, kept as a permanent redirect.
HERE: Final = "/workers"
TITLE: Final = "Add a runner"
HOUR: Final = 3600
TIMES: Final = (
    (str(HOUR), "an hour"),
    (str(24 * HOUR), "a day"),
    (str(7 * 24 * HOUR), "a week"),
    (str(30 * 24 * HOUR), "30 days"),
)
FRESH: Final = {"slots": "1", "expires_seconds": str(24 * HOUR)}
MAX_SLOTS: Final = 1000
NAME: Final = "1 to 100 characters, none of them a slash"


async def form(visit: PageRequest) -> PageResponse:
    """The form; for a runner that is known with its name in it."""
    if (stop := needed(visit, "makeWorkerToken", TITLE, HERE)) is not None:
        return stop
    again = {"again": "on"} if visit.query.get("again") == "1" else {}
    return _form(visit, {**FRESH, "name": visit.query.get("name", ""), **again})


async def make(visit: PageRequest) -> PageResponse:
    """The token, on the answer to the form itself: nothing leads to it again, and nobody keeps it."""
    values = {name: visit.field(name).strip() for name in visit.form if name != "csrf"}
    seconds, command = values.get("expires_seconds", ""), _command(visit, values)
    if isinstance(command, FormProblem):
        return _form(visit, values, command)
    answer = await asked(
        visit,
        "makeWorkerToken",
        WorkerToken,
        body={
            "name": values.get("name", ""),
            "again": bool(values.get("again")),
            "expires_seconds": int(seconds) if seconds.isascii() and seconds.isdecimal() else seconds,
        },
    )
    return _form(visit, values, answer) if isinstance(answer, FormProblem) else _made(answer, command)


def _form(visit: PageRequest, values: Mapping[str, str], problem: FormProblem | None = None) -> HtmlPage:
    made = Form(values, problem, problem.path if problem is not None else "", not_done="No token was created")
    fields = [
        made.text(
            "name",
            "Name of the runner",
            help="The runner keeps this name when it restarts.",
            expects=NAME,
            required=True,
            maxlength=100,
            autocomplete="off",
        ),
        div(
            made.text(
                "labels",
                "Labels",
                help="Labels of the machine, separated by commas: linux,gpu. Jobs select runners by label.",
                autocomplete="off",
            ),
            made.text("slots", "Slots", help="How many jobs it runs at once.", inputmode="numeric", autocomplete="off"),
            class_="fields",
        ),
        made.choice(
            "expires_seconds",
            "Token expires after",
            TIMES,
            help="The runner must register within this time. The token works once.",
        ),
        made.check(
            "again",
            "Replace the credential of a registered runner",
            help="Needed only if the runner lost its credential. A runner that is gone needs only a new token.",
        ),
    ]
    return made.page(visit, TITLE, *fields, here=HERE, to=PATH, submit="Create token")


def _made(token: WorkerToken, command: str) -> HtmlPage:
    return HtmlPage(
        title="Token created",
        here=HERE,
        styles=(*STYLES, "fleet.css"),
        modules=MODULES,
        body=join(
            [
                top("Token created"),
                div(
                    p(
                        tag("strong", "The token is shown only once."),
                        f" It registers one runner, {token.name}, until ",
                        when(token.expires_at),
                        ".",
                    ),
                    p("Run this on the runner machine, in the folder for its jobs:"),
                    pre(code(f"DELTACI_TOKEN={token.token} \\\n  {command}"), class_="command", tabindex="0"),
                    copied("command", "The same on one line", f"DELTACI_TOKEN={token.token} {command}"),
                    copied("token", "Token only", token.token),
                    p("The runner then appears ", a("in the list of workers", href=path("workers", token.name)), "."),
                    div(a("I have saved it: show all workers", href=HERE, class_="button"), class_="actions"),
                    class_="card once stack",
                    data_after=HERE,
                ),
            ]
        ),
    )


def _command(visit: PageRequest, values: Mapping[str, str]) -> str | FormProblem:
    """What starts the runner, as a shell reads it; or why there is no such command."""
    words = ["deltaci", "runner", "--server", visit.origin]
    slots = values.get("slots") or "1"
    if not (slots.isascii() and slots.isdecimal()) or len(slots) > 4 or not 1 <= int(slots) <= MAX_SLOTS:
        message = f"{slots[:20]!r} is not a number of slots; expected 1 to {MAX_SLOTS}"
        return FormProblem(code="bad_message", message=message, path="slots")
    if int(slots) > 1:
        words += ["--slots", str(int(slots))]
    labels = [each.strip() for each in values.get("labels", "").split(",") if each.strip()]
    if any(not each.isprintable() or " " in each for each in labels):
        message = "labels are separated by commas, for example linux,gpu"
        return FormProblem(code="bad_message", message=message, path="labels")
    return shlex.join([*words, "--labels", ",".join(labels)] if labels else words)


async def redirect(door: AnonymousRequest) -> PageResponse:
    """Redirect the deprecated path to the current one and keep the query; 308 also keeps the method and the form."""
    query = f"?{urlencode(door.query)}" if door.query else ""
    return Redirect(to=f"{PATH}{query}", status=308)


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path=PATH, get=form, post=make),
    PageRoute(path=DEPRECATED_PATH, enter=redirect, enter_post=redirect),
)
