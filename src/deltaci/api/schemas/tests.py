"""What `/api/v1` is asked and answers about the tests of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from deltaci.api.schemas.failures import FlakyTest
from deltaci.api.schemas.inputs import PAGE, Asked, Cursor, JobName, Limit, Word
from deltaci.api.schemas.records import Shown
from deltaci.protocol.messages import Moment, says

Outcome = Literal["passed", "failed", "error", "skipped"]
Past = Literal["failed", "not_failed", "unknown"]


class RunTestQuery(Asked, frozen=True, kw_only=True):
    """Which tests; all that is given must hold."""

    q: Annotated[Word, says("with this text in its name or its message, in upper or lower case")] = ""
    outcome: Annotated[
        Literal["failed", "flaky", "skipped", "passed"] | None,
        says("that ended so; those with errors failed, and flaky ones fail now and then, however they ended"),
    ] = None
    job: Annotated[JobName | None, says("of this job")] = None
    order: Annotated[
        Literal["worst", "slowest", "name"],
        says("failed, flaky, skipped and passed ones, of each the slowest first; or all by time; or by name"),
    ] = "worst"
    limit: Annotated[Limit, says("how many at most")] = PAGE
    cursor: Annotated[Cursor, says("`next` of the page before")] = ""


class ReportedTests(Shown, frozen=True, kw_only=True):
    """What the test reports of a job's last attempt say together."""

    job: str
    attempt: int
    total: int
    passed: int
    failed: int
    errors: int
    skipped: int
    flaky: Annotated[int, says("those that failed and then passed in this attempt")]
    seconds: float
    is_whole: Annotated[bool, says("whether each test is known; if not, only the first ones that failed are")]
    troubles: Annotated[list[str], says("why not")]


class RunTest(Shown, frozen=True, kw_only=True):
    """One test of a run."""

    job: str
    attempt: int
    name: str
    outcome: Outcome
    seconds: Annotated[float | None, says("how long it took, if that is known")]
    message: str
    output: Annotated[str, says("the first of what it said, of one that failed; as the job wrote it")]
    is_flaky: Annotated[bool, says("whether it failed and then passed here, or is known to do so")]
    flake: Annotated[FlakyTest | None, says("what is known of it from other attempts on the same commit")]
    history: Annotated[list[Past], says("how it went in each of `earlier`, as far as their jobs reported it")]


class EarlierRun(Shown, frozen=True, kw_only=True):
    """A run before this one, of the same project and branch, or of the same template."""

    id: str
    title: str
    commit: str
    status: str
    created_at: Moment


class RunTests(Shown, frozen=True, kw_only=True):
    """The tests of a run. Of each job the last attempt counts that told of any."""

    jobs: list[ReportedTests]
    found: Annotated[int, says("how many fit what was asked for")]
    counts: Annotated[dict[str, int], says("how many there are of each that can be asked for as `outcome`")]
    tests: list[RunTest]
    earlier: Annotated[list[EarlierRun], says("the newest first")]
    next: Annotated[str | None, says("the cursor of the next page")]
