"""What the rules of a job say together: from what its runner says of each of them to what the core is told.

A runner that says nothing of a job's rules, an old one or one that lies, has not shown that they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.core.attempt import Verdict
from deltaci.wire.messages import Complete, JobSpec
from deltaci.wire.messages import Verdict as Told
from deltaci.wire.texts import plain

MAX_TOLD_CHARS: Final = 500  # Of each rule that does not hold.
MAX_DETAILS_CHARS: Final = 2000


def verdict_of(said: Complete, spec: JobSpec) -> Verdict | None:
    """The verdict about a success; None where there are no rules that a runner looks at."""
    if said.is_skipped and spec.condition:
        return None  # Nothing was done, and so there is nothing to look at.
    rules, verdicts = [rule for rule in spec.rules if not rule.is_servers], said.verdicts or []
    failed = [each for each in verdicts if not each.is_passed]
    if failed:
        return Verdict(is_passed=False, details=told(failed))
    if len(verdicts) < len(rules):
        found = f"found the runner's word for {len(verdicts)} of {len(rules)}"
        return Verdict(is_passed=False, details=f"its rules: {found}, wanted it for each; update the runner")
    return Verdict(is_passed=True) if rules else None


def told(failed: Sequence[Told]) -> str:
    """For people: each rule that does not hold, what was found and what was wanted."""
    return plain("; ".join(_told(each) for each in failed), MAX_DETAILS_CHARS)


def _told(verdict: Told) -> str:
    name = plain(verdict.rule, MAX_TOLD_CHARS)
    found, wanted = plain(verdict.found, MAX_TOLD_CHARS), plain(verdict.wanted, MAX_TOLD_CHARS)
    return f"rule {name}: found {found or 'nothing'}, wanted {wanted or 'it to hold'}"
