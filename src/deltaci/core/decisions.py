"""Which gates of a run a person's word is for, when only the run was named."""

from __future__ import annotations

from collections.abc import Iterable

from deltaci.core import job
from deltaci.core.errors import Refused
from deltaci.core.job import Job


def addressed(
    jobs: Iterable[Job], order: type[job.Approve] | type[job.Reject], person: str, name: str | None = None
) -> list[Job]:
    """The gate that is named; or all that wait; or, for whoever approves again, those that this person approved."""
    gates = [each for each in jobs if each.spec.kind == job.APPROVAL]
    if name is not None:
        named = [each for each in gates if each.spec.name == name]
        if not named:
            raise Refused("not_found", f"there is no approval {name!r}")
        return named
    waiting = [each for each in gates if job.MACHINE.changes(each.state, order)]
    if waiting:
        return waiting
    approved = [each for each in gates if any(given.person == person for given in each.approvals)]
    if order is job.Approve and approved:
        return approved
    raise Refused("wrong_state", "nothing in this run waits for approval")
