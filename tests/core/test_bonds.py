"""What ties jobs together: needs, order without success, families, and classes of failures that are retried."""

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
from tests.lab import Lab, gate, task
from tests.spec.scenes import grant


def states(lab: Lab, *names: str) -> list[str]:
    """How these jobs stand."""
    return [lab.job(name).state for name in names]


# -- what makes no sense


@pytest.mark.proves("MOD-S1", "MOD-D1")
@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ((task("a", after=("b",)),), "job 'a' is after 'b', which is not in the plan"),
        ((task("a"), task("b", after=("a", "a"))), "names a dependency twice"),
        ((task("a", after=("a",)),), "a → a"),
        ((task("a", after=("b",)), task("b", "a")), "wait for each other"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(specs: tuple[JobSpec, ...], said: str) -> None:
    """As a need would be; and a circle may be made of both."""
    with pytest.raises(Refused, match=said):
        dependents(specs)


@pytest.mark.proves("MOD-F5")
@pytest.mark.parametrize("classes", [("USER",), ("INFRA", "USER"), ("BAD_LUCK",)])
def test_what_is_never_retried_cannot_be_asked_for(classes: tuple[str, ...]) -> None:
    """The job's own fault would end in the same way."""
    with pytest.raises(Refused, match="only INFRA, TOOLING, FLAKY can be retried"):
        dependents([task("a", retry_on=classes)])


@pytest.mark.proves("MOD-D3")
def test_an_approval_has_no_group() -> None:
    """Nobody has a lease for it."""
    with pytest.raises(Refused, match="approval with a group"):
        dependents([gate("a", group="deploy")])


@pytest.mark.proves("MOD-D3")
@pytest.mark.parametrize("group", ["a\x00b", "a\nb", "\ud800", "x" * 201])
def test_a_group_has_a_name_that_can_be_kept_and_shown(group: str) -> None:
    """Databases keep it, and people read it."""
    with pytest.raises(Refused, match="printable characters"):
        dependents([task("a", group=group)])


@pytest.mark.proves("MOD-D3", "QUE-T3")
def test_what_was_stalled_by_hand_is_not_claimed_past_its_group() -> None:
    """Nobody keeps the group for it meanwhile: it goes back to the queue and has its turn."""
    lab = Lab().plan(task("a", group="deploy"), task("b", group="deploy"))
    lab.claim(lab.attempt("a"))
    lab.do(attempt.Stall(id="r1/a.1", actor="user:ada"))
    lab.after(200).claim(lab.attempt("b"), by="w2")

    refusal = lab.refused(grant(lab, "a", by="w3"))

    assert refusal.code == "not_eligible"
    assert "requeue it" in refusal.message
    lab.verified()


@pytest.mark.proves("MOD-S3")
def test_every_bond_is_part_of_the_plans_hash() -> None:
    """Whoever approves a plan approves them too."""
    bonds: tuple[dict[str, Any], ...] = (
        {},
        {"after": ("a",)},
        {"family": "f"},
        {"is_family_fail_fast": True},
        {"retry_on": ("INFRA",)},
    )
    plans = [(task("a"), task("b", **bond)) for bond in (*bonds, {"group": "g"})]

    assert len({plan_hash(plan) for plan in plans}) == len(plans)


# -- an order without success


@pytest.mark.proves("MOD-D1", "MOD-7")
def test_a_job_runs_after_one_that_failed_and_the_run_fails_when_it_is_over() -> None:
    """A failed run is over when nothing else can progress, and this can."""
    lab = Lab().plan(task("test"), task("deploy", "test"), task("mop", after=("deploy",)))

    lab.work("test", ok=False)

    assert states(lab, "test", "deploy", "mop") == ["FAILED", "CANCELED", "QUEUED"]
    assert lab.run().state == run.RUNNING
    lab.work("mop")
    assert lab.run().state == run.FAILED
    lab.verified()


@pytest.mark.proves("MOD-D1")
def test_a_cancelled_job_opens_whoever_comes_after_it() -> None:
    """Also an approval."""
    lab = Lab().plan(task("a"), gate("ask", after=("a",)), task("b", "a"))

    lab.do(CancelJob(id="r1/a", actor="user:ada"))

    assert states(lab, "a", "ask", "b") == ["CANCELED", "WAITING_APPROVAL", "CANCELED"]
    assert lab.run().state == run.WAITING_APPROVAL
    lab.verified()


@pytest.mark.proves("MOD-D1")
def test_who_needs_a_job_and_comes_after_it_needs_it() -> None:
    """It is one wait, and the stricter one."""
    lab = Lab().plan(task("a"), task("b", "a", after=("a",)), task("c"))
    assert lab.job("b").unmet == 1

    lab.work("a", ok=False)

    assert (lab.job("b").state, lab.job("b").reason) == ("CANCELED", "BLOCKED")
    lab.verified()


@pytest.mark.proves("MOD-D1", "ORC-C1")
def test_a_run_that_is_cancelled_begins_nothing_more() -> None:
    """Not even what only comes after what was cancelled with it."""
    lab = Lab().plan(task("a"), task("b", after=("a",)), task("c", after=("b",)))

    lab.cancel_run()

    assert states(lab, "a", "b", "c") == ["CANCELED"] * 3
    assert {lab.job(name).reason for name in "abc"} == {"RUN_CANCELED"}
    assert lab.steps("r1/b") == ["PENDING", "CANCELED"]
    assert lab.run().state == run.CANCELED
    lab.verified()


@pytest.mark.proves("MOD-D1", "ORC-C1")
def test_an_end_that_comes_late_in_a_cancelled_run_opens_nobody() -> None:
    """The runner takes its time."""
    lab = Lab().plan(task("a"), task("b", after=("a",)))
    lease = lab.claim(lab.attempt("a"))
    lab.cancel_run()

    lab.send(attempt.CancelAck, lease)

    assert states(lab, "a", "b") == ["CANCELED"] * 2
    assert lab.run().state == run.CANCELED
    lab.verified()


@pytest.mark.proves("MOD-D1", "MOD-7")
def test_a_run_that_fails_fast_does_not_wait_for_what_comes_after() -> None:
    """It asked to end at once."""
    lab = Lab().plan(task("a"), task("mop", after=("a",)), is_fail_fast=True)

    lab.work("a", ok=False)

    assert (lab.job("mop").state, lab.job("mop").reason) == ("CANCELED", "NOT_NEEDED")
    assert lab.run().state == run.FAILED
    lab.verified()


# -- families


@pytest.mark.proves("MOD-D2")
def test_a_failure_cancels_the_rest_of_its_family_and_nobody_else() -> None:
    """Whatever they are doing: one runs, one waits in the queue, one for another."""
    kin = {"family": "os", "is_family_fail_fast": True}
    lab = Lab().plan(
        task("linux", **kin), task("mac", **kin), task("win", **kin), task("old", after=("linux",), **kin), task("doc")
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
def test_a_failure_that_is_allowed_or_retried_ends_no_family() -> None:
    """The first is none, the second not yet."""
    kin = {"family": "os", "is_family_fail_fast": True}
    lab = Lab().plan(task("a", is_required=False, **kin), task("b", max_attempts=2, **kin), task("c", **kin))

    lab.work("a", ok=False)
    lab.fail(lab.claim(lab.attempt("b")))

    assert states(lab, "a", "b", "c") == ["FAILED", "RETRYING", "QUEUED"]
    lab.verified()


@pytest.mark.proves("MOD-D2")
def test_a_chain_of_a_family_is_not_set_going_on_its_way_out() -> None:
    """One after the other, as a matrix with one job at a time is; in whatever order the plan names them."""
    kin = {"family": "os", "is_family_fail_fast": True}
    specs = [task("a", **kin), task("b", after=("a",), **kin), task("c", after=("b",), **kin)]
    lab = Lab().plan(*specs)
    other = Lab().plan(*reversed(specs))

    lab.work("a", ok=False)
    other.work("a", ok=False)

    assert states(lab, "b", "c") == states(other, "b", "c") == ["CANCELED"] * 2
    assert lab.steps("r1/b") == lab.steps("r1/c") == ["PENDING", "CANCELED"]
    assert (lab.run().state, other.run().state) == (run.FAILED, run.FAILED)
    lab.verified()
    other.verified()


# -- what is worth another attempt


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
    """Never on more than are usual."""
    lab = Lab().plan(task("a", max_attempts=3, retry_on=classes))

    lab.fail(lab.claim(lab.attempt("a")), code)

    assert lab.job("a").state == state
    lab.verified()


# -- all of it together


@pytest.mark.proves("MOD-D1", "MOD-D2", "MOD-6", "MOD-7")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=False), is_shuffled=st.booleans())
def test_any_graph_goes_as_a_few_lines_say(random: Random, is_shuffled: bool) -> None:
    """Every job ends; exactly the right ones are blocked, or not needed."""
    specs = [_drawn(random, n) for n in range(random.randint(1, 12))]
    fails = {spec.name for spec in specs if random.random() < 0.3}
    lab, oracle = Lab().plan(*(random.sample(specs, len(specs)) if is_shuffled else specs)), Oracle(specs)

    while ready := oracle.ready():
        assert {each.name for each in specs if lab.job(each.name).state == job.QUEUED} == ready
        assert lab.run().state in (run.QUEUED, run.RUNNING)
        name = random.choice(sorted(ready))
        lab.work(name, ok=name not in fails)
        oracle.finish(name, is_ok=name not in fails)

    found = {spec.name: (lab.job(spec.name).state, lab.job(spec.name).reason) for spec in specs}
    assert {name: end[0] for name, end in found.items()} == {name: end[0] for name, end in oracle.over.items()}
    if not is_shuffled:
        assert {name: end for name, end in found.items() if end[0] == "CANCELED"} == {
            name: end for name, end in oracle.over.items() if end[0] == "CANCELED"
        }
    is_lost = any(spec.is_required and oracle.over[spec.name][0] != "SUCCEEDED" for spec in specs)
    assert lab.run().state == (run.FAILED if is_lost else run.SUCCESS)
    lab.verified()


