"""Events over the API, as pages and as streams: complete, without repeats, and only those of the tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from deltaci.client import AsyncClient
from deltaci.core.events import Event, to_json_line
from deltaci.server.auth import revalidate
from deltaci.server.rest.streams import event_streams, live
from deltaci.server.rest.streams.live import prefers_stream
from tests.contract.backends import Backend, on_both_stores, on_loop, within
from tests.server.rest.following import OpenResponse, StreamEvent, open_stream
from tests.server.rest.site import TIME, ApiSite, Caller, ScriptedRunner, opened, task
from tests.support.budget import budget

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]

RUNS = {"sqlite": budget(40, 200), "postgres": budget(12, 50)}


async def read_events(answer: OpenResponse, count: int = 0) -> list[StreamEvent]:
    """Return `count` events of a stream, or all until it ends."""
    found: list[StreamEvent] = []
    async for event in answer.events():
        found.append(event)
        if len(found) == count:
            return found
    assert not count, f"it ended after {len(found)} of {count}"
    return found


def encoded(events: list[Event]) -> list[str]:
    """Return the events as they are sent."""
    return [to_json_line(event).decode() for event in events]


async def run_to_report(site: ApiSite, caller: Caller, runner: ScriptedRunner, **fields: Any) -> str:
    """Return the id of a run that has been reported."""
    id = await caller.start(task("build"), **fields)
    await runner.finish(await runner.take())
    await site.until(caller, id, "REPORTED")
    return id


# -- refusals


@on_loop
async def test_a_malformed_or_future_position_in_the_log_is_refused(site: Opened) -> None:
    """A client with a wrong position must get an error instead of waiting for events that never come."""
    async with site() as here:
        ada = await here.key()
        id = await ada.start(task("build"))
        newest = await here.store.last_seq()

        for bad in ("x", "-1", "1.5", "9" * 16, str(newest + 1000)):
            for path in ("/events", f"/runs/{id}/events"):
                reply = await ada.get(path, accept="text/event-stream", last_event_id=bad)
                assert (reply.status, reply.code) == (400, "bad_request"), bad
        assert (await ada.get("/events?after=-1")).status == 422
        assert (await ada.get("/events?limit=0")).status == 422
        assert (await ada.get(f"/events?after={newest + 1000}", accept="text/event-stream")).status == 400


@on_loop
async def test_events_of_another_tenant_are_not_visible(site: Opened) -> None:
    """Neither in a page nor in a stream; a run of another tenant gets the response for an unknown run."""
    async with site() as here:
        ada, eve = await here.key(), await here.key("eve", tenant="other")
        async with open_stream(here.url, "/events", eve.token) as answer:
            id = await run_to_report(here, ada, await here.register_runner())
            own = await eve.start(task("theirs"))
            await eve.post(f"/runs/{own}/cancel")
            await here.until(eve, own, "REPORTED")

            async with asyncio.timeout(30):
                async for event in answer.events():
                    assert event.event["tenant"] == "other"
                    if event.event["to"] == "REPORTED":
                        break

        assert {event["tenant"] for event in (await eve.get("/events?limit=1000")).body["events"]} == {"other"}
        for headers in ({}, {"accept": "text/event-stream"}):
            theirs = await eve.get(f"/runs/{id}/events", **headers)
            never = await eve.get("/runs/never/events", **headers)
            assert (theirs.status, theirs.code) == (never.status, never.code) == (404, "not_found")
            assert theirs.body["message"].replace(id, "never") == never.body["message"]


@pytest.mark.proves("MOD-14")
@on_loop
async def test_only_administrators_see_events_of_resources(site: Opened) -> None:
    """They may read all keys; a reader sees their events neither in a page nor in a stream, from store or buffer."""
    async with site() as here:
        admin, reader = await here.key("ada", "admin"), await here.key("bob", "read")
        async with (
            open_stream(here.url, "/events", admin.token) as shown,
            open_stream(here.url, "/events", reader.token) as hidden,
        ):
            made = await admin.post("/keys", {"person": "carl", "scopes": ["read"]})
            id = await admin.start(task("build"))
            found: list[list[StreamEvent]] = []
            for answer in (shown, hidden):
                found.append([])
                async with asyncio.timeout(30):
                    async for event in answer.events():
                        found[-1].append(event)
                        if event.event["run_id"] == id:
                            break
        pages = [(await caller.get("/events?limit=1000")).body["events"] for caller in (admin, reader)]

        for stream, page in zip(found, pages, strict=True):
            assert [event.event for event in stream] == page[: len(stream)]
        assert made.body["id"] in str(pages[0])
        assert not [event for event in pages[1] if event["entity"] == "resource"]


@on_loop
async def test_a_stream_needs_a_valid_key_with_the_right_scope(site: Opened) -> None:
    """A stream is refused like any other request."""
    async with site() as here:
        runner = await here.key("ci", "runner")

        assert (await runner.get("/events", accept="text/event-stream")).code == "missing_scope"
        async with open_stream(here.url, "/events", "wrong") as answer:
            assert answer.status == 401


# -- pages and streams


@on_loop
async def test_pages_and_streams_return_exactly_the_log_from_every_position(site: Opened) -> None:
    """A client can resume at any event."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await run_to_report(here, ada, runner)
        await run_to_report(here, ada, runner)
        log = await here.store.events(0, 10_000, run_id=id)

        for n in range(len(log) + 1):
            after, rest = log[n - 1].seq if n else 0, log[n:]
            page = (await ada.get(f"/runs/{id}/events?after={after}&limit=3")).body
            assert [event["seq"] for event in page["events"]] == [each.seq for each in rest[:3]]
            assert page["last"] == (rest[:3][-1].seq if rest else after)
            async with open_stream(
                here.url, f"/runs/{id}/events?after=0", ada.token, last_event_id=str(after)
            ) as answer:
                found = await read_events(answer)  # It ends by itself: the run is reported.
            assert [each.line for each in found] == encoded(rest)
            assert [(each.id, each.kind) for each in found] == [(each.seq, each.entity) for each in rest]
        assert answer.retry == 1000
        assert answer.headers["delta-request-id"]
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")


