"""Mutation tests of the verifier: every illegal single change of a legal log is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

import msgspec
import pytest

from deltaci.audit.verify import verify
from tests.support.histories import History
from tests.support.log_mutations import Mutant, mutants, simple_mutants

pytestmark = pytest.mark.final  # Mutants are generated from a seed, so a repetition has the same result.

GOAL = 1.0
SEEDS = range(12)
SHARE = 0.08  # The share of all mutants to verify: some thousands, within seconds.

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


def _reported_share(log: str, mutants: Iterable[tuple[Mutant, str]], record: Callable[[str, object], None]) -> float:
    """Verify every mutant, record which were not reported, and return the share of those that were."""
    total, survivors = 0, list[str]()
    for mutant, format in mutants:
        total += 1
        if verify([msgspec.json.encode(line) for line in mutant.lines], format).is_legal:
            survivors.append(mutant.description)
    share = 1 - len(survivors) / total
    names = f"; survived: {'; '.join(survivors[:20])}" if survivors else ""
    record("figure", f"{log} log: {share:.2%} of {total} illegal mutants reported{names}")
    return share


def _sample(mutants: Iterable[Mutant], format: str, random: Random, share: float) -> Iterator[tuple[Mutant, str]]:
    return ((mutant, format) for mutant in mutants if random.random() < share)


@pytest.mark.proves("MOD-E5", "WST-V1", "WST-V2", "WST-V3", "WST-V4")
def test_illegal_mutants_of_canonical_logs_are_reported(record_property: Callable[[str, object], None]) -> None:
    """A legal verdict proves something only if no forgery passes."""

    def sampled_mutants() -> Iterator[tuple[Mutant, str]]:
        for seed in SEEDS:
            history = History(Random(seed), max_jobs=8).go(60).calm()
            history.lab.verified()
            yield from _sample(mutants(history.lab.canonical()), "canonical", Random(seed), SHARE)

    assert _reported_share("canonical", sampled_mutants(), record_property) >= GOAL


@pytest.mark.proves("WST-V1", "QUE-T12")
def test_illegal_mutants_of_the_exported_logs_are_reported(record_property: Callable[[str, object], None]) -> None:
    """Exports are read without the canonical log, so they must be verifiable on their own."""

    def sampled_mutants() -> Iterator[tuple[Mutant, str]]:
        for seed in SEEDS:
            lab, random = History(Random(seed), max_jobs=8).go(60).calm().lab, Random(seed)
            yield from _sample(simple_mutants(lab.transitions(), "entity_id", FIELDS_003), "transitions", random, 0.3)
            yield from _sample(simple_mutants(lab.job_events(), "job_id", FIELDS_004), "job-events", random, 0.3)

    assert _reported_share("exports", sampled_mutants(), record_property) >= GOAL
