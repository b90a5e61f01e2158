"""Stories of real repositories, through the webhook endpoint: late, repeated and lost deliveries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deltaci.controllers.repositories.changes import MAX_TRIES
from tests.contract.backends import on_loop
from tests.controllers.site import RepositorySite
from tests.forges.fake_forge import FakeForge, PlannedResponse
from tests.forges.payloads import (
    ZERO,
    WebhookRequest,
    github,
    github_pull_request,
    github_push,
)
from tests.forges.test_server import NAME, deliver, push_event, serving
from tests.support.upstream import Upstream, git

LIVE = ("PENDING", "RUNNING")


@asynccontextmanager
async def github_site(folder: Path, upstream: Upstream, **policies: Any) -> AsyncIterator[RepositorySite]:
    """Run a server with a project of GitHub."""
    async with serving(folder) as site:
        await site.project(upstream.url, forge="github", webhook_secret="HOOK", policies=policies)
        yield site


def github_ref_push(ref: str, before: str, after: str, delivery: str, pushed_at: int = 1767513600) -> WebhookRequest:
    """Return GitHub's push event of any ref."""
    repository = {"id": 140, "full_name": NAME, "default_branch": "main", "pushed_at": pushed_at}
    return github("push", github_push(ref, before, after, repository=repository), delivery=delivery)


def pull_event(upstream: Upstream, action: str, commit: str, delivery: str) -> WebhookRequest:
    """Return an event of pull request 7 of GitHub."""
    payload = github_pull_request(action)
    payload["repository"] |= {"full_name": NAME}
    payload["pull_request"]["head"]["sha"] = commit
    payload["pull_request"]["base"]["sha"] = upstream.first
    return github("pull_request", payload, delivery=delivery)


def move_pull_request(upstream: Upstream, commit: str) -> None:
    """Point the head of pull request 7 to a commit."""
    git(upstream.tree, "push", "-q", "--force", "origin", f"{commit}:refs/pull/7/head")


async def live_commits(site: RepositorySite) -> list[str]:
    """Return the commit of each run that has neither ended nor been cancelled."""
    return [run["commit"] for run in await site.runs() if run["status"] in LIVE]


@on_loop
async def test_a_late_delivery_does_not_cancel_the_run_of_the_newer_head(tmp_path: Path) -> None:
    """The branch is read from the repository; the order of arrival says nothing."""
    upstream = Upstream(tmp_path / "upstream")
    older = upstream.push({"a": "1"})
    newer = upstream.push({"a": "2"})
    async with github_site(tmp_path, upstream) as here:
        await deliver(here, push_event("github", older, newer, "second"))
        status, response = await deliver(here, push_event("github", upstream.first, older, "first"))

        assert (status, response["result"]) == (202, "accepted")
        assert await live_commits(here) == [newer]
        assert [run["reason"] for run in await here.runs() if run["commit"] == older] == [
            f"superseded: the branch is at {newer[:12]}"
        ]


@on_loop
async def test_a_branch_that_is_taken_back_supersedes_its_descendants(tmp_path: Path) -> None:
    """The older commit is the head now, so its run counts and that of its descendant is cancelled."""
    upstream = Upstream(tmp_path / "upstream")
    older = upstream.push({"a": "1"})
    async with github_site(tmp_path, upstream) as here:
        await deliver(here, push_event("github", upstream.first, older, "d1"))
        newer = upstream.push({"a": "2"})
        await deliver(here, push_event("github", older, newer, "d2"))
        git(upstream.tree, "push", "-q", "--force", "origin", f"{older}:refs/heads/main")

        _, response = await deliver(here, push_event("github", newer, older, "d3"))

        assert response["result"] == "accepted"
        assert await live_commits(here) == [older]


