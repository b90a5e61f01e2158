"""Learn from the event log which tests and jobs are flaky: one bounded document per job of a project.

The log reports ended attempts. The processed sequence number is stored, so that a server that was down continues there;
an attempt that is reported twice, or by two servers, counts once (`core/flaky.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from deltaci.core import attempt, flaky
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.flaky import History, Observation
from deltaci.core.listing import ALL_TENANTS
from deltaci.core.run import Run
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.storage.blobs.keys import safe_name
from deltaci.storage.port import Conflict, Document, Store, Unavailable

KIND: Final = "flaky"
CURSOR: Final = "flaky-cursor"
PAGE: Final = 1000
BATCH: Final = 200
MAX_HINTS: Final = 10_000
MAX_LATE: Final = 50_000  # So many events back begins a server that has learned nothing yet.
MAX_JOBS: Final = 5000  # Of a tenant.
TRIES: Final = 5
PAUSE_SECONDS: Final = 0.2  # What ends together is learned together.
RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 60.0
TIDY_SECONDS: Final = 3600.0

LOGGER: Final = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(History).decode
_decode_seq = msgspec.json.Decoder(int).decode
_Place = tuple[str, str, str]  # tenant, project and job
_Told = dict[_Place, list[tuple[str, Observation]]]


class FlakyTestTracker:
    """Learns from ended attempts which jobs and tests are flaky, and returns what was learned."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hints: dict[str, None] = {}
        self._heard = 0
        self._is_told = asyncio.Event()
        self._is_behind = True
        self._tidied: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    # -- what is known

    async def of_job(self, tenant: str, project: str, job: str) -> History:
        """Return the history of a job, empty if nothing is stored."""
        found = await self._store.find_document(KIND, _name(project, job), tenant)
        return _read(found) or History(project=project, job=job)

    async def of_attempt(self, tenant: str, attempt_id: str) -> frozenset[str]:
        """Return the names of the tests of the attempt's job that are known to be flaky."""
        record = await self._store.find(attempt_id)
        if not isinstance(record, Attempt) or record.tenant != tenant or not flaky.job_name(record):
            return frozenset()
        run = await self._store.find(record.run_id)
        if not isinstance(run, Run):
            return frozenset()
        history = await self.of_job(tenant, flaky.history_key(run)[0], flaky.job_name(record))
        return frozenset(flaky.flaky_tests(history, await self._store.now()))

    async def page(self, tenant: str, project: str | None, after: str, limit: int) -> tuple[list[History], str]:
        """Return histories of the tenant or of one project, and the name after which the next page begins, or ""."""
        prefix = f"{safe_name(project)} " if project is not None else ""
        found = await self._store.list_documents(KIND, tenant, after=after, limit=limit, prefix=prefix)
        known = [history for each in found if (history := _read(each)) is not None]
        return known, found[-1].name if len(found) == limit else ""

    # -- what is learned

    def on_events(self, events: Sequence[Event]) -> None:
        """Remember the ended attempts among these events. The follower of the event log calls this."""
        for event in events:
            if is_telling(event):
                if len(self._hints) >= MAX_HINTS:
                    self._is_behind = True  # The log is read again from where it was last learned up to.
                    break
                self._hints[event.entity_id] = None
        if events:
            self._heard = events[-1].seq
        if self._hints:
            self._is_told.set()

    def start(self) -> None:
        """Start learning, from the last processed event on."""
        self._task = asyncio.create_task(self._run(), name="flaky")

    async def stop(self) -> None:
        """Stop learning."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _run(self) -> None:
        while True:
            try:
                if self._is_behind:
                    await self.catch_up()
                await self._listen()
            except (Unavailable, Conflict) as error:
                LOGGER.warning("cannot update flaky test statistics: %s; retrying", error)
                self._is_behind = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._is_told.wait()
        except TimeoutError:
            return
        await asyncio.sleep(PAUSE_SECONDS)
        self._is_told.clear()
        heard, hints = self._heard, list(self._hints)
        self._hints = {}
        await self.learn(hints)
        await self._reach(heard)

    async def catch_up(self) -> None:
        """Learn from the events after the last processed one."""
        self._is_behind = False
        self._hints = {}
        found = await self._store.find_document(CURSOR, CURSOR, ALL_TENANTS)
        after = _decode_seq(found.body) if found is not None else max(0, await self._store.last_seq() - MAX_LATE)
        while page := await self._store.events(after, PAGE):
            after = page[-1].seq
            await self.learn([event.entity_id for event in page if is_telling(event)])
            await self._reach(after)

    async def _reach(self, seq: int) -> None:
        """Store the seq of the last processed event, unless a greater one is stored."""
        found = await self._store.find_document(CURSOR, CURSOR, ALL_TENANTS)
        if found is not None and _decode_seq(found.body) >= seq:
            return
        version = found.version if found is not None else 0
        cursor = Document(kind=CURSOR, tenant=ALL_TENANTS, name=CURSOR, version=version, at=0, body=_encode(seq))
        try:
            await self._store.put_documents([cursor])
        except Conflict:
            LOGGER.debug("another server has processed later events")

    async def learn(self, ids: Sequence[str]) -> None:
        """Add the observations of these attempts to the histories of their jobs."""
        for begin in range(0, len(ids), BATCH):
            told = await self._told(ids[begin : begin + BATCH])
            try:
                await self._write([each for place in told.items() if (each := await self._changed(*place)) is not None])
            except Conflict:
                for place in told.items():
                    await self._insist(*place)
            for tenant in {tenant for tenant, _, _ in told}:
                await self._tidy(tenant)

    async def _told(self, ids: Sequence[str]) -> _Told:
        attempts = [each for each in await self._store.find_all(list(ids)) if isinstance(each, Attempt)]
        seen = [(each, found) for each in attempts if (found := flaky.observe(each)) is not None]
        runs = await self._store.find_all(list(dict.fromkeys(each.run_id for each, _ in seen if each.run_id)))
        by_id = {each.id: each for each in runs if isinstance(each, Run)}
        told: _Told = {}
        for each, sighting in seen:
            run, job = by_id.get(each.run_id), flaky.job_name(each)
            if run is None or not job or run.tenant != each.tenant:
                continue
            project, key = flaky.history_key(run)
            if key:
                told.setdefault((each.tenant, project, job), []).append((key, sighting))
        return told

    async def _changed(self, place: _Place, told: Iterable[tuple[str, Observation]]) -> Document | None:
        """Return the document of a job with these observations added, or None if it has them already."""
        tenant, project, job = place
        found = await self._store.find_document(KIND, _name(project, job), tenant)
        before = after = _read(found) or History(project=project, job=job)
        for key, sighting in told:
            after = flaky.add_observation(after, key, sighting)
        if after is before:
            return None
        version = found.version if found is not None else 0
        return Document(kind=KIND, tenant=tenant, name=_name(project, job), version=version, at=0, body=_encode(after))

    async def _insist(self, place: _Place, told: Sequence[tuple[str, Observation]]) -> None:
        for _ in range(TRIES):
            changed = await self._changed(place, told)
            try:
                await self._write([changed] if changed is not None else [])
                return
            except Conflict:
                continue
        raise Conflict((_name(*place[1:]),))

    async def _write(self, documents: Sequence[Document]) -> None:
        if documents:
            await self._store.put_documents(documents)

    async def _tidy(self, tenant: str) -> None:
        """Delete expired histories of a tenant, and the oldest ones beyond MAX_JOBS, at most once an hour."""
        clock = asyncio.get_running_loop().time()
        if self._tidied.get(tenant, -TIDY_SECONDS) > clock - TIDY_SECONDS:
            return
        if len(self._tidied) >= MAX_HINTS:
            self._tidied.clear()
        self._tidied[tenant] = clock
        oldest = await self._store.now() - flaky.EXPIRES
        kept: list[Document] = []
        after = ""
        while page := await self._store.list_documents(KIND, tenant, after=after, limit=BATCH):
            after = page[-1].name
            for each in page:
                if each.at <= oldest:
                    await self._store.delete_document(KIND, tenant, each.name, each.version)
                else:
                    kept.append(msgspec.structs.replace(each, body=b""))
        for each in sorted(kept, key=lambda each: each.at)[: max(0, len(kept) - MAX_JOBS)]:
            await self._store.delete_document(KIND, tenant, each.name, each.version)


def is_telling(event: Event) -> bool:
    """Return whether the event is the end of an attempt of a run."""
    return event.entity == ATTEMPT and bool(event.run_id) and event.to in attempt.TERMINAL


def _name(project: str, job: str) -> str:
    return f"{safe_name(project)} {safe_name(job)}"


def _read(found: Document | None) -> History | None:
    try:
        return _decode(found.body) if found is not None else None
    except msgspec.DecodeError:
        LOGGER.warning("flaky test statistics cannot be read; rebuilding them")
        return None
