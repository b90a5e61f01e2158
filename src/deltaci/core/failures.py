"""Classification of failed attempts, and the decision to retry.

Rules classify a failure by its error code, signal, exit code, test reports and the tail of its log. The class, the rule
and the line that matched are stored in the event, so that a person can see why a job was or was not retried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

INFRA: Final = "INFRA"
TOOLING: Final = "TOOLING"
FLAKY: Final = "FLAKY"
USER: Final = "USER"
CLASSES: Final = (INFRA, TOOLING, FLAKY, USER)
RETRYABLE: Final = (INFRA, TOOLING, FLAKY)

MAX_LOG_LINES: Final = 200
MAX_LINE_CHARS: Final = 300
MAX_RULES: Final = 100  # Per project, in addition to the built-in rules.


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about a failed attempt that rules are matched against."""

    exit_code: int | None = None
    signal: int | None = None
    error_code: str = ""
    message: str = ""
    log_tail: tuple[str, ...] = ()
    failed_tests: tuple[str, ...] = ()
    flaky_tests: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A classified failure: its class, whether it may be retried, and the evidence.

    `line` is the log line that the rule matched; `message` is the first line of the error message, for people.
    """

    code: str
    failure_class: str
    is_retryable: bool
    rule: str
    line: str = ""
    message: str = ""


class FailureRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that classifies failures. All of its conditions must hold; empty ones are ignored."""

    name: str
    failure_class: str
    is_retryable: bool
    error_codes: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    log_pattern: str = ""
    all_failed_tests_flaky: bool = False
    has_failed_tests: bool = False


RULES: Final[tuple[FailureRule, ...]] = (
    FailureRule(name="lease-lost", failure_class=INFRA, is_retryable=True, error_codes=("LEASE_LOST",)),
    FailureRule(
        name="runner-startup",
        failure_class=INFRA,
        is_retryable=True,
        error_codes=("RUNNER_STARTUP", "IMAGE_PULL", "CHECKOUT"),
    ),
    FailureRule(name="upload", failure_class=INFRA, is_retryable=True, error_codes=("UPLOAD",)),
    FailureRule(name="timed-out", failure_class=INFRA, is_retryable=True, error_codes=("TIMED_OUT",)),
    FailureRule(
        name="cache-or-registry",
        failure_class=TOOLING,
        is_retryable=True,
        error_codes=("CACHE_FETCH", "REGISTRY_FETCH"),
    ),
    FailureRule(name="bad-job-spec", failure_class=USER, is_retryable=False, error_codes=("BAD_SPEC",)),
    FailureRule(name="known-flaky-tests", failure_class=FLAKY, is_retryable=True, all_failed_tests_flaky=True),
    FailureRule(name="failed-tests", failure_class=USER, is_retryable=False, has_failed_tests=True),
    FailureRule(name="killed", failure_class=INFRA, is_retryable=True, signals=(9,)),
    FailureRule(
        name="disk-or-memory",
        failure_class=INFRA,
        is_retryable=True,
        log_pattern=r"No space left on device|Cannot allocate memory|out of memory: kill",
    ),
    FailureRule(
        name="network",
        failure_class=INFRA,
        is_retryable=True,
        log_pattern=r"Connection reset by peer|Temporary failure in name resolution|Could not resolve host"
        r"|Connection timed out|Network is unreachable|TLS handshake timeout|502 Bad Gateway|503 Service Unavailable",
    ),
    FailureRule(
        name="package-registry",
        failure_class=TOOLING,
        is_retryable=True,
        log_pattern=r"Could not fetch URL|ETIMEDOUT|ECONNRESET|toomanyrequests"
        r"|Failed to fetch .*Packages|Failed to fetch .*InRelease",
    ),
    FailureRule(name="tool-missing", failure_class=TOOLING, is_retryable=False, exit_codes=(126, 127)),
    FailureRule(name="failed", failure_class=USER, is_retryable=False),
)


def classify(facts: Facts, rules: Sequence[FailureRule] = RULES) -> Failure:
    """Return the failure with the class and retryability of the first rule that matches; USER if no rule does."""
    code = facts.error_code or ("SIGNAL" if facts.signal else "EXIT" if facts.exit_code else "FAILED")
    message = facts.message.partition("\n")[0][:MAX_LINE_CHARS]
    for rule in rules:
        is_match, matched_line = _matches(rule, facts)
        if is_match:
            return Failure(
                code=code,
                failure_class=rule.failure_class,
                is_retryable=rule.is_retryable and rule.failure_class != USER,
                rule=rule.name,
                line=matched_line,
                message=message,
            )
    return Failure(code=code, failure_class=USER, is_retryable=False, rule="none", message=message)


def validation_failure(details: str) -> Failure:
    """Return the failure of an execution that succeeded with an invalid result; `details` names the failed rules."""
    return Failure(code="VALIDATION_FAILED", failure_class=USER, is_retryable=False, rule="validation", line=details)


def _matches(rule: FailureRule, facts: Facts) -> tuple[bool, str]:
    """Return whether all conditions of the rule hold, and the log line that its pattern matched; empty if none."""
    if rule.error_codes and facts.error_code not in rule.error_codes:
        return False, ""
    if rule.signals and facts.signal not in rule.signals:
        return False, ""
    if rule.exit_codes and facts.exit_code not in rule.exit_codes:
        return False, ""
    if rule.all_failed_tests_flaky and not (facts.failed_tests and set(facts.failed_tests) <= set(facts.flaky_tests)):
        return False, ""
    if rule.has_failed_tests and not facts.failed_tests:
        return False, ""
    if rule.log_pattern:
        line = _matching_line(rule.log_pattern, facts.log_tail[-MAX_LOG_LINES:])
        return bool(line), line
    return True, ""


def matches_line(rule: FailureRule, line: str) -> bool:
    """Return whether the rule's pattern matches this line of a log."""
    return bool(rule.log_pattern) and bool(_matching_line(rule.log_pattern, [line]))


def _matching_line(pattern: str, lines: Iterable[str]) -> str:
    search = _compiled_pattern(pattern).search
    return next((line[:MAX_LINE_CHARS] for line in lines if search(line[:MAX_LINE_CHARS])), "")


@lru_cache(maxsize=256)
def _compiled_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def may_retry(failure: Failure, attempt_count: int, max_attempts: int, retry_on: Sequence[str] = ()) -> bool:
    """Return whether to retry: the failure is retryable, the job retries its class, and attempts remain.

    `attempt_count` counts those made so far. `retry_on` restricts the retryable classes and never extends them.
    """
    is_retried_class = not retry_on or failure.failure_class in retry_on
    return failure.is_retryable and is_retried_class and attempt_count < max_attempts


def is_worker_fault(failure_class: str, code: str) -> bool | None:
    """Return whether the worker's infrastructure caused a failure.

    None for an INFRA timeout, whose cause is unknown.
    """
    if failure_class != INFRA:
        return False
    return None if code == "TIMED_OUT" else True
