"""A failure in words: what happened, whose fault the rules say it was, and what made them say so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from deltaci.audit.explain.formatting import listed, quoted, saying, shown
from deltaci.core.failures import FLAKY, INFRA, TOOLING, USER, Failure
from deltaci.core.flaky import failed_tests

MAX_TESTS: Final = 5

_WHOSE: Final = {
    INFRA: "a fault of the machine or the network",
    TOOLING: "a fault of the tools around the job",
    FLAKY: "tests that are known to fail now and then",
    USER: "a fault of the job itself",
}
_WHAT: Final = {
    "FAILED": "it reported a failure",
    "SIGNAL": "it was ended by a signal",
    "TIMED_OUT": "it took longer than it may",
    "LEASE_LOST": "its worker was lost too often",
    "VALIDATION_FAILED": "its result did not pass the validation",
    "CANCELED": "it was cancelled",
    "RUNNER_STARTUP": "the runner could not start it",
    "IMAGE_PULL": "its image could not be fetched",
    "CHECKOUT": "its source could not be checked out",
    "ARTIFACTS": "what it should leave behind is missing",
    "OUTPUT": "its output cannot be used",
    "SECRETS": "it could not get its secrets",
    "BAD_RESULT": "the server refused its result",
    "UPLOAD": "its results could not be uploaded",
    "CACHE_FETCH": "its cache could not be fetched",
    "REGISTRY_FETCH": "a package could not be fetched",
    "BAD_SPEC": "its specification makes no sense",
}


def what(failure: Failure, exit_code: object = None) -> str:
    """What happened, as far as it is known."""
    code = shown(failure.code)
    if failure.code == "EXIT":
        ended = f"it ended with exit code {exit_code}" if isinstance(exit_code, int) else "its exit code was not 0"
    else:
        ended = _WHAT.get(failure.code, "it failed")
        ended += f" ({code})" if failure.code != "FAILED" else ""
        ended += f" with exit code {exit_code}" if isinstance(exit_code, int) and exit_code else ""
    return ended + saying(failure.message)


def whose(failure: Failure) -> str:
    """The rule that matched, the class that it names, and the line that made it say so; without the full stop."""
    line = f", because of the line {quoted(failure.line)}" if quoted(failure.line) else ""
    named = _WHOSE.get(failure.failure_class, "something unknown")
    return (
        f"The rule {quoted(failure.rule) or 'for it'} puts that down to {named} ({shown(failure.failure_class)}){line}"
    )


def why_not_again(failure: Failure, index: int, allowed: int, retry_on: Sequence[str] = ()) -> str:
    """Why there is no attempt after this one: a sentence of its own."""
    if failure.failure_class == USER and allowed == 1:
        return "Another attempt would end in the same way."
    if failure.failure_class == USER:
        return f"Another attempt would end in the same way, so attempt {index} of {allowed} was the last one."
    if not failure.is_retryable:
        return f"The rule says that another attempt would not help, so attempt {index} of {allowed} was the last one."
    if retry_on and failure.failure_class not in retry_on:
        only = " and ".join(retry_on)
        return f"The job is retried on {only} only, so attempt {index} of {allowed} was the last one."
    if allowed == 1:
        return "Such a failure may pass, but the job has only one attempt; give it more with max_attempts."
    return f"Such a failure may pass, but all {allowed} attempts are used up."


def known_flaky(report: Any, known: Collection[str] | None) -> str:
    """How many of the failed tests are known to be flaky, and which: a sentence of its own, or nothing."""
    failed, is_all = failed_tests(report)
    flaky = [name for name in failed if name in (known or ())]
    if not flaky:
        return ""
    total = f"{len(failed)}{'' if is_all else ' or more'}"
    noun = "test is" if len(failed) == 1 and is_all else "tests are" if len(flaky) > 1 else "tests is"
    return f"{len(flaky)} of {total} failed {noun} known to be flaky: {listed(flaky, MAX_TESTS)}."


def told(metadata: dict[str, Any]) -> Failure:
    """The failure that an event tells of. What it does not say is left empty."""
    error = metadata.get("error")
    said: dict[str, Any] = error if isinstance(error, dict) else metadata
    text = {key: said[key] for key in ("code", "failure_class", "rule", "line", "message") if key in said}
    return Failure(
        code=str(text.get("code", "FAILED")),
        failure_class=str(text.get("failure_class", "")),
        is_retryable=bool(said.get("is_retryable")),
        rule=str(text.get("rule", "")),
        line=str(text.get("line", "")),
        message=str(text.get("message", "")),
    )
