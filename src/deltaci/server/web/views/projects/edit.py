"""Add or edit a project. A concurrent edit is reported, and the form keeps the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from deltaci.api.schemas.projects import ForgeKind, Project
from deltaci.server.web.components import path, rows
from deltaci.server.web.forms import NAME, Form, FormProblem, asked, needed
from deltaci.server.web.markup import Child, Markup, a, code, div, fieldset, legend, p
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import number
from deltaci.server.web.views import secrets

NEW: Final = "/new/project"
TEXTS: Final = (
    *("url", "forge", "default_branch", "credential", "webhook_secret", "api_url", "api_token", "reports"),
    "description",
)
POLICIES: Final = ("supersede_pushes", "supersede_pull_requests", "fork_role", "poll_seconds", "schedules")
TITLES: Final = {
    "url": "Address",
    "forge": "Forge",
    "default_branch": "Main branch",
    "credential": "Secret for cloning",
    "webhook_secret": "Webhook secret",
    "api_url": "Forge API URL",
    "api_token": "Secret for reporting",
    "reports": "Reports",
    "description": "Description",
    "policies.supersede_pushes": "Older runs to cancel after a push",
    "policies.supersede_pull_requests": "Older runs to cancel after a new pull request commit",
    "policies.fork_role": "Role that approves runs of forks",
    "policies.poll_seconds": "Poll interval (seconds)",
    "policies.schedules": "Start scheduled runs",
}
FRESH: Final = {
    "forge": "git",
    "reports": "statuses",
    "policies.supersede_pushes": "queued",
    "policies.supersede_pull_requests": "all",
    "policies.poll_seconds": "0",
    "policies.schedules": "on",
}
SECRET: Final = "the name of a secret: letters, digits and _"
SUPERSEDED: Final = (("none", "none"), ("queued", "runs that have not started"), ("all", "all"))
REPORTS: Final = (("statuses", "as statuses"), ("checks", "as checks (GitHub)"), ("nothing", "not at all"))


async def new(visit: PageRequest) -> PageResponse:
    """The form for a new one."""
    if (stop := needed(visit, "saveProject", "New project", "/projects")) is not None:
        return stop
    return await _form(visit, FRESH, "", 0)


async def add(visit: PageRequest) -> PageResponse:
    """Tell the server of it."""
    name = visit.field("name").strip()
    values = {**_typed(visit), "name": name}
    answer = await asked(visit, "saveProject", Project, body=_body(values, 0), project=name)
    if isinstance(answer, FormProblem):
        return await _form(visit, values, "", 0, answer)
    return Redirect(to=path("projects", answer.name), said=f"The project {answer.name} was added.")


async def edit(visit: PageRequest) -> PageResponse:
    """The form with what is known."""
    name = visit.params["project"]
    if (stop := needed(visit, "saveProject", f"Edit {name}", "/projects")) is not None:
        return stop
    project = await visit.ask("readProject", Project, project=name)
    return await _form(visit, _values(project), name, project.version)


async def save(visit: PageRequest) -> PageResponse:
    """Keep it, if nobody else was faster."""
    name, values = visit.params["project"], _typed(visit)
    version = number(visit.field("version"))
    answer = await asked(visit, "saveProject", Project, body=_body(values, version), project=name)
    if not isinstance(answer, FormProblem):
        return Redirect(to=path("projects", name), said=f"The project {name} was saved.")
    if answer.code != "stale_version":
        return await _form(visit, values, name, version, answer)
    theirs = await visit.ask("readProject", Project, project=name)
    return await _form(visit, values, name, theirs.version, answer, theirs)


# -- what is typed, kept and sent


def _typed(visit: PageRequest) -> dict[str, str]:
    names = (*TEXTS, *(f"policies.{each}" for each in POLICIES))
    return {name: visit.field(name).strip() for name in names}


def _values(project: Project) -> dict[str, str]:
    """A project as the form holds it."""
    held = {name: str(getattr(project, name)) for name in TEXTS}
    for name in POLICIES:
        value = getattr(project.policies, name)
        held[f"policies.{name}"] = ("on" if value else "") if isinstance(value, bool) else str(value)
    return held


def _body(values: Mapping[str, str], version: int) -> dict[str, Any]:
    """What the form holds as the API takes it; what is no number is for the API to refuse."""
    poll = values["policies.poll_seconds"] or "0"
    policies: dict[str, Any] = {name: values[f"policies.{name}"] for name in POLICIES}
    policies["schedules"] = values["policies.schedules"] == "on"
    policies["poll_seconds"] = poll if (seconds := number(poll, -1)) < 0 else seconds
    return {**{name: values[name] for name in TEXTS}, "policies": policies, "expected_version": version}


def _at(problem: FormProblem | None, *, is_new: bool) -> str:
    """Which field a problem is about."""
    if problem is None or (problem.code == "stale_version" and not is_new):
        return ""
    if problem.code in ("stale_version", "not_found"):
        return "name"
    if problem.path:
        return problem.path
    if "URL of an API" in problem.message:
        return "api_url"
    return "url" if problem.code in ("bad_request", "not_allowed") else ""


def _worded(problem: FormProblem | None, values: Mapping[str, str], *, is_new: bool) -> FormProblem | None:
    """What the API says, where it knows less than the form what was meant."""
    if problem is None:
        return None
    if not is_new:
        is_stale = problem.code == "stale_version"
        return (
            FormProblem(code=problem.code, message=f"somebody else saved first: {problem.message}")
            if is_stale
            else problem
        )
    name = values.get("name", "")
    if problem.code == "stale_version":
        return FormProblem(
            code=problem.code, message=f"a project {name!r} already exists; edit it or choose another name"
        )
    if problem.code == "not_found":
        return FormProblem(code=problem.code, message=f"{name[:80]!r} is not a valid name; expected {NAME}")
    return problem


# -- the form


async def _form(
    visit: PageRequest,
    values: Mapping[str, str],
    name: str,
    version: int,
    problem: FormProblem | None = None,
    theirs: Project | None = None,
) -> HtmlPage:
    problem = _worded(problem, values, is_new=not name)
    form = Form(values, problem, _at(problem, is_new=not name))
    known = sorted({each.name for each in await secrets.every(visit)})
    return form.page(
        visit,
        f"Edit {name}" if name else "New project",
        None if name else form.name("Used in runs, secrets and URLs. It cannot be changed later."),
        *_first(form),
        _secrets(form, known),
        _policies(form),
        here="/projects",
        to=path("projects", name, "edit") if name else NEW,
        submit="Save" if name else "Add the project",
        back=path("projects", name) if name else "",
        values={"version": str(version)},
        more=_differs(values, theirs) if theirs is not None else None,
    )


def _first(form: Form) -> list[Markup]:
    forges = [(each, each) for each in get_args(ForgeKind)]
    return [
        form.text(
            "url",
            TITLES["url"],
            help=["The URL to clone from, e.g. ", code("https://github.com/acme/shop.git")],
            expects="a URL without spaces",
            required=True,
            maxlength=500,
            inputmode="url",
            autocomplete="off",
            spellcheck="false",
        ),
        div(
            form.choice("forge", TITLES["forge"], forges, help="The type of webhook to accept; git: none."),
            form.text(
                "default_branch",
                TITLES["default_branch"],
                help="Empty: the default branch of the repository.",
                expects="the name of a branch",
                autocomplete="off",
            ),
            class_="fields",
        ),
        form.text("description", TITLES["description"], help="Shown to people.", maxlength=1000, autocomplete="off"),
    ]


def _secrets(form: Form, known: list[str]) -> Markup:
    def named(name: str, help: Child) -> Markup:
        return form.text(
            name, TITLES[name], help=help, expects=SECRET, options=known, autocomplete="off", spellcheck="false"
        )

    return fieldset(
        legend("Secrets and the forge"),
        p(
            "Enter names of secrets, not their values. ",
            a("Set one", href=secrets.NEW, target="_blank", rel="noopener"),
            " in another tab.",
            class_="help",
        ),
        div(
            named("credential", "A token, user:password, or a private key for SSH. Empty: the repository is public."),
            named("webhook_secret", "The secret with which the forge signs webhooks."),
            named("api_token", "A token for the forge API. Empty: no results are reported."),
            form.choice(
                "reports", TITLES["reports"], REPORTS, help="How results of a commit are reported to the forge."
            ),
            form.text(
                "api_url",
                TITLES["api_url"],
                help="Only if it differs from the default of the forge.",
                expects="a URL that starts with https://",
                inputmode="url",
                autocomplete="off",
                spellcheck="false",
            ),
            class_="fields",
        ),
    )


def _policies(form: Form) -> Markup:
    return fieldset(
        legend("Automation"),
        div(
            form.choice("policies.supersede_pushes", TITLES["policies.supersede_pushes"], SUPERSEDED),
            form.choice("policies.supersede_pull_requests", TITLES["policies.supersede_pull_requests"], SUPERSEDED),
            form.text(
                "policies.fork_role",
                TITLES["policies.fork_role"],
                help="A role. Empty: anyone with the scope approve.",
                expects="a role without spaces",
                autocomplete="off",
            ),
            form.text(
                "policies.poll_seconds",
                TITLES["policies.poll_seconds"],
                help="How often to check for pushes; at most a week. 0: never; webhooks or a hook report them.",
                inputmode="numeric",
                autocomplete="off",
            ),
            class_="fields",
        ),
        form.check("policies.schedules", TITLES["policies.schedules"]),
    )


def _differs(values: Mapping[str, str], theirs: Project) -> Markup:
    """Where what was typed is not what is kept now."""
    lines: list[list[Child]] = [
        [TITLES[name], values[name] or "–", kept or "–"]
        for name, kept in _values(theirs).items()
        if values.get(name, "") != kept
    ]
    if not lines:
        return p("The saved version already matches your changes; there is nothing to save.")
    return div(
        p("Your input is still below. It differs from the saved version here:"),
        rows(("Field", "Yours", "Saved"), lines, caption="Differences"),
        p("Saving again replaces the saved version with yours."),
        class_="differs",
    )


PAGES: Final = (
    PageRoute(path=NEW, get=new, post=add),
    PageRoute(path="/projects/{project}/edit", get=edit, post=save),
)
