"""The server's mirrors: one for each project, which fetches a commit or ref only when it is needed.

Fetched refs are stored under `refs/mirror/`, named by a hash of their name. Objects are never removed from a mirror; a
mirror that has grown too large is deleted and fetched again.

A runner's mirror (`runner/workspace/mirrors.py`) differs: it may be shallow, has a lock between processes, retries
by itself, and is removed when unused. The server fetches whole histories, which comparisons and merges need, in one
process, and its controllers retry.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol

import msgspec

from deltaci.git import blobs, url_policy
from deltaci.git.command import FETCH_SECONDS, Git, GitFailed, GitRemote
from deltaci.git.diff import parse_changed_paths
from deltaci.git.repository import MISSING_ON_REMOTE, BareRepository, is_commit, is_ref
from deltaci.git.url_policy import SSH, UnresolvedHostError, UrlPolicy

FOLDER: Final = "repositories"
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_MIRROR_BYTES: Final = 32 * 1024**3
MAX_PACKS: Final = 40
LS_REMOTE_SECONDS: Final = 30.0
STALE_LOCK_SECONDS: Final = 2 * FETCH_SECONDS  # No git process of this server runs for so long.
REGULAR_FILE_MODES: Final = ("100644", "100755")


class MirroredProject(Protocol):
    """A project whose repository is mirrored. `name` is the project's name, `credential` the name of the secret."""

    @property
    def tenant(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def credential(self) -> str: ...


ReadSecret = Callable[[str, str, str], str]  # Returns a secret's value by tenant, project and name; may block.


class CommitDetails(msgspec.Struct, frozen=True):
    """The message and the author of a commit."""

    message: str
    author: str

    @property
    def title(self) -> str:
        """Return the first line of the message, up to 200 characters."""
        return self.message.strip().partition("\n")[0][:200]


class RemoteRefs(msgspec.Struct, frozen=True):
    """The ref that a repository's HEAD points to, and the commit of every branch and tag by ref name."""

    head: str
    refs: dict[str, str]


class Mirrors:
    """All mirrors of this server, in one folder, with the policy and the credentials to fetch them."""

    def __init__(self, folder: Path, policy: UrlPolicy, read_secret: ReadSecret, git: Git | None = None) -> None:
        self.folder = folder.absolute() / FOLDER  # Git runs in another working directory.
        self.policy = policy
        self.git = git or Git()
        self._read_secret = read_secret
        self._locks: dict[str, asyncio.Lock] = {}

    def for_project(self, project: MirroredProject) -> Mirror:
        """Return the mirror of a project. Another tenant, project or URL has another mirror."""
        mirror_id = blake2b(f"{project.tenant}\n{project.name}\n{project.url}".encode(), digest_size=16).hexdigest()
        lock = self._locks.setdefault(mirror_id, asyncio.Lock())
        return Mirror(self, project, self.folder / f"{mirror_id}.git", lock)

    @asynccontextmanager
    async def open_remote(self, project: MirroredProject) -> AsyncIterator[GitRemote]:
        """Yield how to reach a project's repository: its URL, the IP addresses of its host, and the credential.

        An SSH key is in a file only until the context ends. Raises `Refused` for a URL that the policy does not allow,
        and a transient `GitFailed` if DNS fails.
        """
        repository_url = url_policy.parse_url(project.url, self.policy)
        try:
            resolved_host = await url_policy.resolve_host(repository_url, self.policy)
        except UnresolvedHostError as error:
            raise GitFailed(str(error), is_transient=True) from None
        credential = ""
        if project.credential:
            credential = await asyncio.to_thread(self._read_secret, project.tenant, project.name, project.credential)
        self.folder.mkdir(parents=True, exist_ok=True)
        remote = GitRemote(
            url=repository_url.url,
            protocol=repository_url.protocol,
            protocols=(repository_url.protocol,),
            resolved=resolved_host,
            credential=credential,
            known_hosts_file=str(self.folder / "known_hosts"),
        )
        if repository_url.protocol != SSH or not credential:
            yield remote
            return
        key_fd, key_file = tempfile.mkstemp(prefix=".key-", dir=self.folder)
        try:
            with os.fdopen(key_fd, "w", encoding="utf-8") as file:
                file.write(credential.strip() + "\n")
            yield msgspec.structs.replace(remote, key_file=key_file)
        finally:
            Path(key_file).unlink(missing_ok=True)


class Mirror(BareRepository):
    """The mirror of one project's repository. A commit is fetched with its history when it is first needed.

    A mirror that has become too large is deleted and created again.
    """

    def __init__(self, mirrors: Mirrors, project: MirroredProject, folder: Path, lock: asyncio.Lock) -> None:
        super().__init__(mirrors.git, folder)
        self._mirrors = mirrors
        self._project = project
        self._lock = lock

    # -- over the network

    def open_remote(self) -> AbstractAsyncContextManager[GitRemote]:
        """Return a context manager that yields how to reach the repository. See `Mirrors.open_remote`."""
        return self._mirrors.open_remote(self._project)

    async def ls_remote(self) -> RemoteRefs:
        """Return HEAD, branches and tags of the remote repository. An annotated tag is reported with its commit."""
        async with self.open_remote() as git_remote:
            git_arguments = ["ls-remote", "--symref", "--", git_remote.url, "HEAD", "refs/heads/*", "refs/tags/*"]
            output = await self.git.run(git_arguments, remote=git_remote, timeout_seconds=LS_REMOTE_SECONDS)
        default_ref, commit_by_ref = "", dict[str, str]()
        for line in output.decode("utf-8", "replace").splitlines():
            target_or_commit, _, ref_name = line.partition("\t")
            if target_or_commit.startswith("ref: ") and ref_name == "HEAD":
                default_ref = target_or_commit.removeprefix("ref: ")
            elif ref_name.endswith("^{}"):
                commit_by_ref[ref_name.removesuffix("^{}")] = (
                    target_or_commit  # The commit that an annotated tag points to.
                )
            elif is_ref(ref_name) and is_commit(target_or_commit):
                commit_by_ref[ref_name] = target_or_commit
        return RemoteRefs(default_ref, commit_by_ref)

    async def remote_commit(self, ref: str) -> str:
        """Return the commit of a ref of the remote repository, or an empty string if there is no such ref."""
        async with self.open_remote() as remote:
            git_arguments = ["ls-remote", "--", remote.url, ref]
            output = await self.git.run(git_arguments, remote=remote, timeout_seconds=LS_REMOTE_SECONDS)
        refs = (row.split("\t") for row in output.decode("utf-8", "replace").splitlines())
        return next((commit for commit, name in refs if name == ref), "")

    async def ensure_commit(self, commit: str, *refs: str) -> None:
        """Fetch a commit with its history unless the mirror has it: first through these refs, then by its hash.

        Raises `GitFailed` if the repository does not have the commit or refuses to send it.
        """
        if not is_commit(commit):
            raise GitFailed(f"{commit[:80]!r} is not the full name of a commit")
        async with self._lock:
            if await self.has_commit(commit):
                return
            valid_refs = [ref for ref in dict.fromkeys(refs) if is_ref(ref)]
            last_error: GitFailed | None = None
            for fetch_source in (*valid_refs, commit):
                try:
                    await self._fetch(fetch_source)
                except GitFailed as error:
                    last_error = error
                if await self.has_commit(commit):
                    return
        if last_error is None or any(error_text in str(last_error) for error_text in MISSING_ON_REMOTE):
            raise GitFailed(f"the repository has no commit {commit}, or does not allow fetching it")
        raise last_error

    async def fetch_refs(self, refs: Iterable[str]) -> dict[str, str]:
        """Fetch the current state of these refs. Return the commit of each existing ref."""
        valid_refs = [ref for ref in dict.fromkeys(refs) if is_ref(ref)]
        commit_by_ref: dict[str, str] = {}
        async with self._lock:
            for ref in valid_refs:
                try:
                    await self._fetch(ref)
                except GitFailed as error:
                    if not any(error_text in str(error) for error_text in MISSING_ON_REMOTE):
                        raise
                    continue
                commit_by_ref[ref] = await self.resolve_commit(_mirror_ref(ref))
        return commit_by_ref

    async def _fetch(self, ref: str) -> None:
        await self._prepare()
        async with self.open_remote() as remote:
            refspecs = [f"+{ref}:{_mirror_ref(ref)}"]
            try:
                await self.fetch(remote, refspecs, "--no-tags")
            except GitFailed as error:
                if not await self.removed_stale_locks(error):
                    raise
                await self.fetch(remote, refspecs, "--no-tags")

    async def _prepare(self) -> None:
        """Create the mirror if it does not exist. Recreate it if it is too large; repack it if it has many packs."""
        if self.folder.exists():
            pack_bytes, pack_count = await asyncio.to_thread(_pack_bytes_and_count, self.folder)
            if pack_bytes > MAX_MIRROR_BYTES:
                await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
            elif pack_count > MAX_PACKS:
                await self.run("repack", "-q", "-d", "--geometric=2", timeout_seconds=FETCH_SECONDS)
        if not self.folder.exists():
            await self.create()

    async def removed_stale_locks(self, error: GitFailed) -> bool:
        """Remove the stale lock files if the error is about a lock file. Return whether any was removed."""
        is_lock_error = ".lock" in str(error) and "File exists" in str(error)
        return is_lock_error and await asyncio.to_thread(self.remove_lock_files, STALE_LOCK_SECONDS) > 0

    async def delete(self) -> None:
        """Remove the mirror from the disk."""
        async with self._lock:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    # -- in the mirror

    async def resolve_commit(self, revision: str) -> str:
        """Return the full hash of the commit that a ref, a tag or an abbreviated hash stands for."""
        output = await self.run("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        return output.decode().strip()

    async def commit_details(self, commit: str) -> CommitDetails:
        """Return the message and the author of a commit."""
        git_arguments = ["log", "-1", "--no-show-signature", "--format=%an%x00%B", commit, "--"]
        output = await self.git.run(git_arguments, git_dir=self.folder, max_output_bytes=MAX_FILE_BYTES)
        author, _, message = output.decode("utf-8", "replace").partition("\0")
        return CommitDetails(message=message.strip(), author=author.strip()[:200])

    async def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """Return whether the history of `descendant` includes `ancestor`."""
        return await self.git.succeeds(["merge-base", "--is-ancestor", ancestor, descendant], git_dir=self.folder)

    async def merge_base(self, first_commit: str, second_commit: str) -> str:
        """Return the best common ancestor of two commits, or an empty string if there is none."""
        if not await self.git.succeeds(["merge-base", first_commit, second_commit], git_dir=self.folder):
            return ""
        output = await self.run("merge-base", first_commit, second_commit)
        return output.decode().strip()

    async def changed_paths(self, base: str, head: str) -> frozenset[str] | None:
        """Return every path that differs between two commits, or None if a path is not UTF-8.

        A renamed file counts as a removed and an added one.
        """
        output = await self.run("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-commit-id", base, head, "--")
        try:
            return parse_changed_paths(output.decode())
        except UnicodeDecodeError:
            return None

    async def list_contents(self, commit: str) -> dict[str, str]:
        """Return by path the mode, type and object id of everything in a commit except folders.

        Bytes of a path that are not UTF-8 are surrogates, as in `os.fsdecode`.
        """
        output = await self.run("ls-tree", "-r", "-z", "--full-tree", commit, "--")
        contents: dict[str, str] = {}
        for tree_entry in output.decode("utf-8", "surrogateescape").split("\0"):
            content_id, separator, path = tree_entry.partition("\t")
            if separator:
                contents[path] = content_id
        return contents

    async def list_files(self, commit: str) -> list[str]:
        """Return the sorted paths of all regular files of a commit, without symbolic links and submodules."""
        return regular_files(await self.list_contents(commit))

    async def read_files(self, commit: str, paths: Iterable[str], max_bytes: int = MAX_FILE_BYTES) -> dict[str, bytes]:
        """Return the contents of these files by path, without missing and too large ones. See `blobs.parse_sizes`."""
        paths = [path for path in dict.fromkeys(paths) if "\n" not in path]
        if not paths:
            return {}
        output = await self.run("cat-file", "--batch-check", input=blobs.format_request(commit, paths))
        size_by_path = blobs.parse_sizes(paths, output, max_bytes)
        if not size_by_path:
            return {}
        output = await self.run("cat-file", "--batch", input=blobs.format_request(commit, size_by_path))
        return blobs.parse_contents(size_by_path, output)

    async def read_file(self, commit: str, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raise `GitFailed` if it does not exist or is larger than `max_bytes`."""
        git_arguments = ["cat-file", "blob", f"{commit}:{path}"]
        return await self.git.run(git_arguments, git_dir=self.folder, max_output_bytes=max_bytes)


def regular_files(contents: Mapping[str, str]) -> list[str]:
    """Return the sorted paths of the regular files among the entries that `Mirror.list_contents` returned."""
    paths = (path for path, content_id in contents.items() if content_id[:6] in REGULAR_FILE_MODES)
    return sorted(path.encode(errors="surrogateescape").decode(errors="replace") for path in paths)


def _mirror_ref(ref: str) -> str:
    """Return the ref of the mirror that stores this ref of the remote repository.

    A hash instead of the name avoids conflicts: a branch `a` may be replaced by a branch `a/b`.
    """
    return f"refs/mirror/{blake2b(ref.encode(), digest_size=16).hexdigest()}"


def _pack_bytes_and_count(folder: Path) -> tuple[int, int]:
    """Return the total size and the number of a repository's packs."""
    try:
        packs = [pack_path for pack_path in (folder / "objects" / "pack").iterdir() if pack_path.suffix == ".pack"]
        return sum(pack.stat().st_size for pack in packs), len(packs)
    except OSError:
        return 0, 0
