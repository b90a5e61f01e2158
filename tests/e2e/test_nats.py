"""Transport A with real processes: NATS brings dispatches and cancels, and nothing depends on it."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerInfo
from nats.js.errors import NotFoundError

from deltaci.core import ids
from deltaci.core.instants import SECOND
from deltaci.engine import feed
from deltaci.protocol import messages as wire
from deltaci.protocol import nats_subjects
from deltaci.protocol.examples import DOCUMENT_EXAMPLES
from deltaci.protocol.messages import CancelRequested, Dispatch
from tests.e2e.deployment import PATIENCE_SECONDS, Deployment, deployed, on_loop
from tests.e2e.pipes import Pipe, told
from tests.e2e.proxy import Exchange
from tests.support.nats_server import NatsServer

TENANT = "default"


@asynccontextmanager
async def with_nats(folder: Path, server: NatsServer, *words: str) -> AsyncIterator[Deployment]:
    """A deployment whose server uses NATS; leases as long as people have them."""
    async with deployed(folder, "--lease-ttl", "120", "--nats", server.url, *words) as place:
        yield place


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Client]:
    """This test as one more who uses NATS."""
    client = await nats.connect(server.url, allow_reconnect=False)
    try:
        yield client
    finally:
        await client.close()


async def consumer(client: Client, key: str = "") -> ConsumerInfo:
    """What NATS knows of a queue."""
    found: ConsumerInfo = await client.jetstream().consumer_info(
        nats_subjects.stream(TENANT), nats_subjects.consumer_name(key)
    )
    return found


async def linked(place: Deployment, name: str, times: int = 1) -> None:
    """Until this process says that it has NATS, for the first time or again."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (place.folder / f"{name}.log").read_bytes().count(b": connected") < times:
            await moment()


async def moment() -> None:
    """Let others do something before looking again."""
    waiting = asyncio.create_task(asyncio.Event().wait())
    await asyncio.wait({waiting}, timeout=0.05)
    waiting.cancel()


async def taken(client: Client) -> bool:
    """Whether a dispatch of the plain queue was delivered to a runner."""
    with suppress(NotFoundError):
        info = await consumer(client)
        return info.delivered is not None and info.delivered.consumer_seq > 0
    return False


async def waiting(client: Client) -> int:
    """How many dispatches there are."""
    with suppress(NotFoundError):
        return (await client.jetstream().stream_info(nats_subjects.stream(TENANT))).state.messages
    return 0


async def jobs(place: Deployment, count: int, *steps: str) -> list[str]:
    """So many jobs at once."""
    return [await place.enqueue(*steps) for _ in range(count)]


async def executions(place: Deployment) -> Counter[str]:
    """How often each attempt was claimed."""
    return Counter(
        event.entity_id for event in await feed.read(place.store, 0, 1_000_000) if event.trigger == "claimed"
    )


