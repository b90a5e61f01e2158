"""Statuses of runs on their forges: their order, repetition, and the effect on the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deltaci.core import run
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_state import StatusRetryPolicy
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Document
from tests.contract.places import Place, Wrapped, on_loop
from tests.forges.notebook import Notebook
from tests.forges.playing import Answered, PlayedForge
from tests.forges.reporting import COMMIT, Desk, Jumping, desk
from tests.lab import TENANT, task

TOKEN = "a token of the project's own"


async def add_project(at: Desk, forge: PlayedForge, kind: str = "github", name: str = "p", **fields: Any) -> None:
    """Store a project whose forge is this one."""
    told = {"repository": "octo/hello", "api_url": forge.url, "api_token": TOKEN, **fields}
    await at.notebook.write(name, kind, TENANT, **told)


KINDS = {
    "github": (["pending", "pending", "success"], f"/repos/octo/hello/statuses/{COMMIT}", "Bearer "),
    "gitea": (["pending", "pending", "success"], f"/repos/octo/hello/statuses/{COMMIT}", "token "),
    "gitlab": (["pending", "running", "success"], f"/projects/octo%2Fhello/statuses/{COMMIT}", ""),
}


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_each_status_of_a_run_is_sent(memory: Place, tmp_path: Path, kind: str) -> None:
    """The run is reported only after its forge accepted the outcome."""
    states, path, prefix = KINDS[kind]
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge, kind)
        await at.begin()
        await forge.told(1)
        lease = await at.work()
        await forge.told(2)
        await at.end(lease)

        bodies = await forge.told(3)
        event = await at.reported()

        assert [each["state"] for each in bodies] == states
        name = "name" if kind == "gitlab" else "context"
        assert {each[name] for each in bodies} == {"deltaci/build"}
        assert [each["description"] for each in bodies] == ["waiting to start", "under way", "succeeded"]
        assert {each["target_url"] for each in bodies} == {"https://ci.example.org/runs/r1"}
        assert {each.path for each in forge.kept} == {path}
        shown = {each.headers.get("authorization") or each.headers["private-token"] for each in forge.kept}
        assert shown == {f"{prefix}{TOKEN}"}
        assert event.metadata == {"conclusion": "SUCCESS", "told": "success"}
        await at.server.verified()


@pytest.mark.proves("ORC-R11")
@on_loop
async def test_a_run_is_not_reported_before_its_forge_has_the_outcome(place: Place, tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with PlayedForge() as forge, desk(place, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge)
        await at.begin()
        lease = await at.work()
        await forge.until(lambda: any(each.body["description"] == "under way" for each in forge.kept))
        forge.plan.append(gate)
        await at.end(lease)
        await forge.until(lambda: forge.heard[-1].body["state"] == "success")

        assert not await at.is_reported()

        gate.set()
        assert (await at.reported()).metadata["told"] == "success"
        await at.server.verified()


@on_loop
async def test_the_description_names_the_failed_job(memory: Place, tmp_path: Path) -> None:
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge)
        await at.begin(jobs=(task("unit tests"), task("deploy", "unit tests")))
        await at.end(await at.work(), ok=False)
        await at.reported()

        last = forge.kept[-1].body
        assert last["state"] == "failure"
        assert last["description"] == "'unit tests' failed; 2 jobs did not succeed"


@on_loop
async def test_planning_failures_and_cancellations_are_errors(memory: Place, tmp_path: Path) -> None:
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge)
        await at.begin("r1")
        await at.server.do(run.Cancel(id="r1", actor="user:ada"))
        await at.reported("r1")

        assert forge.kept[-1].body["state"] == "error"
        assert forge.kept[-1].body["description"] == "cancelled"


@pytest.mark.parametrize(
    "fields",
    [{"api_token": ""}, {"reports": "nothing"}, {"repository": ""}, {"kind": "git"}],
)
@on_loop
async def test_a_run_is_reported_at_once_if_its_project_sends_no_statuses(
    memory: Place, tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge, **fields)
        await at.begin()
        await at.end(await at.work())

        assert (await at.reported()).metadata == {"conclusion": "SUCCESS"}
        assert not forge.heard


@pytest.mark.parametrize("origin", [{"project": "nobody"}, {"project": ""}, {"commit": ""}, {"commit": "main/../x"}])
@on_loop
async def test_a_run_without_project_or_commit_is_reported_at_once(
    memory: Place, tmp_path: Path, origin: dict[str, Any]
) -> None:
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge)
        await at.begin(**origin)
        await at.end(await at.work())

        assert (await at.reported()).metadata == {"conclusion": "SUCCESS"}
        assert not forge.heard


@on_loop
async def test_an_unreadable_token_is_the_reason_in_the_last_event(memory: Place, tmp_path: Path) -> None:
    """The run is reported nevertheless."""
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge, api_token="", problem="there is no secret 'TOKEN'")
        await at.begin()
        await at.end(await at.work())

        assert (await at.reported()).metadata["told"] == "exhausted: there is no secret 'TOKEN'"


# -- a forge that fails


@on_loop
async def test_a_failed_request_is_repeated_until_it_succeeds(memory: Place, tmp_path: Path) -> None:
    """After errors, broken connections and timeouts, the outcome arrives and nothing older after it."""
    async with (
        PlayedForge(Answered(500), "reset", "silence", Answered(502)) as forge,
        desk(memory, tmp_path, allowed=(forge.host,), seconds=0.2) as at,
    ):
        await add_project(at, forge)
        await at.begin()
        await at.end(await at.work())

        assert (await at.reported()).metadata["told"] == "success"
        assert forge.kept[-1].body["state"] == "success"
        assert len(forge.heard) >= 5


@on_loop
async def test_retry_after_is_respected(memory: Place, tmp_path: Path) -> None:
    clock = Jumping()
    busy = Answered(429, {"Retry-After": "77"})
    async with PlayedForge(busy) as forge, desk(memory, tmp_path, allowed=(forge.host,), clock=clock) as at:
        await add_project(at, forge)
        await at.begin()
        await forge.told(1)

        assert 77.0 in [round(each, 3) for each in clock.waited]


@on_loop
async def test_an_exceeded_rate_limit_is_not_a_refusal(memory: Place, tmp_path: Path) -> None:
    """GitHub answers 403 with the time of the reset."""
    clock = Jumping()
    spent = Answered(403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "99999999999"})
    async with PlayedForge(spent) as forge, desk(memory, tmp_path, allowed=(forge.host,), clock=clock) as at:
        await add_project(at, forge)
        await at.begin()
        await forge.told(1)

        assert max(clock.waited) == StatusRetryPolicy().max_retry_after_seconds


@on_loop
async def test_retry_delays_grow_and_sending_is_abandoned_at_last(memory: Place, tmp_path: Path) -> None:
    """The last event of the run says so."""
    clock = Jumping()
    async with (
        PlayedForge() as forge,
        desk(memory, tmp_path, allowed=(forge.host,), clock=clock, patience=StatusRetryPolicy()) as at,
    ):
        forge.otherwise = Answered(503, body={"message": "down"})
        await add_project(at, forge)
        await at.begin()
        await at.end(await at.work())

        told = (await at.reported()).metadata["told"]

        assert told.startswith('exhausted: the forge answered 503: {"message": "down"}; ')
        waited = [each for each in clock.waited if each > 0]
        assert max(waited) <= 300.0
        assert waited[:4] == sorted(waited[:4])
        assert TOKEN not in told


@pytest.mark.parametrize("status", [301, 401, 404, 422])
@on_loop
async def test_a_refused_status_is_not_sent_forever(memory: Place, tmp_path: Path, status: int) -> None:
    clock = Jumping()
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,), clock=clock) as at:
        forge.otherwise = Answered(status, {"Location": forge.url}, {"message": "no"})
        await add_project(at, forge)
        await at.begin()
        await at.end(await at.work())

        told = (await at.reported()).metadata["told"]

        assert told == f'exhausted: the forge answered {status}: {{"message": "no"}}; 8 tries'
        assert sum(each.body["state"] == "success" for each in forge.heard) == 8
        [document] = await at.told()
        assert document.is_abandoned
        assert document.problem in told


@on_loop
async def test_gitlab_refusing_an_equal_state_counts_as_success(memory: Place, tmp_path: Path) -> None:
    said = {"message": "Cannot transition status via :enqueue from :pending (Reason(s): Status cannot transition)"}
    async with PlayedForge(Answered(400, body=said)) as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge, "gitlab")
        await at.begin()
        await at.end(await at.work())

        assert (await at.reported()).metadata["told"] == "success"


@on_loop
async def test_an_unresponsive_forge_does_not_delay_other_projects(memory: Place, tmp_path: Path) -> None:
    async with PlayedForge() as dead, PlayedForge() as alive:
        dead.otherwise = "silence"
        async with desk(memory, tmp_path, allowed=(dead.host, alive.host), seconds=30.0) as at:
            await add_project(at, dead, name="dead")
            await add_project(at, alive, name="alive")
            await at.begin("r0", project="dead")
            await dead.tried(1)
            await at.begin("r1", project="alive")
            for _ in range(2):
                await at.end(await at.work())

            await at.reported("r1")

            assert not await at.is_reported("r0")


@on_loop
async def test_a_private_address_is_used_only_if_the_server_allows_it(memory: Place, tmp_path: Path) -> None:
    async with PlayedForge() as forge, desk(memory, tmp_path, clock=Jumping()) as at:
        await add_project(at, forge)
        await at.begin()
        await at.end(await at.work())

        assert (await at.reported()).metadata["told"].startswith("exhausted: not allowed: requests to 127.0.0.1 would")
        assert not forge.heard


class Broken:
    """Projects of which one cannot be looked up, for a while."""

    def __init__(self, inner: Notebook) -> None:
        self.inner = inner
        self.failures = [BlobStoreUnavailable("the disk is away"), RuntimeError("a bug")]

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        """The first times there is trouble."""
        if project == "broken" and self.failures:
            raise self.failures.pop()
        return await self.inner.find(tenant, project)


@on_loop
async def test_a_failing_project_lookup_does_not_delay_other_projects(memory: Place, tmp_path: Path) -> None:
    """Its status is sent as soon as the lookup succeeds."""
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,), clock=Jumping()) as at:
        at.projects(Broken(at.notebook))
        await add_project(at, forge, name="broken")
        await add_project(at, forge, name="fine")
        await at.begin("r1", project="broken", pipeline="one")
        await at.begin("r2", project="fine", pipeline="two")
        for _ in range(2):
            await at.end(await at.work())

        for id in ("r1", "r2"):
            assert (await at.reported(id)).metadata["told"] == "success"


# -- order


@on_loop
async def test_of_two_runs_of_a_commit_the_newer_one_is_shown(memory: Place, tmp_path: Path) -> None:
    """The status of an older run that ends later is not sent; its last event says why."""
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge)
        await at.begin("old")
        old = await at.work("w1")
        await at.begin("new")
        await at.end(await at.work("w2"))
        await at.reported("new")
        await at.end(old, ok=False)

        event = await at.reported("old")

        assert event.metadata["told"] == "superseded by run new"
        assert forge.kept[-1].body["state"] == "success"


@on_loop
async def test_a_fork_does_not_change_the_status_of_our_commit(memory: Place, tmp_path: Path) -> None:
    """Anybody may open a pull request with the commit of a branch; its status stays that of our own run."""
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge)
        await at.begin("fork 1", is_fork=True)
        await forge.told(1)
        await at.begin("ours")
        for _ in range(2):
            await at.end(await at.work())
        await at.reported("ours")
        await at.begin("fork 2", is_fork=True)
        await at.end(await at.work(), ok=False)

        event = await at.reported("fork 2")

        assert event.metadata["told"] == "superseded by run ours"
        assert forge.kept[0].body["target_url"].endswith("fork 1")
        assert forge.kept[-1].body["state"] == "success"


@on_loop
async def test_contexts_and_commits_are_independent(memory: Place, tmp_path: Path) -> None:
    other = "d" * 40
    async with PlayedForge() as forge, desk(memory, tmp_path, allowed=(forge.host,)) as at:
        await add_project(at, forge)
        await at.begin("r1", pipeline="build")
        await at.begin("r2", pipeline="lint")
        await at.begin("r3", commit=other)
        for _ in range(3):
            await at.end(await at.work())
        for id in ("r1", "r2", "r3"):
            assert (await at.reported(id)).metadata["told"] == "success"

        done = {(each.path[-40:], each.body["context"]) for each in forge.kept if each.body["state"] == "success"}
        assert done == {(COMMIT, "deltaci/build"), (COMMIT, "deltaci/lint"), (other, "deltaci/build")}


# -- crashes and servers side by side


class Forgetful(Wrapped):
    """Dies when it should remember that something was told."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.died = asyncio.Event()

    async def put_documents(self, documents: Sequence[Document]) -> None:
        if documents[0].kind == "told" and documents[0].version % 2:  # The first write takes it, the second remembers.
            self.died.set()
            await asyncio.get_running_loop().create_future()
        await super().put_documents(documents)


