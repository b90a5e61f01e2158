"""Relations between jobs: needs, order without success, families, groups; and the failure classes to retry."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaci.core import attempt, job, run
from deltaci.core.decide import CancelJob
from deltaci.core.errors import Refused
from deltaci.core.job import JobSpec
from deltaci.core.plan import dependents, plan_hash
from tests.support.lab import Lab, gate, task


def states(lab: Lab, *names: str) -> list[str]:
    """Return the states of these jobs."""
    return [lab.job(name).state for name in names]


# -- invalid plans


@pytest.mark.proves("MOD-S1", "MOD-D1")
@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((task("a", after=("b",)),), "job 'a' is after 'b', which is not in the plan"),
        ((task("a"), task("b", after=("a", "a"))), "names a dependency twice"),
        ((task("a", after=("a",)),), "a → a"),
        ((task("a", after=("b",)), task("b", "a")), "wait for each other"),
    ],
)
def test_an_invalid_order_is_refused(specs: tuple[JobSpec, ...], message: str) -> None:
    """The same rules hold for `after` as for `needs`; a cycle may consist of both."""
    with pytest.raises(Refused, match=message):
        dependents(specs)


@pytest.mark.proves("MOD-F5")
@pytest.mark.parametrize("classes", [("USER",), ("INFRA", "USER"), ("BAD_LUCK",)])
def test_a_plan_cannot_retry_on_user_failures_or_unknown_classes(classes: tuple[str, ...]) -> None:
    """A failure of the job itself would happen again."""
    with pytest.raises(Refused, match="only INFRA, TOOLING, FLAKY can be retried"):
        dependents([task("a", retry_on=classes)])


@pytest.mark.proves("MOD-D3")
def test_an_approval_has_no_group() -> None:
    """A group limits leases, and an approval has none."""
    with pytest.raises(Refused, match="approval with a group"):
        dependents([gate("a", group="deploy")])


@pytest.mark.proves("MOD-D3")
@pytest.mark.parametrize("group", ["a\x00b", "a\nb", "\ud800", "x" * 201])
def test_the_name_of_a_group_is_short_and_printable(group: str) -> None:
    """It is stored in databases and read by people."""
    with pytest.raises(Refused, match="printable characters"):
        dependents([task("a", group=group)])


@pytest.mark.proves("MOD-S3")
def test_every_relation_is_part_of_the_plan_hash() -> None:
    """A person who approves a plan approves them too."""
    relations: tuple[dict[str, Any], ...] = (
        {},
        {"after": ("a",)},
        {"family": "f"},
        {"is_family_fail_fast": True},
        {"retry_on": ("INFRA",)},
    )
    plans = [(task("a"), task("b", **relation)) for relation in (*relations, {"group": "g"})]

    assert len({plan_hash(plan) for plan in plans}) == len(plans)


# -- an order without success


@pytest.mark.proves("MOD-D1", "MOD-7")
def test_a_job_runs_after_a_failed_one_and_the_run_fails_when_it_has_ended() -> None:
    """A run fails only when no other job can progress."""
    lab = Lab().plan(task("test"), task("deploy", "test"), task("cleanup", after=("deploy",)))

    lab.work("test", ok=False)

    assert states(lab, "test", "deploy", "cleanup") == ["FAILED", "CANCELED", "QUEUED"]
    assert lab.run().state == run.RUNNING
    lab.work("cleanup")
    assert lab.run().state == run.FAILED
    lab.verified()


@pytest.mark.proves("MOD-D1")
def test_a_cancelled_job_opens_the_jobs_after_it() -> None:
    """An approval is opened as well."""
    lab = Lab().plan(task("a"), gate("ask", after=("a",)), task("b", "a"))

    lab.do(CancelJob(id="r1/a", actor="user:ada"))

    assert states(lab, "a", "ask", "b") == ["CANCELED", "WAITING_APPROVAL", "CANCELED"]
    assert lab.run().state == run.WAITING_APPROVAL
    lab.verified()


@pytest.mark.proves("MOD-D1")
def test_needs_wins_over_after_for_the_same_job() -> None:
    """It counts as one dependency, and needs the success."""
    lab = Lab().plan(task("a"), task("b", "a", after=("a",)), task("c"))
    assert lab.job("b").unmet == 1

    lab.work("a", ok=False)

    assert (lab.job("b").state, lab.job("b").reason) == ("CANCELED", "BLOCKED")
    lab.verified()


@pytest.mark.proves("MOD-D1", "ORC-C1")
def test_a_cancelled_run_starts_no_more_jobs() -> None:
    """Not even jobs that only come after cancelled ones."""
    lab = Lab().plan(task("a"), task("b", after=("a",)), task("c", after=("b",)))

    lab.cancel_run()

    assert states(lab, "a", "b", "c") == ["CANCELED"] * 3
    assert {lab.job(name).reason for name in "abc"} == {"RUN_CANCELED"}
    assert lab.steps("r1/b") == ["PENDING", "CANCELED"]
    assert lab.run().state == run.CANCELED
    lab.verified()


@pytest.mark.proves("MOD-D1", "ORC-C1")
def test_a_late_end_in_a_cancelled_run_opens_no_job() -> None:
    """The runner acknowledges the cancel later."""
    lab = Lab().plan(task("a"), task("b", after=("a",)))
    lease = lab.claim(lab.attempt("a"))
    lab.cancel_run()

    lab.send(attempt.CancelAck, lease)

    assert states(lab, "a", "b") == ["CANCELED"] * 2
    assert lab.run().state == run.CANCELED
    lab.verified()


@pytest.mark.proves("MOD-D1", "MOD-7")
def test_a_fail_fast_run_does_not_run_the_jobs_after_a_failed_one() -> None:
    """`is_fail_fast` ends the run at once."""
    lab = Lab().plan(task("a"), task("cleanup", after=("a",)), is_fail_fast=True)

    lab.work("a", ok=False)

    assert (lab.job("cleanup").state, lab.job("cleanup").reason) == ("CANCELED", "NOT_NEEDED")
    assert lab.run().state == run.FAILED
    lab.verified()


# -- families


@pytest.mark.proves("MOD-D2")
def test_a_failure_cancels_the_rest_of_its_family_and_no_other_job() -> None:
    """In any state: one is running, one queued, and one waits for another."""
    family = {"family": "os", "is_family_fail_fast": True}
    lab = Lab().plan(
        task("linux", **family),
        task("mac", **family),
        task("win", **family),
        task("old", after=("linux",), **family),
        task("doc"),
    )
    running = lab.claim(lab.attempt("mac"), by="w2")

    lab.work("linux", ok=False)

    assert states(lab, "linux", "mac", "win", "old", "doc") == ["FAILED", "RUNNING", "CANCELED", "CANCELED", "QUEUED"]
    assert lab.attempt("mac").state == attempt.CANCEL_REQUESTED
    assert lab.steps("r1/old") == ["PENDING", "CANCELED"]
    lab.send(attempt.CancelAck, running)
    assert {lab.job(name).reason for name in ("mac", "win", "old")} == {"NOT_NEEDED"}
    assert lab.run().state == run.RUNNING
    lab.work("doc")
    assert lab.run().state == run.FAILED
    lab.verified()


@pytest.mark.proves("MOD-D2")
def test_an_allowed_or_retried_failure_does_not_cancel_the_family() -> None:
    """Neither makes its run fail."""
    family = {"family": "os", "is_family_fail_fast": True}
    lab = Lab().plan(task("a", is_required=False, **family), task("b", max_attempts=2, **family), task("c", **family))

    lab.work("a", ok=False)
    lab.fail(lab.claim(lab.attempt("b")))

    assert states(lab, "a", "b", "c") == ["FAILED", "RETRYING", "QUEUED"]
    lab.verified()


@pytest.mark.proves("MOD-D2")
def test_cancelling_a_family_does_not_start_its_other_jobs() -> None:
    """For a matrix that runs one job at a time, in any order of the plan."""
    family = {"family": "os", "is_family_fail_fast": True}
    specs = [task("a", **family), task("b", after=("a",), **family), task("c", after=("b",), **family)]
    lab = Lab().plan(*specs)
    other = Lab().plan(*reversed(specs))

    lab.work("a", ok=False)
    other.work("a", ok=False)

    assert states(lab, "b", "c") == states(other, "b", "c") == ["CANCELED"] * 2
    assert lab.steps("r1/b") == lab.steps("r1/c") == ["PENDING", "CANCELED"]
    assert (lab.run().state, other.run().state) == (run.FAILED, run.FAILED)
    lab.verified()
    other.verified()


# -- failure classes


@pytest.mark.proves("MOD-F5")
@pytest.mark.parametrize(
    ("classes", "code", "state"),
    [
        ((), "RUNNER_STARTUP", job.RETRYING),
        (("INFRA",), "RUNNER_STARTUP", job.RETRYING),
        (("TOOLING", "FLAKY"), "RUNNER_STARTUP", job.FAILED),
        (("TOOLING", "FLAKY"), "CACHE_FETCH", job.RETRYING),
        (("TOOLING",), "BAD_SPEC", job.FAILED),
    ],
)
def test_a_job_is_retried_on_the_classes_that_it_names(classes: tuple[str, ...], code: str, state: str) -> None:
    """It can only restrict the retryable classes."""
    lab = Lab().plan(task("a", max_attempts=3, retry_on=classes))

    lab.fail(lab.claim(lab.attempt("a")), code)

    assert lab.job("a").state == state
    lab.verified()


# -- random graphs


@pytest.mark.proves("MOD-D1", "MOD-D2", "MOD-6", "MOD-7")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=False), is_shuffled=st.booleans())
def test_any_graph_ends_as_the_oracle_says(random: Random, is_shuffled: bool) -> None:
    """Every job ends, with the expected state and reason."""
    specs = [_random_spec(random, n) for n in range(random.randint(1, 12))]
    fails = {spec.name for spec in specs if random.random() < 0.3}
    lab, oracle = Lab(), Oracle(specs)
    lab.register("w1")
    lab.plan(*(random.sample(specs, len(specs)) if is_shuffled else specs))

    while ready := oracle.ready():
        assert {spec.name for spec in specs if lab.job(spec.name).state == job.QUEUED} == ready
        assert lab.run().state in (run.QUEUED, run.RUNNING)
        name = random.choice(sorted(ready))
        lab.work(name, ok=name not in fails)
        oracle.finish(name, is_ok=name not in fails)

    ended = {spec.name: (lab.job(spec.name).state, lab.job(spec.name).reason) for spec in specs}
    assert {name: end[0] for name, end in ended.items()} == {name: end[0] for name, end in oracle.ended.items()}
    if not is_shuffled:
        assert {name: end for name, end in ended.items() if end[0] == "CANCELED"} == {
            name: end for name, end in oracle.ended.items() if end[0] == "CANCELED"
        }
    is_failed = any(spec.is_required and oracle.ended[spec.name][0] != "SUCCEEDED" for spec in specs)
    assert lab.run().state == (run.FAILED if is_failed else run.SUCCESS)
    lab.verified()


def _random_spec(random: Random, n: int) -> JobSpec:
    earlier = [f"j{k}" for k in range(n)]
    family = random.choice(("", "", "x", "y"))
    return task(
        f"j{n}",
        *(name for name in earlier if random.random() < 0.2),
        after=tuple(name for name in earlier if random.random() < 0.2),
        is_required=random.random() < 0.8,
        family=family,
        is_family_fail_fast=bool(family) and random.random() < 0.5,
    )


class Oracle:
    """The expected end of a plan whose jobs run one by one, computed from the specs alone."""

    def __init__(self, specs: list[JobSpec]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.ended: dict[str, tuple[str, str]] = {}

    def _is_satisfied(self, name: str) -> bool:
        return self.ended[name][0] == "SUCCEEDED" or (
            self.ended[name][0] == "FAILED" and not self.specs[name].is_required
        )

    def ready(self) -> set[str]:
        """Return the jobs whose dependencies have ended."""
        dependencies = {name: {*spec.needs, *spec.after} for name, spec in self.specs.items() if name not in self.ended}
        return {name for name, before in dependencies.items() if before <= self.ended.keys()}

    def finish(self, name: str, *, is_ok: bool) -> None:
        """End a job, and the jobs that are cancelled because of it."""
        spec = self.specs[name]
        self.ended[name] = ("SUCCEEDED" if is_ok else "FAILED", "")
        if not is_ok and spec.is_required and spec.is_family_fail_fast:
            family = [other for other in self.specs.values() if other.family == spec.family]
            self.ended.update((o.name, ("CANCELED", "NOT_NEEDED")) for o in family if o.name not in self.ended)
        for other in self.specs.values():  # In the order of the plan: needed jobs come first.
            blocking = [need for need in other.needs if need in self.ended and not self._is_satisfied(need)]
            if other.name not in self.ended and blocking:
                self.ended[other.name] = ("CANCELED", "BLOCKED")