async def done_with(client: Client, count: int) -> None:
    """Until NATS has told of so many attempts, and each dispatch is acknowledged."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            stream = await client.jetstream().stream_info(nats_subjects.stream(TENANT))
            if stream.state.last_seq >= count and stream.state.messages == 0:
                return
            await moment()


async def seconds_to_claim(place: Deployment, id: str) -> float:
    """From when it was enqueued to when it was claimed."""
    at = {event.trigger: event.at for event in await place.queue.log(id)}
    return (at["claimed"] - at["enqueued"]) / SECOND


@pytest.mark.proves("PRO-B1", "PRO-B3")
@on_loop
async def test_a_job_comes_over_nats(tmp_path: Path, nats_server: NatsServer) -> None:
    """Pulled from the queue, leased from the server: a runner that has NATS asks by itself only every 12 s or so."""
    async with with_nats(tmp_path, nats_server) as place, connected(nats_server) as client:
        place.start_runner("r1", "--nats", nats_server.url, "--labels", "linux,x64")
        await linked(place, "r1")
        wanted = [await place.enqueue("echo plain"), await place.enqueue("echo arch", labels=["x64"])]

        for id in wanted:
            assert (await place.outcome(id)).state == "SUCCEEDED"

        await done_with(client, 2)
        for key in ("", "x64"):
            info = await consumer(client, key)
            assert info.delivered is not None
            assert info.delivered.consumer_seq > 0
            assert (info.num_pending, info.num_ack_pending) == (0, 0)
        assert await seconds_to_claim(place, wanted[0]) < 10


@pytest.mark.proves("PRO-K3", "PRO-F3")
@on_loop
async def test_a_dispatch_that_comes_many_times_to_two_runners_is_one_execution(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    """Dispatch is at least once; the store decides who gets the lease, and old dispatches are no work."""
    async with with_nats(tmp_path, nats_server) as place, connected(nats_server) as client:
        made = await jobs(place, 4, "echo once")
        while await waiting(client) < 4:
            await moment()

        # Each under a subject of its own: otherwise one would take the place of the other.
        for n in range(100):
            subject = nats_subjects.dispatch(TENANT, "", f"copy-{n}")
            await client.jetstream().publish(subject, wire.encode(Dispatch(attempt_id=made[n % 4])))
        for name in ("r1", "r2"):
            place.start_runner(name, "--nats", nats_server.url, "--slots", "2")
        for id in made:
            assert (await place.outcome(id)).state == "SUCCEEDED"
        await done_with(client, 104)

        assert await executions(place) == Counter(made)


@on_loop
async def test_what_makes_no_sense_on_nats_stops_nobody(tmp_path: Path, nats_server: NatsServer) -> None:
    """Bytes, attempts that never were, cancels of leases that this runner does not have."""
    async with with_nats(tmp_path, nats_server) as place, connected(nats_server) as client:
        place.start_runner("r1", "--nats", nats_server.url)
        await linked(place, "r1")
        first = await place.enqueue("echo first")
        await place.outcome(first)

        for n, data in enumerate((b"", b"nonsense", b"[]", wire.encode(Dispatch(attempt_id="never-was")))):
            await client.jetstream().publish(nats_subjects.dispatch(TENANT, "", f"bad-{n}"), data)
        for data in (b"nonsense", DOCUMENT_EXAMPLES["CancelRequested"].encode()):
            await client.publish(nats_subjects.control(TENANT, "r1"), data)
        second = await place.enqueue("echo second")

        assert (await place.outcome(second)).state == "SUCCEEDED"
        await done_with(client, 6)


@pytest.mark.proves("PRO-Q13", "PRO-B1")
@on_loop
async def test_a_cancel_comes_over_the_control_subject(tmp_path: Path, nats_server: NatsServer) -> None:
    """With NATS the runner keeps no line to the server open; and the message is about its own lease."""
    async with with_nats(tmp_path, nats_server) as place, connected(nats_server) as client:
        place.start_runner("r1", "--nats", nats_server.url)
        await linked(place, "r1")
        overheard = await client.subscribe(nats_subjects.control(TENANT, "r1"))
        await client.flush()
        pipe = tmp_path / "begun"
        os.mkfifo(pipe)
        id = await place.enqueue(f"echo begun > {pipe}; exec tail -f /dev/null")
        await told(pipe)

        await place.queue.cancel(id)
        record = await place.outcome(id)

        assert record.state == "CANCELED"
        at = {event.to: event.at for event in await place.queue.log(id)}
        assert at["CANCELED"] - at["CANCEL_REQUESTED"] < 10 * SECOND
        message = wire.decode_answer((await overheard.next_msg(PATIENCE_SECONDS)).data)
        assert isinstance(message, CancelRequested)
        assert record.ended_lease is not None
        assert ids.lease_ref(message.lease_id).fingerprint == record.ended_lease.fingerprint
        secret = message.lease_id.rpartition(".")[2]
        assert not [path for path in tmp_path.glob("*.log") if secret in path.read_text()]


@on_loop
async def test_the_permissions_of_the_documentation_are_enough_and_no_more(tmp_path: Path) -> None:
    """Read from the page itself: a job and its cancel pass, and a runner sees nothing of another's."""
    page = (Path(__file__).parents[2] / "docs" / "nats.md").read_text()
    [granted] = re.findall(r"^authorization \{.*?^\}", page, re.DOTALL | re.MULTILINE)
    granted = granted.replace("$SERVER_PASSWORD", "s3rver").replace("$R1_PASSWORD", "s3cret")
    with NatsServer(granted) as server:
        own, theirs = server.url_of("r1:s3cret"), server.url_of("server:s3rver")
        async with deployed(tmp_path, "--lease-ttl", "120", "--nats", theirs) as place:
            place.start_runner("r1", "--nats", own)
            await linked(place, "r1")
            pipe = tmp_path / "begun"
            os.mkfifo(pipe)
            id = await place.enqueue(f"echo begun > {pipe}; exec tail -f /dev/null")
            await told(pipe)
            assert await seconds_to_claim(place, id) < 10

            await place.queue.cancel(id)
            await place.outcome(id)

            at = {event.to: event.at for event in await place.queue.log(id)}
            assert at["CANCELED"] - at["CANCEL_REQUESTED"] < 10 * SECOND
            assert not [path for path in tmp_path.glob("*.log") if re.search("s3cret|s3rver", path.read_text())]
        denied: asyncio.Queue[str] = asyncio.Queue()

        async def note(error: Exception) -> None:
            denied.put_nowait(str(error))

        client = await nats.connect(own, error_cb=note)
        for subject in (
            nats_subjects.control(TENANT, "r2"),
            "deltaci.>",
            "_INBOX.>",
            nats_subjects.control("other", "r1"),
        ):
            await client.subscribe(subject)
            assert f'subscription to "{subject.lower()}"' in (await denied.get()).lower()
        await client.close()


