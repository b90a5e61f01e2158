"""Cache keys: `{lock_hash}` in a key stands for the SHA-256 of the lock files, so that it changes with them.

The hash covers names, sizes and contents, in the order of the names: the same files give the same key everywhere. The
lock files are the ones that match the rule's patterns, else all well-known ones in the workspace, except in hidden
folders and in folders of installed dependencies.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import ArtifactRule, CacheRule
from deltaci.runner.workspace.artifacts import ArtifactFile, SearchLimits, escape_pattern, find_files, open_file

PLACEHOLDER: Final = "{lock_hash}"
COMMON_LOCK_FILES: Final = frozenset(
    {
        "Cargo.lock",
        "Gemfile.lock",
        "Package.resolved",
        "Pipfile.lock",
        "Podfile.lock",
        "bun.lock",
        "bun.lockb",
        "composer.lock",
        "conan.lock",
        "deno.lock",
        "flake.lock",
        "go.sum",
        "gradle.lockfile",
        "mix.lock",
        "npm-shrinkwrap.json",
        "package-lock.json",
        "packages.lock.json",
        "pdm.lock",
        "pnpm-lock.yaml",
        "poetry.lock",
        "pubspec.lock",
        "requirements.txt",
        "uv.lock",
        "yarn.lock",
    }
)
# Installed dependencies follow from a lock file, and change with the cache itself.
INSTALLED: Final = frozenset({"node_modules", "vendor", "venv", "target", "site-packages", "__pycache__", "Pods"})
MAX_DEPTH: Final = 8
_LIMITS: Final = SearchLimits(files=1000, bytes=256 * 1024**2)
_CHUNK_BYTES: Final = 1024 * 1024


class CacheKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a cache, the lock files that its hash covers, and a warning for the author of the rule, or ""."""

    key: str
    lock_files: tuple[str, ...] = ()
    note: str = ""


def cache_key(workspace: Path, rule: CacheRule) -> CacheKey:
    """Return the key of a rule with `{lock_hash}` replaced. Without this placeholder no file is read."""
    if PLACEHOLDER not in rule.key:
        return CacheKey(key=rule.key)
    lock_files, unmatched_patterns = (
        _find_lock_files(workspace, rule.lock_files) if rule.lock_files else (_find_common_lock_files(workspace), [])
    )
    entry_key = rule.key.replace(PLACEHOLDER, _hash(workspace, lock_files))
    return CacheKey(
        key=entry_key,
        lock_files=tuple(lock_file.path for lock_file in lock_files),
        note=_lock_files_warning(rule, lock_files, unmatched_patterns),
    )


def _lock_files_warning(rule: CacheRule, lock_files: list[ArtifactFile], unmatched_patterns: list[str]) -> str:
    """Return the warning that lock files are missing; empty if none are."""
    if unmatched_patterns:
        return f"cache {rule.key!r}: no file matches {', '.join(unmatched_patterns)}; the key does not depend on it"
    if not lock_files:
        return (
            f"cache {rule.key!r}: no lock file in the workspace, so the key never changes; "
            "name some in lock_files, or take {lock_hash} out of the key"
        )
    return ""


def _find_lock_files(workspace: Path, patterns: list[str]) -> tuple[list[ArtifactFile], list[str]]:
    """Return the lock files that match these patterns, sorted by path, and the patterns that match none."""
    matching_files_by_pattern = {
        pattern: find_files(workspace, [ArtifactRule(path_glob=pattern)], _LIMITS) for pattern in patterns
    }
    lock_file_by_path = {
        lock_file.path: lock_file
        for matching_files in matching_files_by_pattern.values()
        for lock_file in matching_files
    }
    return [lock_file_by_path[lock_path] for lock_path in sorted(lock_file_by_path)], [
        pattern for pattern, matching_files in matching_files_by_pattern.items() if not matching_files
    ]


def _find_common_lock_files(workspace: Path) -> list[ArtifactFile]:
    """Return the lock files with well-known names.

    This walks the workspace itself, to skip installed dependencies; `find_files` then checks each file.
    """
    lock_paths: list[str] = []
    for folder_path, folder_names, file_names in os.walk(workspace, followlinks=False):
        relative_folder = Path(folder_path).relative_to(workspace)
        is_deep = len(relative_folder.parts) >= MAX_DEPTH
        folder_names[:] = (
            []
            if is_deep
            else [
                folder_name
                for folder_name in folder_names
                if folder_name not in INSTALLED and not folder_name.startswith(".")
            ]
        )
        lock_paths.extend(
            (relative_folder / file_name).as_posix() for file_name in file_names if file_name in COMMON_LOCK_FILES
        )
    if len(lock_paths) > _LIMITS.files:
        raise Refused("too_large", f"{len(lock_paths)} lock files, at most {_LIMITS.files}; name some in lock_files")
    rules = [ArtifactRule(path_glob=escape_pattern(lock_path)) for lock_path in sorted(lock_paths)]
    return find_files(workspace, rules, _LIMITS)


def _hash(workspace: Path, lock_files: list[ArtifactFile]) -> str:
    """Return the SHA-256, in hex, of the names, sizes and contents of the lock files."""
    combined_hash = hashlib.sha256()
    for lock_file in sorted(lock_files, key=lambda lock_file: lock_file.path.encode()):
        file_hash, hashed_bytes = hashlib.sha256(), 0
        with open_file(workspace, lock_file) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                file_hash.update(chunk)
                hashed_bytes += len(chunk)
                if hashed_bytes > _LIMITS.bytes:
                    raise Refused("too_large", f"the lock file {lock_file.path!r} grows while it is read")
        # One line per file, with the name in hex: different sets of files never give the same lines.
        encoded_path = lock_file.path.encode().hex()
        combined_hash.update(f"{encoded_path} {hashed_bytes} {file_hash.hexdigest()}\n".encode())
    return combined_hash.hexdigest()
