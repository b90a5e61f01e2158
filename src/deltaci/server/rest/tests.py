"""The tests of a run, from the test reports of its jobs, with their outcomes in earlier runs.

The cost is bounded: the reports of at most `MAX_JOBS` jobs are read (and cached, see `server/test_reports.py`). The
history of the tests of one page comes from the records of the last `MAX_EARLIER` runs before this one, and of these
from the last attempts of at most `MAX_PAST_JOBS` jobs. A record names only the first failures of an attempt, so the
outcome of another test is "not failed" or unknown.
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
from deltaci.protocol.reports.junit import FAILED, SKIPPED, TestCase
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.lookup import get_run_records
from deltaci.server.rest.http.request import Call, Handler
from deltaci.server.rest.serializers import to_datetime
from deltaci.server.rest.streams.log_tails import last_lease
from deltaci.server.test_reports import ParsedReports
from deltaci.storage.port import ListQuery

MAX_JOBS: Final = 100
MAX_EARLIER: Final = 20
MAX_PAST_JOBS: Final = 20
MAX_OFFSET_DIGITS: Final = 9
_FILTERS: Final = ("failed", "flaky", "skipped", "passed")


class ListedTest(NamedTuple):
    """A test of an attempt. `flake` is set for a known flaky test, `is_timed` if its duration was reported."""

    job: str
    attempt_index: int
    case: TestCase
    flake: Flake | None
    is_timed: bool = True

    @property
    def is_flaky(self) -> bool:
        """Return True if the test was flaky in this attempt or is known to be flaky."""
        return self.case.is_flaky or self.flake is not None

    @property
    def outcome_filters(self) -> Iterable[str]:
        """Yield the values of the `outcome` filter that select the test."""
        if self.is_flaky:
            yield "flaky"
        yield "failed" if self.case.is_failed else self.case.outcome


async def read_tests(call: Call) -> RunTests:
    """Return a page of a run's tests that match the query, with the totals of each job and the earlier runs.

    If the query names a job, totals and tests are only those of this job.
    """
    query: RunTestQuery = call.query
    start_index = _decode_offset(query.cursor)
    run, jobs, attempts_by_job = await get_run_records(call)
    reporting_attempts = [
        (job, attempt)
        for job in jobs
        if query.job in (None, job.spec.name)
        if (attempt := _last_with_tests(attempts_by_job.get(job.id, ()))) is not None
    ]
    totals, tests = await _read_reports(call, run, reporting_attempts)
    matching_tests = [test for test in tests if _matches(test, query)]
    matching_tests.sort(key=_SORT_KEYS[query.order])
    page_tests = matching_tests[start_index : start_index + query.limit]
    earlier_runs = await _earlier_runs(call, run) if page_tests else []
    past_attempts = await _past_attempts(
        call, earlier_runs, list(dict.fromkeys(test.job for test in page_tests))[:MAX_PAST_JOBS]
    )
    count_by_filter = dict.fromkeys(_FILTERS, 0)
    for test in tests:
        for outcome in test.outcome_filters:
            count_by_filter[outcome] += 1
    return RunTests(
        jobs=totals,
        match_count=len(matching_tests),
        counts=count_by_filter,
        tests=[_run_test(test, earlier_runs, past_attempts) for test in page_tests],
        earlier=[
            EarlierRun(
                id=earlier_run.id,
                title=earlier_run.origin.title,
                commit=earlier_run.origin.commit,
                status=run_status(earlier_run),
                created_at=to_datetime(earlier_run.created_at),
            )
            for earlier_run in earlier_runs
        ],
        next=encode_cursor(str(start_index + query.limit)) if start_index + query.limit < len(matching_tests) else None,
    )


def _decode_offset(cursor: str) -> int:
    offset_text = decode_cursor(cursor) if cursor else "0"
    if not (offset_text.isascii() and offset_text.isdecimal() and len(offset_text) <= MAX_OFFSET_DIGITS):
        raise Refused("bad_request", f"{cursor[:80]!r} is no cursor of this list; use `next` of the page before")
    return int(offset_text)


def _last_with_tests(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the last attempt with a report of tests, or None.

    A later attempt may have lost its lease before it reported.
    """
    return next((attempt for attempt in reversed(attempts) if _test_totals(attempt)), None)


def _test_totals(attempt: Attempt) -> dict[str, Any]:
    """Return the totals and the first failures in the report of an attempt, empty if it has no tests."""
    test_totals = attempt.report.get("tests") if isinstance(attempt.report, dict) else None
    return test_totals if isinstance(test_totals, dict) else {}


async def _read_reports(
    call: Call, run: Run, reporting_attempts: Sequence[tuple[Job, Attempt]]
) -> tuple[list[ReportedTests], list[ListedTest]]:
    """Return the totals of each attempt with test reports, and all tests. Only `MAX_JOBS` reports are read."""
    now = await call.app.store.now()
    project_name = flaky.history_key(run)[0]
    totals: list[ReportedTests] = []
    tests: list[ListedTest] = []
    for plan_position, (job, attempt) in enumerate(reporting_attempts):
        job_name, lease = job.spec.name, last_lease(attempt)
        parsed_reports, flake_by_test = ParsedReports(), dict[str, Flake]()
        if plan_position >= MAX_JOBS:
            parsed_reports = ParsedReports((), (f"the tests of {MAX_JOBS} jobs are listed at once; ask for one job",))
        elif lease is not None:
            parsed_reports = await call.app.test_reports.read(attempt, lease.number, call.app.blobs, call.app.disk)
            history = await call.app.flaky.of_job(call.caller.tenant, project_name, job_name)
            flake_by_test = flaky.flaky_tests(history, now)
        totals.append(_job_totals(job_name, attempt, parsed_reports))
        cases = parsed_reports.cases or _recorded_failures(attempt)
        tests += [
            ListedTest(job_name, attempt.index, case, flake_by_test.get(case.name), bool(parsed_reports.cases))
            for case in cases
        ]
    return totals, tests


