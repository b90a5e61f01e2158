"""The tests of a run: all of them from the reports that its jobs left behind, with what is known of each from before.

What it costs is bounded: the reports of at most `MAX_JOBS` jobs are read (and remembered, `server/reports.py`), and the
history of the tests of one page comes from the records of the newest `MAX_EARLIER` runs before this one, of which the
last attempt of at most `MAX_PAST_JOBS` jobs is looked at. A record names only the first failures of an attempt, so of
a test that is not among them it is known at most that it did not fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from deltaci.api.schemas.failures import FlakyTest
from deltaci.api.schemas.tests import (
    EarlierOutcome,
    EarlierRun,
    ReportedTests,
    RunTest,
    RunTestQuery,
    RunTests,
    TestOutcome,
)
from deltaci.core import flaky, listing
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.flaky import Flake
from deltaci.core.ids import attempt_id, job_id
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.core.status.steps import run_status
from deltaci.protocol.junit import FAILED, SKIPPED, TestCase
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.lookup import family_of
from deltaci.server.rest.http.request import Call, Handler
from deltaci.server.rest.log_tails import last_lease
from deltaci.server.rest.serializers import moment
from deltaci.server.test_reports import Reported
from deltaci.storage.port import ListQuery

MAX_JOBS: Final = 100
MAX_EARLIER: Final = 20
MAX_PAST_JOBS: Final = 20
MAX_OFFSET_DIGITS: Final = 9
_FILTERS: Final = ("failed", "flaky", "skipped", "passed")


class Found(NamedTuple):
    """One test, of whom it is, and whether it fails now and then."""

    job: str
    attempt: int
    case: TestCase
    flake: Flake | None
    is_timed: bool = True

    @property
    def is_flaky(self) -> bool:
        """Here, or as far as is known."""
        return self.case.is_flaky or self.flake is not None

    @property
    def groups(self) -> Iterable[str]:
        """Under which words it is asked for."""
        if self.is_flaky:
            yield "flaky"
        yield "failed" if self.case.is_failed else self.case.outcome


async def read_tests(call: Call) -> RunTests:
    """A page of them, and the totals of all jobs."""
    query: RunTestQuery = call.query
    start = _offset(query.cursor)
    run, jobs, tries = await family_of(call)
    told = [
        (job, tried)
        for job in jobs
        if query.job in (None, job.spec.name)
        if (tried := _last_told(tries.get(job.id, ()))) is not None
    ]
    totals, every = await _all(call, run, told)
    fitting = [each for each in every if _fits(each, query)]
    fitting.sort(key=_ORDERS[query.order])
    page = fitting[start : start + query.limit]
    earlier = await _earlier(call, run) if page else []
    past = await _past(call, earlier, list(dict.fromkeys(each.job for each in page))[:MAX_PAST_JOBS])
    counts = dict.fromkeys(_FILTERS, 0)
    for each in every:
        for group in each.groups:
            counts[group] += 1
    return RunTests(
        jobs=totals,
        match_count=len(fitting),
        counts=counts,
        tests=[_shown(each, earlier, past) for each in page],
        earlier=[
            EarlierRun(
                id=each.id,
                title=each.origin.title,
                commit=each.origin.commit,
                status=run_status(each),
                created_at=moment(each.created_at),
            )
            for each in earlier
        ],
        next=written(str(start + query.limit)) if start + query.limit < len(fitting) else None,
    )


def _offset(cursor: str) -> int:
    text = read(cursor) if cursor else "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_OFFSET_DIGITS):
        raise Refused("bad_request", f"{cursor[:80]!r} is no cursor of this list; use `next` of the page before")
    return int(text)


def _last_told(tries: Sequence[Attempt]) -> Attempt | None:
    """The last attempt that told of tests: one that was lost since did not get so far."""
    return next((each for each in reversed(tries) if _told(each)), None)


def _told(attempt: Attempt) -> dict[str, Any]:
    found = attempt.report.get("tests") if isinstance(attempt.report, dict) else None
    return found if isinstance(found, dict) else {}


async def _all(call: Call, run: Run, told: Sequence[tuple[Job, Attempt]]) -> tuple[list[ReportedTests], list[Found]]:
    now = await call.parts.store.now()
    project = flaky.history_key(run)[0]
    totals: list[ReportedTests] = []
    every: list[Found] = []
    for at, (job, attempt) in enumerate(told):
        name, lease = job.spec.name, last_lease(attempt)
        reported, known = Reported(), dict[str, Flake]()
        if at >= MAX_JOBS:
            reported = Reported((), (f"the tests of {MAX_JOBS} jobs are listed at once; ask for one job",))
        elif lease is not None:
            reported = await call.parts.reports.of(attempt, lease.number, call.parts.blobs, call.parts.disk)
            history = await call.parts.flaky.of_job(call.who.tenant, project, name)
            known = flaky.flaky_tests(history, now)
        totals.append(_totals(name, attempt, reported))
        cases = reported.cases or _told_failures(attempt)
        every += [Found(name, attempt.index, each, known.get(each.name), bool(reported.cases)) for each in cases]
    return totals, every


def _totals(job: str, attempt: Attempt, reported: Reported) -> ReportedTests:
    told = _told(attempt)
    total = told.get("total", 0)
    return ReportedTests(
        job=job,
        attempt=attempt.index,
        total=total,
        passed=told.get("passed", 0),
        failed=told.get("failed", 0),
        errors=told.get("errors", 0),
        skipped=told.get("skipped", 0),
        flaky=told.get("flaky", 0),
        seconds=told.get("seconds", 0.0),
        is_whole=not reported.troubles and len(reported.cases) == total,
        problems=list(reported.troubles),
    )


def _told_failures(attempt: Attempt) -> list[TestCase]:
    """What the record knows of single tests: the first that failed."""
    return [
        TestCase(
            name=each.get("name", ""), outcome=FAILED, is_flaky=False, seconds=0.0, message=each.get("message", "")
        )
        for each in _told(attempt).get("failures", ())
    ]


def _fits(each: Found, query: RunTestQuery) -> bool:
    if query.outcome is not None and query.outcome not in each.groups:
        return False
    wanted = query.q.lower()
    return not wanted or wanted in each.case.name.lower() or wanted in each.case.message.lower()


def _worst(each: Found) -> tuple[int, float, str, str]:
    rank = 0 if each.case.is_failed else 1 if each.is_flaky else 2 if each.case.outcome == SKIPPED else 3
    return rank, -each.case.seconds, each.case.name, each.job


_ORDERS: Final = {
    "worst": _worst,
    "slowest": lambda each: (-each.case.seconds, each.case.name, each.job),
    "name": lambda each: (each.case.name, each.job, each.attempt),
}


# -- what is known from before


async def _earlier(call: Call, run: Run) -> list[Run]:
    """The newest runs before this one that are of the same kind, as far as one can tell."""
    origin = run.origin
    if origin.project:
        lists = [listing.runs_of_branch(origin.branch)] if origin.branch else []
        lists.append(listing.runs_of_project(origin.project))
    elif origin.template:
        lists = [listing.runs_of_template(origin.template)]
    else:
        return []
    search = ListQuery(tenant=run.tenant, lists=lists, until=run.created_at, limit=MAX_EARLIER)
    page = await call.parts.store.page(search)
    return [each for each in page.records if isinstance(each, Run)]


async def _past(call: Call, runs: Sequence[Run], names: Sequence[str]) -> dict[tuple[str, str], Attempt]:
    """The last attempt of each of these jobs in each of these runs, by the ids of run and job."""
    wanted = [job_id(run.id, name) for run in runs for name in names]
    store = call.parts.store
    jobs = [each for each in (await store.find_all(wanted) if wanted else ()) if isinstance(each, Job)]
    tried = [attempt_id(each.id, each.attempts) for each in jobs if each.attempts]
    attempts = await store.find_all(tried) if tried else []
    return {(each.run_id, flaky.job_name(each)): each for each in attempts if isinstance(each, Attempt)}


def _result(attempt: Attempt | None, name: str) -> EarlierOutcome:
    if attempt is None or not _told(attempt):
        return "unknown"
    failed, is_all = flaky.failed_tests(attempt.report)
    return "failed" if name in failed else "not_failed" if is_all else "unknown"


def _shown(each: Found, earlier: Sequence[Run], past: Mapping[tuple[str, str], Attempt]) -> RunTest:
    case, flake = each.case, each.flake
    return RunTest(
        job=each.job,
        attempt=each.attempt,
        name=case.name,
        outcome=cast(TestOutcome, case.outcome),
        seconds=case.seconds if each.is_timed else None,
        message=case.message,
        output=case.output,
        is_flaky=each.is_flaky,
        flake=FlakyTest(name=case.name, times=flake.times, last_at=moment(flake.last_at), commit=flake.commit)
        if flake is not None
        else None,
        history=[_result(past.get((run.id, each.job)), case.name) for run in earlier],
    )


HANDLERS: Final[Mapping[str, Handler]] = {"readTests": read_tests}
