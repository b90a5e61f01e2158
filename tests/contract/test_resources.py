"""Resources: administrative objects that are changed by commands, with an event of each change."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.events import USER
from deltaci.core.ids import administration_id, resource_id
from deltaci.core.resource import API_KEY, DELETED, Resource
from deltaci.core.worker import Drain
from deltaci.engine.resources import Resources
from tests.contract.backends import Backend, Server, on_loop, refused

ADA: Final = "user:ada"
NO_END: Final = 2**63 - 1
RIVALS: Final = 20


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a resource in these tests."""

    text: str
    token: str = ""
    labels: tuple[str, ...] = ("a", "b")


def settings(server: Server, kind: str = "setting") -> Resources[Setting]:
    return Resources(server.engine, server.store, kind, Setting, sealed="token")


async def names(resources: Resources[Setting], tenant: str | None, prefix: str = "") -> list[tuple[str, str]]:
    return [(stored.tenant, stored.name) async for stored in resources.iterate(tenant, prefix)]


# -- refused


@on_loop
async def test_a_change_at_a_rev_that_was_not_read_is_refused(backend: Backend) -> None:
    """A person must have seen what they replace."""
    async with backend.server() as server:
        resources = settings(server)
        await resources.put("acme", "a", Setting(text="1"), actor=ADA, rev=0)

        for rev in (0, 2):
            refusal = await refused(resources.put("acme", "a", Setting(text="2"), actor=ADA, rev=rev))
            assert refusal.code == "stale_version"
        await refused(resources.delete("acme", "a", actor=ADA, rev=7), "stale_version")

        assert await resources.read("acme", "a") == (Setting(text="1"), 1)
        assert len(await server.verified()) == 1


@on_loop
async def test_what_was_never_created_cannot_be_deleted(backend: Backend) -> None:
    """A misspelt name is an error."""
    async with backend.server() as server:
        await refused(settings(server).delete("acme", "a", actor=ADA), "not_found")

        assert not await server.log()


@on_loop
async def test_several_resources_are_put_together_or_not_at_all(backend: Backend) -> None:
    """A template and its version belong together."""
    async with backend.server() as server:
        resources = settings(server)
        await resources.put("acme", "a", Setting(text="1"), actor=ADA)
        commands = [resources.put_command("acme", name, Setting(text="2"), actor=ADA, rev=0) for name in ("new", "a")]

        await refused(resources.put_all(commands), "stale_version")
        assert await resources.find("acme", "new") is None
        await resources.put_all(commands[:1])

        assert await resources.find("acme", "new") == Setting(text="2")


@on_loop
async def test_one_of_many_that_create_a_resource_succeeds(backend: Backend) -> None:
    """Also if they are on different servers."""
    async with backend.server() as here, backend.server() as there:
        results = await asyncio.gather(
            *(
                settings(server).put("acme", "a", Setting(text=str(number)), actor=ADA, rev=0)
                for number in range(RIVALS)
                for server in (here, there)
            ),
            return_exceptions=True,
        )

        assert sum(result is None for result in results) == 1
        assert all(isinstance(result, Refused | None) for result in results)
        assert len(await here.verified()) == 1


# -- changes


@on_loop
async def test_each_change_has_an_event_with_the_person_and_the_bodies_but_not_what_is_sealed(backend: Backend) -> None:
    """Who, when, before, after."""
    async with backend.server() as server:
        resources = settings(server)
        await resources.put("acme", "a", Setting(text="1", token="hidden-1"), actor=ADA)
        await resources.put("acme", "a", Setting(text="2", token="hidden-1"), actor="user:bob")
        for _ in range(2):  # The second one changes nothing.
            await resources.put("acme", "a", Setting(text="2", token="hidden-2"), actor=ADA)
        await resources.delete("acme", "a", actor=ADA)
        await resources.delete("acme", "a", actor=ADA)
        await resources.put("acme", "a", Setting(text="3"), actor=ADA)

        events = await server.verified()
        found = [(event.trigger, event.actor, event.metadata["before"], event.metadata["after"]) for event in events]
        first, second, third = ({"text": text, "labels": ["a", "b"]} for text in "123")
        assert found == [
            ("created", ADA, None, first),
            ("updated", "user:bob", first, second),
            ("updated", ADA, second, second),
            ("deleted", ADA, second, None),
            ("created", ADA, None, third),
        ]
        assert [event.rev for event in events] == [event.metadata["number"] for event in events] == [1, 2, 3, 4, 5]
        assert [event.metadata.get("is_sealed_changed") for event in events] == [True, None, True, True, None]
        assert b"hidden" not in msgspec.json.encode(events)
        assert await server.log(entity_id=resource_id("acme", "setting", "a")) == events


