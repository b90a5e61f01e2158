"""Pull requests: compared with where they want to go, superseded, closed; and from forks nobody trusts them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from deltaci.pipeline.change import Change
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import RepositorySite
from tests.server.rest.site import TIME
from tests.support.upstream import Upstream, git

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]


def request(upstream: Upstream, commit: str, action: str = "opened", **fields: Any) -> Change:
    """Pull request 7, whose head is where forges keep it."""
    git(upstream.tree, "push", "-q", "--force", "origin", f"{commit}:refs/pull/7/head")
    told: dict[str, Any] = {"ref": "refs/pull/7/head", "branch": "main", "head": "topic", "number": 7}
    told |= {"action": action, "base": upstream.first, "title": "a proposal", "actor": "eve", **fields}
    return Change(event="pull_request", commit=commit, **told)


@on_loop
async def test_a_pull_request_runs_at_its_head(site: Opened, upstream: Upstream) -> None:
    """What is only in its own ref is found there; it is compared with where it left the branch."""
    async with site() as here:
        people = await here.project(upstream.url)
        upstream.switch("topic")
        commit = upstream.commit({"a": "1"})

        change = await here.change((await here.happened(request(upstream, commit), "d")).id)

        run = await people.run(change["files"][0]["run"])
        assert (run["commit"], run["branch"], run["number"]) == (commit, "main", 7)
        assert (run["title"], run["started_by"], run["event"]) == ("a proposal", "eve", "pull_request")
        assert (await people.get(f"/runs/{run['id']}/plan")).body["compared_with"] == upstream.first


@on_loop
async def test_a_newer_commit_cancels_what_runs_and_a_label_does_not(site: Opened, upstream: Upstream) -> None:
    """Other news about the same commit takes nothing away."""
    async with site() as here:
        people = await here.project(upstream.url)
        upstream.switch("topic")
        one = upstream.commit({"a": "1"})
        first = await here.change((await here.happened(request(upstream, one), "d1")).id)
        runner = await here.register_runner()
        lease = await runner.take()

        labelled = await here.change((await here.happened(request(upstream, one, "labeled"), "d2")).id)
        before = (await people.run(first["files"][0]["run"]))["status"]
        two = upstream.commit({"a": "2"})
        second = await here.change((await here.happened(request(upstream, two, "synchronize"), "d3")).id)

        assert (labelled["files"][0]["run"], before) == ("", "RUNNING")
        assert second["superseded"] == [first["files"][0]["run"]]
        assert (await people.run(first["files"][0]["run"]))["state"] == "CANCEL_REQUESTED"
        assert (await runner.send(lease, "CancelAck", final_status="CANCELED", ts=TIME))["accepted"]


@on_loop
async def test_one_that_is_closed_is_not_worked_on_any_more(site: Opened, upstream: Upstream) -> None:
    """And one that is opened again is."""
    async with site() as here:
        people = await here.project(upstream.url)
        upstream.switch("topic")
        one = upstream.commit({"a": "1"})
        first = await here.change((await here.happened(request(upstream, one), "d1")).id)

        closed = await here.change((await here.happened(request(upstream, one, "closed"), "d2")).id)
        again = await here.change((await here.happened(request(upstream, one, "reopened"), "d3")).id)

        run = await people.run(first["files"][0]["run"])
        assert (run["status"], run["reason"]) == ("CANCELED", "superseded: the pull request was closed")
        assert closed["superseded"] == [run["id"]]
        assert (await people.run(again["files"][0]["run"]))["status"] == "PENDING"


@on_loop
async def test_the_same_news_of_a_pull_request_is_one_event(site: Opened, upstream: Upstream, backend: Backend) -> None:
    """Without an id, within ten minutes; later it can have happened again."""
    async with site() as here:
        await here.project(upstream.url)
        upstream.switch("topic")
        told = request(upstream, upstream.commit({"a": "1"}), "reopened")

        first = await here.happened(told, "", "webhook")
        second = await here.happened(told, "", "webhook")
        backend.after(3600)
        later = await here.happened(told, "", "webhook")

        assert [each.is_new for each in (first, second, later)] == [True, False, True]


@on_loop
async def test_a_fork_waits_for_somebody_with_the_role(site: Opened, upstream: Upstream) -> None:
    """Nothing of it runs before, whatever its files say; and who sent it does not approve it."""
    async with site() as here:
        await here.project(upstream.url, policies={"fork_role": "maintainer"})
        upstream.switch("topic")
        commit = upstream.commit({".deltaci.yml": "on: pull_request\njobs:\n  evil:\n    steps: [run: x]\n"})

        change = await here.change((await here.happened(request(upstream, commit, is_fork=True), "d")).id)

        id = change["files"][0]["run"]
        anybody = await here.key("bob", "approve")
        sender = await here.key("eve", "approve", roles=["maintainer"])
        maintainer = await here.key("ada", "approve", roles=["maintainer"])
        run = await maintainer.run(id)
        assert (run["is_fork"], run["status"]) == (True, "WAITING_APPROVAL")
        assert [(job["name"], job["kind"]) for job in run["jobs"]] == [("approve-fork", "approval"), ("evil", "task")]
        assert (await anybody.post(f"/runs/{id}/approve")).code == "not_allowed"
        assert (await sender.post(f"/runs/{id}/approve")).code == "not_allowed"
        assert (await maintainer.post(f"/runs/{id}/approve")).status == 200
        assert (await maintainer.run(id))["jobs"][1]["status"] == "PENDING"
