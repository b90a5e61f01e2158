"""Sources for a job: from the runner's mirror into a work tree of the job's own, at exactly one commit.

Git never runs in a folder that the job can write to: whatever a job could plant there (a link, a hook, a configuration
that names a program) would run as the runner. The tree is made beside the workspace, and then moved into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from deltaci.git.command import GitFailed
from deltaci.runner.workspace.folders import open_folder, open_parent
from deltaci.runner.workspace.git import COMMIT, Remote, auth_header, check_commit, check_ref, check_url, git
from deltaci.runner.workspace.mirrors import CORRUPTION_MESSAGES, LOCAL_SECONDS, Mirror, mirror_path, open_mirror
from deltaci.runner.workspace.safe_fs import move_tree

SUBMODULE_SECONDS: Final = 1800.0
HEADS: Final = "refs/heads/"
TAGS: Final = "refs/tags/"

Local = Callable[..., Awaitable[str]]
"""Calls git in the tree that is being made."""


class CheckoutSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to bring, and how."""

    commit: str
    ref: str = ""
    depth: int = 1
    path: str = "."
    submodules: str = ""  # empty, `true` or `recursive`
    is_clean: bool = True
    has_tags: bool = False
    is_trusted: bool = True  # Whether its submodules may be read with what reads it.


def make_remote(url: str, protocols: tuple[str, ...], credential: str = "", key_file: str = "") -> Remote:
    """A repository that this runner may read."""
    return Remote(url=check_url(url, protocols), protocols=protocols, credential=credential, key_file=key_file)


def credential_encodings(credential: str) -> list[str]:
    """What must not be in a log because of this credential."""
    return [each for each in (credential, credential.partition(":")[2], auth_header(credential).split()[-1]) if each]


async def named(kept: Mirror, ref: str) -> tuple[str, str]:
    """The whole name and the commit of what somebody calls by a branch, a tag, a ref or a commit."""
    if COMMIT.fullmatch(ref):
        return "", ref
    names = [ref] if ref.startswith("refs/") else [f"{HEADS}{ref}", f"{TAGS}{ref}"]
    return await kept.resolve([check_ref(name) for name in names])


async def check_out(kept: Mirror, remote: Remote, wanted: CheckoutSpec, staged: Path) -> None:
    """Make the work tree, with a repository of its own, in a folder that is empty and ours."""
    check_commit(wanted.commit)
    if wanted.ref:
        check_ref(wanted.ref)
    name = await kept.bring(wanted.commit, wanted.ref, wanted.depth, has_tags=wanted.has_tags)

    async def local(*words: str) -> str:
        return await git(*words, folder=staged, timeout_seconds=LOCAL_SECONDS)

    await local("init", "--quiet", "--template=")
    await local("remote", "add", "--", "origin", remote.url)
    refs = [f"+{name}:refs/remotes/deltaci/commit"]
    if not wanted.depth:
        refs += ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
    elif wanted.has_tags:
        refs += ["+refs/tags/*:refs/tags/*"]
    depth = (f"--depth={wanted.depth}",) if wanted.depth else ()
    await local("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", *depth, str(kept.path.resolve()), *refs)
    await _head(local, wanted)
    await local("update-ref", "-d", "refs/remotes/deltaci/commit")
    await local("reset", "--quiet", "--hard")
    found = (await local("rev-parse", "HEAD")).strip()
    if found != wanted.commit:
        raise GitFailed(f"the work tree has the commit {found}, not {wanted.commit}")
    if wanted.submodules:
        recursive = ("--recursive",) if wanted.submodules == "recursive" else ()
        depth = (f"--depth={wanted.depth}",) if wanted.depth else ()
        await git(
            *("submodule", "update", "--init", "--force", *recursive, *depth),
            folder=staged,
            timeout_seconds=SUBMODULE_SECONDS,
            remote=_submodule_remote(remote, wanted.is_trusted),
        )


def _submodule_remote(remote: Remote, is_trusted: bool) -> Remote:
    """How submodules are read. Whoever writes the sources names them, and could name what only the runner may read:
    so its own ssh keys are not for sources that need none, and nothing of its is for a stranger's."""
    if is_trusted and remote.scheme == "ssh":
        return remote
    without = tuple(each for each in remote.protocols if each != "ssh" and (each != "file" or remote.scheme == "file"))
    return msgspec.structs.replace(
        remote, protocols=without, credential=remote.credential if is_trusted else "", key_file=""
    )


async def _head(local: Local, wanted: CheckoutSpec) -> None:
    """What HEAD says: the branch, if it is one, as people expect it; otherwise the commit."""
    if wanted.ref.startswith(HEADS):
        branch = wanted.ref.removeprefix(HEADS)
        await local("update-ref", f"refs/remotes/origin/{branch}", wanted.commit)
        await local("update-ref", wanted.ref, wanted.commit)
        await local("symbolic-ref", "HEAD", wanted.ref)
        return
    if wanted.ref.startswith(TAGS):
        with contextlib.suppress(GitFailed):  # An annotated tag is there already if tags were asked for.
            await local("update-ref", wanted.ref, wanted.commit, "0" * len(wanted.commit))
    elif wanted.ref.startswith("refs/pull/"):
        await local("update-ref", f"refs/remotes/{wanted.ref.removeprefix('refs/')}", wanted.commit)
    await local("update-ref", "--no-deref", "HEAD", wanted.commit)


def trust_any_owner(root: Path, home: str) -> None:
    """Let the job's own git work in a tree that another user made: an image may have another one."""
    with (
        contextlib.suppress(OSError),
        open_folder(root) as top,
        open_parent(top, f"{home}/.gitconfig") as (folder, name),
    ):
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
        with os.fdopen(made, "w") as file:
            file.write("[safe]\n\tdirectory = *\n")


async def fetch_and_check_out(
    remote: Remote, wanted: CheckoutSpec, ref: str, mirrors: Path, root: Path, say: Callable[[str], None]
) -> tuple[str, str]:
    """All of it: fetch, check out, move into place. `ref` chooses another commit than the one that is wanted."""
    try:
        return await _bring(remote, wanted, ref, mirrors, root, say)
    except GitFailed as failed:
        if not any(word in str(failed) for word in CORRUPTION_MESSAGES):
            raise
        say(f"the mirror is broken: {failed}; making a new one")
    await asyncio.to_thread(shutil.rmtree, mirror_path(mirrors, remote), ignore_errors=True)
    return await _bring(remote, wanted, ref, mirrors, root, say)


async def _bring(
    remote: Remote, wanted: CheckoutSpec, ref: str, mirrors: Path, root: Path, say: Callable[[str], None]
) -> tuple[str, str]:
    # Beside the workspace, on the same file system, where only the runner goes.
    staged = Path(tempfile.mkdtemp(dir=root.parent, prefix="checkout-"))
    try:
        async with open_mirror(mirrors, remote, say) as kept:
            if ref:
                name, commit = await named(kept, ref)
                wanted = msgspec.structs.replace(wanted, ref=name, commit=commit)
            await check_out(kept, remote, wanted, staged)
        await asyncio.to_thread(move_tree, staged, root, wanted.path, is_clean=wanted.is_clean)
        return wanted.ref, wanted.commit
    finally:
        await asyncio.to_thread(shutil.rmtree, staged, ignore_errors=True)
