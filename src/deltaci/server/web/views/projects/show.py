"""One project: its settings, how the server learns about pushes, its runs and changes."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from deltaci.api.schemas.projects import Change, Project
from deltaci.api.schemas.records import Run, RunPage
from deltaci.server.web.components import action, card, nothing, path, seconds_text, top, when
from deltaci.server.web.forms import MODULES, STYLES, copied, way
from deltaci.server.web.markup import Child, Markup, a, code, dd, div, dl, dt, join, p, span, strong
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views import secrets
from deltaci.server.web.views.projects import changes
from deltaci.server.web.views.runs import table

RUNS: Final = 10
CHANGES: Final = 20
HEADINGS: Final = ("Run", "Status", "Branch", "By", "Started", "Took")
BY_FORGE: Final = {
    "github": "On GitHub: Settings, Webhooks, Add webhook; content type application/json; pushes, pull requests.",
    "gitlab": "On GitLab: Settings, Webhooks; events: push events, tag push events, merge request events.",
    "gitea": "On Gitea: Settings, Webhooks, Add Webhook, Gitea; events: pushes, pull requests.",
    "forgejo": "On Forgejo: Settings, Webhooks, Add webhook, Forgejo; events: pushes, pull requests.",
}
SUPERSEDES: Final = {"none": "none", "queued": "runs that have not started", "all": "all"}


async def viewed(visit: PageRequest) -> PageResponse:
    """All of it."""
    project = await visit.ask("readProject", Project, project=visit.params["project"])
    known: Known = None
    if visit.may("listSecrets"):  # What is only for some branches is not for the project itself.
        known = {(each.name, each.project) for each in await secrets.every(visit) if not each.branch}
    runs = (await visit.ask("listRuns", RunPage, query={"project": project.name, "limit": RUNS})).runs
    found = (await changes.newest(visit, project.name))[:CHANGES]
    return HtmlPage(
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


def _actions(visit: PageRequest, project: Project) -> list[Markup]:
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
                    p("The server removes ", strong(project.name), " and no longer fetches it."),
                    p("Existing runs are kept and continue. Webhooks of its forge are refused from now on."),
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
    return [
        code(name),
        " ",
        strong("is not set", class_="missing"),
        " ",
        a("Set the secret", href=secrets.to_set(name)),
    ]


def _settings(project: Project, known: Known) -> Markup:
    policies = project.policies
    poll = f"every {seconds_text(policies.poll_seconds).removesuffix(' 0 s')}" if policies.poll_seconds else "never"
    facts: list[tuple[str, Child]] = [
        ("Clone credential", _secret(project, project.credential, known, "none: the repository is public")),
        ("Reports", _reports(project, known)),
        *([("API", code(project.api_url))] if project.api_url else []),
        ("Canceled by a newer push", [SUPERSEDES[policies.supersede_pushes], " of the older runs of its branch"]),
        (
            "Canceled by a newer commit",
            [SUPERSEDES[policies.supersede_pull_requests], " of the older runs of its pull request"],
        ),
        (
            "Runs of forks are approved by",
            [code(policies.fork_role)] if policies.fork_role else "anyone with the scope approve",
        ),
        ("Polled", poll),
        ("Schedules", "start runs" if policies.schedules else "ignored"),
    ]
    return card("Settings", dl(*([dt(name), dd(told)] for name, told in facts), class_="facts"), id="settings")


def _reports(project: Project, known: Known) -> Child:
    if not project.api_token:
        return span("off: the project names no token", class_="quiet")
    return [project.reports, " with ", _secret(project, project.api_token, known)]


# -- how it hears


def _hears(visit: PageRequest, project: Project, known: Known) -> Markup:
    """What to do so that the server hears of pushes."""
    hook = f"{visit.origin}/hooks/{quote(visit.who.tenant, safe='')}/{quote(project.name, safe='')}"
    told: list[Child] = [copied("webhook", "Webhook address", hook)]
    if project.webhook_secret:
        told.append(p("Signed with the secret ", _secret(project, project.webhook_secret, known), "."))
    else:
        told.append(
            p("Webhooks are refused until the project names the secret that signs them. Edit the project to set it.")
        )
    if project.forge in BY_FORGE:
        told.append(p(BY_FORGE[project.forge], class_="quiet"))
    else:
        command = f"deltaci project hook {project.name} --repository /srv/git/{project.name}.git"
        told = [
            p("For a bare repository that people push to, this command installs a hook that reports every push:"),
            copied("hook", "Command", command),
            p("Without access to the repository, the server can poll it. Edit the project to set a poll interval."),
            *told,
        ]
    return card("How the server learns about pushes", div(*told, class_="stack"), id="hears")


# -- what ran, and what happened


def _runs(project: Project, runs: list[Run]) -> Markup:
    if not runs:
        return nothing("This project has no runs yet.")
    to = f"/runs?{urlencode({'project': project.name})}"
    return join([p(a("All runs", href=to)), table(runs, HEADINGS, caption="Newest runs")])


def _changes(project: Project, found: list[Change]) -> Markup:
    if not found:
        return join([_lists(project), nothing("No recent changes.")])
    return join([_lists(project), changes.table(found, is_of_one=True)])


def _lists(project: Project) -> Markup:
    deliveries = a("Webhook deliveries", href=path("projects", project.name, "deliveries"))
    return p(a("All changes", href=changes.of(project.name)), " · ", deliveries)


async def remove(visit: PageRequest) -> PageResponse:
    """Forget it."""
    gone = await visit.ask("removeProject", Project, project=visit.params["project"])
    return Redirect(to="/projects", said=f"The project {gone.name} was removed.")


PAGES: Final = (
    PageRoute(path="/projects/{project}", get=viewed),
    PageRoute(path="/projects/{project}/remove", post=remove),
)
