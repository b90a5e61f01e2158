"""Find and open the files of a workspace that match the artifact rules, without trusting the workspace.

A job may change its workspace meanwhile, so no path is used twice: folders are entered one by one by descriptor, never
through a symbolic link. A link to a file inside is kept with the content of its target; links that lead outside, FIFOs,
sockets and devices are skipped. `open_file` walks the path again and refuses a file that has been replaced.

Patterns have `*`, `?` and `[…]` within a name and `**` for any number of folders, also none. They match hidden files,
too. A pattern that matches a folder includes everything in it.
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
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # Non-blocking, as it may have become a FIFO.


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a search: the number and total size of the files found, folder depth, and entries examined."""

    files: int = MAX_ARTIFACTS
    bytes: int = MAX_LEASE_BYTES
    depth: int = 64
    entries: int = 1_000_000


class ArtifactFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that matches a rule. `path` is its name in the workspace, `real_path` the file that a link leads to."""

    path: str
    type: str
    bytes: int
    real_path: str
    device: int
    inode: int


class _Pattern:
    """The pattern of a rule, matched against a path name by name.

    A state is the number of parts that the path so far has matched; several are possible at once.
    """

    def __init__(self, rule: ArtifactRule) -> None:
        self.type = rule.type
        part_texts = pattern_parts(rule.path_glob)
        self._parts = [
            None if part_text == "**" else re.compile(fnmatch.translate(part_text)) for part_text in part_texts
        ]
        self.end = len(part_texts)

    def start(self) -> frozenset[int]:
        """Return the possible states before the first name of a path."""
        return self._skip_wildcards({0})

    def step(self, states: frozenset[int], entry_name: str) -> frozenset[int]:
        """Return the possible states after one more name. A complete match remains one for everything below it."""
        next_states: set[int] = set()
        for state in states:
            next_part = self._parts[state] if state < self.end else None
            if next_part is None:
                next_states.add(state)
            elif next_part.match(entry_name):
                next_states.add(state + 1)
        return self._skip_wildcards(next_states)

    def _skip_wildcards(self, states: set[int]) -> frozenset[int]:
        """Return these states, and those in which a `**` that follows matches no folder."""
        for state in sorted(states):
            next_state = state
            while next_state < self.end and self._parts[next_state] is None:
                next_state += 1
                states.add(next_state)
        return frozenset(states)


def pattern_parts(pattern: str) -> list[str]:
    """Return the parts of a pattern between slashes. Raise `Refused` if it is empty or may lead outside."""
    if not pattern.strip("./") and "**" not in pattern:
        raise Refused("bad_request", f"the pattern {pattern!r} names no file; write '**' for everything")
    if pattern.startswith("/") or "\0" in pattern:
        raise Refused("bad_request", f"the pattern {pattern!r} is absolute; write it from the workspace on")
    parts = [pattern_part for pattern_part in pattern.split("/") if pattern_part not in ("", ".")]
    if ".." in parts:
        raise Refused("bad_request", f"the pattern {pattern!r} has '..'; name files in the workspace")
    if len(parts) > MAX_PATTERN_PARTS:
        raise Refused("bad_request", f"the pattern {pattern[:80]!r}… has more than {MAX_PATTERN_PARTS} parts")
    return parts


class _Search:
    """A walk through a workspace that searches for the files of all patterns at once."""

    def __init__(self, workspace: Path, rules: Sequence[ArtifactRule], limits: SearchLimits) -> None:
        self._workspace = workspace
        self._patterns = [_Pattern(rule) for rule in rules]
        self._limits = limits
        self._entry_count = 0
        self._total_bytes = 0
        self._matched_rule_indexes: set[int] = set()
        self.files: list[ArtifactFile] = []

    def run(self) -> None:
        """Search the workspace and add all matching files to `files`."""
        if not self._patterns:
            return
        with open_folder(self._workspace) as root_fd:
            self._walk(root_fd, root_fd, "", [pattern.start() for pattern in self._patterns], 0)

    def _walk(self, root_fd: int, folder_fd: int, folder_path: str, states: list[frozenset[int]], depth: int) -> None:
        """Visit the entries of a folder that can still match a pattern."""
        if depth > self._limits.depth:
            raise Refused(
                "too_large", f"{folder_path!r} is more than {self._limits.depth} folders deep; narrow the pattern"
            )
        with os.scandir(folder_fd) as entries:
            entry_names = sorted(entry.name for entry in entries)
        self._entry_count += len(entry_names)
        if self._entry_count > self._limits.entries:
            raise Refused(
                "too_large",
                f"more than {self._limits.entries} entries to search, up to {folder_path!r}; narrow the pattern",
            )
        for entry_name in entry_names:
            next_states = [
                pattern.step(state, entry_name) for pattern, state in zip(self._patterns, states, strict=True)
            ]
            if any(next_states):
                self._visit(root_fd, folder_fd, f"{folder_path}{entry_name}", entry_name, next_states, depth)

    def _visit(
        self, root_fd: int, folder_fd: int, entry_path: str, entry_name: str, states: list[frozenset[int]], depth: int
    ) -> None:
        """Walk into a folder, or add a file or link that matches a pattern."""
        try:
            entry_status = os.stat(entry_name, dir_fd=folder_fd, follow_symlinks=False)
            if stat.S_ISDIR(entry_status.st_mode):
                child_fd = os.open(entry_name, FOLDER_FLAGS, dir_fd=folder_fd)
                try:
                    self._walk(root_fd, child_fd, f"{entry_path}/", states, depth + 1)
                finally:
                    os.close(child_fd)
                return
        except OSError:
            return  # It was removed or replaced, or is not readable.
        artifact_type = next(
            (pattern.type for pattern, state in zip(self._patterns, states, strict=True) if pattern.end in state), None
        )
        if artifact_type is None:
            return
        count_before = len(self.files)
        if stat.S_ISLNK(entry_status.st_mode):
            self._add_link_target(root_fd, entry_path, artifact_type)
        elif stat.S_ISREG(entry_status.st_mode):
            self._add_file(entry_path, artifact_type, entry_path, entry_status)
        if len(self.files) > count_before:
            self._matched_rule_indexes.update(
                index for index, pattern in enumerate(self._patterns) if pattern.end in states[index]
            )

    def unmatched(self) -> list[int]:
        """Return the indexes of the rules that matched no file."""
        return [index for index in range(len(self._patterns)) if index not in self._matched_rule_indexes]

    def _add_link_target(self, root_fd: int, link_path: str, artifact_type: str) -> None:
        """Add a link to a file inside the workspace under the link's name; skip other links."""
        workspace_root = self._workspace.resolve()
        try:
            real_path = (workspace_root / link_path).resolve(strict=True).relative_to(workspace_root).as_posix()
            with open_parent(root_fd, real_path) as (parent_fd, file_name):
                target_status = os.stat(file_name, dir_fd=parent_fd, follow_symlinks=False)
        except (OSError, ValueError, RuntimeError):
            return  # It leads outside, to nothing or in a circle, or has changed.
        if stat.S_ISREG(target_status.st_mode):
            self._add_file(link_path, artifact_type, real_path, target_status)

    def _add_file(self, path: str, artifact_type: str, real_path: str, file_status: os.stat_result) -> None:
        """Add a file to the result. Raise `Refused` if a limit is exceeded or its name is not UTF-8."""
        try:
            path.encode()
        except UnicodeEncodeError:
            raise Refused("bad_request", f"the file name {os.fsencode(path)!r} is not UTF-8; rename the file") from None
        if len(self.files) == self._limits.files:
            raise Refused("too_large", f"more than {self._limits.files} artifacts, {path!r} is one too many; pack them")
        self._total_bytes += file_status.st_size
        if self._total_bytes > self._limits.bytes:
            raise Refused("too_large", f"artifacts of more than {self._limits.bytes} bytes, up to {path!r}; keep less")
        self.files.append(
            ArtifactFile(
                path=path,
                type=artifact_type,
                bytes=file_status.st_size,
                real_path=real_path,
                device=file_status.st_dev,
                inode=file_status.st_ino,
            )
        )


