"""What `/api/v1` answers about failures: the rules by which they are classed, and what is flaky."""

from __future__ import annotations

from typing import Annotated, Literal

from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import Timestamp, doc

RuleSource = Literal["tenant", "server", "built-in"]


class FailureRule(ResponseSchema, frozen=True, kw_only=True):
    """One rule by which failures are classed. Everything that it names must hold."""

    of: Annotated[RuleSource, doc("whose rule it is")]
    name: str
    failure_class: str
    is_retryable: bool
    error_codes: list[str]
    exit_codes: list[int]
    signals: list[int]
    log_pattern: Annotated[str, doc("a line of the end of the log must match it, in upper or lower case")]
    all_failed_tests_flaky: bool
    has_failed_tests: bool


class FailureRules(ResponseSchema, frozen=True, kw_only=True):
    """The tenant's own file, and all rules that hold for it, in the order in which they are asked."""

    text: str
    version: Annotated[int, doc("0: the tenant has none of its own")]
    set_at: Timestamp | None
    set_by: str
    rules: list[FailureRule]


class FlakyTest(ResponseSchema, frozen=True, kw_only=True):
    """A test that failed and did not fail on the same commit."""

    name: str
    times: Annotated[int, doc("how often that was seen")]
    last_at: Annotated[Timestamp, doc("when last")]
    commit: Annotated[str, doc("on which commit last, or on which plan where there was none")]


class FlakyJob(ResponseSchema, frozen=True, kw_only=True):
    """A job that fails now and then, or has tests that do."""

    project: str
    job: str
    is_flaky: Annotated[bool, doc("whether the job itself failed and succeeded on the same commit")]
    times: Annotated[int, doc("how often that was seen")]
    last_at: Annotated[Timestamp | None, doc("when last")]
    tests: Annotated[list[FlakyTest], doc("the one that was seen last is the first")]


class FlakyPage(ResponseSchema, frozen=True, kw_only=True):
    """What is known to be flaky; a page may be short, even empty, before the end."""

    jobs: list[FlakyJob]
    next: str | None