@on_loop
async def test_a_repository_that_lags_behind_its_webhook_cancels_no_newer_run(tmp_path: Path) -> None:
    """A replica may still show the older commit. By the forge's clock, that push is older, so nothing is cancelled."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.push({"a": "1"}, branch="not-main-yet")
    main = "refs/heads/main"
    async with github_site(tmp_path, upstream) as here:
        await deliver(here, github_ref_push(main, ZERO, upstream.first, "d1", pushed_at=1767513600))
        await deliver(here, github_ref_push(main, upstream.first, second, "d2", pushed_at=1767513601))

        assert await live_commits(here) == [second, upstream.first]


@on_loop
async def test_a_pull_request_may_be_closed_and_reopened_any_number_of_times(tmp_path: Path) -> None:
    """Each delivery with an id of its own is an event of its own."""
    upstream = Upstream(tmp_path / "upstream")
    upstream.switch("gate")
    commit = upstream.commit({"a": "1"})
    move_pull_request(upstream, commit)
    actions = ["opened", "closed", "reopened", "closed", "reopened"]
    async with github_site(tmp_path, upstream) as here:
        responses = [
            (await deliver(here, pull_event(upstream, action, commit, f"d{number}")))[1]["result"]
            for number, action in enumerate(actions)
        ]

        assert responses == ["accepted"] * 5
        assert sorted(run["status"] for run in await here.runs()) == ["CANCELED", "CANCELED", "PENDING"]


@on_loop
async def test_a_pull_request_may_be_forced_back_to_an_earlier_commit(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "upstream")
    upstream.switch("gate")
    one, two = upstream.commit({"a": "1"}), upstream.commit({"a": "2"})
    async with github_site(tmp_path, upstream) as here:
        responses = []
        for number, commit in enumerate([two, one, two]):
            move_pull_request(upstream, commit)
            event = pull_event(upstream, "synchronize", commit, f"d{number}")
            responses.append((await deliver(here, event))[1]["result"])

        assert responses == ["accepted"] * 3
        assert await live_commits(here) == [two]


@pytest.mark.parametrize("ref", ["refs/tags/v1", "refs/heads/topic"])
@on_loop
async def test_a_ref_that_is_deleted_and_pushed_again_is_built_again(tmp_path: Path, ref: str) -> None:
    upstream = Upstream(tmp_path / "upstream")
    git(upstream.tree, "push", "-q", "origin", f"HEAD:{ref}")
    async with github_site(tmp_path, upstream) as here:
        events = [
            github_ref_push(ref, ZERO, upstream.first, "d1"),
            github_ref_push(ref, upstream.first, ZERO, "d2"),
            github_ref_push(ref, ZERO, upstream.first, "d3"),
        ]
        responses = [(await deliver(here, event))[1]["result"] for event in events]

        assert responses == ["accepted", "ignored", "accepted"]
        assert [run["commit"] for run in await here.runs()] == [upstream.first] * 2


@on_loop
async def test_a_redelivery_is_answered_with_what_became_of_the_first_delivery(tmp_path: Path) -> None:
    """A forge's button `Redeliver` sends the same id: handled, it names its runs; ignored, the reason."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.push({"a": "1"})
    async with github_site(tmp_path, upstream) as here:
        push = push_event("github", upstream.first, second, "d1")
        deletion = push_event("github", second, ZERO, "d2")
        for event in (push, deletion):
            await deliver(here, event)
        [run] = await here.runs()

        handled, ignored = [await deliver(here, event) for event in (push, deletion)]

        assert handled[0] == ignored[0] == 200
        assert (handled[1]["result"], handled[1]["runs"]) == ("duplicate", [run["id"]])
        assert handled[1]["why"] == "it was delivered before: 1 of 1 pipeline files started a run"
        assert ignored[1]["result"] == "duplicate"
        assert ignored[1]["why"] == "it was delivered before: the branch 'main' was deleted"
        assert len(await here.runs()) == 1


@on_loop
async def test_a_delivery_during_an_outage_of_the_repository_is_reported_and_handled_afterwards(tmp_path: Path) -> None:
    """Eleven minutes are more than a few tries; the error is a status of its own, which the success replaces."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.push({"a": "1"})
    away = upstream.bare.with_name("away.git")
    async with FakeForge() as forge, serving(tmp_path, forge.host) as here:
        fields: dict[str, Any] = {
            "forge": "github",
            "webhook_secret": "HOOK",
            "api_url": forge.url,
            "api_token": "TOKEN",
        }
        await here.project(upstream.url, **fields)
        upstream.bare.rename(away)

        _, response = await deliver(here, push_event("github", upstream.first, second))
        for _ in range(11):
            here.backend.after(60)
            await here.settled()
        waiting = await here.change(response["change"])
        await forge.wait_until(lambda: len(forge.accepted) > 0)
        reported = dict(forge.accepted[-1].body)
        away.rename(upstream.bare)
        here.backend.after(640)
        await here.settled()
        await forge.wait_until(lambda: delivery_states(forge)[-1:] == ["success"])

        assert waiting["status"] == "waiting"
        assert (reported["state"], reported["context"]) == ("error", "deltaci (delivery)")
        assert reported["description"].startswith("cannot be handled: git fetch failed: ")
        assert (await here.change(response["change"]))["status"] == "handled"
        assert [run["commit"] for run in await here.runs()] == [second]


def delivery_states(forge: FakeForge) -> list[str]:
    """Return the states of the status of the delivery itself that the forge accepted, in order."""
    return [request.body["state"] for request in forge.accepted if request.body["context"] == "deltaci (delivery)"]


@pytest.mark.parametrize("by", ["forge", "command"])
@on_loop
async def test_a_change_that_could_not_be_handled_can_be_delivered_again(tmp_path: Path, by: str) -> None:
    """By the forge under the same id, or by a command. One that was handled cannot."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.commit({"a": "1"})
    async with github_site(tmp_path, upstream) as here:
        event = push_event("github", upstream.first, second)
        _, first = await deliver(here, event)
        for _ in range(MAX_TRIES):
            here.backend.after(3600)
            await here.settled()
        aside = await here.change(first["change"])
        git(upstream.tree, "push", "-q", "origin", "HEAD:main")
        operator = here.operator()

        if by == "forge":
            status, again = await deliver(here, event)
            assert (status, again["result"], again["change"]) == (202, "accepted", first["change"])
            assert again["why"].startswith("it could not be handled before: the repository has no commit")
        else:
            assert (await operator.post(f"/changes/{first['change']}/redeliver")).status == 200
            await here.settled()

        assert aside["status"] == "put_aside"
        assert (await here.change(first["change"]))["status"] == "handled"
        assert [run["commit"] for run in await here.runs()] == [second]
        refused = await operator.post(f"/changes/{first['change']}/redeliver")
        assert (refused.status, refused.code) == (409, "wrong_state")


