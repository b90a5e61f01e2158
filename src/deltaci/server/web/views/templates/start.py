"""Start a run from a template; the form contains the inputs of the template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from deltaci.api.schemas.inputs import InputRule
from deltaci.api.schemas.records import Template
from deltaci.server.web.components import path
from deltaci.server.web.forms import Form, FormProblem, needed
from deltaci.server.web.markup import Markup, a, details, div, p, summary
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.projects.start import once, started

INPUT: Final = "input."  # So the field of an input is called.
ABOUT: Final = ("title", "project", "branch", "commit", "labels")
_NAMED: Final = re.compile(r"the input '([A-Za-z_][A-Za-z0-9_]*)'")


async def form_of(visit: PageRequest) -> PageResponse:
    """The form; the address may fill it in: `?input.env=production`."""
    name = visit.params["template"]
    if (stop := needed(visit, "startRun", f"Start {name}", "/templates")) is not None:
        return stop
    template = await _template(visit, visit.query.get("version", ""))
    values = {
        f"{INPUT}{each}": visit.query.get(f"{INPUT}{each}", rule.default) for each, rule in template.inputs.items()
    }
    return _form(visit, template, {**values, **{each: visit.query.get(each, "") for each in ABOUT}})


async def _template(visit: PageRequest, version: str) -> Template:
    name = visit.params["template"]
    if version:
        return await visit.ask("readVersion", Template, template=name, version=version)
    return await visit.ask("readTemplate", Template, template=name)


async def start(visit: PageRequest) -> PageResponse:
    """Start it, once however often the form is sent."""
    template = await _template(visit, visit.field("version"))
    values = {each: visit.field(each).strip() for each in ABOUT}
    values |= {f"{INPUT}{each}": visit.field(f"{INPUT}{each}") for each in template.inputs}
    body: dict[str, Any] = {
        "template": template.name,
        "version": template.version,
        "inputs": _given(template, values),
        "labels": values["labels"].replace(",", " ").split(),
        **{each: values[each] for each in ("title", "project", "branch", "commit")},
    }
    answer = await started(visit, body)
    if isinstance(answer, FormProblem):
        return _form(visit, template, values, answer)
    return Redirect(to=path("runs", answer.id), said="The run was started.")


def _given(template: Template, values: Mapping[str, str]) -> dict[str, str]:
    """The inputs that were given. An empty field is one that was not, unless it holds something otherwise."""
    given: dict[str, str] = {}
    for name, rule in template.inputs.items():
        value = values[f"{INPUT}{name}"].replace("\r\n", "\n")
        if value or (rule.default and not rule.required):
            given[name] = value
    return given


def _form(
    visit: PageRequest, template: Template, values: Mapping[str, str], problem: FormProblem | None = None
) -> HtmlPage:
    form = Form(values, problem, _at(problem), not_done="Not started")
    inputs = [_field(form, name, rule) for name, rule in template.inputs.items()]
    is_open = any(values[each] for each in ABOUT) or (problem is not None and problem.path.partition("[")[0] in ABOUT)
    about = details(
        summary("Title, project, branch, labels"),
        div(
            form.text("title", "Title", help="One line, shown in lists.", maxlength=200, autocomplete="off"),
            form.text("project", "Project", help="The project the run belongs to.", autocomplete="off"),
            form.text("branch", "Branch", help="The branch the run is for.", autocomplete="off"),
            form.text("commit", "Commit", help="The commit the run is for.", autocomplete="off"),
            form.text("labels", "Labels", help="Labels to find the run by, separated by spaces.", autocomplete="off"),
            class_="fields",
        ),
        open=is_open,
    )
    name = template.name
    return form.page(
        visit,
        f"Start {name}",
        *(inputs or [p("This template has no inputs.", class_="quiet")]),
        about,
        under=[a(f"version {template.version}", href=path("templates", name)), template.description],
        here="/templates",
        to=path("templates", name, "start"),
        submit="Start run",
        back=path("templates", name),
        values={"once": once(visit, problem), "version": str(template.version)},
    )


def _field(form: Form, name: str, rule: InputRule) -> Markup:
    """One input: a choice where there are choices, else a line, or lines if what it holds has some."""
    id, title = f"{INPUT}{name}", f"{name}{' (required)' if rule.required else ''}"
    if rule.choices:
        none = [] if rule.default or "" in rule.choices else [("", "choose" if rule.required else "none")]
        options = [*none, *((each, each or "empty") for each in rule.choices)]
        return form.choice(id, title, options, help=rule.description or None, required=rule.required)
    if "\n" in rule.default:
        return form.area(id, title, help=rule.description or None, rows=6)
    return form.text(id, title, help=rule.description or None, required=rule.required, autocomplete="off")


def _at(problem: FormProblem | None) -> str:
    """Which field a problem is about."""
    if problem is None:
        return ""
    if (named := _NAMED.search(problem.message)) is not None:
        return f"{INPUT}{named[1]}"
    return problem.path.partition("[")[0]


PAGES: Final = (PageRoute(path="/templates/{template}/start", get=form_of, post=start),)
