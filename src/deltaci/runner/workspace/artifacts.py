"""Artifacts: which files of a workspace to keep, found and opened so that a job gains nothing by tricks.

A workspace belongs to its job, which may still change it while we look. So nothing here trusts a path twice: folders
are entered one by one through their descriptors, never through a symbolic link; a link to a file inside is kept as its
target's content, a link that leads outside is left out, as are fifos, sockets and devices. `open_found` walks the same
way again and refuses whatever is no longer the file that was found.

Patterns have `*`, `?`, `[…]` inside a name and `**` for any folders, also none. They match hidden files too. A pattern
that matches a folder takes everything in it.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import MAX_ARTIFACTS, MAX_LEASE_BYTES, ArtifactRule
from deltaci.runner.workspace.folders import FOLDER_FLAGS, open_folder, open_parent

MAX_PATTERN_PARTS: Final = 64
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # Not blocking: it may be a fifo by now.


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be kept of one job, and how far we look for it."""

    files: int = MAX_ARTIFACTS
    bytes: int = MAX_LEASE_BYTES
    depth: int = 64
    entries: int = 1_000_000


class ArtifactFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to keep. `path` is its name in the workspace, `real_path` where its content is, both with `/`."""

    path: str
    type: str
    bytes: int
    real_path: str
    device: int
    inode: int


class _Pattern:
    """A rule, taken apart. Its state is how many of its parts have been matched by the folders so far."""

    def __init__(self, rule: ArtifactRule) -> None:
        self.type = rule.type
        parts = pattern_parts(rule.path_glob)
        self._parts = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in parts]
        self.end = len(parts)

    def start(self) -> frozenset[int]:
        """Before any name."""
        return self._open({0})

    def step(self, states: frozenset[int], name: str) -> frozenset[int]:
        """After one more name. A pattern that is used up stays so: it takes everything below."""
        after: set[int] = set()
        for state in states:
            part = self._parts[state] if state < self.end else None
            if part is None:
                after.add(state)
            elif part.match(name):
                after.add(state + 1)
        return self._open(after)

    def _open(self, states: set[int]) -> frozenset[int]:
        """Also without the folders that `**` need not match."""
        for state in sorted(states):
            at = state
            while at < self.end and self._parts[at] is None:
                at += 1
                states.add(at)
        return frozenset(states)


def pattern_parts(pattern: str) -> list[str]:
    """The names of a pattern, or a refusal that says what is wrong with it."""
    if not pattern.strip("./") and "**" not in pattern:
        raise Refused("bad_request", f"the pattern {pattern!r} names no file; write '**' for everything")
    if pattern.startswith("/") or "\0" in pattern:
        raise Refused("bad_request", f"the pattern {pattern!r} is absolute; write it from the workspace on")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Refused("bad_request", f"the pattern {pattern!r} has '..'; only files in the workspace are kept")
    if len(parts) > MAX_PATTERN_PARTS:
        raise Refused("bad_request", f"the pattern {pattern[:80]!r}… has more than {MAX_PATTERN_PARTS} parts")
    return parts


class _Search:
    """One walk through a workspace, for all patterns at once."""

    def __init__(self, workspace: Path, rules: Sequence[ArtifactRule], bounds: SearchLimits) -> None:
        self._workspace = workspace
        self._patterns = [_Pattern(rule) for rule in rules]
        self._bounds = bounds
        self._looked_at = 0
        self._bytes = 0
        self._matched: set[int] = set()
        self.found: list[ArtifactFile] = []

    def run(self) -> None:
        """Fill `found`."""
        if not self._patterns:
            return
        with open_folder(self._workspace) as root:
            self._walk(root, root, "", [pattern.start() for pattern in self._patterns], 0)

    def _walk(self, root: int, folder: int, path: str, states: list[frozenset[int]], depth: int) -> None:
        if depth > self._bounds.depth:
            raise Refused("too_large", f"{path!r} is more than {self._bounds.depth} folders deep; narrow the pattern")
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        self._looked_at += len(names)
        if self._looked_at > self._bounds.entries:
            raise Refused(
                "too_large", f"more than {self._bounds.entries} files to look at, up to {path!r}; narrow the pattern"
            )
        for name in names:
            after = [pattern.step(state, name) for pattern, state in zip(self._patterns, states, strict=True)]
            if any(after):
                self._visit(root, folder, f"{path}{name}", name, after, depth)

    def _visit(self, root: int, folder: int, path: str, name: str, states: list[frozenset[int]], depth: int) -> None:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
                try:
                    self._walk(root, inner, f"{path}/", states, depth + 1)
                finally:
                    os.close(inner)
                return
        except OSError:
            return  # It is gone, it was swapped, or it may not be read: not a file that can be kept.
        kind = next((p.type for p, s in zip(self._patterns, states, strict=True) if p.end in s), None)
        if kind is None:
            return
        before = len(self.found)
        if stat.S_ISLNK(status.st_mode):
            self._keep_target(root, path, kind)
        elif stat.S_ISREG(status.st_mode):
            self._keep(path, kind, path, status)
        if len(self.found) > before:
            self._matched.update(at for at, pattern in enumerate(self._patterns) if pattern.end in states[at])

    def missed(self) -> list[int]:
        """The places of the rules that no file matched."""
        return [at for at in range(len(self._patterns)) if at not in self._matched]

    def _keep_target(self, root: int, path: str, kind: str) -> None:
        """A link to a file inside is kept under its own name; any other is left out."""
        top = self._workspace.resolve()
        try:
            real_path = (top / path).resolve(strict=True).relative_to(top).as_posix()
            with open_parent(root, real_path) as (folder, name):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError, RuntimeError):
            return  # Outside, dangling, in a circle, or changed meanwhile.
        if stat.S_ISREG(status.st_mode):
            self._keep(path, kind, real_path, status)

    def _keep(self, path: str, kind: str, real_path: str, status: os.stat_result) -> None:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise Refused("bad_request", f"the file name {os.fsencode(path)!r} is not UTF-8; rename the file") from None
        if len(self.found) == self._bounds.files:
            raise Refused("too_large", f"more than {self._bounds.files} artifacts, {path!r} is one too many; pack them")
        self._bytes += status.st_size
        if self._bytes > self._bounds.bytes:
            raise Refused("too_large", f"artifacts of more than {self._bounds.bytes} bytes, up to {path!r}; keep less")
        self.found.append(
            ArtifactFile(
                path=path,
                type=kind,
                bytes=status.st_size,
                real_path=real_path,
                device=status.st_dev,
                inode=status.st_ino,
            )
        )


_DEFAULT: Final = SearchLimits()


def find_files(workspace: Path, rules: Sequence[ArtifactRule], bounds: SearchLimits = _DEFAULT) -> list[ArtifactFile]:
    """The files that the rules keep, sorted by path, each once with the type of the first rule that matches it."""
    return search_files(workspace, rules, bounds)[0]


def search_files(
    workspace: Path, rules: Sequence[ArtifactRule], bounds: SearchLimits = _DEFAULT
) -> tuple[list[ArtifactFile], list[ArtifactRule]]:
    """The same, and the rules that no file matches."""
    walk = _Search(workspace, rules, bounds)
    walk.run()
    return sorted(walk.found, key=lambda found: found.path), [rules[at] for at in walk.missed()]


def escape_pattern(path: str) -> str:
    """The pattern that matches this path and nothing else."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)


def open_file(workspace: Path, found: ArtifactFile) -> BinaryIO:
    """Open what was found; refused if it is another file by now. Read at most `found.bytes`: it may still grow."""
    try:
        with open_folder(workspace) as root, open_parent(root, found.real_path) as (folder, name):
            file = os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
    except OSError as error:
        raise Refused("not_found", f"{found.path!r} was there and is not any more: {error.strerror}") from None
    status = os.fstat(file.fileno())
    if (status.st_dev, status.st_ino) != (found.device, found.inode) or not stat.S_ISREG(status.st_mode):
        file.close()
        raise Refused("not_found", f"{found.path!r} is another file than the one that was found; leave files in place")
    return file
