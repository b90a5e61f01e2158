"""What ties jobs together, as the checker sees it: an order, a family, and what is worth another attempt."""

from __future__ import annotations

from typing import Any

from deltaci.simulation.checker.facts import AttemptFacts, JobFacts, RunFacts
from deltaci.simulation.checker.law import JOB_ENDS, Fact, Violation
from deltaci.simulation.checker.leases import Leases


class Bonds(Leases):
    """Knows jobs by the company that they keep."""

    def learn_bonds(self, it: JobFacts, told: dict[str, Any]) -> None:
        """What a job says of itself at its birth."""
        it.after = tuple(told.get("after", ()))
        it.family, it.ends_family = str(told.get("family", "")), bool(told.get("is_family_fail_fast"))
        it.group, it.retry_on = str(told.get("group", "")), tuple(told.get("retry_on", ()))

    def is_met(self, id: str) -> bool:
        """Whether who needs it may go on."""
        need = self.known.get(id)
        return isinstance(need, JobFacts) and (
            need.state == "SUCCEEDED" or (need.state == "FAILED" and not need.is_required)
        )

    def is_past(self, id: str) -> bool:
        """Whether who only comes after it may."""
        earlier = self.known.get(id)
        return earlier is not None and earlier.state in JOB_ENDS

    def is_invalid(self, it: JobFacts | RunFacts) -> bool:
        """Whether the runner of its last attempt found a rule that does not hold."""
        last = self.known.get(f"{it.id}.{it.index}") if isinstance(it, JobFacts) else None
        return isinstance(last, AttemptFacts) and last.is_invalid

    def check_verdict(self, name: str, it: JobFacts, event: Fact, *, is_at_once: bool) -> None:
        """What its runner found fails it, at once and in the same words; if nobody else looks, nothing else does."""
        last = self.known.get(f"{it.id}.{it.index}")
        if isinstance(last, AttemptFacts) and last.is_invalid:
            found = str(last.verdict.get("details", ""))
            is_so = event.trigger == "validation_failed" and event.metadata.get("details", "") == found
            if not is_so or not is_at_once:
                raise Violation("verdict", f"{name} is {event.to}, but its runner found: {found}")
        elif event.trigger == "validation_failed" and not it.has_validation:
            raise Violation("verdict", f"{name} fails its validation, but no rule failed")

    def check_order(self, name: str, it: JobFacts) -> None:
        """It begins: all that it waits for is as it must be."""
        for need in it.needs:
            if not self.is_met(need):
                other = self.known.get(need)
                raise Violation("needs", f"{name} begins although {need} is {other and other.state}")
        for earlier in it.after:
            if not self.is_past(earlier):
                raise Violation("after", f"{name} begins although it comes after {earlier}, which is not over")

    def settle_pending(self, name: str, it: JobFacts) -> None:
        """Nobody waits who could go on, or never can."""
        if any(self.is_past(need) and not self.is_met(need) for need in it.needs):
            raise Violation("blocked", f"{name} waits for what will never be met")
        if all(map(self.is_met, it.needs)) and all(map(self.is_past, it.after)):
            rule = "after" if it.after else "needs"
            raise Violation(rule, f"{name} has all that it waits for, and does not begin")

    def has_lost_family(self, it: JobFacts, run: RunFacts) -> bool:
        """Whether another job of its family failed, and said that this is the end of all of them."""
        return bool(it.family) and any(self._is_fatal(id, it.family) for id in run.jobs)

    def _is_fatal(self, id: str, family: str) -> bool:
        other = self.known.get(id)
        return isinstance(other, JobFacts) and other.family == family and is_fatal(other)

    def settle_family(self, it: JobFacts, run: RunFacts) -> None:
        """The rest of the family is over, or asked to stop."""
        for id in run.jobs:
            other = self.known[id]
            if not isinstance(other, JobFacts) or other.family != it.family or other.state in JOB_ENDS:
                continue
            last = self.known.get(f"{id}.{other.index}")
            if last is None or last.state != "CANCEL_REQUESTED":
                raise Violation("family", f"{it.id} failed, but {id} of its family goes on as {other.state}")


def is_fatal(it: JobFacts) -> bool:
    """Whether its end is the end of its family."""
    return it.ends_family and it.is_required and it.state == "FAILED"
