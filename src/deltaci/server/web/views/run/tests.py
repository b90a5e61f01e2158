"""The tests of a run, failures first, with their history in earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlencode

from deltaci.api.schemas import records as api
from deltaci.api.schemas.tests import EarlierOutcome, EarlierRun, ReportedTests, RunTest, RunTests
from deltaci.server.web.components import badge, card, nothing, path, rows, seconds_text
from deltaci.server.web.filters import MAX_OFFERED, box, choice, filters, search
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    code,
    div,
    join,
    li,
    nav,
    ol,
    p,
    span,
    strong,
    ul,
)
from deltaci.server.web.page_request import PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward
from deltaci.server.web.views.run.collapsible import STYLES, job_asked, text_asked, told
from deltaci.server.web.views.run.frame import framed

PER_PAGE: Final = 25
MAX_PAST: Final = 10
MAX_NAME_CHARS: Final = 40  # Of an earlier run, which is said again and again.
MAX_OUTPUT_CHARS: Final = 2500  # A page with many failures must stay small; the report itself is among the artifacts.
MAX_TROUBLES: Final = 10
MAX_JOBS: Final = 50  # In the list of totals.
HEADINGS: Final = ("Test", "Result", "Took", "Job", "Earlier runs")
FILTERS: Final = (("", "All"), ("failed", "Failed"), ("flaky", "Flaky"), ("skipped", "Skipped"), ("passed", "Passed"))
ORDERS: Final = (("worst", "failures first"), ("slowest", "slowest first"), ("name", "by name"))
# The class of the sign, and the words for whoever does not see it.
PAST: Final[dict[EarlierOutcome, tuple[str, str]]] = {
    "failed": ("bad", "failed"),
    "not_failed": ("good", "did not fail"),
    "unknown": ("idle", "unknown"),
}


async def shown(visit: PageRequest) -> PageResponse:
    """A page of tests, as the filters want it."""
    run = await visit.ask("readRun", api.RunWithJobs, run=visit.params["run"])
    outcome, order = visit.query.get("outcome", ""), visit.query.get("order", "")
    asked: dict[str, Any] = {
        "q": text_asked(visit),
        "outcome": outcome if outcome in dict(FILTERS) and outcome else None,
        "job": job_asked(visit),
        "order": order if order in dict(ORDERS) else "worst",
        "limit": PER_PAGE,
        "cursor": visit.query.get("cursor", ""),
    }
    found = await visit.ask("readTests", RunTests, query=asked, run=run.id)
    if not found.jobs and not asked["job"]:
        return framed(visit, run, "tests", _empty(run), styles=STYLES)
    return framed(
        visit,
        run,
        "tests",
        _totals(found),
        _chooser(visit, run.id, found, outcome),
        _filters(visit, run.id, found, asked),
        _table(run.id, found) if found.tests else nothing("No test matches.", a("All tests", href="?")),
        onward(
            visit,
            found.next,
            first="first",
            more="next",
            says=f"{found.match_count:,} {'match' if found.match_count == 1 else 'matches'}",
        ),
        _by_job(run.id, found.jobs) if len(found.jobs) > 1 else None,
        _missing(run.id, found.jobs),
        styles=STYLES,
    )


def _empty(run: api.Run) -> Markup:
    return nothing(
        "No test report." if run.conclusion else "No test report yet.",
        join(
            [
                "A job reports tests by keeping a JUnit file: ",
                code("artifacts: [{path: report.xml, type: junit}]"),
                ", e.g. written by ",
                code("pytest --junitxml=report.xml"),
                ".",
            ]
        ),
    )


def _totals(found: RunTests) -> Markup:
    jobs = found.jobs
    total, failed = sum(each.total for each in jobs), sum(each.failed + each.errors for each in jobs)
    parts = [
        (strong(f"{total:,}"), " tests" if total != 1 else " test"),
        (strong(f"{failed:,}"), " failed"),
        (strong(f"{found.counts['flaky']:,}"), " flaky"),
        (strong(f"{sum(each.skipped for each in jobs):,}"), " skipped"),
        (strong(seconds_text(sum(each.seconds for each in jobs))), " together"),
    ]
    return p(*(span(*each) for each in parts), class_=f"totals {'bad' if failed else 'good'}", id="totals")


def _chooser(visit: PageRequest, run_id: str, found: RunTests, chosen: str) -> Markup:
    address = path("runs", run_id, "tests")
    links = [
        a(
            title,
            span(f" {found.counts[name]:,}", class_="quiet") if name else None,
            href=address + visit.same(outcome=name or None, cursor=None),
            aria_current="true" if name == chosen else None,
        )
        for name, title in FILTERS
    ]
    return nav(*links, class_="choices", aria_label="Results")


def _filters(visit: PageRequest, run_id: str, found: RunTests, asked: dict[str, Any]) -> Markup:
    return filters(
        search(asked["q"], "name or message"),
        box("job", "Job", visit.query.get("job", ""), known=[each.job for each in found.jobs[:MAX_OFFERED]]),
        choice("order", "Order", ORDERS, asked["order"]),
        to=path("runs", run_id, "tests"),
        keeps={"outcome": asked["outcome"]},
        title="Tests",
    )


def _table(run_id: str, found: RunTests) -> Markup:
    seen: dict[str, int] = {}
    keys: list[str] = []
    for each in found.tests:
        # Reports may have the same name twice; an id may not.
        key = blake2b(f"{each.job}\0{each.name}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        seen[key] = seen.get(key, 0) + 1
        keys.append(f"test-{key}-{seen[key]}")
    earlier = found.earlier[:MAX_PAST]
    has_past = bool(earlier)
    lines = [_line(run_id, each, earlier) for each in found.tests]
    return rows(
        HEADINGS if has_past else HEADINGS[:-1],
        lines if has_past else [line[:-1] for line in lines],
        caption="Tests",
        keys=keys,
    )


def _line(run_id: str, each: RunTest, earlier: Sequence[EarlierRun]) -> list[Child]:
    return [
        join([span(each.name or "(without a name)", class_="name"), _said(each)]),
        span(badge(each.outcome), _flaky(each), class_="result"),
        span(seconds_text(each.seconds) if each.seconds is not None else "–", class_="number"),
        a(each.job, href=f"{path('runs', run_id, 'jobs', each.job)}?attempt={each.attempt}"),
        _past(each, earlier),
    ]


def _said(each: RunTest) -> Child:
    output = each.output[:MAX_OUTPUT_CHARS]
    if len(each.output) > len(output):
        output += "\n… the rest is in the report, in the artifacts"
    # Many tools repeat the message at the beginning of the output.
    has_more = output.strip() not in ("", each.message.strip())
    return [
        div(told(each.message, "Message"), class_="said-by-test") if each.message else None,
        div(told(output, "Output"), class_="said-by-test") if has_more else None,
    ]


def _flaky(each: RunTest) -> Child:
    if not each.is_flaky:
        return None
    times = each.flake.times if each.flake is not None else 0
    known = f"failed and passed on the same commit, seen {times} {'time' if times == 1 else 'times'}"
    return [
        " ",
        span("flaky", class_="badge held", title=known if times else "failed, then passed on a retry"),
    ]


def _past(each: RunTest, earlier: Sequence[EarlierRun]) -> Markup:
    """The oldest first, as one reads; this run would be the next one."""
    signs = []
    for run, past in reversed(list(zip(earlier, each.history, strict=False))):
        how, word = PAST[past]
        name = (run.title or run.commit[:9] or run.id)[:MAX_NAME_CHARS]
        address = path("runs", run.id, "tests")
        signs.append(li(a(href=address, class_=f"past {how}", title=f"{word}: {name}")))
    return ol(*signs, class_="pasts", aria_label="Earlier runs, newest last")


def _by_job(run_id: str, jobs: Sequence[ReportedTests]) -> Markup:
    lines: list[list[Child]] = [
        [
            a(each.job, href=f"{path('runs', run_id, 'tests')}?{urlencode({'job': each.job})}", class_="name"),
            each.total,
            each.failed + each.errors,
            each.skipped,
            each.flaky,
            seconds_text(each.seconds),
        ]
        for each in jobs[:MAX_JOBS]
    ]
    return card(
        "By job",
        rows(("Job", "Tests", "Failed", "Skipped", "Passed on retry", "Took"), lines, caption="Tests by job"),
        p(f"and {len(jobs) - MAX_JOBS} jobs more", class_="quiet") if len(jobs) > MAX_JOBS else None,
    )


def _missing(run_id: str, jobs: Sequence[ReportedTests]) -> Child:
    """What cannot be listed, and why: numbers count it all the same."""
    partly = [each for each in jobs if not each.is_whole]
    if not partly:
        return None
    lines = [
        li(strong(each.job), ": ", "; ".join(each.problems) or "the reports contain fewer tests than were counted")
        for each in partly[:MAX_TROUBLES]
    ]
    return card(
        "Some tests are not listed",
        p("The totals count all tests. For these jobs, only the first failures are listed:"),
        ul(*lines),
        p(a("The reports are in the artifacts", href=path("runs", run_id, "results")), "."),
        id="partly",
    )


PAGES: Final[tuple[PageRoute, ...]] = (PageRoute(path="/runs/{run}/tests", get=shown),)
