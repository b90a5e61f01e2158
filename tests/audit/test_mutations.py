"""The verifier cannot be fooled: whatever one change does to a legal log, it is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

import msgspec
import pytest

from deltaci.audit.verify import verify
from tests.histories import History
from tests.mutations import Mutant, mutants, simple_mutants

pytestmark = pytest.mark.final  # A mutant has a seed: it survives again.

GOAL = 1.0
SEEDS = range(12)
SHARE = 0.08  # Of all mutants: enough for some thousands of each kind, in seconds.

STATES_003 = ("pending", "queued", "running", "completed", "idle", "busy", "executing", "ready", "failed")
FIELDS_003 = {
    "from_state": STATES_003,
    "to_state": STATES_003,
    "trigger": ("worker_started", "task_completed", "all_tasks_created"),
    "severity": ("info", "critical"),
    "timestamp": ("yesterday",),
    "event_type": ("lease_state_transition",),
    "metadata": (7,),
}
STATES_004 = ("queued", "claimed", "running", "succeeded", "failed", "stalled")
FIELDS_004 = {
    "from_status": STATES_004,
    "to_status": STATES_004,
    "type": ("claimed", "heartbeat", "succeeded", "cancelled"),
    "attempt": (7,),
    "rev": (99,),
    "at": ("yesterday", 3),
}


def _figure(what: str, kept: Iterable[tuple[Mutant, str]], record: Callable[[str, object], None]) -> float:
    """Verify every mutant; record how many were reported, and which were not."""
    total, survivors = 0, list[str]()
    for mutant, format in kept:
        total += 1
        if verify([msgspec.json.encode(line) for line in mutant.lines], format).is_legal:
            survivors.append(mutant.what)
    figure = 1 - len(survivors) / total
    names = f"; survived: {'; '.join(survivors[:20])}" if survivors else ""
    record("figure", f"{what} log: {figure:.2%} of {total} illegal mutants reported{names}")
    return figure


def _sampled(found: Iterable[Mutant], format: str, draw: Random, share: float) -> Iterator[tuple[Mutant, str]]:
    return ((mutant, format) for mutant in found if draw.random() < share)


@pytest.mark.proves("MOD-E5", "WST-V1", "WST-V2", "WST-V3", "WST-V4")
def test_illegal_mutants_of_canonical_logs_are_reported(record_property: Callable[[str, object], None]) -> None:
    """A log proves something only if no forgery passes."""

    def kept() -> Iterator[tuple[Mutant, str]]:
        for seed in SEEDS:
            history = History(Random(seed), max_jobs=8).go(60).calm()
            history.lab.verified()
            yield from _sampled(mutants(history.lab.canonical()), "canonical", Random(seed), SHARE)

    assert _figure("canonical", kept(), record_property) >= GOAL


@pytest.mark.proves("WST-V1", "QUE-T12")
def test_illegal_mutants_of_the_exported_logs_are_reported(record_property: Callable[[str, object], None]) -> None:
    """The exported forms are read by others, so they must carry their own proof."""

    def kept() -> Iterator[tuple[Mutant, str]]:
        for seed in SEEDS:
            lab, draw = History(Random(seed), max_jobs=8).go(60).calm().lab, Random(seed)
            yield from _sampled(simple_mutants(lab.transitions(), "entity_id", FIELDS_003), "transitions", draw, 0.3)
            yield from _sampled(simple_mutants(lab.job_events(), "job_id", FIELDS_004), "job-events", draw, 0.3)

    assert _figure("exports", kept(), record_property) >= GOAL
