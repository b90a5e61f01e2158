"""Start a run of a project for a branch, a tag or a commit."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import Any, Final

from deltaci.api.schemas.projects import Project
from deltaci.api.schemas.records import Run
from deltaci.server.web.components import path
from deltaci.server.web.forms import Form, FormProblem, asked, needed
from deltaci.server.web.markup import code, div
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute

USED: Final = "request_id_reused"
INPUTS: Final = "lines like name=value; a name has letters, digits and _"
FIELDS: Final = ("branch", "commit", "file", "title", "inputs")


async def form_of(visit: PageRequest) -> PageResponse:
    """The form; the address may fill it in: `?branch=main`."""
    name = visit.params["project"]
    if (stop := needed(visit, "startRun", f"Run {name}", "/projects")) is not None:
        return stop
    return await _form(visit, name, {each: visit.query.get(each, "") for each in FIELDS})


async def start(visit: PageRequest) -> PageResponse:
    """Start it, once however often the form is sent."""
    name, values = visit.params["project"], {each: visit.field(each).strip() for each in FIELDS}
    body = {
        "repository": name,
        "inputs": inputs_of(values["inputs"]),
        **{each: values[each] for each in ("branch", "commit", "file", "title")},
    }
    answer = await started(visit, body)
    if isinstance(answer, FormProblem):
        return await _form(visit, name, values, answer)
    return Redirect(to=path("runs", answer.id), said="The run was started.")


def inputs_of(text: str) -> dict[str, str]:
    """Lines of `name=value`."""
    lines = [line.partition("=") for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    return {name.strip(): value.strip() for name, _, value in lines}


async def started(visit: PageRequest, body: dict[str, Any]) -> Run | FormProblem:
    """The run that a form starts, the same however often it is sent; or why there is none."""
    answer = await asked(visit, "startRun", Run, body=body, once=visit.field("once"))
    if isinstance(answer, FormProblem) and answer.code == USED:
        made = answer.message.rpartition(" ")[2]
        again = f"this form already started run {made} with other values; submit it again to start another run"
        return FormProblem(code=USED, message=again)
    return answer


def once(visit: PageRequest, problem: FormProblem | None) -> str:
    """By what a form is known when it is sent twice. One that has made a run already makes another one next."""
    is_used = problem is not None and problem.code == USED
    return token_hex(16) if is_used or not visit.field("once") else visit.field("once")


async def _form(
    visit: PageRequest, name: str, values: Mapping[str, str], problem: FormProblem | None = None
) -> HtmlPage:
    project = await visit.ask("readProject", Project, project=name)
    form = Form(values, problem, _at(problem), not_done="Not started")
    main = code(project.default_branch) if project.default_branch else "the default branch of the repository"
    fields = [
        div(
            form.text(
                "branch", "Branch or tag", help=["Empty: ", main, "."], autocomplete="off", autofocus=not problem
            ),
            form.text(
                "commit",
                "Commit",
                help="The full commit hash. Empty: the newest commit of the branch.",
                autocomplete="off",
                spellcheck="false",
            ),
            form.text(
                "file", "Pipeline file", help="Required if several files can be started by hand.", autocomplete="off"
            ),
            form.text("title", "Title", help="One line, shown in lists.", maxlength=200, autocomplete="off"),
            class_="fields",
        ),
        form.area("inputs", "Inputs", help=["One per line: ", code("name=value")], expects=INPUTS, rows=3),
    ]
    return form.page(
        visit,
        f"Run {name}",
        *fields,
        under=code(project.url),
        here="/projects",
        to=path("projects", name, "start"),
        submit="Start run",
        back=path("projects", name),
        values={"once": once(visit, problem)},
    )


def _at(problem: FormProblem | None) -> str:
    """Which field a problem is about."""
    if problem is None:
        return ""
    if "full commit id" in problem.message:
        return "commit"
    if "has no branch or tag" in problem.message:
        return "branch"
    return "inputs" if problem.path.startswith("inputs") else problem.path


PAGES: Final = (PageRoute(path="/projects/{project}/start", get=form_of, post=start),)
