"""Invariants of docs/spec/workstreams.md that must hold wherever a run goes, shown on random walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaci.core import attempt, job, run, worker
from deltaci.core.decide import CancelJob
from deltaci.core.errors import Refused
from deltaci.core.job import Job, JobSpec
from deltaci.core.status.workstreams import derive_workstream_state, task_state, worker_state, workstream_state
from tests.support.lab import Lab, Lease

Move = Callable[[], object]
OPEN = ("pending", "queued", "running", "validating", "retrying")
MAX_TASKS = 5
PLACES = 2


@st.composite
def plans(draw: st.DrawFn, *, required_only: bool = False) -> tuple[JobSpec, ...]:
    """Generate a few tasks, each of which may need earlier ones."""
    specs: list[JobSpec] = []
    for index in range(draw(st.integers(1, MAX_TASKS))):
        needs = draw(st.sets(st.sampled_from([each.name for each in specs]), max_size=3)) if specs else set[str]()
        spec = JobSpec(
            name=f"t{index}",
            needs=tuple(sorted(needs)),
            is_required=required_only or draw(st.booleans()),
            has_validation=draw(st.booleans()),
            max_attempts=draw(st.integers(1, 3)),
        )
        specs.append(spec)
    return tuple(specs)


PICKS = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


class Walk:
    """One run and two workers that go wherever the numbers lead."""

    def __init__(self, specs: tuple[JobSpec, ...], *, is_cancelable: bool, is_fail_fast: bool = False) -> None:
        self.lab = Lab()
        self.names = [spec.name for spec in specs]
        self.is_cancelable = is_cancelable
        self.leases: dict[str, Lease] = {}
        for id in ("w1", "w2"):
            self.lab.register(id, slots=PLACES)
        self.lab.plan(*specs, is_fail_fast=is_fail_fast, has_validation=True)

    def jobs(self) -> list[Job]:
        return [self.lab.job(name) for name in self.names]

    def tasks(self) -> list[tuple[str, bool]]:
        """The tasks as document 003's derivation wants them."""
        return [(task_state(job_record), job_record.spec.is_required) for job_record in self.jobs()]

    def go(self, picks: list[int]) -> Iterator[None]:
        """Take one step for each number, and stop at each for a look around."""
        yield
        for pick in picks:
            moves = self._moves()
            self.lab.after(1)
            try:
                moves[pick % len(moves)]()
            except Refused:
                continue
            yield

    def _moves(self) -> list[Move]:
        moves: list[Move] = [lambda: self.lab.after(30), self._expire_all]
        for job_record in self.jobs():
            moves += self._task_moves(job_record)
        for id in ("w1", "w2"):
            if self.is_cancelable and self.lab.worker_record(id).state == worker.UNRESPONSIVE:
                moves.append(lambda id=id: self.lab.do(worker.Recover(id=id)))  # type: ignore[misc]
            elif self.is_cancelable:
                moves.append(lambda id=id: self.lab.do(worker.MissHealthChecks(id=id)))  # type: ignore[misc]
        return moves

    def _task_moves(self, of: Job) -> list[Move]:
        lab, moves = self.lab, list[Move]()
        if of.state == job.RETRYING:
            moves.append(lambda: lab.after(600).do(job.RetryDue(id=of.id)))
        if of.state == job.VALIDATING:
            moves += [lambda: lab.do(job.Validate(id=of.id, is_passed=True))] * 3
            moves.append(lambda: lab.do(job.Validate(id=of.id, is_passed=False)))
        if self.is_cancelable and of.state not in job.TERMINAL:
            moves.append(lambda: lab.do(CancelJob(id=of.id, actor="user:ada")))
        if of.state in (job.QUEUED, job.RUNNING):
            moves += self._attempt_moves(of.spec.name)
        return moves

    def _attempt_moves(self, name: str) -> list[Move]:
        lab, now = self.lab, self.lab.attempt(name)
        if now.lease is None:
            return [lambda: self._claim(name, "w1"), lambda: self._claim(name, "w2")] * 2
        lease = self.leases[now.id]
        if now.state == attempt.CANCEL_REQUESTED:
            return [lambda: lab.send(attempt.CancelAck, lease)]
        return [
            lambda: lab.send(attempt.Heartbeat, lease),
            lambda: lab.complete(lease),
            lambda: lab.complete(lease),
            lambda: lab.fail(lease),
            lambda: lab.fail(lease, "BAD_SPEC"),
        ]

    def _claim(self, name: str, by: str) -> None:
        of = self.lab.attempt(name)
        self.leases[of.id] = self.lab.claim(of, by=by)

    def _expire_all(self) -> None:
        self.lab.after(121)
        for each in [self.lab.attempt(of.spec.name) for of in self.jobs() if of.attempt_id]:
            if each.lease is not None:
                self.lab.do(attempt.Expire(id=each.id))