@on_loop
async def test_the_log_of_a_project_has_every_authenticated_delivery(tmp_path: Path) -> None:
    """With its answer and the runs of its change, the newest first."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.push({"a": "1"})
    async with github_site(tmp_path, upstream) as here:
        push = push_event("github", upstream.first, second, "d1")
        for event in (
            github("ping", {"zen": "Design for failure."}, delivery="d0"),
            push,
            push,
            push_event("github", second, ZERO, "d2"),
            github("push", {"ref": "refs/heads/main"}, delivery="d3"),
            github("push", github_push(), delivery="d4", secret="a guess"),
        ):
            await deliver(here, event)
        [run] = await here.runs()

        page = (await here.operator().get("/projects/shop/deliveries?limit=4")).body
        rest = (await here.operator().get(f"/projects/shop/deliveries?cursor={page['next']}")).body

        entries = [*page["deliveries"], *rest["deliveries"]]
        assert [(entry["delivery"], entry["event"], entry["result"]) for entry in entries] == [
            ("d3", "push", "refused"),
            ("d2", "push", "ignored"),
            ("d1", "push", "duplicate"),
            ("d1", "push", "accepted"),
            ("d0", "ping", "pong"),
        ]
        assert [entry["runs"] for entry in entries] == [[], [], [run["id"]], [run["id"]], []]
        assert entries[0]["reason"].startswith("Object missing required field")
        assert entries[1]["reason"] == "the branch 'main' was deleted"
        assert entries[3]["reason"] == "1 of 1 pipeline files started a run"
        assert rest["next"] is None


@pytest.mark.parametrize("is_confirmed", [True, False])
@on_loop
async def test_a_renamed_repository_is_followed_by_its_id(tmp_path: Path, *, is_confirmed: bool) -> None:
    """The project's URL changes only if the forge's API confirms the new name. Another repository stays ignored."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.push({"a": "1"})
    third = upstream.push({"a": "2"})
    renamed = push_event("github", second, third, "d2").body.replace(b"upstream/shop", b"upstream/store")
    other = renamed.replace(b'"id": 140', b'"id": 141')
    async with FakeForge() as forge, serving(tmp_path, forge.host) as here:
        forge.default = PlannedResponse(200, {}, {"id": 140, "full_name": "upstream/store" if is_confirmed else NAME})
        fields: dict[str, Any] = {
            "forge": "github",
            "webhook_secret": "HOOK",
            "api_url": forge.url,
            "api_token": "TOKEN",
        }
        operator = await here.project(upstream.url, **fields)
        await deliver(here, push_event("github", upstream.first, second, "d1"))
        if is_confirmed:
            upstream.bare.rename(upstream.bare.with_name("store.git"))

        responses = [
            (await deliver(here, github("push", json.loads(body), delivery=delivery)))[1]["result"]
            for body, delivery in ((other, "d3"), (renamed, "d2"))
        ]

        assert responses == ["ignored", "accepted"]
        url = (await operator.get("/projects/shop")).body["url"]
        assert url == (upstream.url.replace("shop.git", "store.git") if is_confirmed else upstream.url)
        assert [run["commit"] for run in await here.runs()] == [third, second]
        assert [request.path for request in forge.received if request.method == "GET"] == ["/repositories/140"]
