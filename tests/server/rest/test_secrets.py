"""Secrets over the API: names and scopes are shown, values never; a job receives the secrets in its scope."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.contract.backends import Backend, on_loop
from tests.server.rest.site import ApiSite, ScriptedRunner, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
VALUE = "hunter2-of-the-house"


async def secrets_of(here: ApiSite, runner: ScriptedRunner, lease: Any, what: str = "secrets") -> Any:
    """Return the secrets that the job of the lease, or its runner, receives."""
    headers = {"Authorization": f"Bearer {runner._credential}", "Delta-Lease": lease["lease_id"]}
    return (await here.http.get(f"/runner/v1/{what}", headers=headers)).json()


@on_loop
async def test_an_invalid_secret_is_refused_without_repeating_its_value(site: Opened) -> None:
    """Nothing is stored."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        bad: list[tuple[str, Any, str]] = [
            ("A", {"value": "abc"}, "bad_message"),
            ("A", {"value": VALUE, "extra": 1}, "bad_message"),
            ("A", {"value": VALUE, "branch": "main"}, "bad_request"),
            ("A", {"value": VALUE, "project": "p", "branch": "["}, "bad_request"),
            ("A", {"value": f"{VALUE}\0"}, "bad_request"),
            ("A", {"value": 4 * VALUE * 1000}, "bad_message"),
            ("A", {"value": [VALUE]}, "bad_message"),
            ("a-b", {"value": VALUE}, "not_found"),
        ]
        for name, body, code in bad:
            reply = await admin.ask("PUT", f"/secrets/{name}", body)
            assert reply.code == code, (name, reply)
            assert VALUE not in str(reply)
        assert (await admin.get("/secrets")).body == {"secrets": [], "next": None}


@on_loop
async def test_a_secret_is_set_listed_and_removed_by_scope(site: Opened) -> None:
    """With its author, its time and its version; the list is paginated."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        scopes = [{}, {"project": "p"}, {"project": "p", "branch": "main"}, {"project": "ü" * 200, "branch": "r/*"}]
        for scope in (*scopes, scopes[1]):
            reply = await admin.ask("PUT", "/secrets/A", {"value": VALUE, **scope})
            assert reply.status == 200, reply
            assert VALUE not in str(reply)
        assert (reply.body["version"], reply.body["set_by"]) == (2, "ada")
        assert reply.body["set_at"] is not None

        found: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await admin.get(f"/secrets?limit=1&cursor={cursor}")).body
            found += [(secret["project"], secret["branch"], secret["version"]) for secret in page["secrets"]]
            cursor = page["next"]
        assert found == [("", "", 1), ("p", "", 2), ("p", "main", 1), ("ü" * 200, "r/*", 1)]

        assert (await admin.ask("DELETE", "/secrets/A?project=p&branch=r/*")).code == "not_found"
        assert (await admin.ask("DELETE", "/secrets/A?project=p&branch=main")).status == 200
        assert (await admin.ask("DELETE", "/secrets/A")).status == 200
        assert len((await admin.get("/secrets")).body["secrets"]) == 2


@pytest.mark.parametrize(
    ("about", "value"),
    [
        ({}, "of-the-tenant"),
        ({"project": "shop"}, "of-the-project"),
        ({"project": "shop", "branch": "release/1"}, "of-the-project"),  # Anybody could say so.
        ({"project": "other", "branch": "release/1"}, "of-the-tenant"),
    ],
)
@on_loop
async def test_a_job_receives_the_secrets_that_match_its_run(site: Opened, about: dict[str, Any], value: str) -> None:
    """The scope is compared with the run's record, only under a live lease."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        for body in (
            {"value": "of-the-tenant"},
            {"value": "of-the-project", "project": "shop"},
            {"value": "of-the-branch", "project": "shop", "branch": "release/*"},
        ):
            assert (await admin.ask("PUT", "/secrets/A", body)).status == 200
        runner = await here.register_runner()
        job = task("a")
        source = {"url": "https://git.example.org/shop.git", "commit": "a" * 40, "credential": "A"}
        job["work"] |= {"secrets": ["A"], "optional_secrets": ["A", "B"], "source": source}
        await admin.start(job, **about)
        lease = await runner.take()

        assert await secrets_of(here, runner, lease) == {"A": value}
        assert await secrets_of(here, runner, lease, "optional-secrets") == {"A": value}
        read_by = await secrets_of(here, runner, lease, "source-credential")
        assert read_by == {"value": value}
        await runner.finish(lease)
        assert (await secrets_of(here, runner, lease))["type"] == "StaleLease"


@on_loop
async def test_a_value_is_in_no_response_and_no_stored_byte(site: Opened, backend: Backend) -> None:
    """In every response, every file and every event."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        for scope in ({}, {"project": "p"}, {"project": "p", "branch": "main"}):
            assert (await admin.ask("PUT", "/secrets/A", {"value": VALUE, **scope})).status == 200
        run = await admin.start(task("a"), project="p", branch="main")

        asked = ("/secrets", f"/runs/{run}", f"/runs/{run}/plan", f"/runs/{run}/explain", "/events", "/tenant")
        answers = [str(await admin.get(path)) for path in asked]
        kept = b"".join(path.read_bytes() for path in here.folder.rglob("*") if path.is_file())

        assert not [answer for answer in answers if VALUE in answer]
        assert VALUE.encode() not in kept
        assert not [event for event in await here.log() if VALUE in str(event)]