def look_at_tasks(walk: Walk, ended: dict[str, str]) -> None:
    """The invariants of a task, on every task of the walk."""
    document = {line["entity_id"]: line["to_state"] for line in map(msgspec.json.decode, walk.lab.transitions())}
    for job_record in walk.jobs():
        state = task_state(job_record)
        assert document.get(job_record.id, "pending") == state
        assert ended.setdefault(job_record.id, state) == state or ended[job_record.id] in OPEN
        ended[job_record.id] = state
        assert not job_record.worker_id or state == "running"
        assert max(job_record.attempts - 1, 0) <= job_record.spec.max_attempts - 1
        times = [at for at in (job_record.created_at, job_record.started_at, job_record.completed_at) if at]
        assert times == sorted(times)
        if state == "queued":
            needed = [walk.lab.job(name) for name in job_record.spec.needs]
            assert all(n.state == job.SUCCEEDED or (n.state == job.FAILED and not n.spec.is_required) for n in needed)


@pytest.mark.proves("WST-TI1", "WST-TI2", "WST-TI3", "WST-TI4", "WST-TI5", "WST-TI6")
@settings(max_examples=60, deadline=None)
@given(specs=plans(), picks=PICKS)
def test_the_invariants_of_a_task_hold_in_every_history(specs: tuple[JobSpec, ...], picks: list[int]) -> None:
    """Readers of a task rely on them at any moment."""
    walk = Walk(specs, is_cancelable=True)
    ended: dict[str, str] = {}

    for _ in walk.go(picks):
        look_at_tasks(walk, ended)

    walk.lab.verified()


@pytest.mark.proves("WST-KI1", "WST-KG3")
@settings(max_examples=60, deadline=None)
@given(specs=plans(), picks=PICKS)
def test_a_worker_holds_at_most_its_places_and_is_idle_only_without_a_task(
    specs: tuple[JobSpec, ...], picks: list[int]
) -> None:
    """More leases than places would make every task on that worker slow and all of them suspect."""
    walk = Walk(specs, is_cancelable=False)

    for _ in walk.go(picks):
        live = [walk.lab.attempt(of.spec.name).lease for of in walk.jobs() if of.attempt_id]
        for id in ("w1", "w2"):
            granted = [lease for lease in live if lease is not None and lease.worker_id == id]
            assert len(granted) <= PLACES
            assert worker_state(walk.lab.worker_record(id)) == ("busy" if granted else "idle")

    walk.lab.verified()


def expected_state(walk: Walk) -> str:
    """The derivation, with the three places where the model says more than document 003."""
    tasks, of = walk.tasks(), walk.lab.run()
    derived = derive_workstream_state(tasks)
    has_failed = any(state == "failed" for state, _ in tasks)
    if derived == "ready" and of.started_at:
        return "executing"  # Everything waits again after a retry; document 003 has no way back to ready.
    if has_failed and of.is_fail_fast:
        return "failed"  # MOD-7: at once, while the rest is still being stopped.
    if derived == "failed" and any(state in OPEN for state, _ in tasks):
        return "executing"  # MOD-7: not before everything that can progress has done so.
    return derived


@pytest.mark.proves("WST-WI1", "WST-WI3")
@settings(max_examples=120, deadline=None)
@given(specs=plans(required_only=True), picks=PICKS, is_fail_fast=st.booleans())
def test_a_workstream_of_required_tasks_is_shown_as_its_tasks_say(
    specs: tuple[JobSpec, ...], picks: list[int], is_fail_fast: bool
) -> None:
    """A workstream has no life of its own: it is the sum of its tasks. Its final validation is left open here."""
    walk = Walk(specs, is_cancelable=False, is_fail_fast=is_fail_fast)

    for _ in walk.go(picks):
        assert workstream_state(walk.lab.run()) == expected_state(walk)

    walk.lab.verified()


@pytest.mark.proves("WST-WI2", "WST-WI3", "WST-WG3")
@settings(max_examples=60, deadline=None)
@given(specs=plans(), picks=PICKS)
def test_a_workstream_is_valid_only_with_every_required_task_completed(
    specs: tuple[JobSpec, ...], picks: list[int]
) -> None:
    """A required task that failed, or was never finished, must be visible in the outcome."""
    walk = Walk(specs, is_cancelable=True)
    for _ in walk.go(picks):
        pass
    required = [state for state, is_critical in walk.tasks() if is_critical]

    if walk.lab.run().state == run.VALIDATING:
        walk.lab.do(run.Validate(id="r1", is_passed=True))

    if workstream_state(walk.lab.run()) == "completed":
        assert all(state == "completed" for state in required)
    if "failed" in required and not any(state in OPEN for state, _ in walk.tasks()):
        assert workstream_state(walk.lab.run()) == "failed"
    walk.lab.verified()
