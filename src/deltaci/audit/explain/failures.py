"""Describe a failed attempt: what happened, which failure rule matched, and why there was no other attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from deltaci.audit.explain.formatting import colon_quote, listed, one_line, quoted
from deltaci.core.failures import FLAKY, INFRA, TOOLING, USER, Failure
from deltaci.core.flaky import failed_tests

MAX_TESTS: Final = 5

_CLASS_TEXTS: Final = {
    INFRA: "a failure of the machine or the network",
    TOOLING: "a failure of the tools around the job",
    FLAKY: "tests that are known to be flaky",
    USER: "a failure of the job itself",
}
_CODE_TEXTS: Final = {
    "FAILED": "it reported a failure",
    "SIGNAL": "it was killed by a signal",
    "TIMED_OUT": "it exceeded its time limit",
    "LEASE_LOST": "its worker was lost too often",
    "VALIDATION_FAILED": "its result did not pass the validation",
    "CANCELED": "it was cancelled",
    "RUNNER_STARTUP": "the runner could not start it",
    "IMAGE_PULL": "its image could not be fetched",
    "SERVICE": "a service was not ready",
    "CHECKOUT": "its source could not be checked out",
    "ARTIFACTS": "a required artifact is missing",
    "OUTPUT": "its output is not valid",
    "SECRETS": "it could not get its secrets",
    "BAD_RESULT": "the server refused its result",
    "UPLOAD": "its results could not be uploaded",
    "CACHE_FETCH": "its cache could not be fetched",
    "REGISTRY_FETCH": "a package could not be fetched",
    "BAD_SPEC": "its specification is not valid",
}


def describe_failure(failure: Failure, exit_code: object = None) -> str:
    """Return what happened as a clause, such as `it ended with exit code 2`, followed by the failure's message."""
    code = one_line(failure.code)
    if failure.code == "EXIT":
        failure_text = (
            f"it ended with exit code {exit_code}" if isinstance(exit_code, int) else "its exit code was not 0"
        )
    else:
        failure_text = _CODE_TEXTS.get(failure.code, "it failed")
        failure_text += f" ({code})" if failure.code != "FAILED" else ""
        failure_text += f" with exit code {exit_code}" if isinstance(exit_code, int) and exit_code else ""
    return failure_text + colon_quote(failure.message)


def describe_classification(failure: Failure) -> str:
    """Return a sentence without a full stop: which rule matched, the failure class, and the matching log line."""
    line_text = f", because of the line {quoted(failure.line)}" if quoted(failure.line) else ""
    class_text = _CLASS_TEXTS.get(failure.failure_class, "an unknown failure")
    rule_text = f"The rule {quoted(failure.rule)}" if quoted(failure.rule) else "A rule"
    return f"{rule_text} classifies that as {class_text} ({one_line(failure.failure_class)}){line_text}"


def why_not_retried(failure: Failure, attempt_index: int, max_attempts: int, retry_on: Sequence[str] = ()) -> str:
    """Return a sentence that says why the attempt with this index was the last one."""
    if failure.failure_class == USER and max_attempts == 1:
        return "Another attempt would fail in the same way."
    if failure.failure_class == USER:
        return (
            "Another attempt would fail in the same way, "
            f"so attempt {attempt_index} of {max_attempts} was the last one."
        )
    if not failure.is_retryable:
        return f"The rule does not allow a retry, so attempt {attempt_index} of {max_attempts} was the last one."
    if retry_on and failure.failure_class not in retry_on:
        joined_classes = " and ".join(retry_on)
        return (
            f"The job is retried only on {joined_classes}, "
            f"so attempt {attempt_index} of {max_attempts} was the last one."
        )
    if max_attempts == 1:
        return "The failure may be temporary, but the job has only one attempt; allow more with max_attempts."
    return f"The failure may be temporary, but all {max_attempts} attempts are used up."


def describe_flaky_tests(report: Any, flaky_tests: Collection[str] | None) -> str:
    """Return a sentence that names the failed tests that are known to be flaky; empty if there are none."""
    failed_names, is_complete = failed_tests(report)
    flaky_names = [name for name in failed_names if name in (flaky_tests or ())]
    if not flaky_names:
        return ""
    total_text = f"{len(failed_names)}{'' if is_complete else ' or more'}"
    noun = "test is" if len(failed_names) == 1 and is_complete else "tests are" if len(flaky_names) > 1 else "tests is"
    return f"{len(flaky_names)} of {total_text} failed {noun} known to be flaky: {listed(flaky_names, MAX_TESTS)}."


def failure_from_metadata(metadata: dict[str, Any]) -> Failure:
    """Return the `Failure` that an event's metadata describes. Missing fields are empty."""
    error_metadata = metadata.get("error")
    failure_fields: dict[str, Any] = error_metadata if isinstance(error_metadata, dict) else metadata
    field_values = {
        field_name: failure_fields[field_name]
        for field_name in ("code", "failure_class", "rule", "line", "message")
        if field_name in failure_fields
    }
    return Failure(
        code=str(field_values.get("code", "FAILED")),
        failure_class=str(field_values.get("failure_class", "")),
        is_retryable=bool(failure_fields.get("is_retryable")),
        rule=str(field_values.get("rule", "")),
        line=str(field_values.get("line", "")),
        message=str(field_values.get("message", "")),
    )
