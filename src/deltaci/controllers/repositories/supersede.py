"""Cancel older runs of the same file and branch or pull request when a newer one starts, as the project's policy says.

A change that starts no run supersedes nothing. A server that handles a change first stores the runs of the change and
then looks for older ones; a server that handles the older change looks, once its runs exist, for newer stored ones. So
one of the two always finds the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from deltaci.controllers.projects import Project
from deltaci.controllers.repositories.change_records import WAITING, ChangeRecord, ChangeRecords, is_end, place_of
from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.listing import runs_of_project, runs_with_status
from deltaci.core.run import Run
from deltaci.core.status.steps import PENDING, RUNNING, WAITING_APPROVAL
from deltaci.engine.engine import Engine
from deltaci.pipeline.change import Change
from deltaci.storage.port import ListQuery, Store

PAGE: Final = 200
NEVER: Final[tuple[str, ...]] = ()
STATUSES: Final = {"none": NEVER, "queued": (PENDING,), "all": (PENDING, RUNNING, WAITING_APPROVAL)}


class SupersedeController:
    """Finds the runs that a newer change supersedes, and cancels them."""

    def __init__(self, store: Store, engine: Engine, changes: ChangeRecords) -> None:
        self._store = store
        self._engine = engine
        self._changes = changes

    async def settled(self, kept: ChangeRecord, project: Project) -> list[str]:
        """Cancel the runs that this change supersedes, and its own runs that a later change supersedes.

        Return the ids of the former. Safe to repeat.
        """
        statuses = _statuses(kept.change, project)
        if not statuses:
            return []
        later = (await self._changes.past(kept)).after(kept.id)
        newer = await self._newer_files(kept, [each.id for each in later])
        is_over = bool(later) and later[-1].is_end
        own = {each.file for each in kept.files if each.run_id}
        skipped, cancelled = {each.id for each in later}, list[str]()
        what = "the pull request was closed" if is_end(kept.change) else f"a newer commit, {kept.change.commit[:12]}"
        async for each in self._under_way(kept, statuses):
            origin = each.origin
            if origin.change == kept.id:
                if is_over or origin.file in newer:
                    by = "the pull request was closed" if is_over else f"a newer commit, {later[-1].commit[:12]}"
                    await self._cancelled(each, f"superseded: {by}")
                continue
            is_meant = is_end(kept.change) or (origin.commit != kept.change.commit and origin.file in own)
            if is_meant and origin.change not in skipped and await self._cancelled(each, f"superseded: {what}"):
                cancelled.append(each.id)
        return cancelled

    async def _newer_files(self, kept: ChangeRecord, ids: Sequence[str]) -> set[str]:
        """Return the pipeline files for which these newer changes with other commits have started runs."""
        found: set[str] = set()
        for id in ids:
            other = await self._changes.find(kept.tenant, id)
            if other is not None and other.status != WAITING and other.change.commit != kept.change.commit:
                found.update(each.file for each in other.files if each.run_id)
        return found

    async def _under_way(self, kept: ChangeRecord, statuses: Sequence[str]) -> AsyncIterator[Run]:
        for status in statuses:
            before = None
            while True:
                lists = [runs_with_status(status), runs_of_project(kept.project)]
                page = await self._store.page(ListQuery(tenant=kept.tenant, lists=lists, before=before, limit=PAGE))
                for record in page.records:
                    is_stopping = record.state == run.CANCEL_REQUESTED
                    if isinstance(record, Run) and _is_same_place(record, kept.change) and not is_stopping:
                        yield record
                before = page.next
                if before is None:
                    break

    async def _cancelled(self, record: Run, reason: str) -> bool:
        with suppress(Refused):  # It ended meanwhile.
            await self._engine.do(run.Cancel(id=record.id, reason=reason))
            return True
        return False


def _statuses(change: Change, project: Project) -> tuple[str, ...]:
    if not place_of(change) or change.tag:
        return NEVER
    policies = project.policies
    is_request = change.event == "pull_request"
    return STATUSES[policies.supersede_pull_requests if is_request else policies.supersede_pushes]


def _is_same_place(record: Run, change: Change) -> bool:
    origin = record.origin
    if origin.event != change.event:
        return False
    return origin.number == change.number if change.event == "pull_request" else origin.ref == change.ref
