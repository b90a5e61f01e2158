"""The administrative log: every administrative route leaves an event, which the API shows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import pytest

from deltaci.api.routes import OPERATOR, ROUTES
from deltaci.core.events import RESOURCE
from deltaci.core.resource import PRESENT, Resource
from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, Caller, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]

# Routes that change no administrative object, with the reason.
NOT_ADMINISTRATIVE: Final = {
    "startRun": "a run has its own events, with the person who started it",
    "cancelRun": "an event of the run",
    "approveRun": "an event of the job",
    "rejectRun": "an event of the job",
    "rerunRun": "a run has its own events",
    "cancelJob": "an event of the job",
    "reportPush": "a change in a repository, not in a setting; the runs that it starts have events",
    "redeliverChange": "a change in a repository is handled again; the runs that it starts have events",
    "createWorkstream": "its run has events",
    "cancelWorkstream": "its run has events",
}
PLAN: Final = {"jobs": [{"name": "build", "work": {"steps": ["true"]}}]}
# A request to each administrative route, in an order in which each finds what it changes.
REQUESTS: Final[dict[str, tuple[str, dict[str, Any] | None]]] = {
    "makeKey": ("/keys", {"person": "bob", "scopes": ["run"], "roles": ["release"]}),
    "revokeKey": ("/keys/{key}/revoke", None),
    "saveProject": ("/projects/shop", {"url": "https://example.org/shop.git"}),
    "removeProject": ("/projects/shop", None),
    "setSecret": ("/secrets/TOKEN", {"value": "hunter2", "project": "shop"}),
    "removeSecret": ("/secrets/TOKEN?project=shop", None),
    "saveTemplate": ("/templates/build", {"plan": PLAN}),
    "removeTemplate": ("/templates/build", None),
    "setFailureRules": ("/failure-rules", {"text": "rules: []"}),
    "setQuotas": ("/tenants/default/quotas", {"running_jobs": 7}),
    "makeWorkerToken": ("/workers/tokens", {"name": "w9", "expires_seconds": 60}),
    "drainWorker": ("/workers/{worker}/drain", {"reason": "repair"}),
    "resumeWorker": ("/workers/{worker}/resume", None),
    "removeWorker": ("/workers/{worker}/remove", None),
}


async def audit(caller: Caller, query: str = "") -> list[Any]:
    """Return the first page of the log."""
    reply = await caller.get(f"/audit?limit=200{query}")
    assert reply.status == 200, reply
    return list(reply.body["events"])


async def call_all(here: ApiSite, admin: Caller) -> dict[str, list[Any]]:
    """Send each administrative request once. Return the events that each has left, the oldest first."""
    names = {"worker": (await here.register_runner()).name, "key": ""}
    routes = {route.id: route for route in ROUTES}
    left: dict[str, list[Any]] = {}
    for id, (path, body) in REQUESTS.items():
        seq = await here.store.last_seq()
        caller = here.operator(person="ada") if routes[id].required_scope == OPERATOR else admin
        reply = await caller.ask(routes[id].method, path.format(**names), body)
        assert reply.status < 300, (id, reply)
        if id == "makeKey":
            names["key"] = reply.body["id"]
        left[id] = [event for event in reversed(await audit(admin)) if event["seq"] > seq]
    return left


def test_every_route_that_changes_something_is_administrative_or_has_a_reason_not_to_be() -> None:
    """A new route needs an entry in one of the lists; then the next test calls it."""
    changing = {route.id for route in ROUTES if route.method != "GET"}

    assert changing == set(REQUESTS) | set(NOT_ADMINISTRATIVE)
    assert not set(REQUESTS) & set(NOT_ADMINISTRATIVE)


@pytest.mark.proves("MOD-14")
@on_loop
async def test_every_administrative_route_leaves_an_event(site: Opened) -> None:
    """With the person, the time, and the values before and after; the value of a secret is in none."""
    async with site() as here:
        admin = await here.key("ada", "admin")

        left = await call_all(here, admin)

        for id, events in left.items():
            assert events, f"{id} left no event"
            for event in events:
                assert event["actor"] == "user:ada", (id, event)
                assert event["before"] != event["after"], (id, event)
                assert event["at"], (id, event)
        shown = {
            id: [(event["action"], event["kind"], event["name"]) for event in events] for id, events in left.items()
        }
        assert shown["setSecret"] == [("created", "secret", "TOKEN shop")]
        assert shown["removeTemplate"] == [("deleted", "template", "build")]
        assert {event["kind"] for event in left["removeWorker"]} == {"worker", "worker-removal"}
        [drained] = left["drainWorker"]
        assert (drained["before"], drained["after"]) == (
            {"state": "IDLE", "hold": ""},
            {"state": "IDLE", "hold": "DRAINED", "reason": "repair"},
        )
        [revoked] = left["revokeKey"]
        assert (revoked["before"]["revoked_by"], revoked["after"]["revoked_by"]) == ("", "ada")
        assert "hunter2" not in str(await here.log())


@on_loop
async def test_the_log_tells_the_resources_as_they_are(site: Opened) -> None:
    """Nothing changes them besides the commands that the log shows."""
    async with site() as here:
        await call_all(here, await here.key("ada", "admin"))
        await here.key("eve", tenant="other")
        expected: dict[str, Any] = {}
        for event in await here.log():
            if event.entity == RESOURCE:
                expected[event.entity_id] = (event.rev, event.to, event.metadata["after"] or {})

        records = [await here.store.find(id) for id in expected]
        found = {
            record.id: (record.rev, record.state, record.body) for record in records if isinstance(record, Resource)
        }

        assert found == expected
        assert {state for _, state, _ in found.values()} >= {PRESENT, "DELETED"}


@on_loop
async def test_the_log_is_filtered_and_read_in_pages(site: Opened) -> None:
    """By kind, name, person and time, the newest first."""
    async with site() as here:
        admin, eve = await here.key("ada", "admin"), await here.key("eve", "admin")
        for number in range(3):
            for caller in (admin, eve):
                body = {"url": "https://example.org/shop.git", "description": str(number)}
                assert (await caller.ask("PUT", f"/projects/p{number}", body)).status == 200
        await admin.start(task("build"))  # No administrative event.
        whole = await audit(admin)

        assert [event["seq"] for event in whole] == sorted((event["seq"] for event in whole), reverse=True)
        assert len(whole) == 8
        for query, count in (("kind=project", 6), ("kind=key", 2), ("name=p1", 2), ("actor=eve", 3), ("kind=none", 0)):
            assert len(await audit(admin, f"&{query}")) == count, query
        assert await audit(admin, "&actor=user:eve&name=p1") == [e for e in whole if e["before"] and e["name"] == "p1"]
        assert await audit(admin, "&since=2100-01-01T00:00:00Z") == []
        assert await audit(admin, "&since=2000-01-01T00:00:00Z") == whole
        pages: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await admin.get(f"/audit?limit=3&kind=project&cursor={cursor}")).body
            assert len(page["events"]) <= 3
            pages += page["events"]
            cursor = page["next"]
        assert pages == [event for event in whole if event["kind"] == "project"]
        for bad in ("cursor=eA", "cursor=*", "since=now"):
            assert (await admin.get(f"/audit?{bad}")).status in (400, 422), bad
