"""Statuses of runs on their forges: their order, repetition, and the effect on the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deltaci.core import attempt, run
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_decisions import StatusRetryPolicy
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Document
from tests.contract.backends import Backend, Wrapped, on_loop
from tests.forges.fake_forge import FakeForge, PlannedResponse
from tests.forges.project_documents import ProjectDocuments
from tests.forges.reporting_server import COMMIT, JumpingClock, ReportingServer, reporting
from tests.support.lab import TENANT, task

TOKEN = "a token of the project's own"


async def add_project(
    at: ReportingServer, forge: FakeForge, kind: str = "github", name: str = "p", **fields: Any
) -> None:
    """Store a project whose forge is this one."""
    all_fields = {"repository": "octo/hello", "api_url": forge.url, "api_token": TOKEN, **fields}
    await at.project_documents.add(name, kind, TENANT, **all_fields)


KINDS = {
    "github": (["pending", "pending", "success"], f"/repos/octo/hello/statuses/{COMMIT}", "Bearer "),
    "gitea": (["pending", "pending", "success"], f"/repos/octo/hello/statuses/{COMMIT}", "token "),
    "gitlab": (["pending", "running", "success"], f"/projects/octo%2Fhello/statuses/{COMMIT}", ""),
}


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_each_status_of_a_run_is_sent(memory: Backend, tmp_path: Path, kind: str) -> None:
    """The run is reported only after its forge accepted the outcome."""
    states, path, prefix = KINDS[kind]
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge, kind)
        await at.start_run()
        await forge.accepted_bodies(1)
        lease = await at.start_job()
        await forge.accepted_bodies(2)
        await at.finish_job(lease)

        bodies = await forge.accepted_bodies(3)
        event = await at.reported_event()

        assert [body["state"] for body in bodies] == states
        name = "name" if kind == "gitlab" else "context"
        assert {body[name] for body in bodies} == {"deltaci/build"}
        assert [body["description"] for body in bodies] == ["waiting to start", "under way", "succeeded"]
        assert {body["target_url"] for body in bodies} == {"https://ci.example.org/runs/r1"}
        assert {each.path for each in forge.accepted} == {path}
        shown = {each.headers.get("authorization") or each.headers["private-token"] for each in forge.accepted}
        assert shown == {f"{prefix}{TOKEN}"}
        assert event.metadata == {"conclusion": "SUCCESS", "told": "success"}
        await at.server.verified()


@pytest.mark.proves("ORC-R11")
@on_loop
async def test_a_run_is_not_reported_before_its_forge_has_the_outcome(backend: Backend, tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeForge() as forge, reporting(backend, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run()
        lease = await at.start_job()
        await forge.wait_until(lambda: any(each.body["description"] == "under way" for each in forge.accepted))
        forge.plan.append(gate)
        await at.finish_job(lease)
        await forge.wait_until(lambda: forge.received[-1].body["state"] == "success")

        assert not await at.is_reported()

        gate.set()
        assert (await at.reported_event()).metadata["told"] == "success"
        await at.server.verified()


@on_loop
async def test_the_description_names_the_failed_job(memory: Backend, tmp_path: Path) -> None:
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run(jobs=(task("unit tests"), task("deploy", "unit tests")))
        await at.finish_job(await at.start_job(), ok=False)
        await at.reported_event()

        last = forge.accepted[-1].body
        assert last["state"] == "failure"
        assert last["description"] == "'unit tests' failed; 2 jobs did not succeed"


@on_loop
async def test_planning_failures_and_cancellations_are_errors(memory: Backend, tmp_path: Path) -> None:
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run("r1")
        await at.server.do(run.Cancel(id="r1", actor="user:ada"))
        await at.reported_event("r1")

        assert forge.accepted[-1].body["state"] == "error"
        assert forge.accepted[-1].body["description"] == "cancelled"


@pytest.mark.proves("STP-R8")
@on_loop
async def test_a_forge_learns_of_a_cancel_when_the_runner_has_stopped(memory: Backend, tmp_path: Path) -> None:
    """A merge that waits for the commit status must not begin while the process may still write."""
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run("r1")
        lease = await at.start_job()
        await forge.wait_until(lambda: any(each.body["description"] == "under way" for each in forge.accepted))

        await at.server.do(run.Cancel(id="r1", actor="user:ada"))
        await at.start_run("r2", pipeline="other")  # Its status is sent after that of r1 would be.
        await forge.wait_until(lambda: any(each.body["target_url"].endswith("r2") for each in forge.accepted))
        assert "cancelled" not in [each.body["description"] for each in forge.accepted]
        await at.server.send(attempt.CancelAck, lease)
        await at.reported_event("r1")

        of_r1 = [each.body["description"] for each in forge.accepted if each.body["target_url"].endswith("r1")]
        assert of_r1 == ["waiting to start", "under way", "cancelled"]


@pytest.mark.parametrize(
    "fields",
    [{"api_token": ""}, {"reports": "nothing"}, {"repository": ""}, {"kind": "git"}],
)
@on_loop
async def test_a_run_is_reported_at_once_if_its_project_sends_no_statuses(
    memory: Backend, tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge, **fields)
        await at.start_run()
        await at.finish_job(await at.start_job())

        assert (await at.reported_event()).metadata == {"conclusion": "SUCCESS"}
        assert not forge.received


@pytest.mark.parametrize("origin", [{"project": "nobody"}, {"project": ""}, {"commit": ""}, {"commit": "main/../x"}])
@on_loop
async def test_a_run_without_project_or_commit_is_reported_at_once(
    memory: Backend, tmp_path: Path, origin: dict[str, Any]
) -> None:
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run(**origin)
        await at.finish_job(await at.start_job())

        assert (await at.reported_event()).metadata == {"conclusion": "SUCCESS"}
        assert not forge.received


@on_loop
async def test_an_unreadable_token_is_the_reason_in_the_last_event(memory: Backend, tmp_path: Path) -> None:
    """The run is reported nevertheless."""
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge, api_token="", problem="there is no secret 'TOKEN'")
        await at.start_run()
        await at.finish_job(await at.start_job())

        assert (await at.reported_event()).metadata["told"] == "exhausted: there is no secret 'TOKEN'"


# -- a forge that fails


@on_loop
async def test_a_failed_request_is_repeated_until_it_succeeds(memory: Backend, tmp_path: Path) -> None:
    """After errors, broken connections and timeouts, the outcome arrives and nothing older after it."""
    async with (
        FakeForge(PlannedResponse(500), "reset", "silence", PlannedResponse(502)) as forge,
        reporting(memory, tmp_path, hosts=(forge.host,), timeout_seconds=0.2) as at,
    ):
        await add_project(at, forge)
        await at.start_run()
        await at.finish_job(await at.start_job())

        assert (await at.reported_event()).metadata["told"] == "success"
        assert forge.accepted[-1].body["state"] == "success"
        assert len(forge.received) >= 5


@on_loop
async def test_retry_after_is_respected(memory: Backend, tmp_path: Path) -> None:
    clock = JumpingClock()
    busy = PlannedResponse(429, {"Retry-After": "77"})
    async with (
        FakeForge(busy) as forge,
        reporting(memory, tmp_path, hosts=(forge.host,), clock=clock) as at,
    ):
        await add_project(at, forge)
        await at.start_run()
        await forge.accepted_bodies(1)

        assert 77.0 in [round(each, 3) for each in clock.waited]


@on_loop
async def test_an_exceeded_rate_limit_is_not_a_refusal(memory: Backend, tmp_path: Path) -> None:
    """GitHub answers 403 with the time of the reset."""
    clock = JumpingClock()
    spent = PlannedResponse(403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "99999999999"})
    async with (
        FakeForge(spent) as forge,
        reporting(memory, tmp_path, hosts=(forge.host,), clock=clock) as at,
    ):
        await add_project(at, forge)
        await at.start_run()
        await forge.accepted_bodies(1)

        assert max(clock.waited) == StatusRetryPolicy().max_retry_after_seconds


@on_loop
async def test_retry_delays_grow_and_sending_is_abandoned_at_last(memory: Backend, tmp_path: Path) -> None:
    """The last event of the run says so."""
    clock = JumpingClock()
    async with (
        FakeForge() as forge,
        reporting(memory, tmp_path, hosts=(forge.host,), clock=clock, retry_policy=StatusRetryPolicy()) as at,
    ):
        forge.default = PlannedResponse(503, body={"message": "down"})
        await add_project(at, forge)
        await at.start_run()
        await at.finish_job(await at.start_job())

        outcome = (await at.reported_event()).metadata["told"]

        assert outcome.startswith('exhausted: the forge answered 503: {"message": "down"}; ')
        waited = [each for each in clock.waited if each > 0]
        assert max(waited) <= 300.0
        assert waited[:4] == sorted(waited[:4])
        assert TOKEN not in outcome


@pytest.mark.parametrize("status", [301, 401, 404, 422])
@on_loop
async def test_a_refused_status_is_not_sent_forever(memory: Backend, tmp_path: Path, status: int) -> None:
    clock = JumpingClock()
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,), clock=clock) as at:
        forge.default = PlannedResponse(status, {"Location": forge.url}, {"message": "no"})
        await add_project(at, forge)
        await at.start_run()
        await at.finish_job(await at.start_job())

        outcome = (await at.reported_event()).metadata["told"]

        assert outcome == f'exhausted: the forge answered {status}: {{"message": "no"}}; 8 tries'
        assert sum(each.body["state"] == "success" for each in forge.received) == 8
        [document] = await at.status_states()
        assert document.is_abandoned
        assert document.problem in outcome


@on_loop
async def test_gitlab_refusing_an_equal_state_counts_as_success(memory: Backend, tmp_path: Path) -> None:
    error = {"message": "Cannot transition status via :enqueue from :pending (Reason(s): Status cannot transition)"}
    async with (
        FakeForge(PlannedResponse(400, body=error)) as forge,
        reporting(memory, tmp_path, hosts=(forge.host,)) as at,
    ):
        await add_project(at, forge, "gitlab")
        await at.start_run()
        await at.finish_job(await at.start_job())

        assert (await at.reported_event()).metadata["told"] == "success"


@on_loop
async def test_an_unresponsive_forge_does_not_delay_other_projects(memory: Backend, tmp_path: Path) -> None:
    async with FakeForge() as dead, FakeForge() as alive:
        dead.default = "silence"
        async with reporting(memory, tmp_path, hosts=(dead.host, alive.host), timeout_seconds=30.0) as at:
            await add_project(at, dead, name="dead")
            await add_project(at, alive, name="alive")
            await at.start_run("r0", project="dead")
            await dead.wait_for_requests(1)
            await at.start_run("r1", project="alive")
            for _ in range(2):
                await at.finish_job(await at.start_job())

            await at.reported_event("r1")

            assert not await at.is_reported("r0")


@on_loop
async def test_a_private_address_is_used_only_if_the_server_allows_it(memory: Backend, tmp_path: Path) -> None:
    async with FakeForge() as forge, reporting(memory, tmp_path, clock=JumpingClock()) as at:
        await add_project(at, forge)
        await at.start_run()
        await at.finish_job(await at.start_job())

        outcome = (await at.reported_event()).metadata["told"]
        assert outcome.startswith("exhausted: not allowed: requests to 127.0.0.1 would")
        assert not forge.received


class FailingProjects:
    """Projects whose lookup fails at first."""

    def __init__(self, inner: ProjectDocuments) -> None:
        self.inner = inner
        self.failures = [BlobStoreUnavailable("the disk is away"), RuntimeError("a bug")]

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        """Fail for each planned failure, then look up the project."""
        if project == "broken" and self.failures:
            raise self.failures.pop()
        return await self.inner.find(tenant, project)


@on_loop
async def test_a_failing_project_lookup_does_not_delay_other_projects(memory: Backend, tmp_path: Path) -> None:
    """Its status is sent as soon as the lookup succeeds."""
    async with (
        FakeForge() as forge,
        reporting(memory, tmp_path, hosts=(forge.host,), clock=JumpingClock()) as at,
    ):
        at.replace_projects(FailingProjects(at.project_documents))
        await add_project(at, forge, name="broken")
        await add_project(at, forge, name="fine")
        await at.start_run("r1", project="broken", pipeline="one")
        await at.start_run("r2", project="fine", pipeline="two")
        for _ in range(2):
            await at.finish_job(await at.start_job())

        for id in ("r1", "r2"):
            assert (await at.reported_event(id)).metadata["told"] == "success"


# -- order


@on_loop
async def test_of_two_runs_of_a_commit_the_newer_one_is_shown(memory: Backend, tmp_path: Path) -> None:
    """The status of an older run that ends later is not sent; its last event says why."""
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run("old")
        old = await at.start_job("w1")
        await at.start_run("new")
        await at.finish_job(await at.start_job("w2"))
        await at.reported_event("new")
        await at.finish_job(old, ok=False)

        event = await at.reported_event("old")

        assert event.metadata["told"] == "superseded by run new"
        assert forge.accepted[-1].body["state"] == "success"


@on_loop
async def test_a_fork_does_not_change_the_status_of_our_commit(memory: Backend, tmp_path: Path) -> None:
    """Anybody may open a pull request with the commit of a branch; its status stays that of our own run."""
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run("fork 1", is_fork=True)
        await forge.accepted_bodies(1)
        await at.start_run("ours")
        for _ in range(2):
            await at.finish_job(await at.start_job())
        await at.reported_event("ours")
        await at.start_run("fork 2", is_fork=True)
        await at.finish_job(await at.start_job(), ok=False)

        event = await at.reported_event("fork 2")

        assert event.metadata["told"] == "superseded by run ours"
        assert forge.accepted[0].body["target_url"].endswith("fork 1")
        assert forge.accepted[-1].body["state"] == "success"


@on_loop
async def test_contexts_and_commits_are_independent(memory: Backend, tmp_path: Path) -> None:
    other = "d" * 40
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge)
        await at.start_run("r1", pipeline="build")
        await at.start_run("r2", pipeline="lint")
        await at.start_run("r3", commit=other)
        for _ in range(3):
            await at.finish_job(await at.start_job())
        for id in ("r1", "r2", "r3"):
            assert (await at.reported_event(id)).metadata["told"] == "success"

        done = {(each.path[-40:], each.body["context"]) for each in forge.accepted if each.body["state"] == "success"}
        assert done == {(COMMIT, "deltaci/build"), (COMMIT, "deltaci/lint"), (other, "deltaci/build")}


# -- crashes and servers side by side


class CrashingStore(Wrapped):
    """A store that fails when the state after a sent status is written."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.died = asyncio.Event()

    async def put_documents(self, documents: Sequence[Document]) -> None:
        if (
            documents[0].kind == "told" and documents[0].version % 2
        ):  # The first write is the claim, the second the result.
            self.died.set()
            await asyncio.get_running_loop().create_future()
        await super().put_documents(documents)