@on_loop
async def test_a_page_of_the_tenant_says_how_far_it_searched(site: Opened) -> None:
    """A page may be empty if the log is full of other tenants' events; the next page continues behind it."""
    async with site() as here:
        ada, eve = await here.key("ada", "admin"), await here.key("eve", tenant="other")
        await ada.start(task("build"))
        await eve.start(task("theirs"))
        found, last = [], 0

        while True:
            page = (await ada.get(f"/events?after={last}&limit=2")).body
            assert len(page["events"]) <= 2
            if page["last"] == last:
                break
            found += page["events"]
            last = page["last"]

        assert [each["seq"] for each in found] == [event.seq for event in await here.log() if event.tenant == "default"]
        assert last == await here.store.last_seq()


@on_loop
async def test_a_stream_sends_events_as_they_happen(site: Opened) -> None:
    """It sends the first event to the last, then ends."""
    async with site() as here:
        ada, runner = await here.key("ada", "admin"), await here.register_runner()
        id = await ada.start(task("build"))
        async with (
            open_stream(here.url, f"/runs/{id}/events", ada.token) as answer,
            open_stream(here.url, "/events", ada.token) as all_of_them,
        ):
            begun = await read_events(answer, 1)
            assert begun[0].event["to"] == "CREATED"
            lease = await runner.take()
            await runner.finish(lease)
            rest = await read_events(answer)
            log = await here.log()
            everything = await read_events(all_of_them, len(log))

        assert rest[-1].event["to"] == "REPORTED"
        assert [each.line for each in everything] == encoded(log)
        assert lease["lease_id"].rpartition(".")[2] not in "".join(each.line for each in everything)


