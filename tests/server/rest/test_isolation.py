"""Isolation of tenants: every route responds to another tenant's id as to an unknown one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from deltaci.api.routes import ROUTES, Route
from deltaci.pipeline.change import Change
from tests.contract.backends import on_both_stores, on_loop
from tests.server.rest.site import ApiSite, Caller, Reply, gate, task
from tests.support.workstream_context import SPEC, StandIn

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]

# What the body of a request must say before ids are looked at.
BODIES: dict[str, Any] = {
    "saveTemplate": {"plan": {"jobs": [task("a")]}},
    "setQuotas": {},
    "saveProject": {"url": "https://127.0.0.1/acme/shop.git"},
    "setSecret": {"value": "hunter2"},
    "reportPush": {
        "delivery": "one-push",
        "refs": [{"ref": "refs/heads/main", "before": "0" * 40, "after": "a" * 40}],
    },
}
# With a name that is everybody's own, and so leads to one's own things.
OWN_NAMES = {"saveTemplate", "saveProject", "setSecret"}
# Only for who operates the server, for any tenant.
OPERATORS = {"setQuotas"}

FOREIGN = [route for route in ROUTES if route.path_parameters and route.id not in OWN_NAMES | OPERATORS]


async def create_one_of_each(here: ApiSite) -> dict[str, str]:
    """Create one object of each kind in the tenant `them`, and return their names."""
    them = await here.key("ada", "admin", tenant="them")
    runner = await here.register_runner(tenant="them")
    id = await them.start(task("a"), gate("g"), labels=["l"], project="p")
    lease = await runner.take()
    await runner.log(lease, b"a log\n")
    assert (await runner.upload_artifact(lease, "out/file", b"a file")).status_code == 200
    await runner.finish(lease)
    assert (await them.ask("PUT", "/templates/t", BODIES["saveTemplate"])).status == 200
    assert (await them.ask("PUT", "/secrets/S", BODIES["setSecret"])).status == 200
    assert (await them.ask("PUT", "/projects/p", BODIES["saveProject"])).status == 200
    change = Change(event="push", ref="refs/heads/gone", commit="0" * 40)
    accepted = await here.service.control_plane.repositories.changes.accept("them", "p", change, "d", source="push")
    key = (await them.get("/keys")).body["keys"][0]["id"]
    StandIn(here.service)
    stream = (await them.post("/workstreams", {"spec": SPEC})).body["id"]
    return {
        "workstream": stream,
        **{"run": id, "job": "a", "index": "1", "path": "out/file", "template": "t", "version": "1"},
        **{"worker": runner.name, "key": key, "project": "p", "change": accepted.id, "secret": "S"},
    }


def path_of(route: Route, names: dict[str, str]) -> str:
    """Return the path of the route with these names."""
    path = route.path.replace("*}", "}")
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    return path


async def send(caller: Caller, route: Route, names: dict[str, str]) -> Reply:
    """Send a request to the route."""
    return await caller.ask(route.method, path_of(route, names), BODIES.get(route.id))


def without_names(reply: Reply, names: dict[str, str]) -> Any:
    """Return the response without the request id and the names in the request."""
    body = dict(reply.body)
    body.pop("request_id")
    for field in ("message", "detail"):
        for value in sorted(names.values(), key=len, reverse=True):
            body[field] = body[field].replace(repr(value), "…")
    return body, sorted(set(reply.headers) - {"content-length"})


@pytest.mark.proves("STP-X1", "STP-X2")
@on_both_stores
@on_loop
async def test_every_route_responds_to_another_tenants_id_as_to_an_unknown_one(site: Opened) -> None:
    """404 with the same body. A missing scope is reported first, for any id."""
    async with site() as here:
        theirs = await create_one_of_each(here)
        us = await here.key("eve", "admin", tenant="us")
        # Of the same shape, and nobody's.
        nobodys = {
            "workstream": "r" + "1" * 20,
            **{"run": "r" + "0" * 20, "job": "zz", "index": "9", "path": "no/file", "template": "zz", "version": "9"},
            **{"worker": "zz", "key": "0" * 16, "project": "zz", "change": "c" + "0" * 24, "secret": "ZZ"},
        }
        seq = await here.store.last_seq()

        for route in FOREIGN:
            foreign = await send(us, route, theirs)
            missing = await send(us, route, nobodys)

            assert (foreign.status, missing.status) == (404, 404), (route.id, foreign, missing)
            assert without_names(foreign, theirs) == without_names(missing, nobodys), route.id

        assert await here.store.last_seq() == seq
        assert {route.id for route in FOREIGN} | OWN_NAMES | OPERATORS == {
            each.id for each in ROUTES if each.path_parameters
        }


@pytest.mark.proves("STP-X1")
@on_loop
async def test_the_same_routes_respond_to_their_own_tenant(site: Opened) -> None:
    """Otherwise the test above would also pass for paths that never exist."""
    async with site() as here:
        theirs = await create_one_of_each(here)
        them = await here.key("ada", "admin", tenant="them")

        by_id = {route.id: route for route in FOREIGN}
        reads = [route.id for route in FOREIGN if route.method == "GET"]
        for id in (*reads, "approveRun", "cancelJob", "removeTemplate", "removeProject", "removeSecret", "revokeKey"):
            reply = await send(them, by_id[id], theirs)
            assert reply.status == 200, (id, reply)


@pytest.mark.proves("STP-X1")
@on_both_stores
@on_loop
async def test_lists_and_events_contain_only_the_callers_tenant(site: Opened) -> None:
    """With every filter."""
    async with site() as here:
        await create_one_of_each(here)
        us = await here.key("eve", "admin", tenant="us")

        for path in ("/runs", "/runs?label=l", "/runs?project=p", "/runs?status=RUNNING", "/runs?person=ada"):
            assert (await us.get(path)).body["runs"] == [], path
        assert (await us.get("/workers")).body["workers"] == []
        queue = (await us.get("/queue")).body
        assert (queue["waiting"], queue["running"], queue["reasons"]) == ([], [], [])
        assert (await us.get("/templates")).body["templates"] == []
        assert (await us.get("/projects")).body["projects"] == []
        assert (await us.get("/changes")).body["changes"] == []
        assert [key["person"] for key in (await us.get("/keys")).body["keys"]] == ["eve"]
        assert (await us.get("/secrets")).body["secrets"] == []
        for path in ("/events", "/audit"):  # Only that eve's key was created.
            assert [event["actor"] for event in (await us.get(path)).body["events"]] == ["user:root"], path
        tenant = (await us.get("/tenant")).body
        assert (tenant["name"], tenant["usage"]) == (
            "us",
            {"running_jobs": 0, "queued_runs": 0, "storage_bytes": 0},
        )


@on_loop
async def test_template_names_and_idempotency_keys_are_per_tenant(site: Opened) -> None:
    """Two tenants may use the same name."""
    async with site() as here:
        them, us = await here.key("ada", "admin", tenant="them"), await here.key("eve", "admin", tenant="us")
        plans = [{"plan": {"jobs": [task(name)]}} for name in ("theirs", "ours")]
        for caller, plan in zip((them, us), plans, strict=True):
            assert (await caller.ask("PUT", "/templates/t", plan)).body["version"] == 1

        runs = [(await caller.post("/runs", {"template": "t"}, idempotency_key="k")).body for caller in (them, us)]
        operators = [await here.operator(tenant).post("/runs", plans[0], idempotency_key="o") for tenant in ("a", "b")]

        assert runs[0]["id"] != runs[1]["id"]
        assert [
            (await caller.run(run["id"]))["jobs"][0]["name"] for caller, run in zip((them, us), runs, strict=True)
        ] == [
            *("theirs", "ours"),
        ]
        assert [reply.status for reply in operators] == [201, 201]
