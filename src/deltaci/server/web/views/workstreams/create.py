"""The form for a new workstream: its file, with problems shown next to the input."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from deltaci.api.schemas.inputs import MAX_PAGE
from deltaci.api.schemas.projects import ProjectPage
from deltaci.api.schemas.workstreams import Workstream
from deltaci.pipeline.parse.problems import Problem
from deltaci.pipeline.workstream import parse
from deltaci.server.web import forms
from deltaci.server.web.components import field, hidden, nothing, path, top
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    button,
    code,
    div,
    form,
    h2,
    input_,
    join,
    li,
    ol,
    option,
    p,
    pre,
    select,
    textarea,
)
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.workstreams.components import HERE, STYLES, many, name_of

NEW: Final = f"{HERE}/new"
MAX_SHOWN: Final = 20  # Problems at a time: the rest is told when these are gone.
MAX_LINE: Final = 160
DRAFT_BYTES: Final = 12
START: Final = """\
workstream: hello
title: Greet people, and thank them
tasks:
  - name: greet
    run: echo hello > greeting.txt
  - name: thank
    needs: greet
    run: echo "thank you" >> greeting.txt
    post_execution:
      - files: greeting.txt
        contains: thank
validation: grep -q hello greeting.txt
merge: squash
"""


class WorkstreamDraft(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the form. Submitting the same `key` twice starts one workstream."""

    text: str = START
    project: str = ""
    base: str = ""
    key: str


def new_key() -> str:
    """For a form that was not sent before."""
    return f"form-{secrets.token_hex(DRAFT_BYTES)}"


async def asked(visit: PageRequest) -> PageResponse:
    """The form."""
    return await _page(visit, WorkstreamDraft(project=visit.query.get("project", ""), key=new_key()))


async def created(visit: PageRequest) -> PageResponse:
    """Start it, or show what was typed again with what is wrong with it."""
    draft = WorkstreamDraft(
        text=visit.field("file").replace("\r\n", "\n"),
        project=visit.field("project"),
        base=visit.field("base").strip(),
        key=visit.field("draft") or new_key(),
    )
    if not visit.may("createWorkstream"):
        return await _page(visit, draft, status=403)
    read = await asyncio.to_thread(parse.parse_file, draft.text)
    wrong = [each for each in read.problems if not each.is_warning]
    if wrong:
        return await _page(visit, draft, problems=wrong, status=forms.REFUSED)
    body = {"file": draft.text, "project": draft.project, "base": draft.base}
    made = await forms.asked(visit, "createWorkstream", Workstream, body=body, once=draft.key)
    if isinstance(made, forms.FormProblem):
        said = made.message
        if made.code == "request_id_reused":  # They came back, and changed it: that is another one.
            draft = msgspec.structs.replace(draft, key=new_key())
            said = "This form already started a workstream with a different text. Submit it again to start another one."
        return await _page(visit, draft, said=said, status=forms.REFUSED)
    return Redirect(to=path("workstreams", made.id), said=f"{name_of(made)} was started.")


async def _page(
    visit: PageRequest, draft: WorkstreamDraft, *, problems: Sequence[Problem] = (), said: str = "", status: int = 200
) -> HtmlPage:
    head = top("New workstream", a("The board", href=HERE, class_="button"))
    if not visit.may("createWorkstream"):
        body = nothing(
            "Starting a workstream needs the scope run, which your key does not have.",
            "Ask an administrator for a key with it.",
        )
    else:
        projects = [
            each.name for each in (await visit.ask("listProjects", ProjectPage, query={"limit": MAX_PAGE})).projects
        ]
        body = _form(visit, draft, projects, problems, said) if projects else _no_project(visit)
    return HtmlPage(
        title="New workstream",
        here=HERE,
        styles=STYLES,
        modules=("workstreams.js",),
        status=status,
        body=join([head, body]),
    )


def _no_project(visit: PageRequest) -> Markup:
    add: Child = join(["Add one: ", code("deltaci project add NAME URL")])
    if visit.may("saveProject"):
        add = join([a("Add one", href="/projects"), ", or by ", code("deltaci project add NAME URL"), "."])
    return nothing("There is no project yet. A workstream works on the repository of a project.", add)


def _form(
    visit: PageRequest, draft: WorkstreamDraft, projects: Sequence[str], problems: Sequence[Problem], said: str
) -> Markup:
    is_only = len(projects) == 1
    known = list(projects) if draft.project in ("", *projects) else [*projects, draft.project]
    choices = [
        option(f"{projects[0]}, or as in the file" if is_only else "as in the file", value=""),
        *(option(name, value=name, selected=name == draft.project) for name in known),
    ]
    text = textarea(
        draft.text if not draft.text.startswith("\n") else f"\n{draft.text}",
        id="file",
        name="file",
        rows=max(18, min(40, draft.text.count("\n") + 2)),
        spellcheck="false",
        autocomplete="off",
        autocapitalize="off",
        required=True,
        aria_describedby="problems" if problems else "file-help",
        aria_invalid="true" if problems else None,
    )
    return form(
        hidden(visit, draft=draft.key),
        p(said, class_="said bad", role="alert") if said else None,
        _problems(problems, draft.text) if problems else None,
        field("file", "Workstream file", text, help="YAML: tasks, validation rules, and the merge method."),
        div(
            field("project", "Project", select(*choices, id="project", name="project")),
            field(
                "base",
                "Base",
                input_(id="base", name="base", value=draft.base, autocomplete="off", aria_describedby="base-help"),
                help="the branch to start from and merge into; empty: as in the file, or the default branch",
            ),
            class_="ws-choices",
        ),
        div(
            button("Start", type="submit", class_="primary"), a("Not now", href=HERE, class_="button"), class_="actions"
        ),
        method="post",
        action=NEW,
        class_="stack card",
        id="new-workstream",
    )


# -- what is wrong


def _problems(problems: Sequence[Problem], text: str) -> Markup:
    lines = text.split("\n")
    left = len(problems) - MAX_SHOWN
    return div(
        h2(f"{many(len(problems), 'problem')}; nothing was started"),
        ol(*(_told(each, lines) for each in problems[:MAX_SHOWN])),
        p(f"And {left} moreafter these.") if left > 0 else None,
        id="problems",
        class_="ws-problems",
        role="alert",
    )


def _told(problem: Problem, lines: Sequence[str]) -> Markup:
    told = [problem.found, problem.expected, f"did you mean '{problem.nearest}'?" if problem.nearest else ""]
    place = f"Line {problem.line}, column {problem.column}"
    typed = lines[problem.line - 1] if problem.line <= len(lines) else ""
    return li(
        a(place, href="#file", data_line=problem.line, data_column=problem.column),
        ": ",
        "; ".join(each for each in told if each),
        pre(f"{typed}\n{' ' * (problem.column - 1)}^", aria_hidden="true")
        if 0 < problem.column <= MAX_LINE and len(typed) <= MAX_LINE
        else None,
    )


PAGES: Final = (PageRoute(path=NEW, get=asked, post=created),)