@on_both_stores
@within(600)
async def test_many_streams_get_exactly_their_own_runs(backend: Backend, tmp_path: Path) -> None:
    """Each gets all events of its run in order, while all runs are in progress."""
    count = RUNS[backend.name]
    async with opened(backend, tmp_path / "data") as here, AsyncExitStack() as stack:
        ada, runner = await here.key(), await here.register_runner(slots=count)
        some = asyncio.Semaphore(10)

        async def start() -> str:
            async with some:
                return await ada.start(task("build"))

        ids = await asyncio.gather(*(start() for _ in range(count // 2)))

        async def follow(id: str) -> list[StreamEvent]:
            answer = await stack.enter_async_context(open_stream(here.url, f"/runs/{id}/events", ada.token))
            return await read_events(answer)

        early = [asyncio.create_task(follow(id)) for id in ids]
        ids += await asyncio.gather(*(start() for _ in range(count - count // 2)))
        late = [asyncio.create_task(follow(id)) for id in ids[count // 2 :]]
        done = 0
        while done < count:
            leases = await runner.lease(slots=10)
            await asyncio.gather(*(runner.begin(lease) for lease in leases))
            await asyncio.gather(*(runner.finish(lease) for lease in leases))
            done += len(leases)
        found = await asyncio.gather(*early, *late)

        for id, seen in zip(ids, found, strict=True):
            assert [each.line for each in seen] == encoded(await here.store.events(0, 1000, run_id=id))


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)  # One process has a SQLite file for itself.
@on_loop
async def test_a_stream_has_events_that_another_server_committed(backend: Backend, tmp_path: Path) -> None:
    """Servers that share a database share its log."""
    async with opened(backend, tmp_path / "data") as one, opened(backend, tmp_path / "data") as other:
        ada = await one.key()
        id = await ada.start(task("build"))
        async with open_stream(other.url, f"/runs/{id}/events", ada.token) as answer:
            await read_events(answer, 1)
            runner = await one.register_runner()
            await runner.finish(await runner.take())
            rest = await read_events(answer)

        assert rest[-1].event["to"] == "REPORTED"
        assert (await one.store.events(0, 1000, run_id=id))[-1].seq == rest[-1].id


@on_loop
async def test_an_idle_stream_sends_heartbeats(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies and clients would otherwise take the connection for dead."""
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(event_streams, "TICK_SECONDS", 0.05)
    async with opened(backend, tmp_path / "data") as here:
        ada = await here.key()
        async with open_stream(here.url, "/events", ada.token) as answer:
            assert await answer.read_chunk() == b"retry: 1000\n\n"
            assert [await answer.read_chunk() for _ in range(3)] == [b":\n\n"] * 3


# -- how a stream ends


@on_loop
async def test_a_stream_continues_while_jobs_of_a_reported_run_are_stopping(site: Opened) -> None:
    """A run under fail_fast is over at once; its jobs take longer."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("a", needs=[]), task("b", needs=[]), plan={"fail_fast": True})
        one, two = await runner.take(), await runner.take()
        async with open_stream(here.url, f"/runs/{id}/events", ada.token) as answer:
            await runner.fail(one)
            async for event in answer.events():
                if event.event["to"] == "REPORTED":
                    break
            await runner.send(two, "CancelAck", final_status="CANCELED", ts=TIME)
            rest = await read_events(answer)

        log = await here.store.events(0, 1000, run_id=id)
        assert [each.line for each in rest] == encoded(log)[-len(rest) :]
        assert (rest[-1].kind, rest[-1].event["to"]) == ("job", "CANCELED")


@on_loop
async def test_a_stream_ends_when_its_key_ends(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream must not stay open with a key that expired or was revoked."""
    monkeypatch.setattr(revalidate, "CHECK_SECONDS", 0.1)
    async with opened(backend, tmp_path / "data") as here:
        short, long = await here.key("ada", "read", expires_seconds=60), await here.key("bob", "read")
        async with (
            open_stream(here.url, "/events", short.token) as expires,
            open_stream(here.url, "/events", long.token) as revoked,
        ):
            assert (expires.status, revoked.status) == (200, 200)
            clock = here.service.signer._clock
            monkeypatch.setattr(here.service.signer, "_clock", lambda: clock() + 61)
            await read_events(expires)
            [mine] = [key for key in (await here.operator().get("/keys")).body["keys"] if key["person"] == "bob"]
            await here.operator().post(f"/keys/{mine['id']}/revoke")
            await read_events(revoked)


@on_loop
async def test_a_stopping_server_ends_its_streams(site: Opened) -> None:
    """The response ends normally, so that clients connect to another server at once."""
    async with site() as here:
        ada = await here.key()
        async with open_stream(here.url, "/events", ada.token) as answer:
            assert await answer.read_chunk() == b"retry: 1000\n\n"
            here.service.stop_waiting()
            await read_events(answer)

        assert (await ada.get("/events", accept="text/event-stream")).code == "overloaded"


@on_loop
async def test_a_disconnected_client_is_removed(backend: Backend, tmp_path: Path) -> None:
    """Neither its channel nor its count among the streams remains."""
    async with opened(backend, tmp_path / "data") as here:
        ada = await here.key()
        id = await ada.start(task("build"))
        async with open_stream(here.url, f"/runs/{id}/events", ada.token) as answer:
            await read_events(answer, 1)
            assert here.service.control_plane.event_streams.subscription_count == 1

        async with asyncio.timeout(30):
            while here.service.control_plane.event_streams.subscription_count:
                await ada.get("/me")
        assert not here.service.control_plane.event_streams.channels


@on_loop
async def test_the_number_of_streams_is_limited(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant cannot use all of them."""
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 3)
    monkeypatch.setattr(event_streams, "MAX_STREAMS_PER_TENANT", 2)
    async with opened(backend, tmp_path / "data") as here, AsyncExitStack() as stack:
        ada, eve = await here.key(), await here.key("eve", tenant="other")
        for _ in range(2):
            answer = await stack.enter_async_context(open_stream(here.url, "/events", ada.token))
            await answer.read_chunk()

        assert (await ada.get("/events", accept="text/event-stream")).code == "overloaded"
        assert (await stack.enter_async_context(open_stream(here.url, "/events", eve.token))).status == 200
        assert (await eve.get("/events", accept="text/event-stream")).code == "overloaded"
        assert (await ada.get("/events")).status == 200


# -- which of the two is wanted


@pytest.mark.parametrize(
    ("accept", "is_stream"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("text/event-stream, */*", True),
        ("application/json, text/event-stream", True),
        ("application/json, text/event-stream;q=0.5", False),
        ("application/json;q=0.5, text/event-stream;q=0.9", True),
        ("text/event-stream;q=0", False),
        ("text/*", False),
    ],
)
def test_the_accept_header_selects_a_stream_or_a_page(accept: str, is_stream: bool) -> None:
    """Only a client that names the media type of streams gets a stream."""
    assert prefers_stream(accept) is is_stream


@on_loop
async def test_the_client_gets_the_end_of_the_last_job_after_fail_fast(site: Opened) -> None:
    """The run is over while a job is still stopping; the client waits for that job and then stops following."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("a", needs=[]), task("b", needs=[]), plan={"fail_fast": True})
        one, two = await runner.take(), await runner.take()
        await runner.fail(one)
        await here.until(ada, id, "REPORTED")
        await runner.send(two, "CancelAck", final_status="CANCELED", ts=TIME)
        async with AsyncClient(here.url, ada.token) as client, asyncio.timeout(20):
            found = [event.seq async for event in client.follow(id)]

        assert found == [event.seq for event in await here.store.events(0, 1000, run_id=id)]
