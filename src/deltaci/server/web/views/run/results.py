"""The results of a run: artifacts, outputs and resource usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.api.routes import ROOT
from deltaci.api.schemas import records as api
from deltaci.core.errors import Refused
from deltaci.core.text import format_size
from deltaci.protocol.artifact_paths import shared_name
from deltaci.server.web.components import card, path, rows, seconds_text
from deltaci.server.web.markup import EMPTY, Child, Markup, a, code, p, span, strong
from deltaci.server.web.page_request import PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import pages, start_of
from deltaci.server.web.views.run.collapsible import STYLES, told
from deltaci.server.web.views.run.frame import framed

PER_PAGE: Final = 50
MAX_TEXT_CHARS: Final = 100
# What runners tell, how it is called, and whether that of many attempts is a sum: memory that is free again is not.
COSTS: Final = (
    ("wall_seconds", "Time", True),
    ("cpu_seconds", "CPU time", True),
    ("peak_memory_bytes", "Peak memory", False),
    ("log_bytes", "Log", True),
    ("artifact_bytes", "Artifacts", True),
)
_KNOWN: Final = frozenset(name for name, _, _ in COSTS)


async def shown(visit: PageRequest) -> PageResponse:
    """All of it, each list page by page."""
    run = await visit.ask("readRun", api.RunWithJobs, run=visit.params["run"])
    try:
        artifacts = (await visit.ask("listRunArtifacts", api.Artifacts, run=run.id)).artifacts
    except Refused as refused:
        if refused.code != "too_large":
            raise
        artifacts = None
    outputs = (await visit.ask("readOutputs", api.Outputs, run=run.id)).outputs
    costs = await visit.ask("readCosts", api.Costs, run=run.id)
    return framed(
        visit,
        run,
        "results",
        _artifacts(visit, run.id, artifacts) if artifacts is not None else _too_many(run.id),
        _outputs(visit, run.id, outputs),
        _costs(visit, run.id, costs),
        styles=STYLES,
    )


def _job(run_id: str, name: str, attempt: int = 0) -> Markup:
    address = path("runs", run_id, "jobs", name)
    return a(name, href=f"{address}?attempt={attempt}" if attempt else address)


# -- artifacts


def _artifacts(visit: PageRequest, run_id: str, artifacts: list[api.RunArtifact]) -> Markup:
    if not artifacts:
        return card(
            "Artifacts",
            p("No job kept a file. A job keeps the files listed under ", code("artifacts"), ".", class_="quiet"),
        )
    start = start_of(visit, "files")
    some = artifacts[start : start + PER_PAGE]
    lines: list[list[Child]] = [
        [
            a(_name(each), href=address(run_id, each), download=True, class_="name"),
            _job(run_id, each.job, each.attempt),
            each.attempt,
            span(format_size(each.bytes), class_="number"),
        ]
        for each in some
    ]
    whole = sum(each.bytes for each in artifacts)
    return card(
        "Artifacts",
        p(
            f"{len(artifacts)} {'file' if len(artifacts) == 1 else 'files'}, {format_size(whole)} in total. ",
            "To download all of them: ",
            code(f"deltaci artifacts get {run_id}"),
            class_="quiet",
        ),
        rows(
            ("File", "Job", "Attempt", "Size"),
            lines,
            caption="Artifacts",
            keys=[quote(f"file-{each.job}.{each.attempt}/{each.path}") for each in some],
        ),
        pages(visit, start, PER_PAGE, len(artifacts), what="artifacts", name="files"),
    )


def _too_many(run_id: str) -> Markup:
    one = path("runs", run_id, "jobs", "JOB", "attempts", "1", "artifacts")
    return card(
        "Artifacts", p("There are more files than this page lists. For one attempt: ", code(f"GET {ROOT}{one}"))
    )


def address(run_id: str, each: api.RunArtifact) -> str:
    """Where the file is: the API sends it as something to save, never as a page."""
    begin = path("runs", run_id, "jobs", each.job, "attempts", each.attempt, "artifacts")
    return f"{ROOT}{begin}/{quote(each.path, safe='/')}"


def _name(each: api.RunArtifact) -> str:
    """What jobs of the run share has a name of its own, packed."""
    name = shared_name(each.path)
    return f"{name} (shared, packed)" if name else each.path


# -- outputs


def _outputs(visit: PageRequest, run_id: str, outputs: Mapping[str, Any]) -> Markup:
    if not outputs:
        return card(
            "Outputs",
            p("No job has outputs. A job that succeeds sets one with ", code("outputs"), ".", class_="quiet"),
        )
    every = [
        (job, name, value)
        for job, output in outputs.items()
        for name, value in (output.items() if isinstance(output, dict) else (("result", output),))
    ]
    start = start_of(visit, "outputs")
    lines: list[list[Child]] = [
        [code(name), _value(name, value), _job(run_id, job)] for job, name, value in every[start : start + PER_PAGE]
    ]
    return card(
        "Outputs",
        rows(("Output", "Value", "Job"), lines, caption="Outputs", keys=[f"output-{at}" for at in range(len(lines))]),
        pages(visit, start, PER_PAGE, len(every), what="outputs", name="outputs"),
    )


def _value(name: str, value: Any) -> Markup:
    text = value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return told(text, name)


# -- cost


def _costs(visit: PageRequest, run_id: str, costs: api.Costs) -> Markup:
    if not costs.attempts:
        return card("Cost", p("No usage reported yet. Each attempt reports it when it ends.", class_="quiet"))
    start = start_of(visit, "costs")
    some = costs.attempts[start : start + PER_PAGE]
    # Of all of them, also of those on other pages.
    together = [_together(costs, name, is_sum=is_sum) for name, _, is_sum in COSTS]
    lines: list[list[Child]] = [
        [strong("Total"), strong(len(costs.attempts)), *together, None],
    ]
    lines += [
        [
            _job(run_id, each.job, each.attempt),
            each.attempt,
            *(_amount(name, each.cost.get(name)) for name, _, _ in COSTS),
            _rest(each),
        ]
        for each in some
    ]
    has_rest = any(line[-1] for line in lines)
    headings = ["Job", "Attempt", *(name for _, name, _ in COSTS), "Also"]
    return card(
        "Cost",
        rows(
            headings if has_rest else headings[:-1],
            lines if has_rest else [line[:-1] for line in lines],
            caption="Cost",
            keys=["cost-of-all", *(quote(f"cost-{each.job}.{each.attempt}") for each in some)],
        ),
        pages(visit, start, PER_PAGE, len(costs.attempts), what="costs", name="costs"),
    )


def _together(costs: api.Costs, name: str, *, is_sum: bool) -> Markup:
    told = [value for each in costs.attempts if isinstance(value := each.cost.get(name), int | float)]
    if not told:
        return EMPTY
    return strong(_amount(name, costs.total.get(name, 0) if is_sum else max(told)))


def _amount(name: str, value: Any) -> Child:
    """In units that people know."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None if value is None else code(str(value)[:MAX_TEXT_CHARS])
    if name.endswith("_seconds"):
        return span(seconds_text(value), class_="number")
    if name.endswith("_bytes"):
        return span(format_size(int(value)), class_="number")
    return span(f"{value:,}", class_="number")


def _rest(each: api.JobCost) -> Child:
    """What other runners tell."""
    return [
        [f"{name[:60]} ", _amount(name, value), " "] for name, value in each.cost.items() if name not in _KNOWN
    ] or None


PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/runs/{run}/results", get=shown),)
