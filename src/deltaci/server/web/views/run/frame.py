"""The heading, actions and tabs that all pages of a run share."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from deltaci.api.schemas.records import Run
from deltaci.server.web.components import badge, lasted, path, stop_unconfirmed, tabs, top, when
from deltaci.server.web.markup import Child, a, code, join, span
from deltaci.server.web.page_request import HtmlPage, PageRequest
from deltaci.server.web.views.run.actions import KEYS, actions
from deltaci.server.web.views.runs import exact_state, name_of

TABS: Final = (
    ("", "Overview"),
    ("events", "Events"),
    ("plan", "Plan"),
    ("tests", "Tests"),
    ("results", "Results"),
)


def framed(
    visit: PageRequest, run: Run, here: str, *body: Child, modules: tuple[str, ...] = (), styles: tuple[str, ...] = ()
) -> HtmlPage:
    """A part of the run's page; `here` is its entry in TABS."""
    return HtmlPage(
        title=f"{name_of(run)} · {run.status.replace('_', ' ').lower()}",
        here="/runs",
        live={"run": run.id},
        modules=modules,
        styles=("run.css", *styles),
        keys=KEYS,
        body=join(
            [
                top(name_of(run), actions(visit, run), under=_about(run)),
                tabs([(id, name, path("runs", run.id, *([id] if id else []))) for id, name in TABS], here),
                *body,
            ]
        ),
    )


def _about(run: Run) -> Child:
    over = run.updated_at if run.conclusion else None
    return [
        span(badge(run.status, exact_state(run)), id="run-status", role="status"),
        stop_unconfirmed(run.stop_unconfirmed_until),
        a(run.project, href=f"/runs?{urlencode({'project': run.project})}") if run.project else None,
        code(run.branch) if run.branch else None,
        code(run.commit[:9]) if run.commit else None,
        span("by ", run.started_by) if run.started_by else None,
        span("started ", when(run.created_at)),
        span("took " if run.conclusion else "for ", lasted(run.started_at, over)) if run.started_at else None,
        span("rerun of ", a(run.rerun_of, href=path("runs", run.rerun_of))) if run.rerun_of else None,
        code(run.id),
    ]
