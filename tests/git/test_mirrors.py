"""Mirrors: exact commits, changed paths, isolation from repository and machine configuration, and credentials."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from pathlib import Path

import pytest

from deltaci.controllers.projects import Project, plain_url
from deltaci.core.errors import Refused
from deltaci.forges.credentials import repository_path
from deltaci.git.command import SERVER, Git, GitFailed, GitRemote, environment
from deltaci.git.mirrors import Mirror, Mirrors
from deltaci.git.repository import is_commit, is_ref
from deltaci.git.url_policy import UrlPolicy
from tests.contract.backends import on_loop
from tests.support.upstream import Upstream, git

LOCAL = UrlPolicy(frozenset({"file"}))


def secrets_missing(_tenant: str, _project: str, name: str) -> str:
    """Refuse: there are no secrets."""
    raise Refused("no_secret", f"there is no secret {name!r}")


def mirrors(folder: Path, **values: str) -> Mirrors:
    """Return mirrors that can read these secrets."""

    def read_secret(_tenant: str, _project: str, name: str) -> str:
        return values[name] if name in values else secrets_missing("", "", name)

    return Mirrors(folder, LOCAL, read_secret)


def mirror(folder: Path, upstream: Upstream, credential: str = "") -> Mirror:
    """Return the mirror of this repository."""
    return mirrors(folder).for_project(Project(name="shop", tenant="t", url=upstream.url, credential=credential))


@on_loop
async def test_a_commit_is_fetched_with_its_history_and_read(tmp_path: Path, upstream: Upstream) -> None:
    """Through its ref, or by its hash alone after the branch has moved away."""
    second = upstream.push({"src/a.py": "1\n", "README": None}, "second\n\nmore about it")
    upstream.switch("main", upstream.first)
    other = upstream.push({"b": "2"}, "written anew")
    here = mirror(tmp_path, upstream)

    await here.ensure_commit(other, "refs/heads/main")
    await here.ensure_commit(second, "refs/heads/main")

    assert await here.list_files(second) == [".deltaci.yml", "src/a.py"]
    assert await here.read_file(second, "src/a.py") == b"1\n"
    assert (await here.commit_details(second)).message == "second\n\nmore about it"
    assert (await here.commit_details(second)).title == "second"
    assert await here.is_ancestor(upstream.first, second)
    assert not await here.is_ancestor(other, second)
    assert await here.merge_base(other, second) == upstream.first
    assert await here.changed_paths(upstream.first, second) == frozenset({"README", "src/a.py"})
    assert await here.changed_paths(second, second) == frozenset()


@on_loop
async def test_the_data_folder_may_be_a_relative_path(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--data .state` is the default, and git runs in another working directory."""
    monkeypatch.chdir(tmp_path)
    here = mirror(Path(".state"), upstream)

    await here.ensure_commit(upstream.first, "refs/heads/main")

    assert await here.list_files(upstream.first) == [".deltaci.yml", "README"]


@on_loop
async def test_renames_and_submodules_count_with_everything(tmp_path: Path, upstream: Upstream) -> None:
    """Both names of a renamed file, and everything below a submodule."""
    upstream.push({"a/long name\twith tab": "x" * 1000})
    base = git(upstream.tree, "rev-parse", "HEAD")
    git(upstream.tree, "mv", "a/long name\twith tab", "b.txt")
    git(upstream.tree, "update-index", "--add", "--cacheinfo", f"160000,{base},libs/sub")
    git(upstream.tree, "commit", "-q", "-m", "moved")
    head = git(upstream.tree, "rev-parse", "HEAD")
    git(upstream.tree, "push", "-q", "origin", "HEAD:main")
    here = mirror(tmp_path, upstream)

    await here.ensure_commit(head, "refs/heads/main")

    assert await here.changed_paths(base, head) == frozenset(
        {"a/long name\twith tab", "b.txt", "libs/sub", "libs/sub/"}
    )
    assert "libs/sub" not in await here.list_files(head)
    contents = await here.list_contents(head)
    assert contents["libs/sub"] == f"160000 commit {base}"
    assert contents["b.txt"] == f"100644 blob {git(upstream.tree, 'rev-parse', 'HEAD:b.txt')}"


@on_loop
async def test_missing_objects_are_reported(tmp_path: Path, upstream: Upstream) -> None:
    """Commits, files, repositories and secrets."""
    here = mirror(tmp_path, upstream)
    await here.ensure_commit(upstream.first)

    with pytest.raises(GitFailed, match="has no commit a"):
        await here.ensure_commit("a" * 40, "refs/heads/main")
    with pytest.raises(GitFailed, match="not the full name"):
        await here.ensure_commit("main")
    with pytest.raises(GitFailed, match="cat-file failed"):
        await here.read_file(upstream.first, "nothing")
    with pytest.raises(GitFailed, match="more than 10 bytes"):
        await here.read_file(upstream.first, ".deltaci.yml", max_bytes=10)
    missing = mirrors(tmp_path).for_project(Project(name="x", tenant="t", url=f"{upstream.url}.gone"))
    with pytest.raises(GitFailed, match="ls-remote failed"):
        await missing.ls_remote()
    with pytest.raises(Refused, match="no secret 'KEY'"):
        await mirror(tmp_path, upstream, credential="KEY").ls_remote()


