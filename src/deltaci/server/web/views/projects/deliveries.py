"""The log of webhook deliveries to a project: when, which event, the answer, and the runs."""

from __future__ import annotations

from typing import Any, Final

from deltaci.api.schemas.projects import Change, Delivery, DeliveryPage
from deltaci.server.web.components import action, badge, nothing, path, rows, when, words
from deltaci.server.web.markup import Child, a, code, join, p, span
from deltaci.server.web.page_request import PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward
from deltaci.server.web.views.projects.frame import framed

PER_PAGE: Final = 50
HEADINGS: Final = ("Event", "Answer", "Result", "When")


async def index(page_request: PageRequest) -> PageResponse:
    """Show the deliveries, the newest first."""
    project = page_request.params["project"]
    query: dict[str, Any] = {"limit": PER_PAGE, "cursor": page_request.query.get("cursor", "")}
    page = await page_request.ask("listDeliveries", DeliveryPage, query=query, project=project)
    lines = [_cells(page_request, project, number, delivery) for number, delivery in enumerate(page.deliveries)]
    return framed(
        f"Webhook deliveries to {project}",
        p(a(project, href=path("projects", project))),
        rows(HEADINGS, lines, caption="Deliveries") if lines else nothing("No webhook was delivered to it yet."),
        onward(page_request, page.next),
        tab="changes",
        under="The last 500 signed requests of the forge. Requests with a wrong signature are not listed.",
    )


def _cells(page_request: PageRequest, project: str, number: int, delivery: Delivery) -> list[Child]:
    return [
        [
            span(words(delivery.event) or "unknown event", class_="name"),
            span(
                [code(delivery.ref), " "] if delivery.ref else None,
                [code(delivery.commit[:9]), " "] if delivery.commit.strip("0") else None,
                f"id {delivery.delivery}" if delivery.delivery else "without an id",
                class_="quiet",
            ),
        ],
        badge(delivery.result),
        [
            join([a(run, href=path("runs", run)), " "] for run in delivery.runs),
            span(delivery.reason, class_="quiet") if delivery.reason else None,
            _redeliver(page_request, project, number, delivery),
        ],
        when(delivery.at),
    ]


def _redeliver(page_request: PageRequest, project: str, number: int, delivery: Delivery) -> Child:
    """Return a button that handles the change again, if it could not be handled so far."""
    is_failing = delivery.status == "waiting" and delivery.reason
    if delivery.status != "put_aside" and not is_failing:
        return None
    return action(
        page_request,
        f"redeliver-{number}",
        "Handle again",
        route="redeliverChange",
        to=path("projects", project, "redeliver"),
        asks=p("The server fetches the commit again and starts the runs of its pipelines."),
        values={"change": delivery.change},
    )


async def redeliver(page_request: PageRequest) -> PageResponse:
    """Handle a change again that could not be handled."""
    change = await page_request.ask("redeliverChange", Change, change=page_request.field("change"))
    to = path("projects", page_request.params["project"], "deliveries")
    return Redirect(to=to, said=f"The change {change.id} is handled again.")


PAGES: Final = (
    PageRoute(path="/projects/{project}/deliveries", get=index),
    PageRoute(path="/projects/{project}/redeliver", post=redeliver),
)
