"""Results of a conformance check: one verdict and its evidence for each rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

Verdict = Literal["PASS", "FAIL", "NOT SHOWN"]
PASS: Final = "PASS"
FAIL: Final = "FAIL"
NOT_SHOWN: Final = "NOT SHOWN"


class Finding(msgspec.Struct, frozen=True):
    """The verdict on one rule in one scenario, and one sentence with what was expected, what was observed and when."""

    verdict: Verdict
    evidence: str


class CheckResult(msgspec.Struct, frozen=True):
    """One item of the checklist with its verdict."""

    id: str
    title: str
    verdict: Verdict
    evidence: str


def passed(evidence: str) -> Finding:
    """Return a finding that the rule was kept, in a situation in which it could have been broken."""
    return Finding(PASS, evidence)


def failed(evidence: str) -> Finding:
    """Return a finding that the rule was broken."""
    return Finding(FAIL, evidence)


def not_shown(reason: str) -> Finding:
    """Return a finding that the rule could not be judged, because the situation in which it applies did not occur."""
    return Finding(NOT_SHOWN, reason)


def combine(item_id: str, title: str, findings: Iterable[Finding]) -> CheckResult:
    """Return the result of a checklist item from its findings in several scenarios.

    It is FAIL if a finding is FAIL, otherwise PASS if one is PASS, otherwise NOT SHOWN.
    """
    findings = list(findings)
    for verdict in (FAIL, PASS, NOT_SHOWN):
        evidence = list(dict.fromkeys(finding.evidence for finding in findings if finding.verdict == verdict))
        if evidence:
            return CheckResult(item_id, title, verdict, "; ".join(evidence))
    return CheckResult(item_id, title, NOT_SHOWN, "no scenario that shows it was played")


def is_compliant(results: Sequence[CheckResult]) -> bool:
    """Return whether no item failed and at least one passed. Without any pass nothing is proven."""
    return all(result.verdict != FAIL for result in results) and any(result.verdict == PASS for result in results)
