"""Concurrency groups: one run of a group is active at a time.

Runs wait in order of creation; with `cancel-in-progress` the newest run cancels the others. A group is one document
with the holder and the waiting runs, written with a version check, so that servers agree. A holder that has ended
counts as none, so that nothing has to be released, unless one of its jobs may still run: a runner that did not confirm
that it stopped may work until its lease would have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from deltaci.controllers.projects import of
from deltaci.controllers.repositories.change_records import digest
from deltaci.core import run
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.ids import attempt_id
from deltaci.core.listing import ALL_TENANTS
from deltaci.core.run import Run
from deltaci.engine.engine import Engine
from deltaci.pipeline.planning.plan import Plan
from deltaci.storage.port import Conflict, Document, Store, Unavailable, load_jobs

KIND: Final = "run-group"
MAX_WAITING: Final = 1000
TRIES: Final = 50
PAGE: Final = 200


class ConcurrencyGroup(msgspec.Struct, frozen=True):
    """The id of the active run of a group, and creation time and id of the waiting runs, the oldest first."""

    holder: str = ""
    waiting: tuple[tuple[int, str], ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ConcurrencyGroup).decode


class ConcurrencyGroups:
    """Decides which run of each concurrency group may be active, for all tenants."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    async def enter(self, record: Run, plan: Plan) -> bool:
        """Return whether the run may start. If not, it waits in the group, and the caller must try again later."""
        name = of(record.tenant, digest(record.origin.project, plan.group))
        for _ in range(TRIES):
            version, group = await self._read(name)
            live = await self._live([group.holder, *(id for _, id in group.waiting)])
            holder = live.get(group.holder)
            if holder is not None and holder.id == record.id:
                return True
            others = [live[id] for _, id in group.waiting if id in live and id != record.id]
            if plan.cancels_in_progress and not await self._is_last(record, [*others, *([holder] if holder else [])]):
                return False
            line = sorted({*((each.created_at, each.id) for each in others), (record.created_at, record.id)})
            is_fenced = holder is None and await self._may_still_run(group.holder)
            is_next = holder is None and not is_fenced and line[0][1] == record.id
            if is_next:
                line = line[1:]
            if len(line) > MAX_WAITING:
                await self._cancel(record, f"more than {MAX_WAITING} runs wait in the group {plan.group!r}")
                return False
            holder_id = group.holder if holder is not None or is_fenced else ""
            wanted = ConcurrencyGroup(record.id if is_next else holder_id, tuple(line))
            if wanted == group:
                return is_next
            try:
                body = _encode(wanted)
                await self._store.put_documents([Document(KIND, ALL_TENANTS, name, version, 0, body)])
            except Conflict:
                continue
            return is_next
        raise Unavailable(f"too many runs enter the group {plan.group!r} at once")

    async def _is_last(self, record: Run, others: Iterable[Run]) -> bool:
        """Cancel the older runs, or this run if one of the others is newer. Return whether this run is the newest."""
        mine = (record.created_at, record.id)
        for each in others:
            if (each.created_at, each.id) > mine:
                await self._cancel(record, f"superseded: run {each.id} of the same group is newer")
                return False
        for each in others:
            await self._cancel(each, f"superseded: run {record.id} of the same group is newer")
        return True

    async def _cancel(self, record: Run, reason: str) -> None:
        with suppress(Refused):  # It ended meanwhile.
            await self._engine.do(run.Cancel(id=record.id, reason=reason))

    async def _read(self, name: str) -> tuple[int, ConcurrencyGroup]:
        document = await self._store.find_document(KIND, name, ALL_TENANTS)
        return (document.version, _decode(document.body)) if document is not None else (0, ConcurrencyGroup())

    async def _live(self, ids: Iterable[str]) -> dict[str, Run]:
        found = await self._store.find_all([id for id in dict.fromkeys(ids) if id])
        return {each.id: each for each in found if isinstance(each, Run) and not run.is_over(each)}

    async def _may_still_run(self, run_id: str) -> bool:
        """Return whether a runner may still execute a job of a run that has ended."""
        if not run_id:
            return False
        jobs = await self._store.read(lambda: load_jobs(run_id))
        records = await self._store.find_all([attempt_id(job.id, job.attempts) for job in jobs if job.attempts])
        now = self._engine.clock.read(await self._store.now())
        return any(
            isinstance(record, Attempt) and (record.lease is not None or record.fence_until > now) for record in records
        )

    async def prune(self) -> None:
        """Delete the groups without live runs whose last run has surely stopped."""
        after = ""
        while True:
            documents = await self._store.list_documents(KIND, ALL_TENANTS, after=after, limit=PAGE)
            for each in documents:
                group = _decode(each.body)
                is_live = await self._live([group.holder, *(id for _, id in group.waiting)])
                if not is_live and not await self._may_still_run(group.holder):
                    await self._store.delete_document(KIND, ALL_TENANTS, each.name, each.version)
            if len(documents) < PAGE:
                return
            after = documents[-1].name
