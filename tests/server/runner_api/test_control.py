"""The control channel: a cancel reaches the waiting runner at once, and no other runner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deltaci.core import attempt, ids, run
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.instants import SECOND, from_datetime
from deltaci.engine.lease_ids import LeaseIdMinter
from deltaci.protocol.messages import CancelRequested, ControlRequest
from deltaci.server import follower
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.storage.port import Unavailable
from tests.contract.backends import Backend, Wrapped, on_loop
from tests.contract.test_runs import planned
from tests.server.runner_api.test_messages import BOTH, SPEC, Make, cancel, of_queue
from tests.server.site import KEY, LEASE_ID_MINTER, OpenSite, RegisteredRunner, open_site
from tests.support.lab import task

NOBODY_SECONDS = 0.05


class Listeners:
    """Shows when a runner has begun to wait: then only a push can answer it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Semaphore(0)
        original = ControlHub._current_cancels

        async def wanted(hub: ControlHub, tenant: str, asked: ControlRequest) -> list[CancelRequested]:
            found = await original(hub, tenant, asked)
            self.begun.release()  # What follows it, up to the wait itself, is not interrupted.
            return found

        monkeypatch.setattr(ControlHub, "_current_cancels", wanted)

    async def all(self, count: int = 1) -> None:
        """Until so many of them wait."""
        for _ in range(count):
            await self.begun.acquire()


async def told(asked: asyncio.Task[list[CancelRequested]]) -> list[CancelRequested]:
    """What it was told, unless it still waits."""
    with suppress(TimeoutError):
        return await asyncio.wait_for(asyncio.shield(asked), NOBODY_SECONDS)
    return []


# -- refusals


@on_loop
async def test_a_runner_receives_only_its_own_cancels(site: OpenSite) -> None:
    """A runner that receives another's messages would learn its lease ids."""
    async with site() as here:
        runner, other = await here.runner("host"), await here.runner("hos")

        for wrong, name in ((runner, "hos"), (runner, "host2"), (other, "host"), (other, "host/1")):
            asked = json.dumps({"type": "Control", "runner_id": name}).encode()
            reply = await here.refused(lambda by=wrong, asked=asked: by.request("POST", "control", asked))  # type: ignore[misc]
            assert (reply.status, reply.code) == (403, "wrong_runner")
        assert await runner.control(runner_id="host/1") == []


@pytest.mark.parametrize(
    "fields",
    [{"wait_seconds": 601}, {"wait_seconds": -1}, {"lease_ids": [""]}, {"leases": []}, {"runner_id": 5}],
    ids=str,
)
@on_loop
async def test_an_invalid_request_is_refused(site: OpenSite, fields: dict[str, Any]) -> None:
    """Like every message of the protocol."""
    async with site() as here:
        runner = await here.runner()
        asked = json.dumps({"type": "Control", "runner_id": "w1", **fields}).encode()

        reply = await here.refused(lambda: runner.request("POST", "control", asked))

        assert (reply.status, reply.code) == (422, "bad_message")


@on_loop
async def test_another_runners_lease_gives_no_cancel_request(site: OpenSite) -> None:
    """Neither does an unknown lease, or one that has ended."""
    async with site() as here:
        lease = await of_queue(here)
        other, stranger = await here.runner("w2"), await here.runner("w3", tenant="other")
        namesake = RegisteredRunner(here, "w1", here.signer.sign("run", "w1", "other", 900))
        here.secrets.add(namesake.credential)
        await cancel(lease)
        forged = f"{lease.id[:-8]}{'0' * 8}"

        assert await other.control(lease.id) == []
        assert await stranger.control(lease.id) == []
        assert await namesake.control(lease.id) == []
        assert await lease.runner.control(forged, "nonsense", "q9.1.0123456789abcdef0123") == []
        await lease.send("CancelAck")
        assert await lease.runner.control(lease.id) == []


# -- told