def _job_totals(job_name: str, attempt: Attempt, parsed_reports: ParsedReports) -> ReportedTests:
    """Return the totals that the attempt's record has, and whether all of its tests could be read."""
    test_totals = _test_totals(attempt)
    test_count = test_totals.get("total", 0)
    return ReportedTests(
        job=job_name,
        attempt=attempt.index,
        total=test_count,
        passed=test_totals.get("passed", 0),
        failed=test_totals.get("failed", 0),
        errors=test_totals.get("errors", 0),
        skipped=test_totals.get("skipped", 0),
        flaky=test_totals.get("flaky", 0),
        seconds=test_totals.get("seconds", 0.0),
        is_whole=not parsed_reports.problems and len(parsed_reports.cases) == test_count,
        problems=list(parsed_reports.problems),
    )


def _recorded_failures(attempt: Attempt) -> list[TestCase]:
    """Return the first failed tests of an attempt from its record, which lists no other tests."""
    return [
        TestCase(
            name=failure.get("name", ""),
            outcome=FAILED,
            is_flaky=False,
            seconds=0.0,
            message=failure.get("message", ""),
        )
        for failure in _test_totals(attempt).get("failures", ())
    ]


def _matches(test: ListedTest, query: RunTestQuery) -> bool:
    if query.outcome is not None and query.outcome not in test.outcome_filters:
        return False
    search_text = query.q.lower()
    return not search_text or search_text in test.case.name.lower() or search_text in test.case.message.lower()


def _severity_key(test: ListedTest) -> tuple[int, float, str, str]:
    rank = 0 if test.case.is_failed else 1 if test.is_flaky else 2 if test.case.outcome == SKIPPED else 3
    return rank, -test.case.seconds, test.case.name, test.job


_SORT_KEYS: Final = {
    "worst": _severity_key,
    "slowest": lambda test: (-test.case.seconds, test.case.name, test.job),
    "name": lambda test: (test.case.name, test.job, test.attempt_index),
}


# -- earlier runs


async def _earlier_runs(call: Call, run: Run) -> list[Run]:
    """Return the last MAX_EARLIER runs before this one of the same project and branch, or of the same template."""
    origin = run.origin
    if origin.project:
        lists = [listing.runs_of_branch(origin.branch)] if origin.branch else []
        lists.append(listing.runs_of_project(origin.project))
    elif origin.template:
        lists = [listing.runs_of_template(origin.template)]
    else:
        return []
    list_query = ListQuery(tenant=run.tenant, lists=lists, until=run.created_at, limit=MAX_EARLIER)
    page = await call.app.store.page(list_query)
    return [record for record in page.records if isinstance(record, Run)]


async def _past_attempts(call: Call, runs: Sequence[Run], job_names: Sequence[str]) -> dict[tuple[str, str], Attempt]:
    """Return the last attempt of each of these jobs in each of these runs, by run id and job name."""
    job_ids = [job_id(run.id, job_name) for run in runs for job_name in job_names]
    store = call.app.store
    jobs = [record for record in (await store.find_all(job_ids) if job_ids else ()) if isinstance(record, Job)]
    attempt_ids = [attempt_id(job.id, job.attempts) for job in jobs if job.attempts]
    attempt_records = await store.find_all(attempt_ids) if attempt_ids else []
    return {
        (record.run_id, flaky.job_name(record)): record for record in attempt_records if isinstance(record, Attempt)
    }


def _earlier_outcome(attempt: Attempt | None, test_name: str) -> EarlierOutcome:
    if attempt is None or not _test_totals(attempt):
        return "unknown"
    failed_names, is_complete = flaky.failed_tests(attempt.report)
    return "failed" if test_name in failed_names else "not_failed" if is_complete else "unknown"


def _run_test(
    test: ListedTest, earlier_runs: Sequence[Run], past_attempt_by_key: Mapping[tuple[str, str], Attempt]
) -> RunTest:
    """Return a test as the API shows it, with its outcomes in earlier runs."""
    case, flake = test.case, test.flake
    return RunTest(
        job=test.job,
        attempt=test.attempt_index,
        name=case.name,
        outcome=cast(TestOutcome, case.outcome),
        seconds=case.seconds if test.is_timed else None,
        message=case.message,
        output=case.output,
        is_flaky=test.is_flaky,
        flake=FlakyTest(name=case.name, times=flake.times, last_at=to_datetime(flake.last_at), commit=flake.commit)
        if flake is not None
        else None,
        history=[
            _earlier_outcome(past_attempt_by_key.get((earlier_run.id, test.job)), case.name)
            for earlier_run in earlier_runs
        ],
    )


HANDLERS: Final[Mapping[str, Handler]] = {"readTests": read_tests}
