"""Secrets of the tenant: list, set, replace, remove. Values are never shown."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final
from urllib.parse import urlencode

from deltaci.api.schemas.inputs import MAX_PAGE
from deltaci.api.schemas.projects import ProjectPage
from deltaci.api.schemas.records import Secret, SecretPage
from deltaci.server.web.components import action, nothing, rows, top, when
from deltaci.server.web.forms import STYLES, Form, FormProblem, asked, needed
from deltaci.server.web.markup import Child, Markup, a, code, div, fieldset, join, legend, p, span, strong
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute

HERE: Final = "/secrets"
NEW: Final = "/new/secret"
REMOVE: Final = "/secrets/remove"
MAX_PAGES: Final = 5  # A tenant has no more than that.
SCOPE: Final = ("name", "project", "branch")
HEADINGS: Final = ("Name", "For", "Set", "Version", "")
NAME: Final = "a variable name: letters, digits and _, not starting with a digit"


async def every(visit: PageRequest) -> list[Secret]:
    """All secrets that there are; none for who may not know."""
    found: list[Secret] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < MAX_PAGES * MAX_PAGE and visit.may("listSecrets"):
        page = await visit.ask("listSecrets", SecretPage, query={"limit": MAX_PAGE, "cursor": cursor})
        found += page.secrets
        cursor = page.next
    return found


def to_set(name: str = "", project: str = "", branch: str = "") -> str:
    """Where this secret can be set."""
    given = {key: value for key, value in (("name", name), ("project", project), ("branch", branch)) if value}
    return f"{NEW}?{urlencode(given)}" if given else NEW


async def listed(visit: PageRequest) -> PageResponse:
    """By scope, the widest first: the narrowest that fits is the one that a job gets."""
    if (stop := needed(visit, "listSecrets", "Secrets", HERE)) is not None:
        return stop
    found = sorted(await every(visit), key=lambda each: (each.project, each.branch, each.name))
    ids = [_id(each) for each in found]
    lines = [_line(visit, each, id) for each, id in zip(found, ids, strict=True)]
    return HtmlPage(
        title="Secrets",
        here=HERE,
        live={},
        styles=STYLES,
        body=join(
            [
                top(
                    "Secrets",
                    a("New secret", href=NEW, class_="button primary"),
                    under="Stored encrypted and given only to jobs that name them. Values are never shown.",
                ),
                rows(HEADINGS, lines, caption="Secrets, widest scope first", keys=[f"secret-{id}" for id in ids])
                if lines
                else nothing(
                    "There is no secret yet.",
                    ["A job lists the secrets it needs, e.g. ", code("secrets: [DEPLOY_KEY]"), ". Set it here first."],
                ),
            ]
        ),
    )


def _said(project: str, branch: str) -> str:
    """Scope it is, in words."""
    if not project:
        return "For all jobs"
    return f"Project {project}, branches {branch}" if branch else f"Project {project}"


def _id(secret: Secret) -> str:
    told = repr((secret.name, secret.project, secret.branch)).encode()
    return blake2b(told, digest_size=8).hexdigest()


def _for(secret: Secret) -> Markup | str:
    if not secret.project:
        return "all jobs"
    return join([f"{secret.project} on ", code(secret.branch)]) if secret.branch else secret.project


def _line(visit: PageRequest, secret: Secret, id: str) -> list[Markup | str]:
    return [
        code(secret.name, class_="name"),
        _for(secret),
        join([when(secret.set_at), span(f" by {secret.set_by}", class_="quiet") if secret.set_by else None]),
        span(str(secret.version), class_="number"),
        div(
            a(
                "Replace",
                span(f" {secret.name}", class_="hidden"),
                href=to_set(secret.name, secret.project, secret.branch),
                class_="button",
            ),
            action(
                visit,
                f"remove-{id}",
                "Remove",
                route="removeSecret",
                to=REMOVE,
                values={"name": secret.name, "project": secret.project, "branch": secret.branch},
                asks=join(
                    [
                        p(
                            "The secret ",
                            code(secret.name),
                            " is deleted. ",
                            strong(_said(secret.project, secret.branch)),
                            ".",
                        ),
                        p("Jobs that name it use a secret of that name with a wider scope, or fail if there is none.")
                        if secret.project
                        else p("Jobs that name it fail, unless their project has a secret of that name."),
                    ]
                ),
                is_dangerous=True,
            ),
            class_="actions",
        ),
    ]


async def remove(visit: PageRequest) -> PageResponse:
    """Forget the one with exactly this scope."""
    query = {"project": visit.field("project"), "branch": visit.field("branch")}
    gone = await visit.ask("removeSecret", Secret, query=query, secret=visit.field("name"))
    return Redirect(to=HERE, said=f"The secret {gone.name} was removed. {_said(gone.project, gone.branch)}.")


async def new(visit: PageRequest) -> PageResponse:
    """The form: for a new one, or to replace the value of one that the address names."""
    if (stop := needed(visit, "setSecret", "Set a secret", HERE)) is not None:
        return stop
    return await _form(visit, {name: visit.query.get(name, "") for name in SCOPE})


async def keep(visit: PageRequest) -> PageResponse:
    """Save the secret."""
    values = {name: visit.field(name).strip() for name in SCOPE}
    # A browser sends other ends of lines than keys have. The last one is not part of it, as for the command line.
    value = visit.field("value").replace("\r\n", "\n").removesuffix("\n")
    body = {"value": value, "project": values["project"], "branch": values["branch"]}
    answer = await asked(visit, "setSecret", Secret, body=body, secret=values["name"])
    if isinstance(answer, FormProblem):
        return await _form(visit, values, answer)
    how = "was set" if answer.version == 1 else f"was replaced (version {answer.version})"
    return Redirect(to=HERE, said=f"The secret {answer.name} {how}. {_said(answer.project, answer.branch)}.")


def _at(problem: FormProblem | None) -> str:
    """Which field a problem is about."""
    if problem is None or problem.code == "no_secret":
        return ""
    if problem.code == "not_found":
        return "name"  # What can be no name names nothing.
    if "pattern" in problem.message or "branch" in problem.message:
        return "branch"
    return problem.path or ("value" if problem.message.startswith("a secret ") else "")


async def _form(visit: PageRequest, values: Mapping[str, str], problem: FormProblem | None = None) -> HtmlPage:
    if problem is not None and problem.code == "not_found":
        said = f"{values['name'][:80]!r} is not a valid name; expected {NAME}" if values["name"] else f"expected {NAME}"
        problem = FormProblem(code=problem.code, message=said)
    if problem is not None and problem.path == "value":
        problem = FormProblem(code=problem.code, message="a secret has 4 to 65,536 characters", path="value")
    form = Form(values, problem, _at(problem))
    projects = await visit.ask("listProjects", ProjectPage, query={"limit": MAX_PAGE})
    names = [each.name for each in projects.projects]
    again: Child = None
    if problem is not None:
        again = p("Enter the value again: it is never sent back.")
    fields = [
        form.text(
            "name",
            "Name",
            help="The environment variable that contains it in a job.",
            expects=NAME,
            required=True,
            maxlength=100,
            autocomplete="off",
        ),
        form.sealed("value", "Value", help="At least 4 characters. A trailing newline is removed."),
        fieldset(
            legend("Scope"),
            div(
                form.text(
                    "project", "Project", help="Empty: all jobs of the tenant.", options=names, autocomplete="off"
                ),
                form.text(
                    "branch",
                    "Branches",
                    help=["A pattern for branches of the project, e.g. ", code("release/*"), ". Empty: all branches."],
                    autocomplete="off",
                ),
                class_="fields",
            ),
            p(
                "A job gets the matching secret with the narrowest scope. A secret with the same name and scope is "
                "replaced.",
                class_="help",
            ),
        ),
    ]
    return form.page(visit, "Set a secret", *fields, here=HERE, to=NEW, submit="Save the secret", more=again)


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path=HERE, get=listed),
    PageRoute(path=NEW, get=new, post=keep),
    PageRoute(path=REMOVE, post=remove),
)
