"""Leases for runners: which jobs and how many, how long a request waits, and jobs that no runner can execute."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import msgspec
import pytest

from deltaci.core import attempt, job, lease, run
from deltaci.core.attempt import Attempt
from deltaci.core.worker import Worker
from deltaci.engine import waiters
from deltaci.protocol.messages import MAX_SECONDS, MAX_SPEC_BYTES, JobSpec, LeaseGranted
from deltaci.storage import commit_hints
from tests.contract.backends import on_loop
from tests.contract.test_runs import planned
from tests.server.site import OpenSite, RegisteredRunner, RunnerLease, stale_reason
from tests.support.lab import TENANT, task

SPEC: dict[str, Any] = {"name": "unit", "steps": ["true", {"run": "make", "timeout_seconds": 5}], "env": {"CI": "true"}}
LARGE: dict[str, Any] = {"steps": ["echo " + "x" * 60_000] * 2}


async def spec_of(runner: RegisteredRunner, granted: LeaseGranted, path: str = "") -> Any:
    """What stands at the address that the lease names."""
    ref = (path or granted.job_spec_ref or "").replace("%20", " ")
    return await runner.site.request(
        "GET",
        ref,
        root="",
        headers=[("Authorization", f"Bearer {runner.credential}"), ("Delta-Lease", granted.lease_id)],
    )


# -- refusals


@on_loop
async def test_a_runner_requests_leases_only_for_itself(site: OpenSite) -> None:
    """A credential belongs to one machine and its parts."""
    async with site() as here:
        runner, other = await here.runner("host"), await here.runner("hos")
        await here.server.enqueue("q1", spec=SPEC)

        for wrong, name in ((runner, "hos"), (runner, "host2"), (other, "host"), (other, "host/1")):
            asked = json.dumps({"type": "Lease", "runner_id": name}).encode()
            reply = await here.refused(lambda by=wrong, asked=asked: by.request("POST", "lease", asked))  # type: ignore[misc]
            assert (reply.status, reply.code) == (403, "wrong_runner")

        [granted] = await runner.lease(runner_id="host/1")
        assert granted.job_id == "q1"


@on_loop
async def test_another_tenants_work_is_not_seen(site: OpenSite) -> None:
    """Tenants share a deployment and nothing else."""
    async with site() as here:
        ours, theirs = await here.runner("w1"), await here.runner("w2", tenant="other")
        await here.server.enqueue("q1", spec=SPEC)

        assert await theirs.lease(slots=5) == []
        held = await ours.take()

        assert await held.stale("Heartbeat", theirs, runner_id="w2") == "UNKNOWN_LEASE"
        assert stale_reason(await spec_of(theirs, held.granted, "/runner/v1/specs/q1"), held.id) == "UNKNOWN_LEASE"


@pytest.mark.parametrize("spec", [{"steps": 5}, {"colour": "red"}, "make test", {"env": {"A": 1}}], ids=str)
@on_loop
async def test_a_job_that_no_runner_can_execute_fails_at_once_and_the_others_go_on(site: OpenSite, spec: Any) -> None:
    """A bad specification must neither be tried again and again nor keep good work from a runner."""
    async with site() as here:
        runner = await here.runner(slots=9)
        await planned(here.server, task("bad", work=spec, priority=9, max_attempts=3), task("good", work=SPEC))
        await here.server.enqueue("q1", spec=spec, priority=9)

        granted = await runner.lease(slots=9)

        assert [each.job_id for each in granted] == ["r1/good"]
        for id in ("r1/bad.1", "q1"):
            failed = await here.server.find(id, Attempt)
            assert failed.state == attempt.FAILED
            assert failed.error is not None
            assert (failed.error.code, failed.error.rule, failed.error.is_retryable) == (
                "BAD_SPEC",
                "bad-job-spec",
                False,
            )
            assert "cannot be executed by a runner" in failed.error.message
        assert await here.server.state("r1/bad") == job.FAILED
        assert (await here.server.find("w1", Worker)).tasks == ("r1/good.1",)


@on_loop
async def test_a_runner_that_only_finds_bad_jobs_goes_on_to_the_next(site: OpenSite) -> None:
    """With one slot the bad one is all that it finds at first; it must not be sent away with nothing."""
    async with site() as here:
        runner = await here.runner()
        for n in range(3):
            await here.server.enqueue(f"bad{n}", spec={"steps": n}, priority=9)
        await here.server.enqueue("good", spec=SPEC)

        assert [each.job_id for each in await runner.lease()] == ["good"]
        assert await runner.lease() == []


# -- what is handed out


@pytest.mark.proves("PRO-M1", "PRO-M10", "PRO-D5")
@on_loop
async def test_a_lease_says_what_to_do_and_how_long_there_is(site: OpenSite) -> None:
    """Everything that a runner needs is in one message."""
    async with site() as here:
        runner = await here.runner()
        await planned(here.server, task("build", work=SPEC, timeout_seconds=600))

        [granted] = await runner.lease()

        assert (granted.job_id, granted.run_id) == ("r1/build", "r1")
        assert (granted.lease_ttl_seconds, granted.heartbeat_interval_seconds) == (120, 20)
        assert granted.max_runtime_seconds == 600 + lease.RUNTIME_BUFFER_SECONDS
        assert granted.job_spec is not None
        assert granted.job_spec.steps[0] == "true"
        assert granted.job_spec_ref is None
        assert await here.server.state("r1/build.1") == attempt.LEASED


@on_loop
async def test_no_more_is_handed_out_than_there_are_slots(site: OpenSite) -> None:
    """A runner says what it can take now, and the fleet knows what it can take at all."""
    async with site() as here:
        runner = await here.runner(slots=3)
        await planned(here.server, *(task(f"n{n}", work=SPEC) for n in range(9)))

        counts = [len(await runner.lease(slots=slots)) for slots in (1, 5, 5)]

        assert counts == [1, 2, 0]


@on_loop
async def test_a_runner_gets_only_what_it_has_the_labels_for(site: OpenSite) -> None:
    """A job that needs a GPU is not tried on a machine without one."""
    async with site() as here:
        runner = await here.runner(capabilities=["linux", "gpu"], slots=5)
        await planned(here.server, task("cpu", work=SPEC), task("gpu", work=SPEC, queue_key="gpu,linux"))
        await here.server.enqueue("arm", spec=SPEC, queue_key="arm")

        first = await runner.lease(slots=5, capabilities=["linux"])
        second = await runner.lease(slots=5, capabilities=["linux", "gpu"])

        assert [each.job_id for each in (*first, *second)] == ["r1/cpu", "r1/gpu"]


@pytest.mark.parametrize("timeout", [1, 2**31 - 1])
@on_loop
async def test_every_accepted_job_can_be_read_by_a_runner(site: OpenSite, timeout: int) -> None:
    """A lease that its runner cannot decode would be lost again and again."""
    async with site() as here:
        runner = await here.runner()
        await here.server.enqueue("q " + "ü" * 198, spec=None, timeout_seconds=timeout)

        held = await runner.take()

        assert held.granted.max_runtime_seconds == min(timeout + lease.RUNTIME_BUFFER_SECONDS, MAX_SECONDS)
        assert held.granted.job_spec == JobSpec(name=held.attempt_id)
        assert (await held.send("AckLease")).status == 200


@pytest.mark.proves("PRO-M1")
@pytest.mark.parametrize("spec", [{"steps": ["true"]}, LARGE, {"name": "n", "workdir": "src"}])
@on_loop
async def test_a_specification_always_has_a_name_and_a_workdir(site: OpenSite, spec: dict[str, Any]) -> None:
    """Document 001 marks neither as optional, so that a runner in another language may require both."""
    async with site() as here:
        runner = await here.runner()
        await planned(here.server, task("build", work=spec))

        request = json.dumps({"type": "Lease", "runner_id": runner.id}).encode()
        [granted] = (await runner.request("POST", "lease", request)).body["leases"]
        sent = granted.get("job_spec") or (await spec_of(runner, msgspec.convert(granted, LeaseGranted))).body

        assert (sent["name"], sent["workdir"]) == (spec.get("name", "build"), spec.get("workdir", "."))


@pytest.mark.proves("PRO-Q2")
@on_loop
async def test_a_large_specification_is_read_under_the_lease(site: OpenSite) -> None:
    """It is sent once, only to the runner that will execute it."""
    async with site() as here:
        runner, other = await here.runner(), await here.runner("w2")
        await planned(here.server, task("a b", work=LARGE), task("c", work=LARGE))
        held = await runner.take()
        assert len(json.dumps(LARGE)) > MAX_SPEC_BYTES
        assert (held.granted.job_spec, held.granted.job_spec_ref) == (None, "/runner/v1/specs/r1/a%20b.1")

        reply = await spec_of(runner, held.granted)
        elsewhere = await here.refused(lambda: spec_of(runner, held.granted, "/runner/v1/specs/r1/c.1"))
        stolen = await here.refused(lambda: spec_of(other, held.granted))
        without = await here.refused(lambda: runner.request("GET", "specs/r1/a b.1"))

        assert reply.body == {"name": "a b", "workdir": ".", **LARGE}
        assert (elsewhere.status, elsewhere.code) == (404, "not_found")
        assert stale_reason(stolen, held.id) == "UNKNOWN_LEASE"
        assert (without.status, without.code) == (400, "bad_request")
        here.backend.after(120)
        assert stale_reason(await spec_of(runner, held.granted), held.id) == "LEASE_EXPIRED"


# -- waiting


class Waits:
    """Shows when a runner waits for a hint. Without a poll, only a hint can help."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        original = waiters.Waiter.wait

        async def turn(waiter: waiters.Waiter, *, is_first: bool = False) -> waiters.ClaimPermit | None:
            self.begun.set()
            return await original(waiter, is_first=is_first)

        monkeypatch.setattr(waiters.Waiter, "wait", turn)
        monkeypatch.setattr(commit_hints, "POLL_SECONDS", math.inf)


