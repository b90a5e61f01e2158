"""The dependencies of the steps of a workstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from deltaci.controllers.projects import Project, Projects
from deltaci.controllers.workstreams.records import Workstream, WorkstreamRecords
from deltaci.core.job import Job
from deltaci.engine.engine import Engine
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder
from deltaci.git.mirrors import Mirrors
from deltaci.pipeline.workstream import model
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStore
from deltaci.storage.port import Store, load_jobs


class WorkstreamContext(msgspec.Struct, frozen=True, kw_only=True):
    """The store, engine, projects, mirrors, blobs and logs of a server, as far as workstreams use them."""

    store: Store
    engine: Engine
    projects: Projects
    mirrors: Mirrors
    blobs: BlobStore
    logs: LogStore
    folder: Path  # of the server's data
    records: WorkstreamRecords

    async def project(self, stream: Workstream) -> Project:
        """The project that it works on; `GitFailed` when it is not there any more."""
        found = await self.projects.find(stream.tenant, stream.project)
        if found is None:
            raise GitFailed(f"the project {stream.project!r} no longer exists; add it again under the same name")
        return found

    async def builder(self, stream: Workstream) -> CommitBuilder:
        """Its repository, as this server works on it."""
        return CommitBuilder(self.mirrors.for_project(await self.project(stream)))

    async def jobs(self, run_id: str) -> list[Job]:
        """All jobs of the run, in the order of the plan."""
        return await self.store.read(lambda: load_jobs(run_id))


def spec_of(stream: Workstream) -> model.Workstream:
    """What was asked for."""
    return msgspec.convert(stream.spec, model.Workstream)


def plain(spec: model.Workstream) -> dict[str, Any]:
    """What was asked for, as it is stored."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found
