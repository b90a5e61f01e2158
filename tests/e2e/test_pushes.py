"""From a push to a green check, through real processes: a bare repository, its hook or a forge's webhook, a server, a
runner, and a forge that is told."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from deltaci.app import BLOBS_FOLDER, KEY_FILE
from deltaci.core import run
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.blobs.store import FolderBlobStore
from tests.e2e.deployment import Deployment, deployed, on_loop
from tests.forges.fake_forge import FakeForge
from tests.forges.payloads import SECRET, WebhookRequest, gitea, gitea_push, github, github_push, gitlab, gitlab_push
from tests.support.plain_http import NO_TLS
from tests.support.upstream import Upstream

PIPELINE: Final = """\
on: push
jobs:
  build:
    steps:
      - test "$(git rev-parse HEAD)" = '${{ github.sha }}'
      - {id: read, run: 'echo "word=$(cat README)" >> "$DELTACI_OUTPUT"'}
    outputs: {word: '${{ steps.read.outputs.word }}'}
  test:
    needs: build
    steps:
      - test '${{ needs.build.outputs.word }}' = hello
  docs:
    if: github.ref == 'refs/heads/docs'
    steps: [exit 1]
"""
TOKEN: Final = "the-forges-own-token"


class Person:
    """Somebody at the server's machine, with the API and the command line."""

    def __init__(self, place: Deployment, http: httpx.AsyncClient) -> None:
        self._place = place
        self._http = http
        self._key = Signer(load_server_key(place.folder / KEY_FILE), time.time).sign("operate", "root", "default", 600)

    def keep(self, **secrets: str) -> None:
        """Set secrets."""
        key = load_server_key(self._place.folder / KEY_FILE)
        for name, value in secrets.items():
            Secrets(FolderBlobStore(self._place.folder / BLOBS_FOLDER), key).set("default", name, value)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of the API."""
        headers = {"Authorization": f"Bearer {self._key}"}
        answer = await self._http.request(method, f"/api/v1{path}", json=body, headers=headers)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def deltaci(self, *words: str) -> str:
        """The command line."""
        told = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "deltaci", *words],
            env={**os.environ, "DELTACI_SERVER": self._place.url, "DELTACI_KEY": self._key},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert told.returncode == 0, told.stderr.decode()
        return told.stdout.decode()

    async def runs(self) -> list[Any]:
        """All runs, the newest first."""
        return list((await self.ask("GET", "/runs"))["runs"])


async def finished(place: Deployment, person: Person) -> Any:
    """The only run, once it is reported."""
    [found] = await person.runs()
    await place.until(found["id"], lambda event: event.entity == "run" and event.to in run.TERMINAL)
    return await person.ask("GET", f"/runs/{found['id']}")


def green(told: list[Any]) -> list[str]:
    """The states that a forge was told, in order."""
    return [each.get("state") for each in told]


@on_loop
async def test_a_push_to_a_bare_repository_becomes_a_green_check(tmp_path: Path) -> None:
    """Its hook tells the server; each job has the commit; the forge hears of it once the run is over."""
    upstream = Upstream(tmp_path / "up", {".deltaci.yml": PIPELINE, "README": "hello"})
    async with (
        FakeForge() as forge,
        deployed(_site(tmp_path), "--allow-repositories", "file", "--allow-forge", forge.host) as place,
        httpx.AsyncClient(verify=NO_TLS, base_url=place.url, trust_env=False) as http,
    ):
        place.start_runner("r1", DELTACI_GIT_PROTOCOLS="file")
        person = Person(place, http)
        person.keep(TOKEN=TOKEN)
        await person.deltaci(
            *("project", "add", "shop", upstream.url, "--forge", "gitea", "--default-branch", "main"),
            *("--api-url", forge.url, "--api-token", "TOKEN"),
        )
        await person.deltaci("project", "hook", "shop", "--repository", str(upstream.bare))

        commit = await asyncio.to_thread(upstream.push, {"src.txt": "x"}, "Say x")
        await forge.wait_until(lambda: "success" in green([each.body for each in forge.accepted]))
        told = await finished(place, person)

        assert (told["state"], told["status"]) == ("REPORTED", "SUCCEEDED")
        assert told["commit"] == commit
        assert {job["name"]: job["status"] for job in told["jobs"]} == {"build": "SUCCEEDED", "test": "SUCCEEDED"}
        plan = await person.ask("GET", f"/runs/{told['id']}/plan")
        assert {choice["name"]: choice["is_kept"] for choice in plan["choices"]} == {
            "build": True,
            "test": True,
            "docs": False,
        }
        assert all(choice["reason"] for choice in plan["choices"])
        assert all(each.path.endswith(f"/statuses/{commit}") for each in forge.accepted)
        assert all(TOKEN in each.headers["authorization"] for each in forge.accepted)
        states = green([each.body for each in forge.accepted])
        assert states[-1] == "success"
        assert states.count("success") == 1


def _github(before: str, after: str, repository: str) -> WebhookRequest:
    payload = github_push(before=before, after=after)
    payload["repository"]["full_name"] = repository
    return github("push", payload)


def _gitlab(before: str, after: str, repository: str) -> WebhookRequest:
    payload = gitlab_push(before=before, after=after, checkout_sha=after)
    payload["project"]["path_with_namespace"] = repository
    return gitlab("Push Hook", payload)


def _gitea(before: str, after: str, repository: str) -> WebhookRequest:
    payload = gitea_push(before=before, after=after)
    payload["repository"]["full_name"] = repository
    return gitea("push", payload)


SENDERS: Final[dict[str, Callable[[str, str, str], WebhookRequest]]] = {
    "github": _github,
    "gitlab": _gitlab,
    "gitea": _gitea,
}


@pytest.mark.parametrize("kind", SENDERS)
@on_loop
async def test_a_signed_webhook_becomes_a_green_check_once(kind: str, tmp_path: Path) -> None:
    """Delivered ten times at once and once more later, it is one run."""
    upstream = Upstream(tmp_path / "up", {".deltaci.yml": PIPELINE, "README": "hello"})
    commit = upstream.push({"src.txt": "x"})
    repository = f"{upstream.bare.parent}/shop".strip("/")
    async with (
        FakeForge() as forge,
        deployed(_site(tmp_path), "--allow-repositories", "file", "--allow-forge", forge.host) as place,
        httpx.AsyncClient(verify=NO_TLS, base_url=place.url, trust_env=False, timeout=60) as http,
    ):
        place.start_runner("r1", DELTACI_GIT_PROTOCOLS="file")
        person = Person(place, http)
        person.keep(TOKEN=TOKEN, HOOK=SECRET)
        await person.ask(
            "PUT",
            "/projects/shop",
            {
                **{"url": upstream.url, "forge": kind, "default_branch": "main", "webhook_secret": "HOOK"},
                **{"api_url": forge.url, "api_token": "TOKEN"},
            },
        )
        sent = SENDERS[kind](upstream.first, commit, repository)

        async def deliver(body: bytes = sent.body, headers: dict[str, str] = sent.headers) -> httpx.Response:
            return await http.post("/hooks/default/shop", content=body, headers=headers)

        forged = await deliver(*_forged(sent, commit))
        answers = await asyncio.gather(*(deliver() for _ in range(10)))
        await forge.wait_until(lambda: any(_is_green(each.body) for each in forge.accepted))
        told = await finished(place, person)
        again = await deliver()

        assert forged.status_code == 401
        assert sorted(answer.json()["result"] for answer in answers) == ["accepted", *["duplicate"] * 9]
        assert again.json()["result"] == "duplicate"
        assert (told["state"], told["status"], told["commit"]) == ("REPORTED", "SUCCEEDED", commit)
        assert len(await person.runs()) == 1


def _forged(sent: WebhookRequest, commit: str) -> tuple[bytes, dict[str, str]]:
    """About another commit; from somebody who does not know the secret, where that is all that is asked for."""
    headers = {name: "guessed" if name == "X-Gitlab-Token" else value for name, value in sent.headers.items()}
    return sent.body.replace(commit.encode(), b"a" * 40), headers


def _is_green(body: Any) -> bool:
    return isinstance(body, dict) and body.get("state") == "success"


def _site(folder: Path) -> Path:
    """Where the server lives."""
    site = folder / "site"
    site.mkdir()
    return site