@on_loop
async def test_a_crash_between_sending_and_recording_is_harmless(memory: Place, tmp_path: Path) -> None:
    """Another server sends the status again after the claim has expired."""
    async with PlayedForge() as forge:
        async with desk(memory, tmp_path, allowed=(forge.host,), wrap=Forgetful) as at:
            await add_project(at, forge)
            await at.begin()
            assert isinstance(at.server.store, Forgetful)
            await at.server.store.died.wait()
            await forge.told(1)
        async with desk(memory, tmp_path, allowed=(forge.host,), clock=Jumping()) as at:
            await at.end(await at.work())

            assert (await at.reported()).metadata["told"] == "success"
            assert forge.kept[-1].body["state"] == "success"


@on_loop
async def test_statuses_missed_while_no_server_ran_are_sent_afterwards(memory: Place, tmp_path: Path) -> None:
    async with PlayedForge() as forge:
        async with desk(memory, tmp_path, allowed=(forge.host,), is_started=False) as at:
            await add_project(at, forge)
            await at.begin("r1", pipeline="one")
            await at.end(await at.work())
            await at.begin("r2", pipeline="two")
        async with desk(memory, tmp_path, allowed=(forge.host,)) as at:
            await at.reported("r1")
            await forge.told(2)

        assert {(each.body["context"], each.body["state"]) for each in forge.kept} == {
            ("deltaci/one", "success"),
            ("deltaci/two", "pending"),
        }


