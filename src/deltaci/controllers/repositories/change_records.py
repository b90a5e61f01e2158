"""Changes: what happened in repositories, stored until handled and then shown with the result.

A change is accepted once: a repeated delivery, or a push that another source has just reported (a webhook, a hook of
the repository, a poll), creates nothing. Accepting is one write of documents: the change, its entry in the list of
changes, its entry in the list of waiting changes, and the history of its branch or pull request.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from deltaci.controllers.projects import BETWEEN, of
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.forges.projects import AcceptedChange, ChangeSource
from deltaci.pipeline.change import Change
from deltaci.storage.port import Conflict, Document, Store, Unavailable, is_storable_text

CHANGE: Final = "change"
LINE: Final = "change-line"  # All of a tenant, the newest first.
WAITING_LINE: Final = "change-waiting"  # All that is not handled, of everybody, the oldest first.
PAST: Final = "change-past"  # What happened to one branch, tag or pull request, the oldest first.

ID_BYTES: Final = 12
MAX_PAST: Final = 50
SAME_SECONDS: Final = 600  # Reports of different sources, or without an id, within this time are about one event.
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
    lost_claims: int = 0  # How often a server that worked on it stopped before it had finished.
    is_failure_reported: bool = False  # Whether its forge was told that it could not be handled.
    files: tuple[FileOutcome, ...] = ()
    superseded: tuple[str, ...] = ()
    updated_at: int = 0
    version: int = 0


class RefEvent(msgspec.Struct, frozen=True):
    """A change of one branch, tag or pull request: its id, a digest of its content, its commit and its times.

    `at` is when it was first reported, `occurred_at` when it happened by the clock of its forge, or 0. Each of
    `reports` is a source and a digest of its id of the event.
    """

    id: str
    content: str
    commit: str
    at: int
    is_end: bool = False
    occurred_at: int = 0
    reports: tuple[str, ...] = ()


class RefHistory(msgspec.Struct, frozen=True):
    """The last events of a branch, a tag or a pull request, in the order of their arrival."""

    events: tuple[RefEvent, ...] = ()

    def is_before(self, first_id: str, second_id: str) -> bool:
        """Return whether the first change happened before the second, by the forge's clock, else by arrival."""
        positions = {event.id: position for position, event in enumerate(self.events)}
        if first_id not in positions or second_id not in positions:
            return first_id not in positions  # Only the oldest events are missing.
        first, second = self.events[positions[first_id]], self.events[positions[second_id]]
        if first.occurred_at and second.occurred_at and first.occurred_at != second.occurred_at:
            return first.occurred_at < second.occurred_at
        return positions[first_id] < positions[second_id]

    def is_after_by_clock(self, first_id: str, second_id: str) -> bool:
        """Return whether the first change happened after the second according to the forge's clock."""
        occurred = {event.id: event.occurred_at for event in self.events}
        first, second = occurred.get(first_id, 0), occurred.get(second_id, 0)
        return bool(first and second) and first > second


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
        self,
        tenant: str,
        project: str,
        change: Change,
        delivery: str,
        *,
        source: ChangeSource,
        occurred_at: int = 0,
        file: str = "",
    ) -> AcceptedChange:
        """Store a change to be handled, for one pipeline file or for all, or return the stored one of the same event.

        `delivery` is the source's id of the event; another id is another event. Only two reports are recognized by
        their content, within ten minutes: one without an id, and a push that other sources have reported last.
        """
        _check(change, delivery)
        report = f"{source} {delivery}".strip()
        id = f"c{digest(tenant, project, report)}" if delivery else f"c{secrets.token_hex(ID_BYTES)}"
        for _ in range(TRIES):
            if (repeated := await self.repeat(tenant, id)) is not None:
                return repeated
            now = await self._store.now()
            record = ChangeRecord(
                id=id,
                tenant=tenant,
                project=project,
                delivery=report,
                change=change,
                file=file,
                created_at=now,
                updated_at=now,
            )
            waiting = _waiting_name(record)
            documents = [_document(record), _line(record), Document(WAITING_LINE, ALL_TENANTS, waiting, 0, 0, b"")]
            same: RefEvent | None = None
            if place_of(change):
                reports = (f"{source} {digest(report)}",) if delivery else ()
                same, extended = await self._extend_history(record, reports, occurred_at)
                documents = [extended] if same is not None else [*documents, extended]
                if same is not None and set(reports) <= set(same.reports):
                    documents = []
            try:
                if documents:
                    await self._store.put_documents(documents)
            except Conflict:
                continue  # Another request wrote about the same branch, or the same delivery.
            if same is not None:
                return await self.repeat(tenant, same.id) or AcceptedChange(same.id, is_new=False)
            self._announce(waiting)
            return AcceptedChange(id, is_new=True)
        raise Unavailable(f"too many changes to {project!r} at once; retry")

    async def _extend_history(
        self, record: ChangeRecord, reports: tuple[str, ...], occurred_at: int
    ) -> tuple[RefEvent | None, Document]:
        """Return the stored event that the change is about, or None, and the history with the report of the change."""
        change = record.change
        name = of(record.tenant, f"{record.project}{BETWEEN}{digest(place_of(change))}")
        version, past = await self._past(name)
        event = RefEvent(
            id=record.id,
            content=content_of(change),
            commit=change.commit,
            at=record.created_at,
            is_end=is_end(change),
            occurred_at=occurred_at,
            reports=reports,
        )
        same = _same_event(past, event, is_push=change.event == "push")
        events = (*past.events, event)[-MAX_PAST:]
        if same is not None:
            merged = replace(same, reports=(*same.reports, *reports))
            events = tuple(merged if other is same else other for other in past.events)
        return same, Document(PAST, ALL_TENANTS, name, version, 0, _encode(RefHistory(events)))

    async def repeat(self, tenant: str, change_id: str) -> AcceptedChange | None:
        """Return a stored change whose delivery was repeated, or None. It is handled again if handling it failed."""
        record = await self.find(tenant, change_id)
        if record is None:
            return None
        runs = tuple(outcome.run_id for outcome in record.files if outcome.run_id)
        is_failed = record.status == PUT_ASIDE or (record.status == WAITING and record.tries > 0 and not record.owner)
        if is_failed:
            with suppress(Refused):  # A server has just begun to handle it.
                await self.retry(tenant, change_id)
        return AcceptedChange(change_id, is_new=False, runs=runs, reason=record.reason, is_failed=is_failed)

    async def retry(self, tenant: str, id: str) -> ChangeRecord:
        """Let a change be handled now that could not be handled, and return it.

        Raise `Refused` if there is no such change, or if it was handled or is being handled now.
        """
        for _ in range(TRIES):
            record = await self.find(tenant, id)
            if record is None:
                raise Refused("not_found", f"there is no change {id!r}")
            if record.status == HANDLED or record.owner:
                state = "was handled" if record.status == HANDLED else "is being handled"
                raise Refused("wrong_state", f"change {id!r} {state}; only one that could not be handled is retried")
            is_listed = record.status == WAITING
            now = await self._store.now()
            again = replace(record, status=WAITING, not_before=0, tries=0, lost_claims=0, updated_at=now)
            waiting = _waiting_name(record)
            listed = [] if is_listed else [Document(WAITING_LINE, ALL_TENANTS, waiting, 0, 0, b"")]
            try:
                await self._store.put_documents([_document(again), *listed])
            except Conflict:
                continue  # A server has just claimed it, or has not yet removed it from the list of waiting changes.
            self._announce(waiting)
            return replace(again, version=record.version + 1)
        raise Unavailable(f"change {id!r} is being changed; retry")

    def _announce(self, waiting: str) -> None:
        for listener in self._listeners:
            listener(waiting)

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
    if len(delivery) > MAX_DELIVERY or not is_storable_text(delivery):
        raise Refused("bad_request", f"the id of a delivery has at most {MAX_DELIVERY} characters")
    if not is_storable_text(_encode_text(change)) or len(_encode_text(change)) > MAX_CHANGE_BYTES:
        raise Refused("too_large", f"a change has at most {MAX_CHANGE_BYTES:,} bytes")


def _same_event(past: RefHistory, event: RefEvent, *, is_push: bool) -> RefEvent | None:
    """Return the stored event that this report is about, or None if it is about a new one.

    A source reports each of its events under one id. A push may be reported by several sources: a report is about the
    last event if that has the same commit and this source has not reported it.
    """
    recent = [other for other in past.events if event.at - other.at < SAME_SECONDS * SECOND]
    if not event.reports:
        return next((other for other in reversed(recent) if other.content == event.content), None)
    for other in past.events:
        if event.reports[0] in other.reports:
            return other
    source = _source_of(event.reports[0])
    is_by_others = bool(recent) and source not in map(_source_of, recent[-1].reports)
    return recent[-1] if is_push and is_by_others and recent[-1].commit == event.commit else None


def _source_of(report: str) -> str:
    return report.partition(" ")[0]


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
