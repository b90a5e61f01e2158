"""A server with a repository and a workstream, created as the workstream controller would create it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltaci.controllers.workstreams import commits
from deltaci.controllers.workstreams.records import IntegratedTask, Workstream, WorkstreamRecords
from deltaci.core import run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.job import JobSpec
from deltaci.core.run import Origin, Run
from deltaci.git.commit_builder import CommitBuilder
from deltaci.storage.blobs.store import BlobStore
from tests.controllers.site import PROJECT, RepositorySite
from tests.server.rest.site import TENANT
from tests.support.upstream import Upstream

BRANCH = "ws/login-3f9a2c"


def worktree_spec(stream: str, upstream: Upstream, **fields: Any) -> dict[str, Any]:
    """Return the worktree in a task's specification."""
    source = {"url": upstream.url, "commit": upstream.first, "ref": "refs/heads/main"}
    return {"stream": stream, "source": source, "branch": BRANCH, **fields}


class WorkstreamFixture:
    """One workstream and its tasks."""

    def __init__(self, site: RepositorySite, upstream: Upstream, id: str = "ws1") -> None:
        self.site = site
        self.upstream = upstream
        self.id = id
        self.streams = WorkstreamRecords(site.store)

    @property
    def blobs(self) -> BlobStore:
        """Return the store of bundles."""
        return self.site.service.blobs

    async def builder(self) -> CommitBuilder:
        """Return the server's commit builder."""
        repositories = self.site.service.control_plane.repositories
        project = await repositories.projects.find(TENANT, PROJECT)
        assert project is not None
        return CommitBuilder(repositories.mirrors.for_project(project))

    def task(
        self,
        name: str,
        *steps: str,
        needs: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        own: bool = False,
        **fields: Any,
    ) -> JobSpec:
        """Return the specification of a task."""
        commit_fields = {
            "message": f"{name}: what it left",
            "author": "Ada <ada@example.org>",
            **fields.pop("tree", {}),
        }
        work = {
            "steps": list(steps),
            "tree": worktree_spec(self.id, self.upstream, own=name if own else "", **commit_fields),
            **fields,
        }
        group = "" if own else f"workstream:{self.id}"
        return JobSpec(name=name, needs=needs, after=after, work=work, group=group)

    async def start(self, *jobs: JobSpec, project: str = PROJECT, is_known: bool = True) -> None:
        """Create the run and the workstream's document."""
        do = self.site.service.engine.do
        origin = Origin(project=project, workstream="login", branch="main")
        await do(NewRecord(id=self.id, record=Run(id=self.id, run_id=self.id, tenant=TENANT, origin=origin)))
        if is_known:
            document = Workstream(
                id=self.id,
                tenant=TENANT,
                name="login",
                project=project,
                base="main",
                spec={},
                base_commit=self.upstream.first,
                branch=BRANCH,
            )
            assert await self.streams.kept.add(TENANT, self.id, document)
        await do(run.BeginPlanning(id=self.id))
        await do(Plan(id=self.id, jobs=jobs, plan_hash="hash"))

    async def join(self, task: str, attempt_id: str = "") -> Workstream:
        """Integrate the commits of a task, and move the branch."""
        attempt_id = attempt_id or f"{self.id}/{task}.1"
        attempt = await self.site.store.find(attempt_id)
        stream = await self.streams.find(TENANT, self.id)
        assert isinstance(attempt, Attempt)
        assert stream is not None
        builder = await self.builder()
        head, bundle = commits.sent(attempt)
        start = await commits.taken(builder, stream, self.blobs, bundle, head)
        tip = await commits.join(builder, stream.tip, task, head)
        one = IntegratedTask(task=task, attempt_id=attempt_id, bundle=bundle, start=start, head=head, tip=tip)
        return await self.edit(lambda found: {"joined": (*found.joined, one)})

    async def edit(self, change: Callable[[Workstream], dict[str, Any]]) -> Workstream:
        """Change the document."""

        def changed(document: Workstream | None) -> Workstream:
            assert document is not None
            fields = {name: getattr(document, name) for name in Workstream.__struct_fields__}
            return Workstream(**{**fields, **change(document)})

        after = await self.streams.kept.update(TENANT, self.id, changed)
        assert after is not None
        return after
