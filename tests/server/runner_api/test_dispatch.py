"""Dispatches over a real NATS, and the loss of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from deltaci.core import attempt
from deltaci.protocol import messages as wire
from deltaci.protocol import nats_subjects
from deltaci.protocol.messages import CancelRequested, Dispatch
from deltaci.protocol.nats_client import NatsAddress
from deltaci.server.follower import Follower
from deltaci.server.runner_api import nats_dispatch
from deltaci.server.runner_api.nats_dispatch import Dispatcher
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import Server, new_attempt, on_loop
from tests.support.lab import TENANT
from tests.support.nats_server import NatsServer


class Bench:
    """A server's dispatcher over memory, and one who overhears everything that it tells."""

    def __init__(self, server: Server, client: Client, url: str) -> None:
        self.server = server
        self.client = client
        self.url = url
        self.heard = asyncio.Queue[Msg]()

    async def overhear(self) -> None:
        """Dispatches as they are told, before any stream drops what it knows."""

        async def hear(message: Msg) -> None:
            self.heard.put_nowait(message)

        await self.client.subscribe("deltaci.dispatch.>", cb=hear)
        await self.client.flush()

    async def told(self, count: int) -> list[str]:
        """The attempts of the next so many dispatches, in any order."""
        found = [await self.heard.get() for _ in range(count)]
        return sorted(wire.decoder(Dispatch)(each.data).attempt_id for each in found)

    async def kept(self, tenant: str = TENANT) -> int:
        """How many dispatches the tenant's stream holds."""
        return (await self.client.jetstream().stream_info(nats_subjects.stream(tenant))).state.messages

    async def keeps(self, count: int) -> None:
        """Wait until the stream has so many messages: who overhears one may hear it before it is stored."""
        while await self.kept() != count:
            await self.client.flush()

    @asynccontextmanager
    async def dispatching(self) -> AsyncIterator[Dispatcher]:
        """One server that tells."""
        follower, made = Follower(self.server.store), Dispatcher(self.server.store, NatsAddress(self.url))
        follower.subscribe(made.on_events)
        await follower.start()
        made.start()
        try:
            yield made
        finally:
            await made.stop()
            await follower.stop()


@asynccontextmanager
async def bench(nats_server: NatsServer) -> AsyncIterator[Bench]:
    """Everything but the dispatcher."""
    client = await nats.connect(nats_server.url, allow_reconnect=False, connect_timeout=60)
    server = Server(MemoryStore())
    await server.engine.start()
    made = Bench(server, client, nats_server.url)
    await made.overhear()
    try:
        yield made
    finally:
        await server.engine.stop()
        await made.client.close()


@on_loop
async def test_waiting_attempts_are_dispatched_at_the_start_and_new_ones_at_once(nats_server: NatsServer) -> None:
    """By tenant and queue; a dispatch contains no secret."""
    async with bench(nats_server) as here:
        await here.server.engine.do_all([new_attempt(f"old{n}") for n in range(3)])
        await here.server.take()  # The first one: nobody has to be told of it.

        async with here.dispatching():
            assert await here.told(2) == ["old1", "old2"]
            await here.server.enqueue("new", queue_key="arm,x64", spec={"env": {"PASSWORD": "s3cret"}})
            message = await here.heard.get()

        assert message.subject == nats_subjects.dispatch(TENANT, "arm,x64", "new")
        assert message.data == b'{"type":"Dispatch","attempt_id":"new"}'
        await here.keeps(3)


@on_loop
async def test_the_same_dispatch_of_two_servers_is_stored_once(nats_server: NatsServer) -> None:
    """Any number of servers may run; the stream drops duplicates."""
    async with bench(nats_server) as here, here.dispatching(), here.dispatching():
        await here.server.engine.do_all([new_attempt(f"a{n}") for n in range(5)])

        await here.told(10)

        await here.keeps(5)


@on_loop
async def test_a_delayed_attempt_is_dispatched_when_it_is_ready(nats_server: NatsServer) -> None:
    """Not earlier, when it cannot be claimed, nor only with the next sweep; and not if it has ended."""
    async with bench(nats_server) as here, here.dispatching():
        soon = by_the_store(2)
        await here.server.enqueue("later", run_at=soon)
        await here.server.enqueue("never", run_at=soon)
        await here.server.enqueue("now")
        await here.server.do(attempt.Cancel(id="never", reason="ENOUGH"))

        assert await here.told(1) == ["now"]
        while (told := await here.told(1)) == ["now"]:
            continue  # The first sweep may have seen it as well.
        assert told == ["later"]
        assert by_the_store(0) >= soon
        rest = [wire.decoder(Dispatch)(here.heard.get_nowait().data).attempt_id for _ in range(here.heard.qsize())]
        assert "never" not in rest


def by_the_store(seconds: float) -> int:
    """So much from now, by the clock of the store."""
    return round((datetime.now(UTC).timestamp() + seconds) * 1e6)


@on_loop
async def test_a_dispatch_is_repeated_without_piling_up(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost dispatch costs time, never work."""
    monkeypatch.setattr(nats_dispatch, "SWEEP_SECONDS", 0.2)
    async with bench(nats_server) as here, here.dispatching():
        await here.server.enqueue("a")

        assert await here.told(4) == ["a"] * 4
        assert await here.kept() == 1


@pytest.mark.parametrize("is_killed", [False, True], ids=["stream deleted", "server killed"])
@on_loop
async def test_a_lost_stream_is_created_again_with_all_waiting_attempts(
    nats_server: NatsServer, is_killed: bool
) -> None:
    """A removed stream or a lost disk costs only hints."""
    async with bench(nats_server) as here, here.dispatching():
        await here.server.engine.do_all([new_attempt(f"a{n}") for n in range(3)])
        await here.told(3)

        await here.client.close()  # Who overhears a subject would look like a stream that is slow to answer.
        if is_killed:
            nats_server.kill()
            nats_server.lose_everything()
            nats_server.start()
        here.client = await nats.connect(nats_server.url, allow_reconnect=False, connect_timeout=60)
        if not is_killed:
            await here.client.jetstream().delete_stream(nats_subjects.stream(TENANT))
        await here.server.enqueue("a3")
        while await _kept_or_none(here) < 4:
            waiting = asyncio.create_task(asyncio.Event().wait())
            await asyncio.wait({waiting}, timeout=0.02)
            waiting.cancel()


async def _kept_or_none(here: Bench) -> int:
    with suppress(NotFoundError):
        return await here.kept()
    return 0


@on_loop
async def test_a_cancel_is_sent_on_the_subject_of_its_runner(nats_server: NatsServer) -> None:
    """And on no other."""
    async with bench(nats_server) as here, here.dispatching() as dispatcher:
        mine = await here.client.subscribe(nats_subjects.control(TENANT, "host/1"))
        others = await here.client.subscribe(nats_subjects.control(TENANT, "host"))
        await here.client.flush()
        await here.server.enqueue("a")
        await here.told(1)  # It is up.
        message = CancelRequested(
            lease_id="a.1.secret", job_id="a", reason="ENOUGH", deadline_seconds=30, ts=datetime.now(UTC)
        )

        dispatcher.on_cancel(TENANT, "host/1", message)

        assert wire.decode_answer((await mine.next_msg(10)).data) == message
        assert others.pending_msgs == 0
