"""What a compliance kit says: one item for each rule, with a verdict and the evidence for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

Verdict = Literal["PASS", "FAIL", "NOT SHOWN"]
PASS: Final = "PASS"
FAIL: Final = "FAIL"
NOT_SHOWN: Final = "NOT SHOWN"


class Finding(msgspec.Struct, frozen=True):
    """One look at one rule: the verdict, and in one sentence what was expected, what was observed and when."""

    verdict: Verdict
    evidence: str


class CheckResult(msgspec.Struct, frozen=True):
    """A line of the checklist."""

    id: str
    title: str
    verdict: Verdict
    evidence: str


def passed(evidence: str) -> Finding:
    """The rule was kept where it could have been broken."""
    return Finding(PASS, evidence)


def failed(evidence: str) -> Finding:
    """The rule was broken."""
    return Finding(FAIL, evidence)


def not_shown(why: str) -> Finding:
    """Nothing happened that could have shown it."""
    return Finding(NOT_SHOWN, why)


def combine(id: str, title: str, findings: Iterable[Finding]) -> CheckResult:
    """One verdict out of many looks: one breach is enough, and what was never shown is not passed."""
    found = list(findings)
    for verdict in (FAIL, PASS, NOT_SHOWN):
        told = list(dict.fromkeys(each.evidence for each in found if each.verdict == verdict))
        if told:
            return CheckResult(id, title, verdict, "; ".join(told))
    return CheckResult(id, title, NOT_SHOWN, "no scenario that shows it was played")


def is_compliant(items: Sequence[CheckResult]) -> bool:
    """Nothing failed, and at least something was shown: silence is no proof."""
    return all(each.verdict != FAIL for each in items) and any(each.verdict == PASS for each in items)
