"""Query and response types of `/api/v1` for the tests of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from deltaci.api.schemas.failures import FlakyTest
from deltaci.api.schemas.inputs import DEFAULT_PAGE, Cursor, JobName, Limit, LineText, RequestSchema
from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import Timestamp, doc

TestOutcome = Literal["passed", "failed", "error", "skipped"]
EarlierOutcome = Literal["failed", "not_failed", "unknown"]


class RunTestQuery(RequestSchema, frozen=True, kw_only=True):
    """The page of the tests of a run to return, and filters for it. A test must match every filter that is set."""

    q: Annotated[LineText, doc("only tests with this text in the name or message, ignoring case")] = ""
    outcome: Annotated[
        Literal["failed", "flaky", "skipped", "passed"] | None,
        doc("only with this outcome; `failed` includes errors, `flaky` is independent of the outcome"),
    ] = None
    job: Annotated[JobName | None, doc("only of this job")] = None
    order: Annotated[
        Literal["worst", "slowest", "name"],
        doc("`worst`: failed, flaky, skipped, then passed, each slowest first; or by duration; or by name"),
    ] = "worst"
    limit: Annotated[Limit, doc("page size")] = DEFAULT_PAGE
    cursor: Annotated[Cursor, doc("`next` of the previous page")] = ""


class ReportedTests(ResponseSchema, frozen=True, kw_only=True):
    """Totals of the test reports of a job's last attempt that has any."""

    job: str
    attempt: int
    total: int
    passed: int
    failed: int
    errors: int
    skipped: int
    flaky: Annotated[int, doc("tests that failed and then passed in this attempt")]
    seconds: float
    is_whole: Annotated[bool, doc("whether every test is listed; otherwise only the first failed ones are")]
    problems: Annotated[list[str], doc("why not")] = field(name="troubles")


class RunTest(ResponseSchema, frozen=True, kw_only=True):
    """One test of a run, with its result."""

    job: str
    attempt: int
    name: str
    outcome: TestOutcome
    seconds: Annotated[float | None, doc("its duration, if known")]
    message: str
    output: Annotated[str, doc("the beginning of its output if it failed, as the job wrote it")]
    is_flaky: Annotated[bool, doc("whether it failed and then passed in this attempt, or is known to be flaky")]
    flake: Annotated[FlakyTest | None, doc("earlier observations that it is flaky")]
    history: Annotated[list[EarlierOutcome], doc("its outcome in each of the `earlier` runs, as far as reported")]


class EarlierRun(ResponseSchema, frozen=True, kw_only=True):
    """An earlier run of the same project and branch, or of the same template."""

    id: str
    title: str
    commit: str
    status: str
    created_at: Timestamp


class RunTests(ResponseSchema, frozen=True, kw_only=True):
    """A page of the tests of a run. Of each job, the last attempt with test reports counts."""

    jobs: list[ReportedTests]
    match_count: Annotated[int, doc("how many tests match the filters")] = field(name="found")
    counts: Annotated[dict[str, int], doc("the number of tests for each value of `outcome`")]
    tests: list[RunTest]
    earlier: Annotated[list[EarlierRun], doc("newest first")]
    next: Annotated[str | None, doc("the cursor of the next page")]
