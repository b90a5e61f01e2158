"""How far a workstream is, in a few words: what its tasks do now, what they wait for, which one failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from deltaci.core.job import Job
from deltaci.core.status.workstreams import task_state


class Progress(NamedTuple):
    """How many tasks are in each state; which are worked on, which wait for a worker or for another try; who failed."""

    counts: dict[str, int]
    under_way: list[str]
    waiting: list[str]
    failed: Job | None


def progress(jobs: Sequence[Job]) -> Progress:
    """Of all tasks, in the order of the plan. One that failed and is critical says more than one that is not."""
    states = [(each, task_state(each)) for each in jobs]
    failed = [each for each, state in states if state == "failed"]
    return Progress(
        counts=dict(sorted(Counter(state for _, state in states if state).items())),
        under_way=[each.spec.name for each, state in states if state in ("running", "validating")],
        waiting=[each.spec.name for each, state in states if state in ("queued", "retrying")],
        failed=next((each for each in failed if each.spec.is_required), failed[0] if failed else None),
    )
