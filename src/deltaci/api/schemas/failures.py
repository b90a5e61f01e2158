"""What `/api/v1` answers about failures: the rules by which they are classed, and what is flaky."""

from __future__ import annotations

from typing import Annotated, Literal

from deltaci.api.schemas.records import Shown
from deltaci.protocol.messages import Moment, says

RulesOf = Literal["tenant", "server", "built-in"]


class FailureRule(Shown, frozen=True, kw_only=True):
    """One rule by which failures are classed. Everything that it names must hold."""

    of: Annotated[RulesOf, says("whose rule it is")]
    name: str
    failure_class: str
    is_retryable: bool
    error_codes: list[str]
    exit_codes: list[int]
    signals: list[int]
    log_pattern: Annotated[str, says("a line of the end of the log must match it, in upper or lower case")]
    all_failed_tests_flaky: bool
    has_failed_tests: bool


class FailureRules(Shown, frozen=True, kw_only=True):
    """The tenant's own file, and all rules that hold for it, in the order in which they are asked."""

    text: str
    version: Annotated[int, says("0: the tenant has none of its own")]
    set_at: Moment | None
    set_by: str
    rules: list[FailureRule]


class FlakyTest(Shown, frozen=True, kw_only=True):
    """A test that failed and did not fail on the same commit."""

    name: str
    times: Annotated[int, says("how often that was seen")]
    last_at: Annotated[Moment, says("when last")]
    commit: Annotated[str, says("on which commit last, or on which plan where there was none")]


class FlakyJob(Shown, frozen=True, kw_only=True):
    """A job that fails now and then, or has tests that do."""

    project: str
    job: str
    is_flaky: Annotated[bool, says("whether the job itself failed and succeeded on the same commit")]
    times: Annotated[int, says("how often that was seen")]
    last_at: Annotated[Moment | None, says("when last")]
    tests: Annotated[list[FlakyTest], says("the one that was seen last is the first")]


class FlakyPage(Shown, frozen=True, kw_only=True):
    """What is known to be flaky; a page may be short, even empty, before the end."""

    jobs: list[FlakyJob]
    next: str | None