@on_loop
async def test_a_resource_is_found_by_tenant_kind_and_name_until_it_is_deleted(backend: Backend) -> None:
    """No other tenant's or kind's, and no name that no database can store."""
    async with backend.server() as server:
        resources, others = settings(server), settings(server, "other")
        await resources.put("a/b", "x", Setting(text="1", token="t"), actor=ADA)
        await others.put("a/b", "x", Setting(text="2"), actor=ADA)
        await resources.put("a", "b/x", Setting(text="3"), actor=ADA)

        assert await resources.find("a/b", "x") == Setting(text="1", token="t")
        assert await others.find("a/b", "x") == Setting(text="2")
        for tenant, name in (("a", "x"), ("a/b", "y"), ("a/b", "x\x00"), ("a/b", "\ud800")):
            assert await resources.find(tenant, name) is None
        await resources.delete("a/b", "x", actor=ADA)

        assert await resources.read("a/b", "x") == (None, 2)
        deleted = await server.find(resource_id("a/b", "setting", "x"), Resource)
        assert (deleted.state, deleted.body, deleted.sealed) == (DELETED, {}, "")


@on_loop
async def test_resources_are_listed_by_tenant_and_name(backend: Backend) -> None:
    """Page by page, with a prefix, and without the deleted ones."""
    async with backend.server() as server:
        resources = settings(server)
        created = [(tenant, name) for tenant in ("b", "a") for name in ("x 2", "x 1", "y", "w", "gone")]
        for tenant, name in created:
            await resources.put(tenant, name, Setting(text=""), actor=ADA)
            await settings(server, "other").put(tenant, name, Setting(text=""), actor=ADA)
        for tenant in ("a", "b"):
            await resources.delete(tenant, "gone", actor=ADA)
        present = sorted(key for key in created if key[1] != "gone")

        assert await names(resources, None) == present
        assert await names(resources, "a") == [key for key in present if key[0] == "a"]
        assert await names(resources, "b", "x ") == [("b", "x 1"), ("b", "x 2")]
        assert await names(resources, "c") == await names(resources, "a", "\x00") == []
        assert [stored.name for stored in await resources.page("a", after="w", limit=2)] == ["x 1", "x 2"]
        assert [stored.name for stored in await resources.page("a", after="x 1", prefix="x")] == ["x 2"]


@on_loop
async def test_an_api_key_is_found_without_its_tenant(backend: Backend) -> None:
    """The tenant of a caller is known only after its key was found. No two tenants have a key with one name."""
    async with backend.server() as server:
        await settings(server, API_KEY).put("acme", "k1", Setting(text="1"), actor=ADA)
        await settings(server).put("acme", "k2", Setting(text="2"), actor=ADA)

        found = await server.store.find_api_key("k1")

        assert isinstance(found, Resource)
        assert (found.tenant, found.body["text"]) == ("acme", "1")
        for name in ("k2", "k3", "\x00"):
            assert await server.store.find_api_key(name) is None


# -- the audit log


@on_loop
async def test_the_administrative_events_of_a_tenant_are_read_backwards(backend: Backend) -> None:
    """Those of its resources, and a person's actions on its workers."""
    async with backend.server() as server:
        resources = settings(server)
        await server.register("w1")
        for number in range(3):
            await server.enqueue(f"q{number}")
            await resources.put("acme", f"r{number}", Setting(text=""), actor=ADA)
            await resources.put("other", f"r{number}", Setting(text=""), actor=ADA)
        await server.do(Drain(id="w1", reason="repair", actor=f"{USER}:ada"))
        await asyncio.gather(
            *(resources.put("acme", f"s{number}", Setting(text=""), actor=ADA) for number in range(3)),
            *(server.enqueue(f"s{number}") for number in range(3)),
        )
        log = await server.verified()
        expected = [
            event
            for event in reversed(log)
            if event.tenant == "acme" and (event.entity == "resource" or event.trigger == "drained")
        ]

        assert len(expected) == 7
        for limit in (1, 2, 100):
            pages, before = list[int](), NO_END
            while page := await server.store.administrative_events("acme", before, limit):
                assert len(page) <= limit
                pages += [event.seq for event in page]
                before = page[-1].seq
            assert pages == [event.seq for event in expected]


@on_loop
async def test_the_events_of_a_tenant_are_numbered_without_a_gap_by_all_servers(backend: Backend) -> None:
    """So that a log in which one is missing is recognised."""
    async with backend.server() as here, backend.server() as there:
        await asyncio.gather(
            *(
                settings(server).put(tenant, f"{server is here}-{number}", Setting(text=""), actor=ADA)
                for number in range(RIVALS)
                for server in (here, there)
                for tenant in ("acme", "other")
            )
        )

        log = await here.verified()
        for tenant in ("acme", "other"):
            numbers = [event.metadata["number"] for event in log if event.tenant == tenant]
            assert numbers == list(range(1, 2 * RIVALS + 1))
            assert (await here.find(administration_id(tenant), Resource)).number == 2 * RIVALS
