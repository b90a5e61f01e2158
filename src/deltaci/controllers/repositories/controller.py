"""Start, stop and connect the controllers for repositories: changes, planner, poller and schedules."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deltaci.controllers.projects import BETWEEN, Project, Projects, of
from deltaci.controllers.repositories.change_records import ChangeRecord, ChangeRecords
from deltaci.controllers.repositories.changes import ChangeHandler
from deltaci.controllers.repositories.planner import RunPlanner
from deltaci.controllers.repositories.poller import HEADS, NEVER, Poller
from deltaci.controllers.repositories.schedules import ScheduleController
from deltaci.controllers.work_queue import KeyedWorkQueue
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.engine.engine import Engine
from deltaci.git.command import GitFailed
from deltaci.git.mirrors import FOLDER, Mirrors, ReadSecret
from deltaci.git.url_policy import UrlPolicy
from deltaci.storage.port import Store

WATCH_SECONDS: Final = 5.0
TROUBLE_SECONDS: Final = 60.0
MACHINE_FILE: Final = "machine"

LOGGER: Final = logging.getLogger(__name__)


class RepositoryController:
    """Starts and stops all controllers for repositories. Start it after the engine and stop it before."""

    def __init__(
        self, store: Store, engine: Engine, folder: Path, read_secret: ReadSecret, url_policy: UrlPolicy | None = None
    ) -> None:
        self.projects = Projects(engine, store)
        self.changes = ChangeRecords(store)
        self.url_policy = url_policy or UrlPolicy()
        self.mirrors = Mirrors(folder, self.url_policy, read_secret)
        self.owner = owner = f"{_machine(folder / FOLDER)}/{secrets.token_hex(8)}"
        self.handling = ChangeHandler(store, engine, self.projects, self.changes, self.mirrors, owner)
        self.planner = RunPlanner(store, engine, self.projects, self.changes, self.mirrors, owner)
        self.polling = Poller(store, self.changes, self.mirrors)
        self.schedules = ScheduleController(store, self.changes, self.mirrors)
        self.handling.tell(self._pushed)
        self._project_queue = KeyedWorkQueue("watch", self._look, resync=self._watch, resync_seconds=WATCH_SECONDS)
        self._due: dict[str, float] = {}

    def on_events(self, events: Sequence[Event]) -> None:
        """Pass events to the planner. The follower of the event log calls this."""
        self.planner.on_events(events)

    def start(self) -> None:
        """Start the controllers, beginning with unfinished work."""
        self.handling.work_queue.start()
        self.planner.work_queue.start()
        self._project_queue.start()

    async def stop(self) -> None:
        """Stop the controllers."""
        await self._project_queue.stop()
        await self.planner.work_queue.stop()
        await self.handling.work_queue.stop()

    async def forget(self, project: Project) -> None:
        """Delete the mirror, the schedules and the poll state of a removed project."""
        await self.mirrors.for_project(project).delete()
        await self.schedules.forget(project)
        await self.polling.forget(project)

    async def settled(self) -> None:
        """Wait until all accepted changes are handled and all runs are planned, as far as possible now."""
        await self.handling.resync()
        await self.handling.work_queue.join()
        await self.planner.resync()
        await self.planner.work_queue.join()

    async def _watch(self) -> None:
        """Queue the projects whose next poll or schedule is due."""
        loop = asyncio.get_running_loop()
        due: dict[str, float] = {}
        async for project in self.projects.each():
            name = of(project.tenant, f"{project.name}{BETWEEN}{project.version}")
            due[name] = self._due.get(name, 0)
            if due[name] <= loop.time():
                due[name] = loop.time() + TROUBLE_SECONDS
                self._project_queue.add(name)
        self._due = due  # Without those that are no more.

    async def _look(self, name: str) -> None:
        tenant, project_name, version = name.split(BETWEEN)
        project = await self.projects.find(tenant, project_name)
        if project is None or str(project.version) != version:
            self._due.pop(name, None)
            return
        wait = NEVER
        for look in (self.polling.look, self.schedules.look):
            try:
                wait = min(wait, await look(project))
            except (GitFailed, Refused) as error:
                wait = min(wait, TROUBLE_SECONDS)
                LOGGER.warning("cannot poll project %s of %s: %s", project.name, tenant, error)
        self._due[name] = asyncio.get_running_loop().time() + wait

    async def _pushed(self, project: Project, kept: ChangeRecord) -> None:
        """Refresh the schedules of a project after a push to its default branch."""
        change = kept.change
        if change.event != "push" or change.ref != f"{HEADS}{project.default_branch or change.default_branch}":
            return
        if project.policies.schedules:
            try:
                await self.schedules.refresh(project)
                self._due.pop(of(project.tenant, f"{project.name}{BETWEEN}{project.version}"), None)
            except (GitFailed, Refused) as error:
                LOGGER.warning("cannot read the schedules of project %s: %s", project.name, error)


def _machine(folder: Path) -> str:
    """Return the name of this data folder, which is created once.

    A process takes over the claims of an earlier process of the same folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MACHINE_FILE
    try:
        if name := path.read_text("ascii").strip():
            return name
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    path.write_text(name := secrets.token_hex(8), "ascii")
    return name
