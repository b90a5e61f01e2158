"""The verdict on a job's validation rules, computed from the results that its runner reports.

A runner that reports no results, because it is old or dishonest, has not shown that the rules hold.
"""

from __future__ import annotations

from deltaci.core.attempt import Verdict
from deltaci.protocol.messages import Complete, JobSpec
from deltaci.protocol.reports.rule_results import describe_failed


def validation_verdict(complete: Complete, spec: JobSpec) -> Verdict | None:
    """Return the verdict on a successful attempt's validation rules.

    Return None if there are no rules that the runner checks, or if the job was skipped.
    """
    if complete.is_skipped and spec.condition:
        return None  # The job was skipped, so there is nothing to validate.
    rules, verdicts = [rule for rule in spec.rules if not rule.is_checked_by_server], complete.verdicts or []
    if failed := describe_failed(verdicts):
        return Verdict(is_passed=False, details=failed)
    if len(verdicts) < len(rules):
        details = f"the runner reported results for {len(verdicts)} of {len(rules)} validation rules; update the runner"
        return Verdict(is_passed=False, details=details)
    return Verdict(is_passed=True) if rules else None
