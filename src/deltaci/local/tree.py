"""A local folder as a git commit: all its files, committed or not, and what changed since it left its base branch.

The user's own repository is never written. The files become a commit in a bare repository of ours, which borrows the
objects of the user's repository. The same files always give the same commit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.git import blobs
from deltaci.git.command import run_in_user_repository
from deltaci.git.diff import parse_changed_paths
from deltaci.pipeline.repository import MAX_FILE_BYTES

GIT_SECONDS: Final = 600.0
_AUTHOR_ENV: Final = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "deltaci"), ("EMAIL", "deltaci@localhost"))
}
# The branches that a change may be based on, the best one first.
_BASE_BRANCHES: Final = ("origin/HEAD", "origin/main", "origin/master", "main", "master")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The folder as a commit of our repository. `head` is the user's commit that it is based on, if there is one."""

    commit: str
    head: str = ""
    is_clean: bool = False


class WorkingTree:
    """The folder that the user works in: a whole git working tree, or a plain folder."""

    def __init__(self, folder: Path) -> None:
        self._start_folder = folder.resolve()
        try:
            top = self._query_user_git("rev-parse", "--show-toplevel")
        except FileNotFoundError:
            raise Refused("unreadable", "git is not installed here, or not on the PATH; install it") from None
        self.root = Path(top) if top else self._start_folder
        self.is_git = bool(top)
        self.git_dir = self.root

    def set_git_dir(self, git_dir: Path) -> None:
        """Set the folder of our own repository; it is created when needed."""
        self.git_dir = git_dir.resolve()

    # -- snapshots

    def snapshot(self) -> Snapshot:
        """Return a commit of all files that git does not ignore: HEAD if it has the same files, else a new one in our
        repository.

        Files that cannot be read are left out.
        """
        self._prepare()
        head_commit = self._query_user_git("rev-parse", "--verify", "--quiet", "HEAD^{commit}") if self.is_git else ""
        add_result = self._git("add", "--all", "--ignore-errors", "--", ".")
        if add_result.returncode not in (0, 1):  # 1: some files could not be read and are left out.
            raise Refused("unreadable", f"the files here cannot be read: {_error_text(add_result)}")
        tree = self._checked_git("write-tree")
        if head_commit and self._query_user_git("rev-parse", f"{head_commit}^{{tree}}") == tree:
            commit = head_commit
        else:
            date = (
                self._query_user_git("show", "-s", "--format=%cI", head_commit)
                if head_commit
                else "1970-01-01T00:00:00Z"
            )
            dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
            parent_arguments = ("-p", head_commit) if head_commit else ()
            commit = self._checked_git(
                "commit-tree", tree, *parent_arguments, "-m", "what is here", extra_env={**_AUTHOR_ENV, **dates}
            )
        self._checked_git("update-ref", self.snapshot_ref(), commit)
        return Snapshot(commit=commit, head=head_commit, is_clean=commit == head_commit)

    def _prepare(self) -> None:
        """Create our own repository, with the objects, ignored patterns and a copy of the index of the user's one."""
        if not (self.git_dir / "HEAD").exists():
            self.git_dir.parent.mkdir(parents=True, exist_ok=True)
            init_result = run_in_user_repository(
                ["init", "--quiet", "--bare", str(self.git_dir)], self.root, GIT_SECONDS
            )
            if init_result.returncode:
                raise Refused("unreadable", f"cannot create a repository in {self.git_dir}: {_error_text(init_result)}")
        for setting in ("uploadpack.allowAnySHA1InWant", "uploadpack.allowFilter"):
            self._checked_git("config", setting, "true")
        info_folder = self.git_dir / "info"
        info_folder.mkdir(exist_ok=True)
        ignored = [f"/{self.git_dir.parent.relative_to(self.root)}/"] if self.git_dir.is_relative_to(self.root) else []
        index_path = self.git_dir / "here.index"
        if self.is_git:
            common_dir = Path(self._query_user_git("rev-parse", "--path-format=absolute", "--git-common-dir"))
            user_git_dir = Path(self._query_user_git("rev-parse", "--path-format=absolute", "--git-dir"))
            user_exclude = common_dir / "info" / "exclude"
            ignored += user_exclude.read_text("utf-8", "replace").splitlines() if user_exclude.exists() else []
            (self.git_dir / "objects" / "info" / "alternates").write_text(f"{common_dir / 'objects'}\n", "utf-8")
            # The user's index knows which ignored files are tracked, and which files need not be read again.
            if (user_git_dir / "index").exists():
                shutil.copy2(
                    user_git_dir / "index", index_path
                )  # With its time: git compares it with those of the files.
        (info_folder / "exclude").write_text("".join(f"{pattern_line}\n" for pattern_line in ignored), "utf-8")
        if self._git("ls-files", "--error-unmatch", "--", ".").returncode > 1:
            index_path.unlink(missing_ok=True)  # An index that depends on the user's repository, such as a split index.

    def paths(self, commit: str) -> list[str]:
        """Return the paths of all files of a commit."""
        listed = self._checked_git("ls-tree", "-r", "-z", "--name-only", commit)
        return [path for path in listed.split("\0") if path]

    def read_files(self, commit: str, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of these files by path, without missing ones and those too large for a pipeline file."""
        paths = [path for path in paths if "\n" not in path]
        size_listing = self._git("cat-file", "--batch-check", input=blobs.format_request(commit, paths)).stdout
        sizes = blobs.parse_sizes(paths, size_listing, MAX_FILE_BYTES)
        git_output = self._git("cat-file", "--batch", input=blobs.format_request(commit, sizes)).stdout
        return blobs.parse_contents(sizes, git_output)

    # -- what changed

    def find_base(self, requested_base: str, snapshot: Snapshot) -> tuple[str, str]:
        """Return the commit that the folder is compared with, and its name; an empty commit if there is none.

        By default this is where the branch left the default branch. On the default branch it is HEAD if there are
        uncommitted changes, otherwise the commit before it.
        """
        if not snapshot.head:
            if requested_base:
                raise Refused(
                    "bad_request", f"there is no commit here to compare with {requested_base!r}; leave --base out"
                )
            return "", "there is no commit yet"
        if requested_base:
            commit = self._query_user_git(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{requested_base}^{{commit}}"
            )
            if not commit:
                raise Refused(
                    "bad_request", f"there is no commit {requested_base!r} here; name a branch, a tag or a commit"
                )
            return self._query_user_git("merge-base", commit, snapshot.head) or commit, requested_base
        for branch in _BASE_BRANCHES:
            tip = self._query_user_git("rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}")
            base_commit = self._query_user_git("merge-base", tip, snapshot.head) if tip else ""
            if base_commit and not (base_commit == snapshot.head and snapshot.is_clean):
                return base_commit, branch if base_commit != snapshot.head else "the last commit"
        parent_commit = self._query_user_git("rev-parse", "--verify", "--quiet", f"{snapshot.head}^^{{commit}}")
        return (parent_commit, "the previous commit") if parent_commit else ("", "there is only one commit")

    def changed_paths(self, base_commit: str, commit: str) -> frozenset[str] | None:
        """Return every path that differs; None if git cannot tell."""
        diff_result = self._git(
            "diff", "--raw", "-z", "--find-renames", "--no-ext-diff", "--end-of-options", base_commit, commit
        )
        if diff_result.returncode:
            return None
        return parse_changed_paths(diff_result.stdout.decode("utf-8", "surrogateescape"))

    # -- descriptions

    def current_branch(self) -> str:
        """Return the branch that is checked out, or an empty string."""
        return self._query_user_git("symbolic-ref", "--quiet", "--short", "HEAD") if self.is_git else ""

    def snapshot_ref(self) -> str:
        """Return the ref of the snapshot in our repository: jobs see it as their branch."""
        return f"refs/heads/{self.current_branch() or 'here'}"

    def default_branch(self) -> str:
        remote_branch = (
            self._query_user_git("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
            if self.is_git
            else ""
        )
        return remote_branch.removeprefix("origin/") or "main"

    def repository_name(self) -> str:
        """Return `owner/name` from the URL of the remote `origin`, or the folder's name."""
        origin_url = self._query_user_git("remote", "get-url", "origin") if self.is_git else ""
        url_parts = origin_url.removesuffix(".git").replace(":", "/").rstrip("/").split("/")
        return "/".join(url_parts[-2:]) if origin_url and len(url_parts) >= 2 and url_parts[-2] else self.root.name

    def user_name(self) -> str:
        """Return the user's name."""
        return self._query_user_git("config", "user.name") or os.environ.get("USER", "")

    def commit_subject(self) -> str:
        """Return the first line of the last commit's message."""
        return self._query_user_git("show", "-s", "--format=%s", "HEAD") if self.is_git else ""

    # -- git

    def _query_user_git(self, *arguments: str) -> str:
        """Run git in the user's repository. Returns its output, or an empty string on failure."""
        git_result = run_in_user_repository(["-C", str(self._start_folder), *arguments], Path("/"), GIT_SECONDS)
        return git_result.stdout.decode("utf-8", "surrogateescape").strip() if not git_result.returncode else ""

    def _git(
        self, *arguments: str, extra_env: Mapping[str, str] | None = None, input: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git in our repository, with the user's folder as its working tree."""
        locations = {
            "GIT_DIR": str(self.git_dir),
            "GIT_WORK_TREE": str(self.root),
            "GIT_INDEX_FILE": str(self.git_dir / "here.index"),
        }
        arguments = ("-c", "advice.addEmbeddedRepo=false", *arguments)
        return run_in_user_repository(arguments, self.root, GIT_SECONDS, {**locations, **(extra_env or {})}, input)

    def _checked_git(self, *arguments: str, extra_env: Mapping[str, str] | None = None) -> str:
        """Run git in our repository and return its output. Raises `Refused` on failure."""
        git_result = self._git(*arguments, extra_env=extra_env)
        if git_result.returncode:
            raise Refused("unreadable", f"git {arguments[0]} failed: {_error_text(git_result)}")
        return git_result.stdout.decode("utf-8", "surrogateescape").strip("\n")


def _error_text(git_result: subprocess.CompletedProcess[bytes]) -> str:
    stderr_lines = git_result.stderr.decode("utf-8", "replace").strip().splitlines()
    return stderr_lines[-1] if stderr_lines else f"git ended with {git_result.returncode}"