def _drawn(random: Random, n: int) -> JobSpec:
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
    """What should become of a plan whose jobs are done one by one, by its words alone."""

    def __init__(self, specs: list[JobSpec]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.over: dict[str, tuple[str, str]] = {}

    def _is_met(self, name: str) -> bool:
        return self.over[name][0] == "SUCCEEDED" or (
            self.over[name][0] == "FAILED" and not self.specs[name].is_required
        )

    def ready(self) -> set[str]:
        """Who could go on now."""
        waits = {name: {*spec.needs, *spec.after} for name, spec in self.specs.items() if name not in self.over}
        return {name for name, before in waits.items() if before <= self.over.keys()}

    def finish(self, name: str, *, is_ok: bool) -> None:
        """It is over, and so is whoever cannot or need not go on."""
        spec = self.specs[name]
        self.over[name] = ("SUCCEEDED" if is_ok else "FAILED", "")
        if not is_ok and spec.is_required and spec.is_family_fail_fast:
            kin = [each for each in self.specs.values() if each.family == spec.family and each.name not in self.over]
            self.over.update((each.name, ("CANCELED", "NOT_NEEDED")) for each in kin)
        for each in self.specs.values():  # In the order of the plan: whoever is needed comes first.
            lost = [need for need in each.needs if need in self.over and not self._is_met(need)]
            if each.name not in self.over and lost:
                self.over[each.name] = ("CANCELED", "BLOCKED")