@pytest.mark.proves("PRO-M7", "PRO-Q13", "PRO-B2")
@BOTH
@on_loop
async def test_a_cancel_reaches_an_open_long_poll(site: OpenSite, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not wait for a heartbeat, and the message has all that the runner needs."""
    async with site() as here:
        await here.listen()
        lease = await make(here)
        await lease.send("AckLease")
        listeners = Listeners(monkeypatch)
        asked = asyncio.create_task(lease.runner.control(lease.id, wait_seconds=60))
        await listeners.all()

        await cancel(lease)
        [message] = await asked

        assert (message.lease_id, message.job_id) == (lease.id, lease.granted.job_id)
        assert (message.reason, message.deadline_seconds) == ("RUN_CANCELED", 30)
        assert abs(from_datetime(message.ts) - here.backend.now()) < 10 * SECOND
        assert (await lease.send("CancelAck")).body["accepted"] is True


@pytest.mark.proves("PRO-Q13")
@BOTH
@on_loop
async def test_an_earlier_cancel_is_returned_at_once(site: OpenSite, make: Make) -> None:
    """Between two polls no poll is open; the next one must not wait for an event that has happened already."""
    async with site() as here:
        await here.listen()
        lease = await make(here)
        await cancel(lease)
        here.backend.after(10)

        [message] = await lease.runner.control(lease.id, wait_seconds=60)

        assert message.lease_id == lease.id
        assert 15 <= message.deadline_seconds <= 20


@on_loop
async def test_no_other_runner_gets_the_cancel_request(site: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not another runner, none of the same name in another tenant, and no other slot of the same machine."""
    async with site() as here:
        await here.listen()
        host = await here.runner("host")
        others = [
            await here.runner("w2"),
            RegisteredRunner(here, "host", here.signer.sign("run", "host", "other", 900)),
        ]
        await here.server.enqueue("q1", spec=SPEC)
        lease = await host.take(runner_id="host/1")
        listeners = Listeners(monkeypatch)
        asked = [asyncio.create_task(each.control(wait_seconds=60)) for each in (host, *others)]
        mine = asyncio.create_task(host.control(runner_id="host/1", wait_seconds=60))
        await listeners.all(4)

        await cancel(lease)

        assert [each.lease_id for each in await mine] == [lease.id]
        assert [await told(each) for each in asked] == [[], [], []]
        here.control.stop_waiting()
        assert await asyncio.gather(*asked) == [[], [], []]


@on_loop
async def test_the_cancel_of_a_run_reaches_all_its_runners(site: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event concerns many leases; one runner gets all its messages together."""
    async with site() as here:
        await here.listen()
        await planned(here.server, *(task(f"n{n}", work=SPEC) for n in range(6)))
        runners = [await here.runner(f"w{n}", slots=2) for n in range(3)]
        leases = {runner.id: {each.lease_id for each in await runner.lease(slots=2)} for runner in runners}
        listeners = Listeners(monkeypatch)
        asked = [asyncio.create_task(runner.control(*leases[runner.id], wait_seconds=60)) for runner in runners]
        await listeners.all(3)

        await here.server.do(run.Cancel(id="r1", actor="user:ada"))

        for runner, found in zip(runners, await asyncio.gather(*asked), strict=True):
            assert {each.lease_id for each in found} == leases[runner.id]


@on_loop
async def test_a_long_poll_ends_with_the_server_or_at_its_timeout(site: OpenSite) -> None:
    """Open long polls must not delay a stopping server."""
    async with site() as here:
        await here.listen()
        lease = await of_queue(here)

        assert await lease.runner.control(lease.id, wait_seconds=0.01) == []
        here.control.stop_waiting()
        assert await lease.runner.control(lease.id, wait_seconds=60) == []


@on_loop
async def test_a_disconnected_poll_is_removed(site: OpenSite) -> None:
    """Runners that connect and disconnect must not leak memory."""
    async with site() as here:
        await here.listen()
        runner, gone = await here.runner(), asyncio.Event()
        body = json.dumps({"type": "Control", "runner_id": "w1", "wait_seconds": 60}).encode()
        credential = [("Authorization", f"Bearer {runner.credential}")]
        gone.set()

        reply = await here.request("POST", "control", body, headers=credential, disconnected_event=gone)

        assert reply.body == {"cancels": []}
        assert here.control._polls == {}


# -- more than one server


@on_loop
async def test_a_cancel_at_one_server_reaches_a_poll_at_another(
    backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any server can compute the lease ids that another one granted, so a load balancer may choose either."""
    async with open_site(backend, tmp_path / "1", caplog) as one, open_site(backend, tmp_path / "2", caplog) as two:
        await two.listen()
        lease = await of_queue(one)
        there = RegisteredRunner(two, "w1", lease.runner.credential)
        listeners = Listeners(monkeypatch)
        asked = asyncio.create_task(there.control(wait_seconds=60))
        await listeners.all()

        await cancel(lease)

        assert [each.lease_id for each in await asked] == [lease.id]


# -- what leases are called


def test_a_lease_id_is_computed_only_from_the_key_and_the_salt() -> None:
    """A number that is used again after a restored backup must not make an old lease valid again."""
    ours, theirs = LeaseIdMinter(KEY), LeaseIdMinter(b"x" * 32)

    made = {mint("a", number, salt) for mint in (ours.mint, theirs.mint) for number in (1, 2) for salt in ("s", "t")}

    assert len(made) == 8
    assert ours.mint("a", 1, "s") == LeaseIdMinter(KEY).mint("a", 1, "s")
    assert min(map(len, made)) >= ids.MIN_SECRET_CHARS


@on_loop
async def test_a_lease_created_with_another_key_gets_its_cancel_by_heartbeat(site: OpenSite) -> None:
    """The library draws random lease ids, and the server's key may have been replaced."""
    async with site() as here, here.backend.server() as library:
        runner = await here.runner()
        await here.server.enqueue("q1", spec=SPEC)
        [claimed] = await library.claim("w1")
        here.secrets.add(claimed.lease_id)
        await here.server.do(attempt.Cancel(id="q1", reason="ENOUGH"))
        record = await here.server.find("q1", Attempt)

        assert record.lease is not None
        assert record.lease.salt == ""
        assert LEASE_ID_MINTER.live_lease_id(record) == ""
        # But who names it is told all the same: the record knows its fingerprint.
        assert [each.reason for each in await runner.control(claimed.lease_id)] == ["ENOUGH"]


@on_loop
async def test_the_id_of_every_live_lease_can_be_computed(site: OpenSite) -> None:
    """Also that of an attempt's second lease, but none of an ended lease."""
    async with site() as here:
        lease = await of_queue(here)
        assert LEASE_ID_MINTER.live_lease_id(await here.server.find("q1", Attempt)) == lease.id

        here.backend.after(121)
        await here.server.tick()
        assert LEASE_ID_MINTER.live_lease_id(await here.server.find("q1", Attempt)) == ""
        again = await lease.runner.take()

        assert again.id != lease.id
        assert LEASE_ID_MINTER.live_lease_id(await here.server.find("q1", Attempt)) == again.id


@on_loop
async def test_a_listener_gets_tenant_runner_and_message(site: OpenSite) -> None:
    """Another transport needs the tenant and the runner, and gets the same message."""
    async with site() as here:
        heard = asyncio.Queue[tuple[str, str, CancelRequested]]()
        here.control.subscribe(lambda *what: heard.put_nowait(what))
        await here.listen()
        lease = await of_queue(here)

        await cancel(lease)
        tenant, runner_id, message = await heard.get()

        assert (tenant, runner_id, message.lease_id) == ("acme", "w1", lease.id)


class Shaky(Wrapped):
    """A store whose log cannot be read for a while."""

    failures = 0

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("gone for a moment")
        return await super().events(after, limit, entity_id=entity_id, run_id=run_id)


@on_loop
async def test_no_event_is_lost_or_repeated_while_the_store_is_unavailable(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower continues where it stopped."""
    monkeypatch.setattr(follower, "RETRY_SECONDS", 0.01)
    async with backend.server() as server:
        store, heard = Shaky(server.store), asyncio.Queue[Event]()
        following = follower.Follower(store)

        def hear(events: Sequence[Event]) -> None:
            for event in events:
                heard.put_nowait(event)

        following.subscribe(hear)
        await server.enqueue("before")
        await following.start()

        for n in range(3):
            store.failures = 2
            await server.enqueue(f"a{n}")
            assert (await heard.get()).entity_id == f"a{n}"
        await following.stop()

        assert heard.empty()
