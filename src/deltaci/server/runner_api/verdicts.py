"""What the rules of a job say together: from what its runner says of each of them to what the core is told.

A runner that says nothing of a job's rules, an old one or one that lies, has not shown that they hold.
"""

from __future__ import annotations

from deltaci.core.attempt import Verdict
from deltaci.protocol.messages import Complete, JobSpec
from deltaci.protocol.rule_results import describe_failed


def verdict_of(said: Complete, spec: JobSpec) -> Verdict | None:
    """The verdict about a success; None where there are no rules that a runner looks at."""
    if said.is_skipped and spec.condition:
        return None  # Nothing was done, and so there is nothing to look at.
    rules, verdicts = [rule for rule in spec.rules if not rule.is_checked_by_server], said.verdicts or []
    if broken := describe_failed(verdicts):
        return Verdict(is_passed=False, details=broken)
    if len(verdicts) < len(rules):
        found = f"found the runner's word for {len(verdicts)} of {len(rules)}"
        return Verdict(is_passed=False, details=f"its rules: {found}, wanted it for each; update the runner")
    return Verdict(is_passed=True) if rules else None
