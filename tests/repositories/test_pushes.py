"""A push becomes a run with its jobs; what is told twice, superseded, skipped or broken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tests.contract.places import on_loop
from tests.repositories.site import RepositorySite
from tests.repositories.upstream import Upstream

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]


@on_loop
async def test_a_push_becomes_a_run_with_its_jobs(site: Opened, upstream: Upstream) -> None:
    """From the commit, with the reason for every job."""
    async with site() as here:
        people = await here.project(upstream.url)

        accepted = await here.pushed(upstream.first)

        change = await here.change(accepted.id)
        assert (accepted.is_new, change["status"], change["reason"]) == (
            *(True, "handled", "1 of 1 pipeline files started a run"),
        )
        [file] = change["files"]
        run = await people.run(file["run"])
        assert (run["state"], run["commit"], run["branch"]) == ("QUEUED", upstream.first, "main")
        assert (run["project"], run["file"], run["event"]) == ("shop", ".deltaci.yml", "push")
        assert (run["title"], run["labels"], run["change"]) == ("a change", ["event:push"], accepted.id)
        assert [job["name"] for job in run["jobs"]] == ["build", "test"]
        plan = (await people.get(f"/runs/{run['id']}/plan")).body
        assert [(each["name"], each["is_kept"]) for each in plan["choices"]] == [("build", True), ("test", True)]
        assert plan["file"] == ".deltaci.yml"
