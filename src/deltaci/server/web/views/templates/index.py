"""The list of templates."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas.records import TemplatePage, TemplateSummary
from deltaci.server.web.components import nothing, path, rows, top, when
from deltaci.server.web.forms import STYLES, way
from deltaci.server.web.markup import Child, a, code, join, span
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward

HERE: Final = "/templates"
PER_PAGE: Final = 50
HEADINGS: Final = ("Template", "Version", "Saved", "")


async def listed(visit: PageRequest) -> PageResponse:
    """By name."""
    query = {"limit": PER_PAGE, "cursor": visit.query.get("cursor", "")}
    page = await visit.ask("listTemplates", TemplatePage, query=query)
    lines = [_line(visit, each) for each in page.templates]
    return HtmlPage(
        title="Templates",
        here=HERE,
        live={},
        styles=STYLES,
        body=join(
            [
                top("Templates", way(visit, "saveTemplate", "New template", "/new/template", is_primary=True)),
                rows(HEADINGS, lines, caption="Templates", keys=[f"template-{each.name}" for each in page.templates])
                if lines
                else nothing(
                    "There is no template yet.",
                    ["A template is a reusable plan. Create one here, or run a plan directly: "],
                    code("deltaci submit plan.json"),
                ),
                onward(visit, page.next),
            ]
        ),
    )


def _line(visit: PageRequest, template: TemplateSummary) -> list[Child]:
    return [
        [
            a(template.name, href=path("templates", template.name), class_="name"),
            span(template.description, class_="quiet") if template.description else None,
        ],
        span(str(template.version), class_="number"),
        [when(template.created_at), span(f" by {template.created_by}", class_="quiet")],
        a(
            "Start a run",
            span(f" of {template.name}", class_="hidden"),
            href=path("templates", template.name, "start"),
            class_="button",
        )
        if visit.may("startRun")
        else "",
    ]


PAGES: Final = (PageRoute(path=HERE, get=listed),)
