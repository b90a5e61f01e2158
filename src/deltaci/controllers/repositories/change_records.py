"""Changes: what happened in repositories, stored until handled and then shown with the result.

A change is accepted once: a repeated delivery, or the same event from another source (a hook and a poll, two webhooks),
creates nothing. Accepting is one write of documents: the change, its entry in the list of changes, its entry in the
list of waiting changes, and the history of its branch or pull request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from deltaci.controllers.projects import BETWEEN, of
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.forges.projects import AcceptedChange
from deltaci.pipeline.change import Change
from deltaci.storage.port import Conflict, Document, Store, Unavailable, is_storable_text

CHANGE: Final = "change"
LINE: Final = "change-line"  # All of a tenant, the newest first.
WAITING_LINE: Final = "change-waiting"  # All that is not handled, of everybody, the oldest first.
PAST: Final = "change-past"  # What happened to one branch, tag or pull request, the oldest first.

ID_BYTES: Final = 12
MAX_PAST: Final = 50
SAME_SECONDS: Final = 600  # What is told of a pull request twice within this was one event.
KEEP_SECONDS: Final = 30 * 86400
MAX_DELIVERY: Final = 500
MAX_CHANGE_BYTES: Final = 1024 * 1024
TRIES: Final = 20
PAGE: Final = 200
_LAST: Final = 2**63 - 1

WAITING, HANDLED, PUT_ASIDE = "waiting", "handled", "put_aside"
Status = Literal["waiting", "handled", "put_aside"]


class FileOutcome(msgspec.Struct, frozen=True):
    """The result of a change for one pipeline file: the id of its run, or the reason why there is none."""

    file: str
    run_id: str
    reason: str


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored change and the progress of its handling. Times are in microseconds."""

    id: str
    tenant: str
    project: str
    delivery: str
    change: Change
    created_at: int
    file: str = ""  # the only pipeline file that it concerns; empty: all
    status: Status = "waiting"
    reason: str = ""
    tries: int = 0
    owner: str = ""  # The server that works on it, until `not_before`.
    not_before: int = 0
    files: tuple[FileOutcome, ...] = ()
    superseded: tuple[str, ...] = ()
    updated_at: int = 0
    version: int = 0


class RefEvent(msgspec.Struct, frozen=True):
    """A change of one branch, tag or pull request: its id, a digest of its content, its commit and its time."""

    id: str
    content: str
    commit: str
    at: int
    is_end: bool = False
    before: str = ""


class RefHistory(msgspec.Struct, frozen=True):
    """The last events of a branch, a tag or a pull request, the oldest first."""

    events: tuple[RefEvent, ...] = ()

    def after(self, id: str) -> tuple[RefEvent, ...]:
        """Return the events after the one with this id."""
        ids = [each.id for each in self.events]
        return self.events[ids.index(id) + 1 :] if id in ids else ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ChangeRecord).decode
_decode_past = msgspec.json.Decoder(RefHistory).decode


def digest(*parts: str, size: int = ID_BYTES) -> str:
    """Return a hash of a sequence of texts as hexadecimal digits."""
    hashed = blake2b(digest_size=size)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(4, "big") + raw)
    return hashed.hexdigest()


def place_of(change: Change) -> str:
    """Return the branch, tag or pull request of a change, or an empty string for a change without a history."""
    if change.event == "pull_request":
        return f"pull {change.number}"
    return change.ref if change.event == "push" else ""


def is_end(change: Change) -> bool:
    """Return whether the change closed a pull request."""
    return change.event == "pull_request" and change.action == "closed"


def content_of(change: Change) -> str:
    """Return a digest of the event that is the same whichever source reported it."""
    if change.event == "push":
        return digest("push", change.ref, change.before.strip("0"), change.commit)
    return digest("pull", _encode_text(replace(change, message="", title="", actor="")))


def _encode_text(change: Change) -> str:
    return msgspec.json.encode(change, order="sorted").decode()


