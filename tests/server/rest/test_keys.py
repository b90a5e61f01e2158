"""API keys are stored as hashes, have scopes, expire and can be revoked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from deltaci.api.routes import ANY_KEY, OPERATOR, ROUTES
from deltaci.api.schemas.inputs import SCOPES, KeyInput, Scope
from deltaci.core.errors import Refused
from deltaci.core.resource import Resource
from deltaci.engine.engine import Engine
from deltaci.server.auth.callers import INCLUDED, REMEMBERED_SECONDS, ApiKeys
from deltaci.server.auth.credentials import Signer
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import Backend, on_loop
from tests.server.rest.site import ApiSite, Caller
from tests.server.rest.test_isolation import path_of

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
NAMES = {
    **{"run": "r1", "job": "a", "index": "1", "path": "p", "template": "t", "version": "1", "worker": "w"},
    **{"key": "0" * 16, "tenant": "us", "secret": "S"},
}


@on_loop
async def test_a_key_allows_exactly_its_scopes(site: Opened) -> None:
    """Every route with a key of every scope; the error names the missing scope."""
    async with site() as here:
        callers: dict[Scope, Caller] = {scope: await here.key("ada", scope) for scope in SCOPES}

        for route in ROUTES:
            for scope, caller in callers.items():
                reply = await caller.ask(route.method, path_of(route, NAMES), {} if route.body else None)

                may = route.required_scope == ANY_KEY or (
                    route.required_scope != OPERATOR and route.required_scope in INCLUDED[scope]
                )
                assert (reply.status == 403) == (not may), (route.id, scope, reply)
                if not may:
                    assert reply.code == "missing_scope"
                    assert route.required_scope == OPERATOR or repr(route.required_scope) in reply.body["message"]


@on_loop
async def test_every_route_responds_401_without_a_valid_key(site: Opened) -> None:
    """No key, an unknown key, the credential of a runner, an altered key."""
    async with site() as here:
        ada = await here.key("ada", "admin")
        runner = await here.register_runner()
        wrong = ["nonsense", f"{ada.token}x", ada.token[:-1] + ("A" if ada.token[-1] != "A" else "B")]
        wrong += [runner._credential, ada.token.replace("dck_", "dci_")]

        # Each route with one of them, and one route with each: all routes share the check of the key.
        pairs = [*zip(ROUTES, cycle(wrong), strict=False), *((ROUTES[0], token) for token in wrong)]
        for route, token in pairs:
            reply = await Caller(here.http, token).ask(route.method, path_of(route, NAMES))
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), (route.id, token, reply)
        bare = await here.http.get("/api/v1/runs")
        assert (bare.status_code, bare.json()["code"]) == (401, "bad_credential")


@on_loop
async def test_a_revoked_key_is_refused(site: Opened) -> None:
    """At once on this server; revoking it again has no effect."""
    async with site() as here:
        admin, bob = await here.key("ada", "admin"), await here.key("bob", "read", description="laptop")
        me = (await bob.get("/me")).body

        first = await admin.post(f"/keys/{me['key_id']}/revoke")
        again = await admin.post(f"/keys/{me['key_id']}/revoke")
        refused = await bob.get("/me")

        assert (me["person"], me["scopes"], me["is_operator"]) == ("bob", ["read"], False)
        assert (first.body["revoked_by"], again.body) == ("ada", first.body)
        assert first.body["revoked_at"] is not None
        assert (refused.status, refused.code) == (401, "bad_credential")
        assert (await admin.get(f"/keys/{me['key_id']}")).body == first.body


@on_loop
async def test_the_secret_of_a_key_is_only_in_its_first_response(
    site: Opened, backend: Backend, tmp_path: Path
) -> None:
    """A reader of the database cannot use the keys in it."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        made = (await admin.post("/keys", {"person": "bob", "scopes": ["read"]})).body
        secret = made["token"].split("_", 2)[2]  # The secret itself may contain "_".
        assert len(secret) > 30

        shown = [await admin.get("/keys"), await admin.get(f"/keys/{made['id']}")]
        kept = await here.store.find_api_key(made["id"])

        assert not [reply for reply in shown if secret in str(reply.body) or "token" in reply.body]
        assert isinstance(kept, Resource)
        assert secret not in str(kept)
        events = await here.store.events(0, 100)
        assert kept.sealed not in str(events)
        assert secret not in str(events)
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@on_loop
async def test_keys_are_listed_in_pages_and_invalid_ones_are_refused(site: Opened) -> None:
    """A key needs a person and an existing scope."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        for n in range(4):
            await here.key(f"p{n}", "read")

        first = (await admin.get("/keys?limit=3")).body
        rest = (await admin.get(f"/keys?limit=3&cursor={first['next']}")).body
        wrong = [
            await admin.post("/keys", body)
            for body in ({}, {"person": "x", "scopes": []}, {"person": "x", "scopes": ["root"]}, {"person": "a b"})
        ]

        assert sorted(key["person"] for key in first["keys"] + rest["keys"]) == ["ada", "p0", "p1", "p2", "p3"]
        assert rest["next"] is None
        assert [reply.code for reply in wrong] == ["bad_message"] * 4


@on_loop
async def test_a_key_expires_and_other_servers_see_a_revocation_within_two_seconds() -> None:
    """With clocks that the test controls."""
    now, monotonic = [1000.0], [0.0]
    store = MemoryStore()
    signer = Signer(b"k" * 32, lambda: now[0])
    engine = Engine(store)
    await engine.start()
    here, there = (ApiKeys(engine, store, signer, lambda: monotonic[0]) for _ in range(2))
    record, token = await here.create("us", KeyInput(person="ada", scopes=["run"], expires_seconds=60), "root")

    assert (await there.caller(token)).scopes == {"run", "read"}
    now[0] += 60
    with pytest.raises(Refused, match="expired"):
        await there.caller(token)
    now[0] -= 30
    await here.revoke("us", record.id, "root")
    await there.caller(token)  # It remembers the key, for a while.
    monotonic[0] += REMEMBERED_SECONDS
    with pytest.raises(Refused, match="revoked"):
        await there.caller(token)
    await engine.stop()


@on_loop
async def test_the_operator_acts_for_any_tenant_and_sets_quotas(site: Opened) -> None:
    """A person who can read the server's key file needs no API key."""
    async with site() as here:
        root = here.operator("us", "root")
        admin = await here.key("ada", "admin", tenant="us")

        me = (await root.get("/me")).body
        done = await root.ask("PUT", "/tenants/us/quotas", {"running_jobs": 3})
        refused = await admin.ask("PUT", "/tenants/us/quotas", {"running_jobs": 0})

        assert (me["tenant"], me["person"], me["is_operator"], me["key_id"]) == ("us", "root", True, "")
        assert done.body["quotas"] == {
            **{"running_jobs": 3, "queued_runs": 0, "storage_bytes": 0, "requests_per_second": 0},
        }
        assert (refused.status, refused.code) == (403, "missing_scope")


@on_loop
async def test_a_worker_registers_with_a_token_made_by_a_runner_key(site: Opened) -> None:
    """The token is for the key's tenant and works once."""
    async with site() as here:
        ops, ada = await here.key("ops", "runner", tenant="us"), await here.key("ada", "run", tenant="us")
        token = (await ops.post("/workers/tokens", {"name": "w-us", "expires_seconds": 60})).body["token"]

        answers: list[httpx.Response] = [
            await here.http.post("/runner/v1/register", json={"token": token, "capabilities": ["gpu"], "slots": 3})
            for _ in range(2)
        ]
        [worker] = (await ada.get("/workers")).body["workers"]

        assert [answer.status_code for answer in answers] == [200, 401]
        assert (worker["id"], worker["state"], worker["labels"], worker["slots"]) == ("w-us", "IDLE", ["gpu"], 3)
        assert (await ada.get("/workers/w-us")).body == worker
        assert (await ada.get("/workers?gone=true")).body["workers"] == []
