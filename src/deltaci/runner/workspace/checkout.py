"""Check out sources: from the runner's mirror into a work tree of the job's own, at exactly one commit.

Git never runs in a folder that the job can write to: links, hooks or configuration there would make it run programs as
the runner. The tree is created beside the workspace and then moved into it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from deltaci.git.command import TOKEN_USER, GitFailed, GitRemote
from deltaci.git.repository import is_commit
from deltaci.runner.workspace.folders import open_folder, open_parent
from deltaci.runner.workspace.mirrors import GIT, Mirror, use_mirror
from deltaci.runner.workspace.safe_fs import move_tree
from deltaci.runner.workspace.source_policy import check_commit, check_ref

HEADS: Final = "refs/heads/"
TAGS: Final = "refs/tags/"

RunGit = Callable[..., Awaitable[bytes]]
"""Runs git in the tree that is being created."""


class CheckoutSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to check out, and how."""

    commit: str
    ref: str = ""
    depth: int = 1
    path: str = "."
    submodules: str = ""  # empty, `true` or `recursive`
    is_clean: bool = True
    has_tags: bool = False
    is_trusted: bool = True  # Whether submodules may be read with its credentials.


def credential_encodings(credential: str) -> list[str]:
    """Return the forms of a credential that logs must not contain."""
    user_and_password = credential if ":" in credential else f"{TOKEN_USER}:{credential}"
    basic = base64.b64encode(user_and_password.encode()).decode()
    return [form for form in (credential, credential.partition(":")[2], basic) if form]


async def resolve_ref(mirror: Mirror, ref: str) -> tuple[str, str]:
    """Return the full ref name and the commit of a branch, a tag, a ref or a commit; a commit has no ref name."""
    if is_commit(ref):
        return "", ref
    candidates = [ref] if ref.startswith("refs/") else [f"{HEADS}{ref}", f"{TAGS}{ref}"]
    return await mirror.resolve([check_ref(name) for name in candidates])


async def check_out(mirror: Mirror, remote: GitRemote, spec: CheckoutSpec, staging: Path) -> None:
    """Create the work tree, with a repository of its own, in a private empty folder."""
    check_commit(spec.commit)
    if spec.ref:
        check_ref(spec.ref)
    name = await mirror.fetch_commit(spec.commit, spec.ref, spec.depth, has_tags=spec.has_tags)

    async def run_git(*words: str) -> bytes:
        return await GIT.run(words, folder=staging)

    await run_git("init", "--quiet", "--template=")
    await run_git("remote", "add", "--", "origin", remote.url)
    refs = [f"+{name}:refs/remotes/deltaci/commit"]
    if not spec.depth:
        refs += ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
    elif spec.has_tags:
        refs += ["+refs/tags/*:refs/tags/*"]
    depth = (f"--depth={spec.depth}",) if spec.depth else ()
    await run_git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", *depth, str(mirror.folder.resolve()), *refs)
    await _set_head(run_git, spec)
    await run_git("update-ref", "-d", "refs/remotes/deltaci/commit")
    await run_git("reset", "--quiet", "--hard")
    head = (await run_git("rev-parse", "HEAD")).decode().strip()
    if head != spec.commit:
        raise GitFailed(f"the work tree has the commit {head}, not {spec.commit}")
    if spec.submodules:
        recursive = ("--recursive",) if spec.submodules == "recursive" else ()
        depth = (f"--depth={spec.depth}",) if spec.depth else ()
        await GIT.run(
            ("submodule", "update", "--init", "--force", *recursive, *depth),
            folder=staging,
            timeout_seconds=GIT.profile.fetch_seconds,
            remote=_submodule_remote(remote, spec.is_trusted),
        )


def _submodule_remote(remote: GitRemote, is_trusted: bool) -> GitRemote:
    """Return how submodules are read. Their URLs come from the sources, whose author may be a stranger.

    The runner's ssh keys are used only if the repository itself is read by ssh, and no credential for untrusted
    sources.
    """
    if is_trusted and remote.protocol == "ssh":
        return remote
    protocols = tuple(
        protocol
        for protocol in remote.protocols
        if protocol != "ssh" and (protocol != "file" or remote.protocol == "file")
    )
    return msgspec.structs.replace(
        remote, protocols=protocols, credential=remote.credential if is_trusted else "", key_file=""
    )


async def _set_head(run_git: RunGit, spec: CheckoutSpec) -> None:
    """Make HEAD the branch if there is one, as tools expect, else the commit."""
    if spec.ref.startswith(HEADS):
        branch = spec.ref.removeprefix(HEADS)
        await run_git("update-ref", f"refs/remotes/origin/{branch}", spec.commit)
        await run_git("update-ref", spec.ref, spec.commit)
        await run_git("symbolic-ref", "HEAD", spec.ref)
        return
    if spec.ref.startswith(TAGS):
        with contextlib.suppress(GitFailed):  # Fetched tags include it already, if it is annotated.
            await run_git("update-ref", spec.ref, spec.commit, "0" * len(spec.commit))
    elif spec.ref.startswith("refs/pull/"):
        await run_git("update-ref", f"refs/remotes/{spec.ref.removeprefix('refs/')}", spec.commit)
    await run_git("update-ref", "--no-deref", "HEAD", spec.commit)


def trust_any_owner(root: Path, home: str) -> None:
    """Allow the job's git to use a tree of another user: in a container the user may differ."""
    with (
        contextlib.suppress(OSError),
        open_folder(root) as top,
        open_parent(top, f"{home}/.gitconfig") as (folder, name),
    ):
        descriptor = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder
        )
        with os.fdopen(descriptor, "w") as file:
            file.write("[safe]\n\tdirectory = *\n")


async def fetch_and_check_out(
    remote: GitRemote, spec: CheckoutSpec, ref: str, mirrors: Path, root: Path, log: Callable[[str], None]
) -> tuple[str, str]:
    """Fetch, check out and move the tree into place; return its ref and commit.

    `ref` selects another commit than `spec` names.
    """

    # Beside the workspace: on the same file system, but out of the job's reach.
    staging = Path(tempfile.mkdtemp(dir=root.parent, prefix="checkout-"))

    async def check_out_from(mirror: Mirror) -> tuple[Path, str, str]:
        name, commit = await resolve_ref(mirror, ref) if ref else (spec.ref, spec.commit)
        tree = Path(tempfile.mkdtemp(dir=staging))
        await check_out(mirror, remote, msgspec.structs.replace(spec, ref=name, commit=commit), tree)
        return tree, name, commit

    try:
        tree, name, commit = await use_mirror(mirrors, remote, log, check_out_from)
        await asyncio.to_thread(move_tree, tree, root, spec.path, is_clean=spec.is_clean)
        return name, commit
    finally:
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
