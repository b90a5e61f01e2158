"""Cancel runs of a branch or pull request that a run for another commit replaces, as the project's policy says.

The repository decides which run counts: a run is superseded only if its branch or pull request, read from the
repository now, is at another commit. Neither the order in which changes arrive nor ancestry matters: a delivery may be
late, and a branch may be taken back. If neither of two commits is the present one, the run of the earlier event is
superseded. A change that starts no run supersedes nothing.

A server that handles a change first stores the runs of the change, then looks for runs that these supersede and for
changes that supersede these. So of two servers with two changes, one finds the runs of the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from deltaci.controllers.projects import Project
from deltaci.controllers.repositories.change_records import (
    WAITING,
    ChangeRecord,
    ChangeRecords,
    RefHistory,
    is_end,
    place_of,
)
from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.listing import runs_of_project, runs_with_status
from deltaci.core.run import Run
from deltaci.core.status.steps import PENDING, RUNNING, WAITING_APPROVAL
from deltaci.engine.engine import Engine
from deltaci.git.mirrors import Mirrors
from deltaci.pipeline.change import Change
from deltaci.storage.port import ListQuery, Store

PAGE: Final = 200
NEVER: Final[tuple[str, ...]] = ()
STATUSES: Final = {"none": NEVER, "queued": (PENDING,), "all": (PENDING, RUNNING, WAITING_APPROVAL)}
CLOSED: Final = "the pull request was closed"


class SupersedeController:
    """Finds superseded runs and cancels them."""

    def __init__(self, store: Store, engine: Engine, changes: ChangeRecords, mirrors: Mirrors) -> None:
        self._store = store
        self._engine = engine
        self._changes = changes
        self._mirrors = mirrors

    async def settled(self, record: ChangeRecord, project: Project) -> list[str]:
        """Cancel the runs that this change supersedes, and its own runs if they are superseded.

        Return the ids of the former. Safe to repeat. Raise `GitFailed` if the repository cannot be read.
        """
        statuses = _statuses(record.change, project)
        if not statuses:
            return []
        history = await self._changes.past(record)
        runs = [live_run async for live_run in self._live_runs(record, statuses)]
        own_runs = [live_run for live_run in runs if live_run.origin.change == record.id]
        other_runs = [live_run for live_run in runs if live_run.origin.change != record.id]
        if is_end(record.change):
            earlier_runs = [other for other in other_runs if history.is_before(other.origin.change, record.id)]
            return await self._cancel_all(earlier_runs, CLOSED)
        if any(event.is_end and history.is_before(record.id, event.id) for event in history.events):
            await self._cancel_all(own_runs, CLOSED)
            return []
        own_files = {outcome.file for outcome in record.files if outcome.run_id}
        competing_runs = [
            other
            for other in other_runs
            if other.origin.commit != record.change.commit and other.origin.file in own_files
        ]
        # A change that is earlier by the forge's clock supersedes nothing, even at the tip: a replica may lag.
        competing_ids = [
            event.id
            for event in history.events
            if event.commit != record.change.commit and not history.is_after_by_clock(record.id, event.id)
        ]
        if not competing_runs and not (own_runs and competing_ids):
            return []  # Do not read the repository without need.
        tip = await self._mirrors.for_project(project).remote_commit(record.change.ref)
        await self._cancel_own(record, own_runs, competing_ids, history, tip)
        superseded_runs = [
            competing_run
            for competing_run in competing_runs
            if competing_run.origin.commit != tip
            and (record.change.commit == tip or history.is_before(competing_run.origin.change, record.id))
        ]
        return await self._cancel_all(superseded_runs, _reason(record.change, tip))

    async def _cancel_own(
        self, record: ChangeRecord, own_runs: Sequence[Run], competing_ids: Sequence[str], history: RefHistory, tip: str
    ) -> None:
        """Cancel the change's own runs for which a competing change at the tip, or a later one, has started a run."""
        if record.change.commit == tip or not own_runs:
            return
        files: set[str] = set()
        for competing_id in competing_ids:
            competing = await self._changes.find(record.tenant, competing_id)
            if competing is None or competing.status == WAITING:
                continue
            if competing.change.commit == tip or history.is_before(record.id, competing_id):
                files.update(outcome.file for outcome in competing.files if outcome.run_id)
        superseded_runs = [own_run for own_run in own_runs if own_run.origin.file in files]
        await self._cancel_all(superseded_runs, _reason(record.change, tip))

    async def _live_runs(self, record: ChangeRecord, statuses: Sequence[str]) -> AsyncIterator[Run]:
        """Yield the runs of the same branch or pull request that have one of these statuses and are not stopping."""
        for status in statuses:
            before = None
            while True:
                lists = [runs_with_status(status), runs_of_project(record.project)]
                page = await self._store.page(ListQuery(tenant=record.tenant, lists=lists, before=before, limit=PAGE))
                for live_run in page.records:
                    is_stopping = live_run.state == run.CANCEL_REQUESTED
                    if isinstance(live_run, Run) and _is_same_place(live_run, record.change) and not is_stopping:
                        yield live_run
                before = page.next
                if before is None:
                    break

    async def _cancel_all(self, runs: Sequence[Run], reason: str) -> list[str]:
        """Cancel these runs, and return the ids of the runs that had not ended."""
        canceled_ids: list[str] = []
        for superseded_run in runs:
            with suppress(Refused):  # It ended meanwhile.
                await self._engine.do(run.Cancel(id=superseded_run.id, reason=f"superseded: {reason}"))
                canceled_ids.append(superseded_run.id)
        return canceled_ids


def _reason(change: Change, tip: str) -> str:
    what = "pull request" if change.event == "pull_request" else "branch"
    return f"the {what} is at {tip[:12]}" if tip else f"the {what} was deleted"


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
