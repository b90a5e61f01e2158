"""Projects: what the server knows of repositories, who may say it, and what is never shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest

from deltaci.git.url_policy import UrlPolicy
from tests.cli.terminal import Terminal
from tests.client.hosted import Hosted
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import RepositorySite, opened
from tests.forges.payloads import SECRET, github
from tests.support.plain_http import NO_TLS
from tests.support.upstream import Upstream

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]

URL = "https://127.0.0.1/acme/shop.git"


@on_loop
async def test_saving_changing_and_forgetting(site: Opened) -> None:
    """Each save is a version; who saw an older one does not overwrite a newer one."""
    async with site() as here:
        admin, reader = await here.key("ada", "admin"), await here.key("eve", "read")
        made = await admin.ask("PUT", "/projects/shop", {"url": URL, "forge": "github", "expected_version": 0})
        taken = await admin.ask("PUT", "/projects/shop", {"url": URL, "expected_version": 0})
        policies = {"supersede_pushes": "all", "poll_seconds": 60}
        changed = await admin.ask("PUT", "/projects/shop", {"url": URL, "policies": policies, "expected_version": 1})

        assert (made.status, made.body["version"], made.body["created_by"]) == (200, 1, "ada")
        assert made.body["policies"] == {
            **{"supersede_pushes": "queued", "supersede_pull_requests": "all", "fork_role": ""},
            **{"poll_seconds": 0, "schedules": True},
        }
        assert (taken.status, taken.code) == (409, "stale_version")
        assert (changed.body["version"], changed.body["forge"], changed.body["created_at"]) == (
            *(2, "git", made.body["created_at"]),
        )
        assert (await reader.get("/projects/shop")).body == changed.body
        assert (await reader.get("/projects")).body == {"projects": [changed.body], "next": None}
        assert (await reader.ask("PUT", "/projects/x", {"url": URL})).status == 403
        assert (await reader.ask("DELETE", "/projects/shop")).status == 403
        assert (await admin.ask("DELETE", "/projects/shop")).body == changed.body
        assert (await admin.get("/projects/shop")).status == 404
        assert (await admin.ask("DELETE", "/projects/shop")).status == 404


@on_loop
async def test_pages_by_name(site: Opened) -> None:
    """And only of one's own tenant."""
    async with site() as here:
        for tenant in ("us", "us2", "them"):
            for name in "cab":
                await here.operator(tenant).ask("PUT", f"/projects/{name}", {"url": URL})
        us = here.operator("us")

        first = (await us.get("/projects?limit=2")).body
        second = (await us.get(f"/projects?limit=2&cursor={first['next']}")).body

        assert [project["name"] for project in first["projects"]] == ["a", "b"]
        assert ([project["name"] for project in second["projects"]], second["next"]) == (["c"], None)


@on_loop
async def test_what_is_not_allowed_is_refused_and_nothing_is_kept(backend: Backend, tmp_path: Path) -> None:
    """Protocols, folders, passwords in addresses, names, fields."""
    async with opened(backend, tmp_path / "data", UrlPolicy()) as here:
        admin = here.operator()
        for body, status in (
            ({}, 422),
            ({"url": ""}, 400),
            ({"url": "file:///etc"}, 400),
            ({"url": "/etc"}, 400),
            ({"url": "http://git.example.org/a"}, 400),
            ({"url": "https://user:password@git.example.org/a"}, 400),
            ({"url": "ext::sh"}, 400),
            ({"url": URL, "forge": "svn"}, 422),
            ({"url": URL, "credential": "not a name"}, 422),
            ({"url": URL, "api_url": "ftp://x"}, 400),
            ({"url": URL, "policies": {"poll_seconds": -1}}, 422),
            ({"url": URL, "policies": {"supersede_pushes": "some"}}, 422),
            ({"url": URL, "secret": "x"}, 422),
        ):
            reply = await admin.ask("PUT", "/projects/shop", body)
            assert reply.status == status, (body, reply)
            assert "password" not in json.dumps(reply.body) or "user" in str(body)
        assert (await admin.get("/projects")).body["projects"] == []


@on_loop
async def test_a_project_on_a_private_host_is_never_asked(backend: Backend, tmp_path: Path) -> None:
    """Its changes are put aside in the end, with the reason; no packet was sent."""
    async with opened(backend, tmp_path / "data", UrlPolicy(frozenset({"http"}))) as here:
        await here.project(f"{here.url}/acme/shop.git")

        change = await here.change((await here.pushed("a" * 40)).id)
        start = await here.operator().post("/runs", {"repository": "shop", "branch": "main"})

        assert "resolves to 127.0.0.1, which is not a public address; nothing was sent there" in change["reason"]
        assert (start.status, start.code) == (403, "not_allowed")


