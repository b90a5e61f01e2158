"""Create a template or a new version of it: plan and inputs as JSON, with problems shown at their lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from deltaci.api.schemas.records import Template
from deltaci.server.web.components import path, when
from deltaci.server.web.forms import NAME, Form, FormProblem, asked, needed
from deltaci.server.web.markup import Markup, a, code, p
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import number
from deltaci.server.web.views.templates.plan_text import JsonSyntaxError, Place, place_of, read, written

NEW: Final = "/new/template"
TEXTS: Final = ("plan", "inputs")
FRESH: Final = {
    "inputs": '{\n  "env": {"description": "where to", "choices": ["staging", "production"], "default": "staging"}\n}',
    "plan": """{
  "jobs": [
    {"name": "build", "work": {"steps": ["make"]}},
    {"name": "deploy", "needs": ["build"], "work": {"steps": ["./deploy \\"$INPUT_ENV\\""]}}
  ]
}""",
}
_JOB: Final = re.compile(r"job '([^']+)'")


async def new(visit: PageRequest) -> PageResponse:
    """The form for a new one, with something to begin from."""
    if (stop := needed(visit, "saveTemplate", "New template", "/templates")) is not None:
        return stop
    return _form(visit, FRESH, "", 0)


async def edit(visit: PageRequest) -> PageResponse:
    """The form with the newest version, or with an older one to go back to."""
    name = visit.params["template"]
    if (stop := needed(visit, "saveTemplate", f"Edit {name}", "/templates")) is not None:
        return stop
    template = await visit.ask("readTemplate", Template, template=name)
    version = template.version
    if older := visit.query.get("version"):
        template = await visit.ask("readVersion", Template, template=name, version=older)
    return _form(visit, _values(template), name, version)


def _values(template: Template) -> dict[str, str]:
    """A template as the form holds it."""
    return {
        "description": template.description,
        "inputs": written(template.inputs),
        "plan": written(template.plan),
    }


async def add(visit: PageRequest) -> PageResponse:
    """Save the first version."""
    return await _save(visit, visit.field("name").strip(), 0, is_new=True)


async def save(visit: PageRequest) -> PageResponse:
    """Save the next version, if nobody else was faster."""
    return await _save(visit, visit.params["template"], number(visit.field("version")), is_new=False)


async def _save(visit: PageRequest, name: str, version: int, *, is_new: bool) -> PageResponse:
    values = {each: visit.field(each).replace("\r\n", "\n") for each in ("name", "description", *TEXTS)}
    values["description"] = values["description"].strip()
    shown = "" if is_new else name
    body: dict[str, Any] = {"description": values["description"], "expected_version": version}
    for each in TEXTS:
        try:
            body[each] = read(values[each])
        except JsonSyntaxError as wrong:
            problem = FormProblem(code="bad_json", message=wrong.message, path=each)
            return _form(visit, values, shown, version, problem, place=wrong.place)
    answer = await asked(visit, "saveTemplate", Template, body=body, template=name)
    if not isinstance(answer, FormProblem):
        return Redirect(to=path("templates", name), said=f"Version {answer.version} of {name} was saved.")
    if answer.code == "stale_version" and not is_new:
        theirs = await asked(visit, "readTemplate", Template, template=name)
        if isinstance(theirs, Template):
            return _form(visit, values, name, theirs.version, answer, theirs=theirs)
        return _form(visit, values, name, 0, answer)  # Somebody removed it: saving once more makes it anew.
    return _form(visit, values, shown, version, *_placed(answer, values, body, name, is_new=is_new))


def _placed(
    problem: FormProblem, values: Mapping[str, str], body: Mapping[str, Any], name: str, *, is_new: bool
) -> tuple[FormProblem, Place | None]:
    """A problem at its field, with the line and the column of what it is about."""
    if problem.code == "not_found" or (problem.code == "stale_version" and is_new):
        said = f"{name[:80]!r} is not a valid name; expected {NAME}"
        if problem.code == "stale_version":
            said = f"a template {name!r} already exists; edit it or choose another name"
        return FormProblem(code=problem.code, message=said, path="name"), None
    field, rest = _split(problem, body)
    if field not in TEXTS:
        return FormProblem(code=problem.code, message=problem.message, path=field), None
    place = place_of(values[field], rest)
    where = f"line {place[0]}, column {place[1]}, " if place is not None and rest else ""
    named = f"{where}{rest.removeprefix('.')}: " if rest else ""
    return FormProblem(code=problem.code, message=f"{named}{problem.message}", path=field), place if rest else None


def _split(problem: FormProblem, body: Mapping[str, Any]) -> tuple[str, str]:
    """The field, and the path inside of it."""
    if problem.path:
        found = re.match(r"[a-z_]+", problem.path)
        field = found[0] if found is not None else ""
        return field, problem.path.removeprefix(field)
    if "input" in problem.message and "job" not in problem.message:
        return "inputs", ""
    if problem.code not in ("bad_request", "dependency_cycle"):
        return "", ""
    named = _JOB.search(problem.message)
    jobs = [each.get("name") for each in body["plan"]["jobs"]]  # It was read as a plan: only its sense is wrong.
    if named is not None and named[1] in jobs:
        return "plan", f".jobs[{jobs.index(named[1])}]"
    return "plan", ""


def _form(
    visit: PageRequest,
    values: Mapping[str, str],
    name: str,
    version: int,
    problem: FormProblem | None = None,
    place: Place | None = None,
    theirs: Template | None = None,
) -> HtmlPage:
    form = Form(values, problem, problem.path if problem is not None else "")
    return form.page(
        visit,
        f"Edit {name}" if name else "New template",
        None if name else form.name("It cannot be changed later."),
        *_fields(form, place),
        here="/templates",
        to=path("templates", name, "edit") if name else NEW,
        submit="Save a new version" if name else "Save the template",
        back=path("templates", name) if name else "",
        values={"version": str(version)},
        more=_meanwhile(theirs) if theirs is not None else None,
    )


def _fields(form: Form, place: Place | None) -> list[Markup]:
    asks = [
        "The inputs to ask for at the start of a run, as JSON. An input ",
        code("env"),
        " is available to every job as ",
        code("INPUT_ENV"),
        ". Optional fields: description, required, default, choices.",
    ]
    return [
        form.text("description", "Description", help="Shown to people.", maxlength=1000, autocomplete="off"),
        form.area("inputs", "Inputs", help=asks, place=place, rows=6),
        form.area("plan", "Plan", help="The jobs of its runs, as JSON.", place=place, rows=20),
    ]


def _meanwhile(theirs: Template) -> list[Markup]:
    """That somebody else was faster, and the way to what they saved."""
    newer = path("templates", theirs.name, "versions", theirs.version)
    return [
        p(f"{theirs.created_by} saved version {theirs.version} ", when(theirs.created_at), "."),
        p(
            "Your input is still below. ",
            a(f"Show version {theirs.version}", href=newer, target="_blank", rel="noopener"),
            " in another tab. Saving again makes yours the newest version.",
        ),
    ]


PAGES: Final = (
    PageRoute(path=NEW, get=new, post=add),
    PageRoute(path="/templates/{template}/edit", get=edit, post=save),
)