@on_loop
async def test_a_crash_between_sending_and_recording_is_harmless(memory: Backend, tmp_path: Path) -> None:
    """Another server sends the status again after the claim has expired."""
    async with FakeForge() as forge:
        async with reporting(memory, tmp_path, hosts=(forge.host,), wrap=CrashingStore) as at:
            await add_project(at, forge)
            await at.start_run()
            assert isinstance(at.server.store, CrashingStore)
            await at.server.store.died.wait()
            await forge.accepted_bodies(1)
        async with reporting(memory, tmp_path, hosts=(forge.host,), clock=JumpingClock()) as at:
            await at.finish_job(await at.start_job())

            assert (await at.reported_event()).metadata["told"] == "success"
            assert forge.accepted[-1].body["state"] == "success"


@on_loop
async def test_statuses_missed_while_no_server_ran_are_sent_afterwards(memory: Backend, tmp_path: Path) -> None:
    async with FakeForge() as forge:
        async with reporting(memory, tmp_path, hosts=(forge.host,), is_started=False) as at:
            await add_project(at, forge)
            await at.start_run("r1", pipeline="one")
            await at.finish_job(await at.start_job())
            await at.start_run("r2", pipeline="two")
        async with reporting(memory, tmp_path, hosts=(forge.host,)) as at:
            await at.reported_event("r1")
            await forge.accepted_bodies(2)

        assert {(each.body["context"], each.body["state"]) for each in forge.accepted} == {
            ("deltaci/one", "success"),
            ("deltaci/two", "pending"),
        }


