"""How a runner gets into the fleet: a token that is shown once, with the command in which it is used."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from deltaci.api.schemas.records import WorkerToken
from deltaci.server.web.forms import MODULES, STYLES, Form, Problem, asked, copied, needed
from deltaci.server.web.markup import a, code, div, join, p, pre, tag
from deltaci.server.web.page_request import Answer, Page, Visit
from deltaci.server.web.pages import PageRoute
from deltaci.server.web.parts import path, top, when

PATH: Final = "/let-in"  # Not below /workers: a worker may have any name.
HERE: Final = "/workers"
TITLE: Final = "Let a runner in"
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


async def form(visit: Visit) -> Answer:
    """The form; for a runner that is known with its name in it."""
    if (stop := needed(visit, "makeWorkerToken", TITLE, HERE)) is not None:
        return stop
    again = {"again": "on"} if visit.query.get("again") == "1" else {}
    return _form(visit, {**FRESH, "name": visit.query.get("name", ""), **again})


async def make(visit: Visit) -> Answer:
    """The token, on the answer to the form itself: nothing leads to it again, and nobody keeps it."""
    values = {name: visit.field(name).strip() for name in visit.form if name != "csrf"}
    seconds, command = values.get("expires_seconds", ""), _command(visit, values)
    if isinstance(command, Problem):
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
    return _form(visit, values, answer) if isinstance(answer, Problem) else _made(answer, command)


def _form(visit: Visit, values: Mapping[str, str], problem: Problem | None = None) -> Page:
    made = Form(values, problem, problem.path if problem is not None else "", not_done="No token was made")
    fields = [
        made.text(
            "name",
            "Name of the runner",
            help="It has this name in all of its lives.",
            expects=NAME,
            required=True,
            maxlength=100,
            autocomplete="off",
        ),
        div(
            made.text(
                "labels",
                "Labels",
                help="What its machine offers, with commas between: linux,gpu. Jobs ask for them.",
                autocomplete="off",
            ),
            made.text("slots", "Slots", help="How many jobs it does at once.", inputmode="numeric", autocomplete="off"),
            class_="fields",
        ),
        made.choice("expires_seconds", "The token is good for", TIMES, help="Until the runner came in, once."),
        made.check(
            "again",
            "The runner is among the workers, and has lost its credential",
            help="One that is gone needs only a new token.",
        ),
    ]
    return made.page(visit, TITLE, *fields, here=HERE, to=PATH, submit="Make a token")


def _made(token: WorkerToken, command: str) -> Page:
    return Page(
        title="The token was made",
        here=HERE,
        styles=(*STYLES, "fleet.css"),
        modules=MODULES,
        body=join(
            [
                top("The token was made"),
                div(
                    p(
                        tag("strong", "This is the only time that it is shown."),
                        f" It lets a runner called {token.name} in, once, until ",
                        when(token.expires_at),
                        ".",
                    ),
                    p("On the other machine, in the folder in which its jobs shall work:"),
                    pre(code(f"DELTACI_TOKEN={token.token} \\\n  {command}"), class_="command", tabindex="0"),
                    copied("command", "The same in one line", f"DELTACI_TOKEN={token.token} {command}"),
                    copied("token", "Only the token", token.token),
                    p("The runner is then ", a("among the workers", href=path("workers", token.name)), "."),
                    div(a("I have kept it: all workers", href=HERE, class_="button"), class_="actions"),
                    class_="card once stack",
                    data_after=HERE,
                ),
            ]
        ),
    )


def _command(visit: Visit, values: Mapping[str, str]) -> str | Problem:
    """What starts the runner, as a shell reads it; or why there is no such command."""
    words = ["deltaci", "runner", "--server", visit.origin]
    slots = values.get("slots") or "1"
    if not (slots.isascii() and slots.isdecimal()) or len(slots) > 4 or not 1 <= int(slots) <= MAX_SLOTS:
        message = f"{slots[:20]!r} is no number of slots; expected one from 1 to {MAX_SLOTS}"
        return Problem(code="bad_message", message=message, path="slots")
    if int(slots) > 1:
        words += ["--slots", str(int(slots))]
    labels = [each.strip() for each in values.get("labels", "").split(",") if each.strip()]
    if any(not each.isprintable() or " " in each for each in labels):
        message = "labels are words, with commas between; write them as linux,gpu"
        return Problem(code="bad_message", message=message, path="labels")
    return shlex.join([*words, "--labels", ",".join(labels)] if labels else words)


PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path=PATH, get=form, post=make),)