@on_loop
async def test_lists_of_changes(site: Opened, upstream: Upstream) -> None:
    """The newest first, page by page, of one project."""
    async with site() as here:
        people = await here.project(upstream.url)
        ids = [(await here.pushed("0" * 40, "a" * 40, f"b{number}")).id for number in range(5)]

        first = (await people.get("/changes?limit=3")).body
        second = (await people.get(f"/changes?limit=3&cursor={first['next']}")).body

        assert [change["id"] for change in (*first["changes"], *second["changes"])] == ids[::-1]
        assert second["next"] is None
        assert (await people.get("/changes?project=other")).body["changes"] == []
        assert (await people.get("/changes?cursor=x")).status == 400


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """Somebody with a server that knows no repository."""
    return Terminal(tmp_path, Hosted(tmp_path / ".state"))


def test_the_command_line(terminal: Terminal, upstream: Upstream) -> None:
    """Add, list, show, edit, hook, remove; and what came of changes."""
    with terminal.hosted:
        assert "no projects" in terminal.text("project", "list")
        terminal.text("project", "add", "shop", URL, "--forge", "github", "--webhook-secret", "HOOK", "--poll", "5m")
        assert "deltaci project edit shop" in terminal.refused(2, "project", "add", "shop", URL)
        edited = terminal.json("project", "edit", "shop", "--supersede-pushes", "all", "--default-branch", "trunk")
        assert (edited["forge"], edited["webhook_secret"], edited["default_branch"]) == ("github", "HOOK", "trunk")
        assert (edited["policies"]["poll_seconds"], edited["policies"]["supersede_pushes"]) == (300, "all")
        assert terminal.json("project", "edit", "shop", "--poll", "0s", "--webhook-secret", "")["webhook_secret"] == ""
        shown = terminal.text("project", "show", "shop")
        assert "trunk" in shown
        assert "shop" in terminal.text("project", "list")
        assert "--allow-repositories file" in terminal.refused(3, "project", "add", "local", upstream.url)
        hook = terminal.json("project", "hook", "shop", "--repository", str(upstream.bare))
        assert Path(hook["hook"]).stat().st_mode & 0o111
        assert "Bearer dck_" in (upstream.bare / "hooks" / "deltaci.conf").read_text()
        assert "is not a Git repository" in terminal.refused(
            2, "project", "hook", "shop", "--repository", str(terminal.folder)
        )
        gone = {"ref": "refs/heads/gone", "before": "a" * 40, "after": "0" * 40}
        with terminal.hosted.client() as client:
            assert client.report_push("shop", [gone], delivery="delivery-1").changes[0].is_new
        [change] = terminal.json("changes")
        assert "push delivery-1" in terminal.text("changes", change["id"])
        assert change["id"] in terminal.text("changes", "--project", "shop")
        assert "no changes yet" in terminal.text("changes", "--project", "other")
        assert "only one that could not be handled is retried" in terminal.refused(3, "redeliver", change["id"])
        assert "no deliveries yet" in terminal.text("deliveries", "shop")
        terminal.deltaci("secret", "set", "HOOK", input=SECRET)
        terminal.text("project", "edit", "shop", "--webhook-secret", "HOOK")
        ping = github("ping", {"zen": "Design for failure."}, delivery="d-1")
        url = f"{terminal.hosted.url}/hooks/shop"
        assert (
            httpx.post(url, content=ping.body, headers=ping.headers, verify=NO_TLS, trust_env=False).json()["result"]
            == "pong"
        )
        [delivery] = terminal.json("deliveries", "shop")
        assert (delivery["delivery"], delivery["event"], delivery["result"]) == ("d-1", "ping", "pong")
        assert "the webhook works" in terminal.text("deliveries", "shop")
        assert "there is no project" in terminal.refused(3, "submit", "--repository", "other")
        assert "removed shop" in terminal.text("project", "remove", "shop")


def test_the_plan_of_a_run(terminal: Terminal) -> None:
    """Also of one that comes from no repository."""
    with terminal.hosted:
        id = terminal.submit(plan={"jobs": [{"name": "hello", "work": {"steps": ["true"]}}]})

        assert "hello" in terminal.text("show", id, "--plan")
        assert terminal.json("show", id, "--plan")["choices"] == []
