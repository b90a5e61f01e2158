"""Idempotency keys: repeats of a request with one key create one run, on any server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from tests.contract.backends import Backend, on_both_stores, on_loop, within
from tests.server.rest.site import ApiSite, all_runs, opened, storm, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
BODY = {"plan": {"jobs": [task("a"), task("b")]}, "title": "once"}


@pytest.mark.proves("STP-D1", "STP-D2", "MOD-S2")
@on_loop
async def test_a_repeated_key_returns_the_same_run(site: Opened) -> None:
    """Also after the run has ended; another body with the same key is refused."""
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
async def test_a_repeat_ignores_a_new_version_of_the_template(site: Opened) -> None:
    """The request counts, not the plan that it resolved to."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        await admin.ask("PUT", "/templates/t", {"plan": {"jobs": [task("a")]}})
        first = await admin.post("/runs", {"template": "t"}, idempotency_key="k")
        await admin.ask("PUT", "/templates/t", {"plan": {"jobs": [task("b")]}})

        again = await admin.post("/runs", {"template": "t"}, idempotency_key="k")

        assert (again.status, again.body) == (200, first.body)


@on_loop
async def test_a_rerun_is_idempotent(site: Opened) -> None:
    """The fingerprint contains the run that is rerun, so the key cannot be reused for another one."""
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
async def test_an_invalid_idempotency_key_is_refused(site: Opened) -> None:
    """A key is one to two hundred printable characters."""
    async with site() as here:
        ada = await here.key("ada", "run")

        assert (await ada.post("/runs", BODY, idempotency_key="x" * 201)).code == "bad_request"


@pytest.mark.proves("STP-D2")
@on_both_stores
@within(120)
async def test_a_thousand_concurrent_repeats_create_one_run(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With two servers on PostgreSQL and one on SQLite."""
    folder = tmp_path_factory.mktemp("data")
    async with AsyncExitStack() as stack:
        sites = [await stack.enter_async_context(opened(backend, folder))]
        if backend.name == "postgres":
            sites.append(await stack.enter_async_context(opened(backend, folder)))
        ada = await sites[0].key("ada", "run")
        body = json.dumps(BODY).encode()
        request = (
            f"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ada.token}\r\n"
            f"Idempotency-Key: thousand\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

        storms = (storm(site.url, request, times=1000 // len(sites), connections=200 // len(sites)) for site in sites)
        replies = [reply for each in await asyncio.gather(*storms) for reply in each]

        assert Counter(status for status, _ in replies) == {200: 999, 201: 1}
        assert len({body["id"] for _, body in replies}) == 1
        births = [event for event in await sites[0].log() if event.entity == "run" and event.from_ is None]
        assert len(births) == len(await all_runs(ada)) == 1
