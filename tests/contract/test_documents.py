"""Documents: small versioned values that people write; the version guards each write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest
from msgspec.structs import replace

from deltaci.storage.port import Conflict, Document, Store
from tests.contract.backends import Backend, on_loop

RIVALS: Final = 50


def new(name: str, body: bytes = b"{}", *, kind: str = "template", tenant: str = "acme", version: int = 0) -> Document:
    """A document that was not stored yet."""
    return Document(kind, tenant, name, version, 0, body)


async def stored(store: Store, document: Document) -> Document:
    """The document as it is stored."""
    found = await store.find_document(document.kind, document.name, document.tenant)
    assert found is not None
    return found


def names(documents: Sequence[Document]) -> list[str]:
    return [document.name for document in documents]


# -- refused


@on_loop
async def test_a_version_that_was_not_read_is_refused(backend: Backend) -> None:
    """A writer must have read the version that it replaces."""
    async with backend.opened() as store:
        await store.put_documents([new("a", b"1")])

        for version in (0, 2, 9):
            with pytest.raises(Conflict):
                await store.put_documents([new("a", b"2", version=version)])
        with pytest.raises(Conflict):
            await store.put_documents([new("nobody", version=1)])

        assert (await stored(store, new("a"))).body == b"1"
        assert await store.find_document("template", "nobody", "acme") is None


@on_loop
async def test_documents_are_written_together_or_not_at_all(backend: Backend) -> None:
    """A template and the note of its author belong together."""
    async with backend.opened() as store:
        await store.put_documents([new("a"), new("b")])
        current = await stored(store, new("a"))

        for others in ([new("b")], [new("c"), new("c")], [replace(current, body=b"3")]):
            with pytest.raises(Conflict):
                await store.put_documents([replace(current, body=b"2"), new("new"), *others])

        assert (await stored(store, current)).version == 1
        assert names(await store.list_documents("template", "acme")) == ["a", "b"]


@on_loop
async def test_a_name_that_no_database_can_store_does_not_exist(backend: Backend) -> None:
    """A read of such a name returns nothing instead of an error."""
    async with backend.opened() as store:
        await store.put_documents([new("a")])

        for name in ("a\x00", "\x00", "\ud800"):
            with pytest.raises(ValueError, match="is no name"):
                await store.put_documents([new("b"), new(name)])
            assert await store.find_document("template", name, "acme") is None
            assert await store.list_documents("template", "acme", prefix=name) == []
            assert names(await store.list_documents("template", "acme", after=name)) == ["a"]


@on_loop
async def test_of_many_that_make_one_document_exactly_one_wins(backend: Backend) -> None:
    """From two servers at once."""
    async with backend.opened() as one, backend.opened() as two:
        answers = await asyncio.gather(
            *((one, two)[n % 2].put_documents([new("a", str(n).encode())]) for n in range(RIVALS)),
            return_exceptions=True,
        )

        winners = [n for n, answer in enumerate(answers) if answer is None]
        assert [type(each) for each in answers if each is not None] == [Conflict] * (RIVALS - 1)
        assert [str(n).encode() for n in winners] == [(await stored(two, new("a"))).body]


@on_loop
async def test_concurrent_read_and_write_loses_no_update(backend: Backend) -> None:
    """A counter that many callers increase counts all of them: the purpose of versions."""

    async def raise_it(store: Store) -> None:
        while True:
            known = await stored(store, new("count"))
            try:
                await store.put_documents([replace(known, body=str(int(known.body) + 1).encode())])
            except Conflict:
                continue
            return

    async with backend.opened() as one, backend.opened() as two:
        await one.put_documents([new("count", b"0")])

        await asyncio.gather(*(raise_it(store) for store in (one, two) * 5))

        assert ((await stored(one, new("count"))).body, (await stored(one, new("count"))).version) == (b"10", 11)


@on_loop
async def test_documents_written_together_in_any_order_do_not_deadlock(backend: Backend) -> None:
    """A write of both either succeeds or conflicts."""
    async with backend.opened() as one, backend.opened() as two:
        await one.put_documents([new("a"), new("b")])
        for version in range(1, 11):
            both = [new("a", version=version), new("b", version=version)]

            answers = await asyncio.gather(
                one.put_documents(both), two.put_documents(both[::-1]), return_exceptions=True
            )

            assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "NoneType"]


# -- written, read, dropped


@on_loop
async def test_a_document_is_stored_with_its_version_and_time(backend: Backend) -> None:
    """The store sets both."""
    async with backend.opened() as store:
        await store.put_documents([replace(new("a", b"\x00\xff"), at=5)])
        first = await stored(store, new("a"))
        backend.after(60)
        await store.put_documents([replace(first, body=b"")])
        second = await stored(store, new("a"))

        assert (first.version, first.body, second.version, second.body) == (1, b"\x00\xff", 2, b"")
        assert abs(first.at + 60_000_000 - backend.now()) < 10_000_000
        assert abs(second.at - backend.now()) < 10_000_000
        assert abs(await store.now() - backend.now()) < 10_000_000
        await store.put_documents([])


@on_loop
async def test_names_belong_to_their_tenant_and_kind(backend: Backend) -> None:
    """The same name elsewhere is something else."""
    async with backend.opened() as store:
        await store.put_documents([new("a", b"1"), new("a", b"2", tenant="other"), new("a", b"3", kind="quota")])
        await store.put_documents([new("a", b"4", tenant="")])

        assert (await stored(store, new("a"))).body == b"1"
        assert (await stored(store, new("a", tenant="other"))).body == b"2"
        assert (await stored(store, new("a", kind="quota"))).body == b"3"
        assert (await stored(store, new("a", tenant=""))).body == b"4"
        assert [document.body for document in await store.list_documents("template", "acme")] == [b"1"]
        assert [document.body for document in await store.first_documents("template", 9)] == [b"4", b"1", b"2"]
        assert [document.tenant for document in await store.first_documents("template", 2)] == ["", "acme"]
        assert await store.list_documents("template", "nobody") == []


@on_loop
async def test_documents_are_listed_in_the_order_of_their_names(backend: Backend) -> None:
    """The order is by bytes on every backend, page by page, optionally only with a prefix."""
    given = ["b", "A/2", "a", "A/10", "é", "A", "A/1", "Z", "_", "A0", "A/\U0010ffff", "A/é"]
    expected = sorted(given)
    async with backend.opened() as store:
        await store.put_documents([new(name) for name in given])

        found: list[str] = []
        while page := await store.list_documents("template", "acme", after=found[-1] if found else "", limit=3):
            found += names(page)
        assert found == expected
        alike = [name for name in expected if name.startswith("A/")]
        assert names(await store.list_documents("template", "acme", prefix="A/")) == alike
        assert names(await store.list_documents("template", "acme", prefix="A/", after=alike[0], limit=2)) == alike[1:3]
        assert names(await store.list_documents("template", "acme", prefix="A/", after="Z")) == []
        assert names(await store.list_documents("template", "acme", prefix="nothing")) == []


@on_loop
async def test_only_the_version_that_was_read_is_deleted(backend: Backend) -> None:
    """Afterwards the name can be used again."""
    async with backend.opened() as store:
        await store.put_documents([new("a", kind="key")])

        for name, version in (("a", 0), ("a", 2), ("b", 1)):
            assert not await store.delete_document("key", "acme", name, version)
        assert not await store.delete_document("key", "other", "a", 1)
        assert await store.delete_document("key", "acme", "a", 1)
        assert not await store.delete_document("key", "acme", "a", 1)

        assert await store.find_document("key", "a", "acme") is None
        await store.put_documents([new("a", kind="key")])


@on_loop
async def test_documents_outlive_the_store(durable_backend: Backend) -> None:
    """They are written when the call returns."""
    async with durable_backend.opened() as store:
        await store.put_documents([new("a", b"kept")])

    async with durable_backend.opened() as store:
        assert (await stored(store, new("a"))).body == b"kept"