@on_loop
async def test_a_branch_may_become_a_folder_of_branches(tmp_path: Path, upstream: Upstream) -> None:
    """The names under which a mirror stores refs cannot conflict."""
    here = mirror(tmp_path, upstream)
    first = upstream.push({"a": "1"}, branch="topic")
    assert await here.fetch_refs(["refs/heads/topic", "refs/heads/none"]) == {"refs/heads/topic": first}
    git(upstream.bare, "update-ref", "-d", "refs/heads/topic")
    second = upstream.push({"a": "2"}, branch="topic/one")

    assert await here.fetch_refs(["refs/heads/topic/one"]) == {"refs/heads/topic/one": second}
    remote = await here.ls_remote()
    assert (remote.head, remote.refs) == (
        *("refs/heads/main", {"refs/heads/main": upstream.first, "refs/heads/topic/one": second}),
    )


@on_loop
async def test_an_annotated_tag_resolves_to_its_commit(tmp_path: Path, upstream: Upstream) -> None:
    """On the remote and in the mirror."""
    git(upstream.tree, "tag", "-a", "v1", "-m", "one")
    git(upstream.tree, "push", "-q", "origin", "v1")
    tag = git(upstream.tree, "rev-parse", "v1")
    here = mirror(tmp_path, upstream)

    assert (await here.ls_remote()).refs["refs/tags/v1"] == upstream.first
    await here.ensure_commit(tag, "refs/tags/v1")
    assert await here.resolve_commit(tag) == upstream.first


@on_loop
async def test_no_code_of_a_repository_or_of_this_machine_is_run(tmp_path: Path, upstream: Upstream) -> None:
    """Neither hooks nor configuration of the repository, nor variables of the server's environment."""
    proof = tmp_path / "proof"
    for name in ("post-checkout", "reference-transaction", "post-merge"):
        hook = upstream.bare / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
        hook.chmod(0o755)
    git(upstream.bare, "config", "core.fsmonitor", f"touch {proof}")
    git(upstream.bare, "config", "uploadpack.packObjectsHook", f"touch {proof}; exec")
    here = mirror(tmp_path / "server", upstream)

    await here.ensure_commit(upstream.first, "refs/heads/main")

    assert not proof.exists()
    url = "https://git.example.org/a"
    env = environment(SERVER, GitRemote(url=url, protocol="https", protocols=("https",), credential="user:pa:ss"))
    assert (env["DELTACI_USER"], env["DELTACI_PASSWORD"]) == ("user", "pa:ss")
    assert env["GIT_ALLOW_PROTOCOL"] == "https"
    assert not set(env) & (
        set(os.environ) - {"PATH", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR", "HOME", "LC_ALL"}
    )


@on_loop
async def test_git_is_killed_after_its_timeout(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")

    with pytest.raises(GitFailed, match="longer than"):
        await Git().run(["hash-object", str(tmp_path / "never")], timeout_seconds=0.2)


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/heads/größe", "refs/pull/7/head", "refs/tags/v1.0"])
def test_valid_refs(ref: str) -> None:
    assert is_ref(ref)


@pytest.mark.parametrize(
    "ref",
    [
        *("", "main", "refs/heads/a b", "refs/heads/a..b", "refs/heads/a:b", "refs/heads/*", "refs/heads/a.lock"),
        *("refs/heads/", "refs/heads/a/", "refs/heads/.a", "refs/heads/a\\b", "refs/heads/a@{1}", "-refs/heads/a"),
        *("refs/heads/a\n", "refs/heads/" + "a" * 300, "refs/heads", "refs/heads/-a", "refs/heads/a./b"),
    ],
)
def test_invalid_refs(ref: str) -> None:
    """Git would refuse them or interpret them as something else."""
    assert not is_ref(ref)


def test_names_of_commits_and_repositories() -> None:
    assert is_commit("a" * 40)
    assert is_commit("a" * 64)
    assert not any(map(is_commit, ("0" * 40, "a" * 39, "A" * 40, "", "g" * 40)))
    assert plain_url("git@GitHub.com:Acme/Shop.git") == plain_url("https://github.com/acme/shop/")
    assert (
        repository_path("git@github.com:Acme/Shop.git")
        == repository_path("https://github.com/Acme/Shop")
        == "Acme/Shop"
    )
    assert repository_path("https://gitlab.example/group/part/shop.git") == "group/part/shop"


class RedirectingServer:
    """A server that demands credentials, records them, and redirects authenticated requests."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.redirect_port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.received += [line for line in head.splitlines() if line.lower().startswith(("authorization:", "host:"))]
        if "authorization:" not in head.lower():
            response = 'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="x"'
        else:
            response = f"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:{self.redirect_port}/other.git/info/refs"
        writer.write(f"{response}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@on_loop
async def test_a_credential_is_sent_only_to_the_host_of_its_url(tmp_path: Path) -> None:
    """Only if the host demands it, at the resolved address; a redirect is not followed."""
    forge, other = RedirectingServer(), RedirectingServer()
    policy = UrlPolicy(frozenset({"http", "private"}))
    mirrors = Mirrors(tmp_path, policy, lambda _tenant, _project, name: {"TOKEN": "s3cret-token"}[name])
    async with (
        await asyncio.start_server(forge.answer, "127.0.0.1", 0) as first,
        await asyncio.start_server(other.answer, "127.0.0.1", 0) as second,
    ):
        port, forge.redirect_port = (server.sockets[0].getsockname()[1] for server in (first, second))
        url = f"http://localhost:{port}/acme/shop.git"

        with pytest.raises(GitFailed, match="ls-remote failed") as failed:
            await mirrors.for_project(Project(name="shop", tenant="t", url=url, credential="TOKEN")).ls_remote()

    token = b64encode(b"x-access-token:s3cret-token").decode()
    assert f"Authorization: Basic {token}" in forge.received
    assert forge.received[0] == f"Host: localhost:{port}"
    assert other.received == []
    assert "s3cret" not in str(failed.value)
