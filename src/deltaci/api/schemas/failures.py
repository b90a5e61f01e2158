"""Response types of `/api/v1` for failure rules and for flaky jobs and tests."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import Timestamp, doc

RuleSource = Literal["tenant", "server", "built-in"]


class FailureRule(ResponseSchema, frozen=True, kw_only=True):
    """A rule that classifies failures. It applies if all of its conditions hold."""

    source: Annotated[RuleSource, doc("who defined the rule")] = field(name="of")
    name: str
    failure_class: str
    is_retryable: bool
    error_codes: list[str]
    exit_codes: list[int]
    signals: list[int]
    log_pattern: Annotated[str, doc("a case-insensitive pattern that a line at the end of the log must match")]
    all_failed_tests_flaky: bool
    has_failed_tests: bool


class FailureRules(ResponseSchema, frozen=True, kw_only=True):
    """The tenant's own failure rules as text, and all rules that apply to its jobs, in order of evaluation."""

    text: str
    version: Annotated[int, doc("0: the tenant has no rules of its own")]
    set_at: Timestamp | None
    set_by: str
    rules: list[FailureRule]


class FlakyTest(ResponseSchema, frozen=True, kw_only=True):
    """A test that both failed and passed on the same commit."""

    name: str
    times: Annotated[int, doc("how many times this was observed")]
    last_at: Annotated[Timestamp, doc("when it was last observed")]
    commit: Annotated[str, doc("the commit of the last observation, or the plan where there was no commit")]


class FlakyJob(ResponseSchema, frozen=True, kw_only=True):
    """A job that is flaky or has flaky tests."""

    project: str
    job: str
    is_flaky: Annotated[bool, doc("whether the job itself failed and succeeded on the same commit")]
    times: Annotated[int, doc("how many times this was observed")]
    last_at: Annotated[Timestamp | None, doc("when it was last observed")]
    tests: Annotated[list[FlakyTest], doc("most recently observed first")]


class FlakyPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of the flaky jobs and of jobs with flaky tests. It may be short, even empty, although more follow."""

    jobs: list[FlakyJob]
    next: str | None
