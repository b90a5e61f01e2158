"""A whole server, a real repository and a forge: a signed push is built and its status sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from deltaci.app import KEY_FILE, HttpListener, Server
from deltaci.server.auth.credentials import load_server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.port import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Backend, legal, on_loop
from tests.controllers.site import LOCAL, PROJECT, RepositorySite
from tests.forges.fake_forge import FakeForge
from tests.forges.payloads import (
    SECRET,
    WebhookRequest,
    gitea,
    gitea_pull_request,
    gitea_push,
    github,
    github_pull_request,
    github_push,
    gitlab,
    gitlab_push,
    plain_git,
)
from tests.server.rest.site import TENANT, WAIT_SECONDS
from tests.support.plain_http import NO_TLS
from tests.support.upstream import Upstream, git

NAME = "upstream/shop"


@asynccontextmanager
async def serving(folder: Path, *allowed: str) -> AsyncIterator[RepositorySite]:
    """Run a server. When it stops, verify its log."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    backend = Backend("sqlite", lambda at: SqliteStore(str(folder / "ci.db"), clock=at.now), origin=wall_clock)
    service = Server(
        backend.store(), data, url_policy=LOCAL, allowed_forges=allowed, public_url="https://ci.example.org/"
    )
    async with service:
        secrets = Secrets(service.blobs, load_server_key(data / KEY_FILE))
        secrets.set(TENANT, "HOOK", SECRET)
        secrets.set(TENANT, "TOKEN", "a token of the project's own")
        listener = HttpListener(service, "127.0.0.1", 0)
        task = asyncio.create_task(listener.serve())
        try:
            async with httpx.AsyncClient(
                verify=NO_TLS, base_url=listener.url, timeout=WAIT_SECONDS, trust_env=False
            ) as http:
                site = RepositorySite(backend, service, listener.url, data, http)
                yield site
                legal(await site.log())
        finally:
            listener.stop()
            await task


async def deliver(site: RepositorySite, sent: WebhookRequest) -> tuple[int, Any]:
    """Send one delivery to the project and wait until its effects are complete."""
    answer = await site.http.post(f"/hooks/{TENANT}/{PROJECT}", content=sent.body, headers=sent.headers)
    await site.settled()
    return answer.status_code, answer.json()


def push_event(forge: str, before: str, after: str, delivery: str = "delivery") -> WebhookRequest:
    """Return a push event in this forge's form."""
    repository = {"id": 140, "full_name": NAME, "default_branch": "main", "pushed_at": 1767513600}
    head = {"id": after, "message": "a change"}
    if forge == "github":
        return github("push", github_push(before=before, after=after, repository=repository), delivery=delivery)
    if forge == "gitea":
        return gitea("push", gitea_push(before=before, after=after, repository=repository), delivery=delivery)
    if forge == "gitlab":
        project = {"id": 15, "path_with_namespace": NAME, "default_branch": "main"}
        payload = gitlab_push(before=before, after=after, checkout_sha=after, commits=[head], project=project)
        return gitlab("Push Hook", payload, uuid=delivery)
    return plain_git(at=int(time.time()), before=before, after=after, delivery=delivery)


@pytest.mark.parametrize("forge", ["github", "gitlab", "gitea"])
@on_loop
async def test_a_pushed_commit_is_built_and_its_status_is_sent(tmp_path: Path, forge: str) -> None:
    """A delivery that is repeated or forged has no effect."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.push({"a": "1"})
    sent = push_event(forge, upstream.first, second)
    async with FakeForge() as played, serving(tmp_path, played.host) as here:
        people = await here.project(
            upstream.url, forge=forge, webhook_secret="HOOK", api_url=played.url, api_token="TOKEN"
        )

        altered = WebhookRequest({**sent.headers, "X-Gitlab-Token": "a guess"}, sent.body.replace(b"ada", b"eve"))
        forged = await deliver(here, altered)
        status, response = await deliver(here, sent)
        _, repeated = await deliver(here, sent)
        [run] = await here.runs()
        runner = await here.register_runner()
        for _ in range(2):
            await runner.finish(await runner.take())
        await here.until(people, run["id"], "REPORTED")

        assert (forged[0], forged[1]["result"]) == (401, "refused")
        assert (status, response["result"]) == (202, "accepted")
        assert (repeated["result"], repeated["change"]) == ("duplicate", response["change"])
        assert repeated["runs"] == [run["id"]]
        assert (run["commit"], run["project"], run["file"]) == (second, PROJECT, ".deltaci.yml")
        assert {each.path.rpartition("/")[2] for each in played.accepted} == {second}
        last = played.accepted[-1].body
        assert (last["state"], last["description"]) == ("success", "succeeded")
        assert last["target_url"] == f"https://ci.example.org/runs/{run['id']}"
        assert [event.metadata["told"] for event in await here.log() if event.to == "REPORTED"] == ["success"]


@on_loop
async def test_a_bare_repository_reports_pushes_by_its_hook(tmp_path: Path) -> None:
    """It gets no statuses, so the run is reported as soon as it is over."""
    upstream = Upstream(tmp_path / "upstream")
    second = upstream.push({"a": "1"})
    async with serving(tmp_path) as here:
        people = await here.project(upstream.url, webhook_secret="HOOK")

        status, response = await deliver(here, push_event("git", upstream.first, second))
        [run] = await here.runs()
        runner = await here.register_runner()
        for _ in range(2):
            await runner.finish(await runner.take())
        await here.until(people, run["id"], "REPORTED")

        assert (status, response["result"], run["commit"]) == (202, "accepted", second)
        assert all("told" not in event.metadata for event in await here.log())


@pytest.mark.parametrize("forge", ["github", "gitea"])
@on_loop
async def test_a_fork_waits_for_approval_and_the_status_says_so(tmp_path: Path, forge: str) -> None:
    """Its jobs run only after approval by a person."""
    upstream = Upstream(tmp_path / "upstream")
    upstream.switch("theirs", upstream.first)
    theirs = upstream.commit({"b": "2"})
    git(upstream.tree, "push", "-q", "origin", "HEAD:refs/pull/7/head")
    make = {"github": (github, github_pull_request), "gitea": (gitea, gitea_pull_request)}[forge]
    payload = make[1](head_repo="fork")
    payload["repository"] |= {"full_name": NAME}
    payload["pull_request"]["head"]["sha"] = theirs
    payload["pull_request"]["base"]["sha"] = upstream.first
    async with FakeForge() as played, serving(tmp_path, played.host) as here:
        await here.project(upstream.url, forge=forge, webhook_secret="HOOK", api_url=played.url, api_token="TOKEN")

        status, response = await deliver(here, make[0]("pull_request", payload))
        [run] = await here.runs()
        await played.wait_until(lambda: any("approval" in each.body["description"] for each in played.accepted))

        assert (status, response["result"]) == (202, "accepted")
        assert (run["commit"], run["event"]) == (theirs, "pull_request")
        assert played.accepted[-1].body["state"] == "pending"


@on_loop
async def test_the_connection_of_an_endless_body_is_closed(tmp_path: Path) -> None:
    """By the received size, whatever the headers declare."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1_000_000

    async with serving(tmp_path) as here:
        with suppress(httpx.NetworkError):  # It may be hung up on while it still writes, and cannot read why.
            answer = await here.http.post(f"/hooks/{TENANT}/{PROJECT}", content=endless())
            assert answer.status_code == 413
        assert not await here.runs()