class ChangeRecords:
    """Stores changes, the lists of them, and the history of each branch and pull request, as documents."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: list[Callable[[str], None]] = []

    def tell(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each change that is accepted here from now on."""
        self._listeners.append(listener)

    async def accept(
        self, tenant: str, project: str, change: Change, delivery: str, *, file: str = ""
    ) -> AcceptedChange:
        """Store a change to be handled, for one pipeline file or for all.

        Return the stored change if it was accepted before, by the same delivery or as the same event of another source.
        """
        _check(change, delivery)
        id = f"c{digest(tenant, project, delivery)}"
        for _ in range(TRIES):
            if await self._store.find_document(CHANGE, id, tenant) is not None:
                return AcceptedChange(id, is_new=False)
            now = await self._store.now()
            kept = ChangeRecord(
                id=id,
                tenant=tenant,
                project=project,
                delivery=delivery,
                change=change,
                file=file,
                created_at=now,
                updated_at=now,
            )
            waiting = _waiting_name(kept)
            documents = [_document(kept), _line(kept), Document(WAITING_LINE, ALL_TENANTS, waiting, 0, 0, b"")]
            if place := place_of(change):
                name = of(tenant, f"{project}{BETWEEN}{digest(place)}")
                version, past = await self._past(name)
                if (known := _same(past, change, now)) is not None:
                    return AcceptedChange(known, is_new=False)
                event = RefEvent(id, content_of(change), change.commit, now, is_end(change), change.before)
                grown = RefHistory((*past.events, event)[-MAX_PAST:])
                documents.append(Document(PAST, ALL_TENANTS, name, version, 0, _encode(grown)))
            try:
                await self._store.put_documents(documents)
            except Conflict:
                continue  # Somebody else wrote of the same branch; or it is the same delivery, at the same moment.
            for listener in self._listeners:
                listener(waiting)
            return AcceptedChange(id, is_new=True)
        raise Unavailable(f"too many changes to {project!r} at once; retry")

    async def keep_handled(self, kept: ChangeRecord) -> ChangeRecord:
        """Store a change that needs no handling, such as a manual start. Return the stored one if it exists already."""
        with suppress(Conflict):
            if await self._store.find_document(CHANGE, kept.id, kept.tenant) is None:
                await self._store.put_documents([_document(kept), _line(kept)])
        return await self.find(kept.tenant, kept.id) or kept

    async def find(self, tenant: str, id: str) -> ChangeRecord | None:
        """Return the tenant's change with this id, or None."""
        return _read(await self._store.find_document(CHANGE, id, tenant))

    async def all_waiting(self) -> AsyncIterator[str]:
        """Yield the names of all waiting changes, the oldest first."""
        after = ""
        while True:
            documents = await self._store.list_documents(WAITING_LINE, ALL_TENANTS, after=after, limit=PAGE)
            for each in documents:
                yield each.name
            if len(documents) < PAGE:
                return
            after = documents[-1].name

    async def named(self, waiting: str) -> ChangeRecord | None:
        """Return the change with this name in the list of waiting changes, or None."""
        _, tenant, id = waiting.split(BETWEEN)
        return await self.find(tenant, id)

    async def past(self, kept: ChangeRecord) -> RefHistory:
        """Return the history of the branch, tag or pull request of a change."""
        place = place_of(kept.change)
        if not place:
            return RefHistory()
        return (await self._past(of(kept.tenant, f"{kept.project}{BETWEEN}{digest(place)}")))[1]

    async def _past(self, name: str) -> tuple[int, RefHistory]:
        document = await self._store.find_document(PAST, name, ALL_TENANTS)
        return (document.version, _decode_past(document.body)) if document is not None else (0, RefHistory())

    async def put(self, kept: ChangeRecord) -> ChangeRecord:
        """Store the change in place of the version that was read, and return it with its new version.

        Raises `Conflict` if it was changed since.
        """
        kept = replace(kept, updated_at=await self._store.now())
        await self._store.put_documents([_document(kept)])
        return replace(kept, version=kept.version + 1)

    async def done(self, waiting: str) -> None:
        """Remove a name from the list of waiting changes."""
        document = await self._store.find_document(WAITING_LINE, waiting, ALL_TENANTS)
        if document is not None:
            await self._store.delete_document(WAITING_LINE, ALL_TENANTS, waiting, document.version)

    async def page(self, tenant: str, after: str, limit: int) -> list[tuple[str, ChangeRecord]]:
        """Return up to `limit` changes of the tenant, the newest first, each with its position in the list."""
        prefix = of(tenant, "")
        lines = await self._store.list_documents(
            LINE, ALL_TENANTS, after=f"{prefix}{after}" if after else "", limit=limit, prefix=prefix
        )
        found: list[tuple[str, ChangeRecord]] = []
        for line in lines:
            place = line.name.removeprefix(prefix)
            kept = await self.find(tenant, place[16:])
            if kept is not None:
                found.append((place, kept))
        return found

    # -- what is old

    async def prune(self, limit: int = PAGE) -> int:
        """Delete up to `limit` old handled changes of each tenant. Return how many were deleted."""
        before = await self._store.now() - KEEP_SECONDS * SECOND
        dropped = 0
        async for tenant in self._tenants():
            prefix = of(tenant, "")
            # The newest come first: what is behind this place is old.
            lines = await self._store.list_documents(
                LINE, ALL_TENANTS, after=f"{prefix}{_LAST - before:016x}", limit=limit, prefix=prefix
            )
            for line in lines:
                dropped += await self._drop(tenant, line)
        return dropped

    async def forget_past(self) -> None:
        """Delete the histories of branches, tags and pull requests without recent events."""
        before, after = await self._store.now() - KEEP_SECONDS * SECOND, ""
        while documents := await self._store.list_documents(PAST, ALL_TENANTS, after=after, limit=PAGE):
            after = documents[-1].name
            for each in documents:
                if each.at < before:
                    await self._store.delete_document(PAST, ALL_TENANTS, each.name, each.version)

    async def _drop(self, tenant: str, line: Document) -> int:
        document = await self._store.find_document(CHANGE, line.name.partition(BETWEEN)[2][16:], tenant)
        if document is not None:
            if _decode(document.body).status == WAITING:
                return 0
            await self._store.delete_document(CHANGE, tenant, document.name, document.version)
        return int(await self._store.delete_document(LINE, ALL_TENANTS, line.name, line.version))

    async def _tenants(self) -> AsyncIterator[str]:
        after = ""
        while first := await self._store.list_documents(LINE, ALL_TENANTS, after=after, limit=1):
            tenant = first[0].name.partition(BETWEEN)[0]
            yield tenant
            after = f"{tenant}{BETWEEN}g"  # Behind every place of this tenant: those are hexadecimal.


