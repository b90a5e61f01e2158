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
    """The commit to check out and the options of the checkout."""

    commit: str
    ref: str = ""
    depth: int = 1
    path: str = "."
    submodules: str = ""  # empty, `true` or `recursive`
    is_clean: bool = True
    has_tags: bool = False
    is_trusted: bool = True  # Whether submodules may be read with its credentials.


def credential_encodings(credential: str) -> list[str]:
    """Return the texts in which a credential may appear in a log, so that they are masked there."""
    user_and_password = credential if ":" in credential else f"{TOKEN_USER}:{credential}"
    basic_auth = base64.b64encode(user_and_password.encode()).decode()
    return [encoding for encoding in (credential, credential.partition(":")[2], basic_auth) if encoding]


async def resolve_ref(mirror: Mirror, ref: str) -> tuple[str, str]:
    """Return the full ref name and the commit for a branch, a tag, a full ref or a commit id.

    The ref name of a commit id is empty.
    """
    if is_commit(ref):
        return "", ref
    candidates = [ref] if ref.startswith("refs/") else [f"{HEADS}{ref}", f"{TAGS}{ref}"]
    return await mirror.resolve([check_ref(candidate_ref) for candidate_ref in candidates])


async def check_out(mirror: Mirror, remote: GitRemote, spec: CheckoutSpec, staging_folder: Path) -> None:
    """Create a work tree with its own repository at the spec's commit in `staging_folder`, a private empty folder."""
    check_commit(spec.commit)
    if spec.ref:
        check_ref(spec.ref)
    mirror_ref = await mirror.fetch_commit(spec.commit, spec.ref, spec.depth, has_tags=spec.has_tags)

    async def run_git(*arguments: str) -> bytes:
        return await GIT.run(arguments, folder=staging_folder)

    await run_git("init", "--quiet", "--template=")
    await run_git("remote", "add", "--", "origin", remote.url)
    refspecs = [f"+{mirror_ref}:refs/remotes/deltaci/commit"]
    if not spec.depth:
        refspecs += ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
    elif spec.has_tags:
        refspecs += ["+refs/tags/*:refs/tags/*"]
    depth_arguments = (f"--depth={spec.depth}",) if spec.depth else ()
    await run_git(
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        *depth_arguments,
        str(mirror.folder.resolve()),
        *refspecs,
    )
    await _set_head(run_git, spec)
    await run_git("update-ref", "-d", "refs/remotes/deltaci/commit")
    await run_git("reset", "--quiet", "--hard")
    head_commit = (await run_git("rev-parse", "HEAD")).decode().strip()
    if head_commit != spec.commit:
        raise GitFailed(f"the work tree has the commit {head_commit}, not {spec.commit}")
    if spec.submodules:
        recursive_arguments = ("--recursive",) if spec.submodules == "recursive" else ()
        depth_arguments = (f"--depth={spec.depth}",) if spec.depth else ()
        await GIT.run(
            ("submodule", "update", "--init", "--force", *recursive_arguments, *depth_arguments),
            folder=staging_folder,
            timeout_seconds=GIT.profile.fetch_seconds,
            remote=_submodule_remote(remote, spec.is_trusted),
        )


def _submodule_remote(remote: GitRemote, is_trusted: bool) -> GitRemote:
    """Return the remote with the protocols and credentials that may be used for submodules.

    Their URLs come from the sources, whose author may be a stranger. The runner's ssh keys are used only if the
    repository itself is read by ssh, and no credential is used for untrusted sources.
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
    """Make HEAD the branch of the spec, as tools expect; without a branch, make it the commit."""
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


def trust_any_owner(root: Path, home_path: str) -> None:
    """Write a git configuration into the job's home that accepts work trees of any user.

    In a container the user of the job may differ from the owner of the files.
    """
    with (
        contextlib.suppress(OSError),
        open_folder(root) as root_fd,
        open_parent(root_fd, f"{home_path}/.gitconfig") as (parent_fd, file_name),
    ):
        descriptor = os.open(
            file_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent_fd
        )
        with os.fdopen(descriptor, "w") as config_file:
            config_file.write("[safe]\n\tdirectory = *\n")


async def fetch_and_check_out(
    remote: GitRemote,
    spec: CheckoutSpec,
    selected_ref: str,
    mirrors_folder: Path,
    root: Path,
    log: Callable[[str], None],
) -> tuple[str, str]:
    """Fetch the sources, check them out and move them into the workspace. Return their ref and commit.

    A non-empty `ref` selects another commit than the spec has.
    """

    # Beside the workspace: on the same file system, but out of the job's reach.
    staging_folder = Path(tempfile.mkdtemp(dir=root.parent, prefix="checkout-"))

    async def check_out_from(mirror: Mirror) -> tuple[Path, str, str]:
        full_ref, commit = await resolve_ref(mirror, selected_ref) if selected_ref else (spec.ref, spec.commit)
        checkout_folder = Path(tempfile.mkdtemp(dir=staging_folder))
        await check_out(mirror, remote, msgspec.structs.replace(spec, ref=full_ref, commit=commit), checkout_folder)
        return checkout_folder, full_ref, commit

    try:
        checkout_folder, full_ref, commit = await use_mirror(mirrors_folder, remote, log, check_out_from)
        await asyncio.to_thread(move_tree, checkout_folder, root, spec.path, is_clean=spec.is_clean)
        return full_ref, commit
    finally:
        await asyncio.to_thread(shutil.rmtree, staging_folder, ignore_errors=True)
