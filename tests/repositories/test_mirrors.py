"""Git on the server: exact commits, what changed, and nothing that a repository could make it do."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from pathlib import Path

import pytest

from deltaci.controllers.projects import Project, plain_url
from deltaci.core.errors import Refused
from deltaci.forges.credentials import repository_path
from deltaci.git.command import Git, GitFailed, GitRemote, environment
from deltaci.git.mirrors import Mirror, Mirrors, is_commit, is_ref
from deltaci.git.url_policy import UrlPolicy, parse_url
from tests.contract.places import on_loop
from tests.repositories.upstream import Upstream, git

LOCAL = UrlPolicy(frozenset({"file"}))


def secrets_missing(_tenant: str, _project: str, name: str) -> str:
    """For who has no secrets."""
    raise Refused("no_secret", f"there is no secret {name!r}")


def mirrors(folder: Path, **values: str) -> Mirrors:
    """With these secrets."""

    def secret_of(_tenant: str, _project: str, name: str) -> str:
        return values[name] if name in values else secrets_missing("", "", name)

    return Mirrors(folder, LOCAL, secret_of)


def mirror(folder: Path, upstream: Upstream, credential: str = "") -> Mirror:
    """Of this repository."""
    return mirrors(folder).for_project(Project(name="shop", tenant="t", url=upstream.url, credential=credential))


@on_loop
async def test_a_commit_is_fetched_with_its_history_and_read(tmp_path: Path, upstream: Upstream) -> None:
    """By its ref, and once it left the branch by its name alone."""
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
async def test_a_server_may_keep_its_data_beside_where_it_was_started(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--data .state` is the default, and git is called from elsewhere."""
    monkeypatch.chdir(tmp_path)
    here = mirror(Path(".state"), upstream)

    await here.ensure_commit(upstream.first, "refs/heads/main")

    assert await here.list_files(upstream.first) == [".deltaci.yml", "README"]


@on_loop
async def test_renames_and_submodules_count_with_everything(tmp_path: Path, upstream: Upstream) -> None:
    """Both names of a file that moved; all that is below a submodule."""
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


@on_loop
async def test_what_is_not_there_is_told(tmp_path: Path, upstream: Upstream) -> None:
    """A commit, a file, a repository, a secret."""
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
    gone = mirrors(tmp_path).for_project(Project(name="x", tenant="t", url=f"{upstream.url}.gone"))
    with pytest.raises(GitFailed, match="ls-remote failed"):
        await gone.ls_remote()
    with pytest.raises(Refused, match="no secret 'KEY'"):
        await mirror(tmp_path, upstream, credential="KEY").ls_remote()


@on_loop
async def test_branches_become_folders_of_branches(tmp_path: Path, upstream: Upstream) -> None:
    """A mirror keeps no names that could be in each other's way."""
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
async def test_a_tag_with_a_message_stands_for_its_commit(tmp_path: Path, upstream: Upstream) -> None:
    """Wherever it is looked at."""
    git(upstream.tree, "tag", "-a", "v1", "-m", "one")
    git(upstream.tree, "push", "-q", "origin", "v1")
    tag = git(upstream.tree, "rev-parse", "v1")
    here = mirror(tmp_path, upstream)

    assert (await here.ls_remote()).refs["refs/tags/v1"] == upstream.first
    await here.ensure_commit(tag, "refs/tags/v1")
    assert await here.resolve_commit(tag) == upstream.first


@on_loop
async def test_nothing_of_a_repository_or_of_this_machine_is_run(tmp_path: Path, upstream: Upstream) -> None:
    """Hooks, filters and configuration of the repository; those of whoever started the server."""
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
    told = environment(GitRemote(address=parse_url("https://git.example.org/a", LOCAL), credential="user:pa:ss"))
    assert (told["DELTACI_USER"], told["DELTACI_PASSWORD"]) == ("user", "pa:ss")
    assert told["GIT_ALLOW_PROTOCOL"] == "https"
    assert not set(told) & (
        set(os.environ) - {"PATH", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR", "HOME", "LC_ALL"}
    )


@on_loop
async def test_git_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """With everything that it started."""
    os.mkfifo(tmp_path / "never")

    with pytest.raises(GitFailed, match="longer than"):
        await Git().run(["hash-object", str(tmp_path / "never")], timeout_seconds=0.2)


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/heads/größe", "refs/pull/7/head", "refs/tags/v1.0"])
def test_good_refs(ref: str) -> None:
    """What git allows."""
    assert is_ref(ref)


@pytest.mark.parametrize(
    "ref",
    [
        *("", "main", "refs/heads/a b", "refs/heads/a..b", "refs/heads/a:b", "refs/heads/*", "refs/heads/a.lock"),
        *("refs/heads/", "refs/heads/a/", "refs/heads/.a", "refs/heads/a\\b", "refs/heads/a@{1}", "-refs/heads/a"),
        *("refs/heads/a\n", "refs/" + "a" * 300),
    ],
)
def test_bad_refs(ref: str) -> None:
    """What git would refuse, or read as something else."""
    assert not is_ref(ref)


def test_names() -> None:
    """Of commits and of repositories."""
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


class Forge:
    """A server that asks who comes, writes it down, and sends everybody elsewhere."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.elsewhere = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heard += [line for line in head.splitlines() if line.lower().startswith(("authorization:", "host:"))]
        if "authorization:" not in head.lower():
            told = 'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="x"'
        else:
            told = f"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:{self.elsewhere}/other.git/info/refs"
        writer.write(f"{told}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@on_loop
async def test_a_credential_is_shown_where_it_belongs_and_nowhere_else(tmp_path: Path) -> None:
    """Only to who asks for it, at the address that was looked at; a redirect is not followed."""
    forge, other = Forge(), Forge()
    policy = UrlPolicy(frozenset({"http", "private"}))
    known = Mirrors(tmp_path, policy, lambda _tenant, _project, name: {"TOKEN": "s3cret-token"}[name])
    async with (
        await asyncio.start_server(forge.answer, "127.0.0.1", 0) as first,
        await asyncio.start_server(other.answer, "127.0.0.1", 0) as second,
    ):
        port, forge.elsewhere = (each.sockets[0].getsockname()[1] for each in (first, second))
        url = f"http://localhost:{port}/acme/shop.git"

        with pytest.raises(GitFailed, match="ls-remote failed") as failed:
            await known.for_project(Project(name="shop", tenant="t", url=url, credential="TOKEN")).ls_remote()

    told = b64encode(b"x-access-token:s3cret-token").decode()
    assert f"Authorization: Basic {told}" in forge.heard
    assert forge.heard[0] == f"Host: localhost:{port}"
    assert other.heard == []
    assert "s3cret" not in str(failed.value)