def _check(change: Change, delivery: str) -> None:
    if not 0 < len(delivery) <= MAX_DELIVERY or not is_storable_text(delivery):
        raise Refused("bad_request", f"a delivery has an id of 1 to {MAX_DELIVERY} characters")
    if not is_storable_text(_encode_text(change)) or len(_encode_text(change)) > MAX_CHANGE_BYTES:
        raise Refused("too_large", f"a change has at most {MAX_CHANGE_BYTES:,} bytes")


def _same(past: RefHistory, change: Change, now: int) -> str | None:
    """Return the id of the earlier change for the same event, or None.

    The same push is another event if the branch moved back in between. The same event of a pull request is another one
    after some minutes.
    """
    content = content_of(change)
    for place, each in reversed(list(enumerate(past.events))):
        if each.content != content:
            continue
        if change.event == "push":
            return None if _went_back(past.events[place + 1 :], change) else each.id
        return each.id if now - each.at < SAME_SECONDS * SECOND else None
    return None


def _went_back(later: Sequence[RefEvent], change: Change) -> bool:
    """Return whether later pushes lead from the change's commit back to the commit before it, in any order."""
    reached, front = {change.commit}, [change.commit]
    while front:
        here = front.pop()
        new = {each.commit for each in later if each.before == here} - reached
        reached |= new
        front += new
    return change.before in reached


def _waiting_name(kept: ChangeRecord) -> str:
    return f"{kept.created_at:016x}{BETWEEN}{kept.tenant}{BETWEEN}{kept.id}"


def _line(kept: ChangeRecord) -> Document:
    name = of(kept.tenant, f"{_LAST - kept.created_at:016x}{kept.id}")
    return Document(LINE, ALL_TENANTS, name, 0, 0, b"")


def _document(kept: ChangeRecord) -> Document:
    body = _encode(replace(kept, version=0))
    return Document(CHANGE, kept.tenant, kept.id, kept.version, 0, body)


def _read(document: Document | None) -> ChangeRecord | None:
    return replace(_decode(document.body), version=document.version) if document is not None else None
