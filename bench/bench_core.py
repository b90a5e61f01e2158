"""What one decision costs: the pure part of every write, without any store.

The physical limit is what the language itself takes to copy a record and build an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from bench.figures import Figure
from deltaci.core import attempt, ids
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import decide
from deltaci.core.events import Event, worker_actor
from deltaci.core.job import JobSpec
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from tests.support.lab import Lab, task

JOBS = 4000
LARGE = 10_000
AT = 1_767_513_600_000_000


def run() -> list[Figure]:
    """The queue's five steps, and runs of ten and of ten thousand jobs."""
    commands = lifecycle(JOBS)
    unit = UnitOfWork(is_complete=True)
    spent = cpu(lambda: [decide(unit, command, AT) for command in commands])
    each = spent / len(commands) * 1e6
    floor = copy_cost() * 1e6
    small, large = per_job(10, 100), per_job(LARGE, 1)
    return [
        Figure(
            "a command of the queue (enqueue, claim, start, heartbeat, finish)",
            each,
            "µs",
            {"copying alone": each / floor},
        ),
        Figure("lifecycles decided per second", len(commands) / 5 / spent, "jobs/s"),
        Figure("a job in a run of 10, planned to finished", small * 1e6, "µs"),
        Figure(f"a job in a run of {LARGE:,}", large * 1e6, "µs", {"a run of 10": large / small}),
    ]


def lifecycle(jobs: int) -> list[Command]:
    """Every command of so many queue jobs."""
    found: list[Command] = []
    for number in range(jobs):
        id, actor = f"q{number}", worker_actor("w1")
        token = ids.lease_id(id, 1, "0123456789abcdef")
        ref = ids.lease_ref(token)
        found += [
            NewRecord(id=id, record=Attempt(id=id)),
            attempt.Grant(id=id, actor=actor, fingerprint=ref.fingerprint),
            attempt.Start(id=id, actor=actor, lease=ref),
            attempt.Extend(id=id, actor=actor, lease=ref),
            attempt.Finish(id=id, actor=actor, lease=ref, is_success=True, result={}),
        ]
    return found


def per_job(size: int, runs: int) -> float:
    """CPU seconds for one job of a run of this size."""
    lab = Lab()
    specs: list[JobSpec] = [task(f"j{n}", *([f"j{n - 1}"] if n % 5 else [])) for n in range(size)]

    def work() -> None:
        for number in range(runs):
            lab.plan(*specs, id=f"r{number}")
            for spec in specs:
                lab.work(spec.name, run_id=f"r{number}")

    return cpu(work) / size / runs


def copy_cost() -> float:
    """CPU seconds to copy a record with three changes and to build one event."""
    record, rounds = Attempt(id="q"), 50_000

    def work() -> None:
        for rev in range(rounds):
            msgspec.structs.replace(record, state="QUEUED", rev=rev, updated_at=AT)
            Event(0, AT, "", "attempt", "q", "", "CREATED", "QUEUED", "enqueued", "orchestrator", "info", "", rev, {})

    return cpu(work) / rounds


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    started = time.process_time()
    work()
    return time.process_time() - started
