"""A server with a repository and a workstream in it, as whoever keeps workstreams would make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltaci.controllers.workstreams import commits
from deltaci.controllers.workstreams.records import Joined, Workstream, Workstreams
from deltaci.core import run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.job import JobSpec
from deltaci.core.run import Origin, Run
from deltaci.git.commit_builder import CommitBuilder
from deltaci.storage.blobs.store import BlobStore
from tests.api.site import TENANT
from tests.repositories.site import PROJECT, RepositorySite
from tests.repositories.upstream import Upstream

BRANCH = "ws/login-3f9a2c"


def tree(stream: str, upstream: Upstream, **fields: Any) -> dict[str, Any]:
    """As a task's specification has it."""
    source = {"url": upstream.url, "commit": upstream.first, "ref": "refs/heads/main"}
    return {"stream": stream, "source": source, "branch": BRANCH, **fields}


class Stand:
    """One workstream `ws1`, and its tasks."""

    def __init__(self, site: RepositorySite, upstream: Upstream, id: str = "ws1") -> None:
        self.site = site
        self.upstream = upstream
        self.id = id
        self.streams = Workstreams(site.store)

    @property
    def blobs(self) -> BlobStore:
        """Where bundles are."""
        return self.site.service.blobs

    async def builder(self) -> CommitBuilder:
        """The server's own."""
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
        """One of its tasks."""
        told = {"message": f"{name}: what it left", "author": "Ada <ada@example.org>", **fields.pop("tree", {})}
        work = {"steps": list(steps), "tree": tree(self.id, self.upstream, own=name if own else "", **told), **fields}
        group = "" if own else f"workstream:{self.id}"
        return JobSpec(name=name, needs=needs, after=after, work=work, group=group)

    async def start(self, *jobs: JobSpec, project: str = PROJECT, is_known: bool = True) -> None:
        """The run and its document."""
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
        """Take what a task sent, and move the branch."""
        attempt_id = attempt_id or f"{self.id}/{task}.1"
        attempt = await self.site.store.find(attempt_id)
        stream = await self.streams.find(TENANT, self.id)
        assert isinstance(attempt, Attempt)
        assert stream is not None
        builder = await self.builder()
        head, bundle = commits.sent(attempt)
        start = await commits.taken(builder, stream, self.blobs, bundle, head)
        tip = await commits.join(builder, stream.tip, task, head)
        one = Joined(task=task, attempt_id=attempt_id, bundle=bundle, start=start, head=head, tip=tip)
        return await self.edit(lambda found: {"joined": (*found.joined, one)})

    async def edit(self, change: Callable[[Workstream], dict[str, Any]]) -> Workstream:
        """Change the document."""

        def changed(found: Workstream | None) -> Workstream:
            assert found is not None
            fields = {name: getattr(found, name) for name in Workstream.__struct_fields__}
            return Workstream(**{**fields, **change(found)})

        after = await self.streams.kept.update(TENANT, self.id, changed)
        assert after is not None
        return after
