"""One project: what the server knows of it, how it hears of pushes, what ran and what happened."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from deltaci.api.schemas.projects import Change, Project
from deltaci.api.schemas.records import Run, RunPage
from deltaci.server.web.forms import MODULES, STYLES, copied, way
from deltaci.server.web.markup import Child, Markup, a, code, dd, div, dl, dt, join, p, span, strong
from deltaci.server.web.page_request import Answer, Page, Redirect, Visit
from deltaci.server.web.pages import PageRoute
from deltaci.server.web.parts import action, card, nothing, path, seconds_text, top, when
from deltaci.server.web.views import secrets
from deltaci.server.web.views.projects import changes
from deltaci.server.web.views.runs import table

RUNS: Final = 10
CHANGES: Final = 20
HEADINGS: Final = ("Run", "Status", "Branch", "By", "Started", "Took")
BY_FORGE: Final = {
    "github": "At GitHub: Settings, Webhooks, Add webhook; content type application/json; pushes, pull requests.",
    "gitlab": "At GitLab: Settings, Webhooks; push events, tag push events, merge request events.",
    "gitea": "At Gitea: Settings, Webhooks, Add Webhook, Gitea; pushes, pull requests.",
    "forgejo": "At Forgejo: Settings, Webhooks, Add webhook, Forgejo; pushes, pull requests.",
}
SUPERSEDES: Final = {"none": "none", "queued": "those that have not begun", "all": "all"}


async def viewed(visit: Visit) -> Answer:
    """All of it."""
    project = await visit.ask("readProject", Project, project=visit.params["project"])
    known: Known = None
    if visit.may("listSecrets"):  # What is only for some branches is not for the project itself.
        known = {(each.name, each.project) for each in await secrets.every(visit) if not each.branch}
    runs = (await visit.ask("listRuns", RunPage, query={"project": project.name, "limit": RUNS})).runs
    found = (await changes.newest(visit, project.name))[:CHANGES]
    return Page(
        title=project.name,
        here="/projects",
        live={},
        styles=STYLES,
        modules=MODULES,
        body=join(
            [
                top(project.name, *_actions(visit, project), under=_under(project)),
                p(project.description, class_="text") if project.description else None,
                div(_settings(project, known), _hears(visit, project, known), class_="cards"),
                card("Runs", _runs(project, runs), id="runs"),
                card("Changes", _changes(project, found), id="changes"),
            ]
        ),
    )


def _actions(visit: Visit, project: Project) -> list[Markup]:
    return [
        way(visit, "startRun", "Run now", path("projects", project.name, "start"), is_primary=True),
        way(visit, "saveProject", "Edit", path("projects", project.name, "edit")),
        action(
            visit,
            "remove",
            "Remove",
            route="removeProject",
            to=path("projects", project.name, "remove"),
            asks=join(
                [
                    p("The server forgets ", strong(project.name), " and fetches nothing of it any more."),
                    p("Its runs stay, and what was started goes on. Webhooks of its forge are refused from then on."),
                ]
            ),
            is_dangerous=True,
        ),
    ]


def _under(project: Project) -> Child:
    return [
        code(project.url),
        span(project.forge),
        span("branch ", code(project.default_branch)) if project.default_branch else None,
        span(f"version {project.version}"),
        span("added ", when(project.created_at), f" by {project.created_by}" if project.created_by else None),
    ]


# -- what the server knows


Known = set[tuple[str, str]] | None


def _secret(project: Project, name: str, known: Known, absent: str = "none") -> Child:
    """A secret by its name; and whether it is there, for who may know."""
    if not name:
        return span(absent, class_="quiet")
    if known is None or (name, "") in known or (name, project.name) in known:
        return code(name)
    return [code(name), " ", strong("is not set", class_="missing"), " ", a("Set it", href=secrets.to_set(name))]


def _settings(project: Project, known: Known) -> Markup:
    policies = project.policies
    poll = f"every {seconds_text(policies.poll_seconds).removesuffix(' 0 s')}" if policies.poll_seconds else "never"
    facts: list[tuple[str, Child]] = [
        ("Cloned with", _secret(project, project.credential, known, "nothing: it is public")),
        ("Reports", _reports(project, known)),
        *([("API", code(project.api_url))] if project.api_url else []),
        ("A newer push cancels", [SUPERSEDES[policies.supersede_pushes], " of its branch's older runs"]),
        ("A newer commit cancels", [SUPERSEDES[policies.supersede_pull_requests], " of its pull request's"]),
        ("Forks wait for", [code(policies.fork_role)] if policies.fork_role else "whoever may approve"),
        ("Looked at", poll),
        ("Schedules", "start runs" if policies.schedules else "are ignored"),
    ]
    return card("Settings", dl(*([dt(name), dd(told)] for name, told in facts), class_="facts"), id="settings")


def _reports(project: Project, known: Known) -> Child:
    if not project.api_token:
        return span("nothing: it names no token", class_="quiet")
    return [project.reports, " with ", _secret(project, project.api_token, known)]


# -- how it hears


def _hears(visit: Visit, project: Project, known: Known) -> Markup:
    """What to do so that the server hears of pushes."""
    hook = f"{visit.origin}/hooks/{quote(visit.who.tenant, safe='')}/{quote(project.name, safe='')}"
    told: list[Child] = [copied("webhook", "Webhook address", hook)]
    if project.webhook_secret:
        told.append(p("Signed with the secret ", _secret(project, project.webhook_secret, known), "."))
    else:
        told.append(p("No webhook is believed before the project names a secret by which they are signed: edit it."))
    if project.forge in BY_FORGE:
        told.append(p(BY_FORGE[project.forge], class_="quiet"))
    else:
        command = f"deltaci project hook {project.name} --repository /srv/git/{project.name}.git"
        told = [
            p("Where people push to a bare repository, this installs a hook that tells of every push:"),
            copied("hook", "Command", command),
            p("Without access to the repository: let the server look for pushes now and then; edit how often."),
            *told,
        ]
    return card("How the server hears of pushes", div(*told, class_="stack"), id="hears")


# -- what ran, and what happened


def _runs(project: Project, runs: list[Run]) -> Markup:
    if not runs:
        return nothing("Nothing of it ran yet.")
    to = f"/runs?{urlencode({'project': project.name})}"
    return join([p(a("All its runs", href=to)), table(runs, HEADINGS, caption="The newest runs")])


def _changes(project: Project, found: list[Change]) -> Markup:
    if not found:
        return nothing("The server heard of no change lately.")
    return join([p(a("All its changes", href=changes.of(project.name))), changes.table(found, is_of_one=True)])


async def remove(visit: Visit) -> Answer:
    """Forget it."""
    gone = await visit.ask("removeProject", Project, project=visit.params["project"])
    return Redirect(to="/projects", said=f"The project {gone.name} is removed.")


PAGES: Final = (
    PageRoute(path="/projects/{project}", get=viewed),
    PageRoute(path="/projects/{project}/remove", post=remove),
)
