"""A request may be repeated: one key, one run, however often and wherever it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.api.site import ApiSite, opened, task
from tests.contract.places import Place, on_loop, within

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
BODY = {"plan": {"jobs": [task("a"), task("b")]}, "title": "once"}


@pytest.mark.proves("STP-D1", "STP-D2")
@on_loop
async def test_the_same_key_with_the_same_request_is_the_same_run(site: Opened) -> None:
    """Also long after, and whatever became of the run; another body under the key is refused."""
    async with site() as here:
        ada, other = await here.key("ada", "run"), await here.key("ada", "run")

        first = await ada.post("/runs", BODY, idempotency_key="k1")
        again = await ada.post("/runs", dict(reversed(BODY.items())), idempotency_key="k1")
        reused = await ada.post("/runs", {**BODY, "title": "twice"}, idempotency_key="k1")
        others = await other.post("/runs", BODY, idempotency_key="k1")
        await ada.post(f"/runs/{first.body['id']}/cancel")
        await here.until(ada, first.body["id"], "REPORTED")
        late = await ada.post("/runs", BODY, idempotency_key="k1")

        assert (first.status, again.status, late.status) == (201, 200, 200)
        assert again.body["id"] == late.body["id"] == first.body["id"]
        assert (again.headers["idempotency-replayed"], late.body["state"]) == ("true", "REPORTED")
        assert "idempotency-replayed" not in first.headers
        assert (reused.status, reused.code) == (409, "request_id_reused")
        assert others.status == 201
        assert others.body["id"] != first.body["id"]


@on_loop
async def test_a_template_that_changed_meanwhile_does_not_make_a_repeat_something_else(site: Opened) -> None:
    """What counts is what was asked, not what it came to."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        await admin.ask("PUT", "/templates/t", {"plan": {"jobs": [task("a")]}})
        first = await admin.post("/runs", {"template": "t"}, idempotency_key="k")
        await admin.ask("PUT", "/templates/t", {"plan": {"jobs": [task("b")]}})

        again = await admin.post("/runs", {"template": "t"}, idempotency_key="k")

        assert (again.status, again.body) == (200, first.body)


@on_loop
async def test_a_rerun_can_be_repeated_too(site: Opened) -> None:
    """Its key names the run that it repeats, so that it cannot be taken for another one."""
    async with site() as here:
        ada = await here.key("ada", "run")
        id = await ada.start(task("a"))
        await ada.post(f"/runs/{id}/cancel")
        await here.until(ada, id, "REPORTED")

        first = await ada.post(f"/runs/{id}/rerun", idempotency_key="k")
        again = await ada.post(f"/runs/{id}/rerun", idempotency_key="k")
        reused = await ada.post("/runs", BODY, idempotency_key="k")

        assert (first.status, again.status, again.body["id"]) == (201, 200, first.body["id"])
        assert reused.code == "request_id_reused"


@on_loop
async def test_a_key_that_is_none_is_refused(site: Opened) -> None:
    """A key is one to two hundred printable characters."""
    async with site() as here:
        ada = await here.key("ada", "run")

        assert (await ada.post("/runs", BODY, idempotency_key="x" * 201)).code == "bad_request"


@pytest.mark.proves("STP-D2")
@within(120)
async def test_a_thousand_repeats_at_once_make_one_run(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On PostgreSQL by two servers, on SQLite by one."""
    folder = tmp_path_factory.mktemp("data")
    async with opened(place, folder) as here:
        ada = await here.key("ada", "run")
        before = await here.store.last_seq()

        async with opened(place, folder) if place.name == "postgres" else _same(here) as there:
            sites = [here, there]
            callers = [type(ada)(each.http, ada.token) for each in sites]
            replies = await asyncio.gather(
                *(callers[n % 2].post("/runs", BODY, idempotency_key="thousand") for n in range(1000))
            )

        assert {reply.body["id"] for reply in replies} == {replies[0].body["id"]}
        assert sorted(reply.status for reply in replies) == [200] * 999 + [201]
        births = [event for event in await here.log() if event.seq > before and event.to == "CREATED"]
        assert len([event for event in births if event.entity == "run"]) == 1
        assert len((await ada.get("/runs")).body["runs"]) == 1


class _same:  # noqa: N801
    """The same site again, as a context manager."""

    def __init__(self, site: ApiSite) -> None:
        self._site = site

    async def __aenter__(self) -> ApiSite:
        return self._site

    async def __aexit__(self, *_: object) -> None: ...