@on_loop
async def test_a_request_without_a_wait_is_answered_at_once(site: OpenSite) -> None:
    """A runner that is about to stop must be able to ask without waiting."""
    async with site() as here:
        runner = await here.runner()

        assert await runner.lease() == []
        assert await runner.lease(wait_seconds=0.01) == []


@pytest.mark.proves("PRO-B2")
@on_loop
async def test_who_waits_is_woken_by_new_work(site: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work begins when it comes, not when the next poll does."""
    async with site() as here:
        runner = await here.runner()
        waits = Waits(monkeypatch)
        asked = asyncio.create_task(runner.lease(wait_seconds=60))
        await waits.begun.wait()

        await here.server.enqueue("q1", spec=SPEC)

        assert [each.job_id for each in await asked] == ["q1"]


@on_loop
async def test_nothing_is_claimed_for_a_disconnected_runner(site: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unaccepted lease counts against its attempt, which fails after three of them."""
    async with site() as here:
        runner = await here.runner()
        waits, gone = Waits(monkeypatch), asyncio.Event()
        body = json.dumps({"type": "Lease", "runner_id": "w1", "wait_seconds": 60}).encode()
        credential = [("Authorization", f"Bearer {runner.credential}")]
        asked = asyncio.create_task(here.request("POST", "lease", body, headers=credential, disconnected_event=gone))
        await waits.begun.wait()

        gone.set()
        await here.server.enqueue("q1", spec=SPEC)

        assert (await asked).body == {"leases": []}
        assert await here.server.state("q1") == attempt.QUEUED
        assert isinstance(await runner.take(), RunnerLease)


@on_loop
async def test_a_run_is_worked_off_over_the_wire(site: OpenSite) -> None:
    """All of it together: what depends on what, two runners, one log."""
    async with site() as here:
        runners = [await here.runner("w1"), await here.runner("w2")]
        await planned(here.server, task("a", work=SPEC), task("b", "a", work=SPEC), task("c", "a", work=SPEC))

        await _work(runners[0])
        await asyncio.gather(*(_work(runner) for runner in runners))

        assert await here.server.state("r1") == run.SUCCESS
        assert {event.tenant for event in await here.server.log()} == {TENANT}


async def _work(runner: RegisteredRunner) -> None:
    held = await runner.take()
    for kind in ("AckLease", "Heartbeat", "Complete"):
        assert (await held.send(kind)).status == 200


# -- from a dispatch


@pytest.mark.proves("PRO-B1", "PRO-K3", "PRO-F3", "ORC-I3")
@on_loop
async def test_a_runner_that_names_attempts_gets_these_or_learns_that_they_are_gone(site: OpenSite) -> None:
    """A finished attempt needs no second request; one with other labels is for another runner."""
    async with site() as here:
        first, second = await here.runner("w1", slots=5), await here.runner("w2", slots=5)
        for n in range(3):
            await here.server.enqueue(f"q{n}", spec=SPEC)
        await here.server.enqueue("arm", spec=SPEC, queue_key="arm")
        await here.server.enqueue("later", spec=SPEC, run_at=here.backend.now() + 10**9)
        wanted = ["q1", "arm", "later", "never", "q0"]

        taken = await _told_of(first, wanted)
        again = await _told_of(second, wanted)

        assert (_jobs(taken), taken.body["gone"]) == (["q0", "q1"], ["q1", "never", "q0"])
        assert (_jobs(again), again.body["gone"]) == ([], ["q1", "never", "q0"])
        assert [each.job_id for each in await second.lease()] == ["q2"]


@on_loop
async def test_attempts_of_another_tenant_are_reported_as_gone(site: OpenSite) -> None:
    """Their existence is not revealed."""
    async with site() as here:
        stranger = await here.runner("w2", tenant="other")
        await here.server.enqueue("q1", spec=SPEC)

        reply = await _told_of(stranger, ["q1", "q2"])

        assert reply.body == {"leases": [], "gone": ["q1", "q2"]}


async def _told_of(runner: RegisteredRunner, attempts: list[str]) -> Any:
    asked = {"type": "Lease", "runner_id": runner.id, "slots": 5, "attempts": attempts}
    return await runner.request("POST", "lease", json.dumps(asked).encode())


def _jobs(reply: Any) -> list[str]:
    return sorted(each["job_id"] for each in reply.body["leases"])
