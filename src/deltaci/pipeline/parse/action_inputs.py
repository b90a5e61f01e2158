"""What the built-in steps may be told under `with`, in the words of the actions that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from deltaci.core.text import nearest
from deltaci.pipeline.parse.nodes import child, entry, items, pairs
from deltaci.pipeline.parse.problems import listed, shown
from deltaci.pipeline.parse.yaml import OBJECT, Node

WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "checkout": (
        *("clean", "fetch-depth", "fetch-tags", "filter", "lfs", "path", "persist-credentials", "ref", "repository"),
        *("set-safe-directory", "show-progress", "submodules", "token"),
    ),
    "cache": ("fail-on-cache-miss", "key", "lookup-only", "path", "restore-keys"),
    "upload-artifact": (
        *("compression-level", "if-no-files-found", "include-hidden-files", "name", "overwrite", "path"),
        "retention-days",
    ),
    "download-artifact": ("merge-multiple", "name", "path", "pattern"),
    "setup-python": (
        *("allow-prereleases", "architecture", "cache", "cache-dependency-path", "check-latest", "python-version"),
        *("python-version-file", "update-environment"),
    ),
    "setup-node": (
        *("architecture", "cache", "cache-dependency-path", "check-latest", "node-version", "node-version-file"),
        *("registry-url", "scope"),
    ),
}
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {"cache": ("key", "path"), "upload-artifact": ("path",)}


def check_with(job: Node, add: Callable[..., None]) -> None:
    """Refuse what a built-in step would not understand, and say what it must be told."""
    for step in items(child(job, "steps")):
        uses = child(step, "uses") if step.kind == OBJECT else None
        if uses is None or uses.written not in WITH:
            continue
        known, given = WITH[uses.written], child(step, "with")
        for key, _ in pairs(given):
            if key.written not in known:
                near = nearest(key.written, known)
                wanted = "" if near else f"expected {listed(known)}"
                add(key.at, f"{shown(key.written)}, which '{uses.written}' does not know", wanted, near)
        for name in REQUIRED.get(uses.written, ()):
            if entry(given, name) is None:
                add(uses.at, f"'{uses.written}' without '{name}'", "expected it under 'with'")
