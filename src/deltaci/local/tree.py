"""This folder as a repository: what is in it right now, committed or not, and what changed against where it began.

Nothing of the user's own repository is ever written: what is here becomes a commit in a repository of our own beside
it, which borrows the objects of theirs. The same files always make the same commit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.git.diff import parse_changed_paths

GIT_SECONDS: Final = 600.0
MAX_FILE_BYTES: Final = 1024 * 1024
_NOBODY: Final = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "deltaci"), ("EMAIL", "deltaci@localhost"))
}
# Where a line of work may have begun, best first.
_BASES: Final = ("origin/HEAD", "origin/main", "origin/master", "main", "master")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is here, as a commit of our own repository. `head` is the user's own commit below it, if there is one."""

    commit: str
    head: str = ""
    is_clean: bool = False


class Tree:
    """The folder in which somebody works: their repository from its root on, or just this folder."""

    def __init__(self, folder: Path) -> None:
        self._start = folder.resolve()
        try:
            top = self._ask("rev-parse", "--show-toplevel")
        except FileNotFoundError:
            raise Refused("unreadable", "git is not installed here, or not on the PATH; install it") from None
        self.root = Path(top) if top else self._start
        self.is_git = bool(top)
        self.store = self.root  # our own repository

    def keep_in(self, store: Path) -> None:
        """Where our own repository is, or will be."""
        self.store = store.resolve()

    # -- what is here

    def snapshot(self) -> Snapshot:
        """All files as they are, without those that git ignores."""
        self._prepare()
        head = self._ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}") if self.is_git else ""
        added = self._own("add", "--all", "--ignore-errors", "--", ".")
        if added.returncode not in (0, 1):  # 1: some could not be read; they are left out, and git says which.
            raise Refused("unreadable", f"the files here cannot be read: {_said(added)}")
        tree = self._must("write-tree")
        if head and self._ask("rev-parse", f"{head}^{{tree}}") == tree:
            commit = head
        else:
            date = self._ask("show", "-s", "--format=%cI", head) if head else "1970-01-01T00:00:00Z"
            dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
            parents = ("-p", head) if head else ()
            commit = self._must("commit-tree", tree, *parents, "-m", "what is here", more={**_NOBODY, **dates})
        self._must("update-ref", self.ref(), commit)
        return Snapshot(commit=commit, head=head, is_clean=commit == head)

    def _prepare(self) -> None:
        if not (self.store / "HEAD").exists():
            self.store.parent.mkdir(parents=True, exist_ok=True)
            made = self._run(["init", "--quiet", "--bare", str(self.store)])
            if made.returncode:
                raise Refused("unreadable", f"a repository cannot be made in {self.store}: {_said(made)}")
        for name in ("uploadpack.allowAnySHA1InWant", "uploadpack.allowFilter"):
            self._must("config", name, "true")
        info = self.store / "info"
        info.mkdir(exist_ok=True)
        ignored = [f"/{self.store.parent.relative_to(self.root)}/"] if self.store.is_relative_to(self.root) else []
        index = self.store / "here.index"
        if self.is_git:
            ours = Path(self._ask("rev-parse", "--path-format=absolute", "--git-common-dir"))
            own = Path(self._ask("rev-parse", "--path-format=absolute", "--git-dir"))
            with_theirs = ours / "info" / "exclude"
            ignored += with_theirs.read_text("utf-8", "replace").splitlines() if with_theirs.exists() else []
            (self.store / "objects" / "info" / "alternates").write_text(f"{ours / 'objects'}\n", "utf-8")
            # Their index knows what is tracked though ignored, and which files need not be read again.
            if (own / "index").exists():
                shutil.copy2(own / "index", index)  # With its time: by that git knows what it must read again.
        (info / "exclude").write_text("".join(f"{line}\n" for line in ignored), "utf-8")
        if self._own("ls-files", "--error-unmatch", "--", ".").returncode > 1:
            index.unlink(missing_ok=True)  # One that only their repository understands.

    def paths(self, commit: str) -> list[str]:
        """All files of a commit."""
        listed = self._must("ls-tree", "-r", "-z", "--name-only", commit)
        return [path for path in listed.split("\0") if path]

    def read(self, commit: str, path: str) -> bytes | None:
        """One file of a commit; None when there is none, or one that nobody would read."""
        asked = self._own("cat-file", "-s", f"{commit}:{path}")
        if asked.returncode or int(asked.stdout or 0) > MAX_FILE_BYTES:
            return None
        return self._own("cat-file", "blob", f"{commit}:{path}").stdout

    # -- what changed

    def base(self, named: str, snapshot: Snapshot) -> tuple[str, str]:
        """The commit that the changes here are compared with, and what it is called; empty when there is none.

        By default that is where this line of work left the default branch; on that branch, what is not committed, or
        else its last commit.
        """
        if not snapshot.head:
            if named:
                raise Refused("bad_request", f"there is no commit here to compare with {named!r}; leave --base out")
            return "", "there is no commit yet"
        if named:
            found = self._ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{named}^{{commit}}")
            if not found:
                raise Refused("bad_request", f"there is no commit {named!r} here; name a branch, a tag or a commit")
            return self._ask("merge-base", found, snapshot.head) or found, named
        for name in _BASES:
            tip = self._ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            base = self._ask("merge-base", tip, snapshot.head) if tip else ""
            if base and not (base == snapshot.head and snapshot.is_clean):
                return base, name if base != snapshot.head else "what is committed"
        before = self._ask("rev-parse", "--verify", "--quiet", f"{snapshot.head}^^{{commit}}")
        return (before, "the commit before") if before else ("", "there is only one commit")

    def changed(self, base: str, commit: str) -> frozenset[str] | None:
        """Every path that differs; None when git does not tell."""
        told = self._own("diff", "--raw", "-z", "--find-renames", "--no-ext-diff", "--end-of-options", base, commit)
        if told.returncode:
            return None
        return parse_changed_paths(told.stdout.decode("utf-8", "surrogateescape"))

    # -- for people

    def branch(self) -> str:
        """The branch that is checked out."""
        return self._ask("symbolic-ref", "--quiet", "--short", "HEAD") if self.is_git else ""

    def ref(self) -> str:
        """Under which name the commit is found in our own repository: jobs see it as their branch."""
        return f"refs/heads/{self.branch() or 'here'}"

    def default_branch(self) -> str:
        """The branch that lines of work begin from."""
        told = self._ask("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD") if self.is_git else ""
        return told.removeprefix("origin/") or "main"

    def repository(self) -> str:
        """What people call the repository: `owner/name` of where it came from, or the folder's name."""
        url = self._ask("remote", "get-url", "origin") if self.is_git else ""
        parts = url.removesuffix(".git").replace(":", "/").rstrip("/").split("/")
        return "/".join(parts[-2:]) if url and len(parts) >= 2 and parts[-2] else self.root.name

    def person(self) -> str:
        """Who works here."""
        return self._ask("config", "user.name") or os.environ.get("USER", "")

    def subject(self) -> str:
        """The first line of the last commit's message."""
        return self._ask("show", "-s", "--format=%s", "HEAD") if self.is_git else ""

    # -- git

    def _ask(self, *words: str) -> str:
        """What the user's own repository answers; nothing when it does not know."""
        told = self._run(["-C", str(self._start), *words])
        return told.stdout.decode("utf-8", "surrogateescape").strip() if not told.returncode else ""

    def _own(self, *words: str, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        places = {
            "GIT_DIR": str(self.store),
            "GIT_WORK_TREE": str(self.root),
            "GIT_INDEX_FILE": str(self.store / "here.index"),
        }
        return self._run(["-c", "advice.addEmbeddedRepo=false", *words], {**places, **(more or {})}, self.root)

    def _must(self, *words: str, more: Mapping[str, str] | None = None) -> str:
        told = self._own(*words, more=more)
        if told.returncode:
            raise Refused("unreadable", f"git {words[0]} does not work here: {_said(told)}")
        return told.stdout.decode("utf-8", "surrogateescape").strip("\n")

    def _run(
        self, words: Sequence[str], more: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment = {**plain, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(more or {})}
        try:
            return subprocess.run(
                ["git", *words],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=GIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Refused("unreadable", f"git {words[0]} did not end within {GIT_SECONDS:.0f} s") from None


def _said(told: subprocess.CompletedProcess[bytes]) -> str:
    lines = told.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"git ended with {told.returncode}"