_DEFAULT: Final = SearchLimits()


def find_files(workspace: Path, rules: Sequence[ArtifactRule], limits: SearchLimits = _DEFAULT) -> list[ArtifactFile]:
    """Return the files that match a rule, sorted by path, each with the type of the first rule that it matches."""
    return search_files(workspace, rules, limits)[0]


def search_files(
    workspace: Path, rules: Sequence[ArtifactRule], limits: SearchLimits = _DEFAULT
) -> tuple[list[ArtifactFile], list[ArtifactRule]]:
    """Return the files that `find_files` returns, and the rules that no file matches."""
    search = _Search(workspace, rules, limits)
    search.run()
    return sorted(search.files, key=lambda file: file.path), [rules[index] for index in search.unmatched()]


def escape_pattern(path: str) -> str:
    """Return a pattern that matches exactly this path."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)


def open_file(workspace: Path, file: ArtifactFile) -> BinaryIO:
    """Open a file that a search returned. Raise `Refused` if it has been replaced.

    Read at most `file.bytes` bytes: it may still grow.
    """
    try:
        with open_folder(workspace) as root_fd, open_parent(root_fd, file.real_path) as (parent_fd, file_name):
            opened_file = os.fdopen(os.open(file_name, _FILE, dir_fd=parent_fd), "rb")
    except OSError as error:
        raise Refused("not_found", f"{file.path!r} no longer exists: {error.strerror}") from None
    file_status = os.fstat(opened_file.fileno())
    if (file_status.st_dev, file_status.st_ino) != (file.device, file.inode) or not stat.S_ISREG(file_status.st_mode):
        opened_file.close()
        raise Refused("not_found", f"{file.path!r} has been replaced since it was found; leave files in place")
    return opened_file
