"""Malformed input is refused with the name of the field. Most cases were found by `make fuzz`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from deltaci.api.schemas.inputs import MAX_BODY_BYTES, RunQuery, WorkerQuery
from deltaci.core.errors import Refused
from deltaci.server.rest.http import query_parameters
from deltaci.server.rest.http.app import MAX_MESSAGE_CHARS
from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, task

NAMES = [f"{n:0100}" for n in range(1000)]
Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


@on_loop
async def test_a_malformed_query_value_is_refused(site: Opened) -> None:
    """Regression: `until=null` matched everything; `1e1` was ten and 17 a time in 1970."""
    async with site() as here:
        ada = await here.key("ada", "run")
        await ada.start(task("a"), branch="null")

        for query in ("until=null", "state=null", "limit=1e1", "limit=5.0", "limit=%2B5", "limit=05", "since=17"):
            assert (await ada.get(f"/runs?{query}")).code == "bad_message", query
        for query in ("gone=1", "gone=TRUE", "gone=null"):
            assert (await ada.get(f"/workers?{query}")).code == "bad_message", query

        assert len((await ada.get("/runs?branch=null")).body["runs"]) == 1
        assert (await ada.get("/workers?gone=true")).body == {"workers": [], "next": None}


def test_an_undecodable_query_is_refused() -> None:
    """Invalid UTF-8, repeated names and too many fields."""
    for query in (b"branch=%ff", b"branch=\xff", b"limit=1&limit=1", b"&".join([b"label=x"] * 101)):
        with pytest.raises(Refused, match="bad_request"):
            query_parameters.parse_query(query, RunQuery)

    assert query_parameters.parse_query(b"label=x&label=y&limit=7", RunQuery) == RunQuery(label=["x", "y"], limit=7)
    assert query_parameters.parse_query(b"gone=true", WorkerQuery) == WorkerQuery(gone=True)


@on_loop
async def test_an_empty_idempotency_key_is_refused(site: Opened) -> None:
    """A client that sends the header relies on it, so a lost key must be an error."""
    async with site() as here:
        ada = await here.key("ada", "run")

        reply = await ada.post("/runs", {"plan": {"jobs": [task("a")]}}, idempotency_key="")

        assert (reply.status, reply.code) == (400, "bad_request")
        assert (await ada.get("/runs")).body["runs"] == []


@on_loop
async def test_a_path_is_one_resource_for_every_method(site: Opened) -> None:
    """`/workers/tokens` is not also the worker `tokens`, and a trailing slash makes a different path."""
    async with site() as here:
        ada = await here.key("ada", "admin")

        for method in ("GET", "OPTIONS", "TRACE", "QUERY", "PUT"):
            reply = await ada.ask(method, "/workers/tokens")
            assert (reply.code, reply.headers["allow"]) == ("wrong_method", "POST"), method
        for path in ("", "/", "/runs/", "//runs", "/runs//jobs", "/me/", "/templates/", "/keys//"):
            assert (await ada.get(path)).code == "not_found", path


@on_loop
async def test_a_malformed_name_is_not_found(site: Opened) -> None:
    """The response is the same as for an unknown name."""
    async with site() as here:
        ada = await here.key("ada", "admin")
        runner = await here.register_runner()
        id = await ada.start(task("a"))
        await runner.take()

        for index in ("1.0", "1e0", "01", "+1", "0", "10001", "9" * 30):
            assert (await ada.get(f"/runs/{id}/jobs/a/attempts/{index}")).code == "not_found", index
        for path in ("%C2%87", "%2E%2E", "a/%2E%2E/b", "a//b", "%00", "x" * 601):
            reply = await ada.get(f"/runs/{id}/jobs/a/attempts/1/artifacts/{path}")
            assert reply.code == "not_found", path
        saved = await ada.ask("PUT", "/templates/a%0Cb", {"plan": {"jobs": [task("a")]}})
        assert saved.code == "not_found"


@on_loop
async def test_a_malformed_last_event_id_is_refused_with_and_without_a_stream(site: Opened) -> None:
    """A client with a wrong position must get an error; an empty header means that there was no event."""
    async with site() as here:
        ada = await here.key("ada", "run")
        id = await ada.start(task("a"))

        for accept in ("application/json", "text/event-stream"):
            for told in ("x", "-1", "1.5", "9" * 16, "²"):
                for path in ("/events", f"/runs/{id}/events"):
                    reply = await ada.ask("GET", path, accept=accept, last_event_id=told.encode())  # type: ignore[arg-type]
                    assert reply.code == "bad_request", (accept, told)
        assert (await ada.get("/events", last_event_id="")).status == 200


@on_loop
async def test_an_error_message_is_short_for_any_input(site: Opened) -> None:
    """Regression: the name of an unknown field was returned in full, twice."""
    async with site() as here:
        ada = await here.key("ada", "run")

        for body in ({"x" * 1_000_000: 1}, {"template": "t" * 1_000_000}, {"plan": {"jobs": [task("a", needs=NAMES)]}}):
            reply = await ada.post("/runs", body)

            assert reply.status in (400, 422)
            assert len(reply.body["message"]) <= MAX_MESSAGE_CHARS + 1
        assert (await ada.post("/runs", {"title": "x" * MAX_BODY_BYTES})).code == "too_large"


@on_loop
async def test_a_number_beyond_64_bits_is_refused_in_any_json(site: Opened) -> None:
    """It cannot be stored. Regression: it was an internal error."""
    async with site() as here:
        ada = await here.key("ada", "run")
        job = task("a")
        job["work"]["contexts"] = {"github": {"run_number": 2**70}}

        reply = await ada.post("/runs", {"plan": {"jobs": [job]}})

        assert reply.code == "bad_request"
        assert "'contexts' of job 'a'" in reply.body["message"]
        assert (await ada.get("/runs")).body["runs"] == []