@pytest.mark.proves("PRO-B3", "PRO-K3")
@on_loop
async def test_nats_may_die_and_forget_everything(tmp_path: Path, nats_server: NatsServer) -> None:
    """Jobs go on over HTTP, nothing is lost or done twice, and NATS is used again when it is back."""
    async with with_nats(tmp_path, nats_server) as place:
        place.start_runner("r1", "--nats", nats_server.url, "--slots", "2")
        await linked(place, "r1")
        before = await jobs(place, 3, "echo before")
        await place.outcome(before[0])

        nats_server.kill()
        without = await jobs(place, 3, "echo without")
        for id in (*before, *without):
            assert (await place.outcome(id)).state == "SUCCEEDED"
        nats_server.lose_everything()
        nats_server.start()
        async with connected(nats_server) as client:
            after = await jobs(place, 3, "echo after")
            for id in after:
                assert (await place.outcome(id)).state == "SUCCEEDED"
            assert await executions(place) == Counter([*before, *without, *after])

            # It is used again: before long a dispatch is taken from it.
            await linked(place, "server0", 2)
            await linked(place, "r1", 2)
            while not await taken(client):
                last = await place.enqueue("echo last")
                assert (await place.outcome(last)).state == "SUCCEEDED"
            await done_with(client, 1)


@on_loop
async def test_what_a_runner_is_given_while_it_leaves_is_another_s_at_once(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    """It hears of it after it was asked to leave: it says so, and nothing is counted against the job."""
    with Pipe(tmp_path / "tell") as tell, Pipe(tmp_path / "hear") as hear:
        async with with_nats(tmp_path, nats_server) as place:
            way = await place.way()
            runner = place.start_runner("r1", "--nats", nats_server.url, "--slots", "2", way=way)
            await linked(place, "r1")
            first = await place.enqueue(f"echo begun > {tell}; read -r word < {hear}")
            await tell.hear()
            came, let_go = asyncio.Event(), asyncio.Event()

            async def hold(exchange: Exchange) -> bytes:
                answer = await exchange.forward()
                if b'"lease_id"' in answer:
                    came.set()
                    await let_go.wait()
                return answer

            way.on("lease", hold, times=1000)
            second = await place.enqueue("true")
            await came.wait()

            runner.terminate()
            while "leaving after 1 running jobs" not in (tmp_path / "r1.log").read_text():
                await moment()
            let_go.set()
            await place.until(second, lambda event: event.trigger == "requeued")
            hear.say("go on")
            assert await place.ended(runner) == 0
            place.start_runner("r2", "--nats", nats_server.url)

            assert (await place.outcome(first)).claims == 1
            record = await place.outcome(second)
            assert (record.state, record.claims, record.lost_leases) == ("SUCCEEDED", 2, 0)
