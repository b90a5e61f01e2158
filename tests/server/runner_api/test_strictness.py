"""Findings of the fuzz tests: each input was once accepted, or refused with a wrong reason."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from deltaci.api.openapi import openapi_document
from deltaci.protocol import messages as wire
from deltaci.storage.port import Unavailable
from tests.contract.backends import on_loop
from tests.server.site import OpenSite, RegisteredRunner, RunnerLease, Site

LEASE = {"type": "Lease", "runner_id": "w1"}


async def held(site: Site) -> RunnerLease:
    """A lease."""
    runner = await site.runner()
    await site.server.enqueue("q1", spec={"steps": ["true"]})
    return await runner.take()


async def headers_of(site: Site, runner: RegisteredRunner, name: str, **headers: str) -> tuple[int, dict[bytes, bytes]]:
    """The status and the headers of an answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(LEASE).encode()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    told = {"authorization": f"Bearer {runner.credential}", **headers}
    pairs = [(key.replace("_", "-").encode(), value.encode()) for key, value in told.items()]
    await site.app({"type": "http", "method": "POST", "path": f"/runner/v1/{name}", "headers": pairs}, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.proves("PRO-U3")
@pytest.mark.parametrize("name", ["lease", "leave", "control"])
@on_loop
async def test_a_message_without_its_type_is_none(site: OpenSite, name: str) -> None:
    """Every message says what it is, as document 001 writes it, and nothing is guessed."""
    async with site() as here:
        runner = await here.runner()

        for body in ({"runner_id": "w1"}, {"type": "", "runner_id": "w1"}):
            said = json.dumps(body).encode()
            reply = await here.refused(lambda said=said: runner.request("POST", name, said))  # type: ignore[misc]
            assert (reply.status, reply.code) == (422, "bad_message")


@on_loop
async def test_a_whole_number_may_be_written_with_a_point(site: OpenSite) -> None:
    """To JSON Schema, 2.0 is an integer and 2.5 is none."""
    async with site() as here:
        runner = await here.runner()

        taken = await runner.request("POST", "lease", json.dumps({**LEASE, "slots": 2.0, "sequence_no": 1e3}).encode())
        refused = await runner.request("POST", "lease", json.dumps({**LEASE, "slots": 2.5}).encode())

        assert (taken.status, refused.status) == (200, 422)


def test_a_float_above_a_limit_is_not_rounded_down_to_it() -> None:
    """2**53 + 1 becomes 2**53 as a float: floats must be able to represent the limit."""
    seconds = {"total": 1, "seconds": 10**15 + 1}

    with pytest.raises(msgspec.ValidationError):
        wire.decoder(wire.TestTotals)(json.dumps(seconds))
    assert wire.decoder(wire.TestTotals)(json.dumps({**seconds, "seconds": 10**15})).seconds == 10**15


@on_loop
async def test_an_invalid_header_is_refused_in_any_case(site: OpenSite) -> None:
    """Also for an existing cache and for a lease that has ended."""
    async with site() as here:
        mine = await held(here)
        ask = mine.runner.request
        assert (await ask("PUT", "caches/k", b"x", delta_lease=mine.id)).status == 200

        for told in ("", "zz", "0" * 63):
            kept = await ask("PUT", "caches/k", b"x", delta_lease=mine.id, delta_sha256=told)
            fresh = await ask("PUT", "artifacts/a", b"x", delta_lease=mine.id, delta_sha256=told)
            assert (kept.status, fresh.status) == (400, 400)
        stale = await ask("POST", "log", b"x", delta_lease="no.1.such-lease-anywhere", delta_offset="first")
        assert (stale.status, stale.code) == (400, "bad_request")


@on_loop
async def test_a_body_that_says_it_is_no_json_is_refused(site: OpenSite) -> None:
    """A form in a browser must not be able to speak for a runner."""
    async with site() as here:
        runner = await here.runner()

        for kind, status in (
            ("application/x-www-form-urlencoded", 415),
            ("text/plain; charset=utf-8", 415),
            ("application/json; charset=utf-8", 200),
            ("Application/Problem+JSON", 200),
        ):
            assert (await headers_of(here, runner, "lease", content_type=kind))[0] == status


@on_loop
async def test_the_response_says_when_to_retry(site: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole fleet that retries at once would keep a server down."""
    async with site() as here:
        runner = await here.runner()

        async def away(*_: Any) -> Any:
            raise Unavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(here.server.engine, "claim", away)
            patch.setattr(here.server.store, "transact", away)
            status, headers = await headers_of(here, runner, "lease")

        assert (status, headers[b"retry-after"]) == (503, b"1")


@on_loop
async def test_the_documentation_of_the_protocol_needs_no_credential(site: OpenSite) -> None:
    """Programs are written against it, before they have a credential."""
    async with site() as here:
        found = await here.request("GET", "openapi.json", root="/")
        wrong = await here.refused(lambda: here.request("POST", "openapi.json", root="/"))

        assert found.body == json.loads(wire.encode(openapi_document()))
        assert (wrong.status, wrong.code) == (405, "wrong_method")
