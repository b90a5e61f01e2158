"""The inputs (`with`) of the built-in steps. Their names are those of the GitHub actions that the steps replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from deltaci.core.text import nearest
from deltaci.pipeline.parse.problems import join_words, quote
from deltaci.pipeline.parse.yaml import OBJECT, Node, child, entry, items, pairs

ACTION_INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
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
REQUIRED_INPUTS: Final[Mapping[str, tuple[str, ...]]] = {"cache": ("key", "path"), "upload-artifact": ("path",)}


def check_action_inputs(job_node: Node, add_problem: Callable[..., None]) -> None:
    """Report unknown and missing inputs of the built-in steps of a job. `add_problem` is `ProblemList.add`."""
    for step_node in items(child(job_node, "steps")):
        uses = child(step_node, "uses") if step_node.kind == OBJECT else None
        if uses is None or uses.raw not in ACTION_INPUTS:
            continue
        allowed_inputs, with_node = ACTION_INPUTS[uses.raw], child(step_node, "with")
        for key_node, _ in pairs(with_node):
            if key_node.raw not in allowed_inputs:
                suggestion = nearest(key_node.raw, allowed_inputs)
                expected = "" if suggestion else f"expected {join_words(allowed_inputs)}"
                add_problem(
                    key_node.position, f"{quote(key_node.raw)}, which '{uses.raw}' does not have", expected, suggestion
                )
        for input_name in REQUIRED_INPUTS.get(uses.raw, ()):
            if entry(with_node, input_name) is None:
                add_problem(uses.position, f"'{uses.raw}' without '{input_name}'", "expected it under 'with'")