@on_loop
async def test_two_servers_send_each_status_once_and_in_order(postgres_backend: Backend, tmp_path: Path) -> None:
    async with FakeForge() as forge:
        allowed = (forge.host,)
        async with (
            reporting(postgres_backend, tmp_path, hosts=allowed) as one,
            reporting(postgres_backend, tmp_path, hosts=allowed) as two,
        ):
            await add_project(one, forge)
            for number in range(5):
                at = (one, two)[number % 2]
                await at.start_run(f"r{number}", pipeline=f"p{number}")
                await at.finish_job(await at.start_job())
            for number in range(5):
                await two.reported_event(f"r{number}")

        for number in range(5):
            states = [
                each.body["description"] for each in forge.accepted if each.body["context"] == f"deltaci/p{number}"
            ]
            order = ["waiting to start", "under way", "succeeded"]
            assert states == [each for each in order if each in states]
            assert states[-1] == "succeeded"


@on_loop
async def test_after_an_expired_claim_the_newest_status_is_sent_again(memory: Backend, tmp_path: Path) -> None:
    """A suspended server may have sent an old status after a newer one."""
    asleep = asyncio.Event()
    slow = StatusRetryPolicy(initial_seconds=0.01, max_seconds=0.05, claim_seconds=0.0)  # Its turn is over at once.
    async with FakeForge(asleep) as forge:
        allowed = (forge.host,)
        async with reporting(memory, tmp_path, hosts=allowed, retry_policy=slow, timeout_seconds=30.0) as one:
            await add_project(one, forge)
            await one.start_run()
            await forge.wait_for_requests(1)
            async with reporting(memory, tmp_path, hosts=allowed, retry_policy=slow) as two:
                await two.finish_job(await two.start_job())
                await two.reported_event()
                count = len(forge.accepted)
                asleep.set()
                await forge.wait_until(lambda: len(forge.accepted) >= count + 2)

            first, *rest = [each.body["state"] for each in forge.accepted[count:]]
            assert (first, set(rest)) == ("pending", {"success"})