@on_loop
async def test_two_servers_send_each_status_once_and_in_order(servers_place: Place, tmp_path: Path) -> None:
    async with PlayedForge() as forge:
        allowed = (forge.host,)
        async with (
            desk(servers_place, tmp_path, allowed=allowed) as one,
            desk(servers_place, tmp_path, allowed=allowed) as two,
        ):
            await add_project(one, forge)
            for number in range(5):
                at = (one, two)[number % 2]
                await at.begin(f"r{number}", pipeline=f"p{number}")
                await at.end(await at.work())
            for number in range(5):
                await two.reported(f"r{number}")

        for number in range(5):
            states = [each.body["description"] for each in forge.kept if each.body["context"] == f"deltaci/p{number}"]
            order = ["waiting to start", "under way", "succeeded"]
            assert states == [each for each in order if each in states]
            assert states[-1] == "succeeded"


@on_loop
async def test_after_an_expired_claim_the_newest_status_is_sent_again(memory: Place, tmp_path: Path) -> None:
    """A suspended server may have sent an old status after a newer one."""
    asleep = asyncio.Event()
    slow = StatusRetryPolicy(initial_seconds=0.01, max_seconds=0.05, claim_seconds=0.0)  # Its turn is over at once.
    async with PlayedForge(asleep) as forge:
        allowed = (forge.host,)
        async with desk(memory, tmp_path, allowed=allowed, patience=slow, seconds=30.0) as one:
            await add_project(one, forge)
            await one.begin()
            await forge.tried(1)
            async with desk(memory, tmp_path, allowed=allowed, patience=slow) as two:
                await two.end(await two.work())
                await two.reported()
                count = len(forge.kept)
                asleep.set()
                await forge.until(lambda: len(forge.kept) >= count + 2)

            first, *rest = [each.body["state"] for each in forge.kept[count:]]
            assert (first, set(rest)) == ("pending", {"success"})
