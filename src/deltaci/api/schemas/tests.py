"""What `/api/v1` is asked and answers about the tests of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from deltaci.api.schemas.failures import FlakyTest
from deltaci.api.schemas.inputs import DEFAULT_PAGE, Cursor, JobName, Limit, LineText, RequestSchema
from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import Timestamp, doc

TestOutcome = Literal["passed", "failed", "error", "skipped"]
EarlierOutcome = Literal["failed", "not_failed", "unknown"]


class RunTestQuery(RequestSchema, frozen=True, kw_only=True):
    """Which tests; all that is given must hold."""

    q: Annotated[LineText, doc("with this text in its name or its message, in upper or lower case")] = ""
    outcome: Annotated[
        Literal["failed", "flaky", "skipped", "passed"] | None,
        doc("that ended so; those with errors failed, and flaky ones fail now and then, however they ended"),
    ] = None
    job: Annotated[JobName | None, doc("of this job")] = None
    order: Annotated[
        Literal["worst", "slowest", "name"],
        doc("failed, flaky, skipped and passed ones, of each the slowest first; or all by time; or by name"),
    ] = "worst"
    limit: Annotated[Limit, doc("how many at most")] = DEFAULT_PAGE
    cursor: Annotated[Cursor, doc("`next` of the page before")] = ""


class ReportedTests(ResponseSchema, frozen=True, kw_only=True):
    """What the test reports of a job's last attempt say together."""

    job: str
    attempt: int
    total: int
    passed: int
    failed: int
    errors: int
    skipped: int
    flaky: Annotated[int, doc("those that failed and then passed in this attempt")]
    seconds: float
    is_whole: Annotated[bool, doc("whether each test is known; if not, only the first ones that failed are")]
    troubles: Annotated[list[str], doc("why not")]


class RunTest(ResponseSchema, frozen=True, kw_only=True):
    """One test of a run."""

    job: str
    attempt: int
    name: str
    outcome: TestOutcome
    seconds: Annotated[float | None, doc("how long it took, if that is known")]
    message: str
    output: Annotated[str, doc("the first of what it said, of one that failed; as the job wrote it")]
    is_flaky: Annotated[bool, doc("whether it failed and then passed here, or is known to do so")]
    flake: Annotated[FlakyTest | None, doc("what is known of it from other attempts on the same commit")]
    history: Annotated[list[EarlierOutcome], doc("how it went in each of `earlier`, as far as their jobs reported it")]


class EarlierRun(ResponseSchema, frozen=True, kw_only=True):
    """A run before this one, of the same project and branch, or of the same template."""

    id: str
    title: str
    commit: str
    status: str
    created_at: Timestamp


class RunTests(ResponseSchema, frozen=True, kw_only=True):
    """The tests of a run. Of each job the last attempt counts that told of any."""

    jobs: list[ReportedTests]
    found: Annotated[int, doc("how many fit what was asked for")]
    counts: Annotated[dict[str, int], doc("how many there are of each that can be asked for as `outcome`")]
    tests: list[RunTest]
    earlier: Annotated[list[EarlierRun], doc("the newest first")]
    next: Annotated[str | None, doc("the cursor of the next page")]
