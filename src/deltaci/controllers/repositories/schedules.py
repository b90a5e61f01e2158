"""Start scheduled runs: the files at the head of the default branch define when each runs on which branch.

A due schedule becomes a change whose delivery id contains the file, the schedule and the time, so that several servers,
or one after a crash, create one change. Of the times missed while no server ran, only the last one is started.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from deltaci.controllers.projects import Project, of
from deltaci.controllers.repositories.change_records import ChangeRecords
from deltaci.controllers.repositories.pipelines import pipelines_at
from deltaci.controllers.repositories.poller import HEADS, NEVER
from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.git.mirrors import Mirrors, RemoteRefs
from deltaci.pipeline.change import Change
from deltaci.pipeline.repository import PipelineFile
from deltaci.protocol.patterns.path_patterns import branch_filter
from deltaci.storage.port import Conflict, Document, Store

KIND: Final = "schedule"
REFRESH_SECONDS: Final = 3600
MAX_ENTRIES: Final = 500
MAX_BRANCHES: Final = 50

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LOGGER: Final = logging.getLogger(__name__)


class ScheduleEntry(msgspec.Struct, frozen=True):
    """One schedule of a pipeline file on one branch. Times up to `last` have been handled."""

    file: str
    cron: str
    timezone: str
    branch: str
    last: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what identifies the entry: file, cron expression, time zone and branch."""
        return self.file, self.cron, self.timezone, self.branch


class ProjectSchedules(msgspec.Struct, frozen=True):
    """The schedules of a project, as of its last refresh."""

    commit: str = ""
    refreshed_at: int = 0
    entries: tuple[ScheduleEntry, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ProjectSchedules).decode


class ScheduleController:
    """Creates changes for the due schedules of all projects."""

    def __init__(self, store: Store, changes: ChangeRecords, mirrors: Mirrors) -> None:
        self._store = store
        self._changes = changes
        self._mirrors = mirrors

    async def look(self, project: Project) -> float:
        """Create changes for the due schedules. Return the seconds until the next call is needed."""
        if not project.policies.schedules:
            return NEVER
        now = await self._store.now()
        document, table = await self._read(project)
        if now - table.refreshed_at >= REFRESH_SECONDS * SECOND:
            await self.refresh(project)
            document, table = await self._read(project)
        due = {each.key: at for each in table.entries if (at := last_before(each, now)) > each.last}
        if due:
            remote = await self._mirrors.for_project(project).ls_remote()
            for each in table.entries:
                if each.key in due:
                    await self._fire(project, each, due[each.key], remote)
            entries = tuple(replace(each, last=due.get(each.key, each.last)) for each in table.entries)
            await self._put(project, document, replace(table, entries=entries))
        soonest = min((next_after(each, now) for each in table.entries), default=0)
        return min(NEVER, max(1.0, (soonest - now) / SECOND)) if soonest else NEVER

    async def refresh(self, project: Project) -> None:
        """Read the schedules again from the default branch. A new entry starts now, without its past times."""
        now = await self._store.now()
        document, table = await self._read(project)
        mirror = self._mirrors.for_project(project)
        remote = await mirror.ls_remote()
        default = project.default_branch or remote.head.removeprefix(HEADS)
        commit = remote.refs.get(f"{HEADS}{default}", "")
        found: list[ScheduleEntry] = []
        if commit:
            await mirror.ensure_commit(commit, f"{HEADS}{default}")
            branches = [ref.removeprefix(HEADS) for ref in remote.refs if ref.startswith(HEADS)]
            for file in await pipelines_at(mirror, commit):
                found += _entries(file, default, branches)
        known = {each.key: each.last for each in table.entries}
        entries = tuple(replace(each, last=known.get(each.key, now)) for each in found[:MAX_ENTRIES])
        await self._put(project, document, ProjectSchedules(commit, now, entries))

    async def _fire(self, project: Project, entry: ScheduleEntry, at: int, remote: RemoteRefs) -> None:
        commit = remote.refs.get(f"{HEADS}{entry.branch}", "")
        if not commit:
            return
        change = Change(
            event="schedule",
            commit=commit,
            ref=f"{HEADS}{entry.branch}",
            branch=entry.branch,
            default_branch=project.default_branch or remote.head.removeprefix(HEADS),
            cron=entry.cron,
            payload={"schedule": entry.cron},
        )
        delivery = f"{entry.file[:200]} {entry.cron[:100]} {entry.timezone} {entry.branch[:100]} {at}"
        await self._changes.accept(project.tenant, project.name, change, delivery, source="schedule", file=entry.file)

    async def _read(self, project: Project) -> tuple[int, ProjectSchedules]:
        found = await self._store.find_document(KIND, of(project.tenant, project.name), ALL_TENANTS)
        return (found.version, _decode(found.body)) if found is not None else (0, ProjectSchedules())

    async def forget(self, project: Project) -> None:
        """Delete the stored schedules of a project."""
        name = of(project.tenant, project.name)
        found = await self._store.find_document(KIND, name, ALL_TENANTS)
        if found is not None:
            await self._store.delete_document(KIND, ALL_TENANTS, name, found.version)

    async def _put(self, project: Project, version: int, table: ProjectSchedules) -> None:
        name = of(project.tenant, project.name)
        try:
            await self._store.put_documents([Document(KIND, ALL_TENANTS, name, version, 0, _encode(table))])
        except Conflict:
            return  # Another server did the same; what is due is one change all the same.


def _entries(file: PipelineFile, default: str, branches: Iterable[str]) -> list[ScheduleEntry]:
    pipeline = file.result.pipeline
    found: list[ScheduleEntry] = []
    for each in (pipeline.on.schedule or ()) if pipeline is not None else ():
        zone = str(getattr(each, "timezone", "") or "UTC")
        names = [default]
        if each.branches is not None:
            wanted = branch_filter(each.branches)
            names = [name for name in sorted(branches) if wanted.matches(name)][:MAX_BRANCHES]
        found += [ScheduleEntry(file.result.file, each.cron, zone, name) for name in names]
    return found


def last_before(entry: ScheduleEntry, now: int) -> int:
    """Return the last time of an entry up to now, or 0 if there is none or the entry is invalid."""
    return _step(entry, _EPOCH + timedelta(microseconds=now + 1), is_back=True)


def next_after(entry: ScheduleEntry, now: int) -> int:
    """Return the next time of an entry, or 0 if there is none or the entry is invalid."""
    return _step(entry, _EPOCH + timedelta(microseconds=now), is_back=False)


def _step(entry: ScheduleEntry, at: datetime, *, is_back: bool) -> int:
    try:
        found = next(CronSim(entry.cron, at.astimezone(ZoneInfo(entry.timezone)), reverse=is_back))
    except (CronSimError, ZoneInfoNotFoundError, StopIteration, ValueError, OSError):
        return 0
    return (found.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
