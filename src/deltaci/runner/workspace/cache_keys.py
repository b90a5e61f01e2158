"""Cache keys: `{lock_hash}` in a key is the SHA-256 of the lock files, so a cache is as old as what it was made from.

The hash is over names, sizes and contents, in the order of the names: the same files give the same key everywhere.
Lock files are the ones that the rule names (patterns are fine), or else every well-known one in the workspace, except
in hidden folders and in folders into which tools install what others made.
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
WELL_KNOWN: Final = frozenset(
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
# Installed, not written: what lies here is the consequence of a lock file, and changes with the cache itself.
INSTALLED: Final = frozenset({"node_modules", "vendor", "venv", "target", "site-packages", "__pycache__", "Pods"})
MAX_DEPTH: Final = 8
_BOUNDS: Final = SearchLimits(files=1000, bytes=256 * 1024**2)
_PART: Final = 1024 * 1024


class CacheKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, what it was made from, and what its author should be told; the note is empty if all is well."""

    key: str
    lock_files: tuple[str, ...] = ()
    note: str = ""


def cache_key(workspace: Path, rule: CacheRule) -> CacheKey:
    """The rule's key with the hash of the lock files in it. Without `{lock_hash}` nothing is looked at."""
    if PLACEHOLDER not in rule.key:
        return CacheKey(key=rule.key)
    found, missing = _named(workspace, rule.lock_files) if rule.lock_files else (_well_known(workspace), [])
    key = rule.key.replace(PLACEHOLDER, _hash(workspace, found))
    return CacheKey(key=key, lock_files=tuple(file.path for file in found), note=_note(rule, found, missing))


def _note(rule: CacheRule, found: list[ArtifactFile], missing: list[str]) -> str:
    if missing:
        return f"cache {rule.key!r}: no file matches {', '.join(missing)}; the key does not depend on it"
    if not found:
        return (
            f"cache {rule.key!r}: no lock file in the workspace, so the key never changes; "
            "name some in lock_files, or take {lock_hash} out of the key"
        )
    return ""


def _named(workspace: Path, names: list[str]) -> tuple[list[ArtifactFile], list[str]]:
    each = {name: find_files(workspace, [ArtifactRule(path_glob=name)], _BOUNDS) for name in names}
    found = {file.path: file for files in each.values() for file in files}
    return [found[path] for path in sorted(found)], [name for name, files in each.items() if not files]


def _well_known(workspace: Path) -> list[ArtifactFile]:
    """Walks by itself, for it must pass by what is installed; `find` then looks at each file as strictly as ever."""
    paths: list[str] = []
    for folder, folders, files in os.walk(workspace, followlinks=False):
        here = Path(folder).relative_to(workspace)
        is_deep = len(here.parts) >= MAX_DEPTH
        folders[:] = [] if is_deep else [f for f in folders if f not in INSTALLED and not f.startswith(".")]
        paths.extend((here / file).as_posix() for file in files if file in WELL_KNOWN)
    if len(paths) > _BOUNDS.files:
        raise Refused("too_large", f"{len(paths)} lock files, at most {_BOUNDS.files}; name some in lock_files")
    rules = [ArtifactRule(path_glob=escape_pattern(path)) for path in sorted(paths)]
    return find_files(workspace, rules, _BOUNDS)


def _hash(workspace: Path, found: list[ArtifactFile]) -> str:
    total = hashlib.sha256()
    for file in sorted(found, key=lambda each: each.path.encode()):
        content, size = hashlib.sha256(), 0
        with open_file(workspace, file) as opened:
            while part := opened.read(_PART):
                content.update(part)
                size += len(part)
                if size > _BOUNDS.bytes:
                    raise Refused("too_large", f"the lock file {file.path!r} grows while it is read")
        # One line for each file, and no newline in it: no two sets of files give the same lines.
        name = file.path.encode().hex()
        total.update(f"{name} {size} {content.hexdigest()}\n".encode())
    return total.hexdigest()
