"""HTTP errors of the runner protocol: unknown paths, too large bodies, invalid JSON, and batches of messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltaci.core import attempt
from deltaci.protocol import messages as wire
from deltaci.storage.port import Unavailable
from tests.contract.backends import on_loop, put, write
from tests.contract.test_unreadable import broken
from tests.server.site import OpenSite, RegisteredRunner, RunnerLease, Site

MB = 1024 * 1024
SPEC: dict[str, Any] = {"steps": ["true"]}


async def leases(site: Site, count: int) -> list[RunnerLease]:
    """A runner with so many leases."""
    runner = await site.runner(slots=count)
    for n in range(count):
        await site.server.enqueue(f"q{n}", spec=SPEC)
    return [RunnerLease(runner, granted) for granted in await runner.lease(slots=count)]


async def batch(runner: RegisteredRunner, *said: Any) -> Any:
    """Say many things at once."""
    return await runner.request("POST", "batch", json.dumps(said).encode())


# -- addresses


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("/runner/v1/", "nothing"),
        ("/runner/v1/", ""),
        ("/runner/v1/", "lease/more"),
        ("/runner/v1/", "lease/"),
        ("/runner/v1/", "specs"),
        ("/runner/v1/", "specs/"),
        ("/", "lease"),
        ("", "register"),
        ("/runner/v2/", "lease"),
        ("/runner/v1", "lease"),
    ],
)
@on_loop
async def test_what_is_at_no_address_is_not_found(site: OpenSite, root: str, name: str) -> None:
    """An address has one spelling; a proxy may guard it by that."""
    async with site() as here:
        for method in ("GET", "POST"):
            reply = await here.refused(lambda method=method: here.request(method, name, root=root))  # type: ignore[misc]
            assert (reply.status, reply.code) == (404, "not_found")


@on_loop
async def test_the_response_to_a_wrong_method_names_the_right_one(site: OpenSite) -> None:
    """People open the URL in a browser."""
    async with site() as here:
        for method, name, right in (
            ("GET", "lease", "POST"),
            ("PUT", "log", "GET or POST"),
            ("DELETE", "messages", "POST"),
            ("POST", "specs/q1", "GET"),
        ):
            reply = await here.refused(lambda asked=(method, name): here.request(*asked))  # type: ignore[misc]
            assert (reply.status, reply.code) == (405, "wrong_method")
            assert f"takes {right}, not {method}" in reply.message


# -- bodies


@pytest.mark.parametrize("name", ["register", "lease", "leave", "control", "messages", "batch"])
@on_loop
async def test_a_body_that_is_too_large_is_not_read(site: OpenSite, name: str) -> None:
    """Memory is what a stranger can take from a server most easily."""
    async with site() as here:
        runner = await here.runner()
        parts = [b" " * (MB // 4)] * 40

        unsaid = await here.refused(lambda: runner.request("POST", name, *parts))
        said = await here.refused(lambda: runner.request("POST", name, *parts, content_length=str(10 * MB)))

        assert (unsaid.status, unsaid.code) == (413, "too_large")
        assert unsaid.parts_read <= (17 if name == "batch" else 5)
        assert (said.status, said.code, said.parts_read) == (413, "too_large", 0)


@pytest.mark.parametrize("name", ["register", "lease", "leave", "control", "messages", "batch"])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"type": "\xff"}', b"[" * 5000, b"hello"], ids=repr)
@on_loop
async def test_a_body_that_is_not_json_is_refused(site: OpenSite, name: str, body: bytes) -> None:
    """The most common mistake of a new runner."""
    async with site() as here:
        runner = await here.runner()

        reply = await here.refused(lambda: runner.request("POST", name, body))

        assert (reply.status, reply.code) in ((400, "bad_json"), (422, "bad_message"))
        assert reply.status == 400 or body.startswith((b"[", b"{"))


@pytest.mark.proves("PRO-U3")
@on_loop
async def test_an_invalid_message_is_refused_with_its_position(site: OpenSite) -> None:
    """The response alone must be enough to correct a runner."""
    async with site() as here:
        [granted] = await leases(here, 1)
        lease = {"type": "Lease", "runner_id": "w1"}

        for name, body, told in (
            ("register", {"token": "x", "os": "linux"}, "unknown field `os`"),
            ("lease", {**lease, "slots": 0}, "`$.slots`"),
            ("lease", {**lease, "speed": 9}, "unknown field `speed`"),
            ("lease", granted.message("Heartbeat"), "`$.type`"),
            ("messages", lease, "`$.type`"),
            ("messages", granted.message("Heartbeat", ts="2026-01-04T08:00:00"), "`$.ts`"),
            ("messages", granted.message("Complete", artifacts=[{"type": "log"}]), "`$.artifacts[0]`"),
            ("batch", lease, "Expected `array`"),
        ):
            said = json.dumps(body).encode()
            reply = await here.refused(lambda asked=(name, said): granted.runner.request("POST", *asked))  # type: ignore[misc]
            assert (reply.status, reply.code) == (422, "bad_message")
            assert told in reply.message


@on_loop
async def test_a_request_that_breaks_off_is_refused(site: OpenSite) -> None:
    """Half a message must not be taken for a whole one."""
    async with site() as here:
        runner = await here.runner()
        sent: list[dict[str, Any]] = []
        received: list[dict[str, Any]] = [
            {"type": "http.request", "body": b"{", "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive() -> dict[str, Any]:
            return received.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {runner.credential}".encode())]
        await here.app(
            {"type": "http", "method": "POST", "path": "/runner/v1/lease", "headers": headers}, receive, send
        )

        assert sent[0]["status"] == 400


@on_loop
async def test_an_unavailable_store_differs_from_an_invalid_request(site: OpenSite, monkeypatch: Any) -> None:
    """The runner must repeat its message later, and not give up its job."""
    async with site() as here:
        [granted] = await leases(here, 1)

        async def away(*_: Any) -> Any:
            raise Unavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(here.server.engine, "do_all", away)
            reply = await granted.refused("Heartbeat")

        assert (reply.status, reply.code) == (503, "unavailable")
        assert (await granted.send("Heartbeat")).status == 200


@on_loop
async def test_a_record_that_cannot_be_read_is_not_the_runners_mistake(site: OpenSite) -> None:
    """Another version may be able to read it: the runner keeps its job and says the same again."""
    async with site() as here:
        [granted] = await leases(here, 1)
        await write(here.server.store, put(broken("bad")))
        granted.id = "bad.1.0123456789abcdef"

        said = await granted.refused("Heartbeat")
        logged = await here.refused(lambda: granted.log(0, b"x"))

        assert [(reply.status, reply.code) for reply in (said, logged)] == [(503, "unreadable")] * 2


# -- many at once


@on_loop
async def test_more_messages_than_fit_are_refused_together(site: OpenSite) -> None:
    """A batch is one transaction, which must not delay others."""
    async with site() as here:
        [granted] = await leases(here, 1)
        said = [granted.message("Heartbeat")] * (wire.MAX_BATCH + 1)

        reply = await here.refused(lambda: batch(granted.runner, *said))

        assert (reply.status, reply.code) == (413, "too_large")
        assert (await batch(granted.runner)).body == []


@on_loop
async def test_each_message_of_a_batch_has_its_own_response(site: OpenSite) -> None:
    """A stale or invalid message must not affect the others."""
    async with site() as here:
        a, b, c = await leases(here, 3)
        await c.send("Complete")

        reply = await batch(
            a.runner,
            a.message("AckLease"),
            c.message("Heartbeat"),
            {"type": "Hello"},
            b.message("Heartbeat", runner_id="w9"),
            a.message("Heartbeat"),
            b.message("Complete", exit_code=1),
            5,
            b.message("Complete", lease_id="x"),
            a.message("Complete"),
            b.message("CancelAck"),
            a.message("Complete"),
        )

        shown = [(each.get("type") or each["code"], each.get("lease_id")) for each in reply.body]
        assert reply.status == 200
        assert shown == [
            ("HeartbeatAck", a.id),
            ("StaleLease", c.id),
            ("bad_message", None),
            ("wrong_runner", None),
            ("HeartbeatAck", a.id),
            ("bad_request", None),
            ("bad_message", None),
            ("StaleLease", "x"),
            ("CompleteAck", a.id),
            ("cancel_not_requested", None),
            ("CompleteAck", a.id),
        ]
        assert [await here.server.state(f"q{n}") for n in range(2)] == [attempt.SUCCEEDED, attempt.LEASED]


@on_loop
async def test_a_full_batch_is_taken(site: OpenSite) -> None:
    """As many messages as may come at once do fit."""
    async with site() as here:
        granted = await leases(here, 50)
        said = [each.message("Heartbeat", progress={"message": "x" * 100}) for each in granted] * (wire.MAX_BATCH // 50)

        reply = await batch(granted[0].runner, *said)

        assert {each["extend_lease"] for each in reply.body} == {True}
        assert len(reply.body) == wire.MAX_BATCH
