"""The supported subset of workflow files: which keys are supported, have no effect, or are unsupported, and why.

docs/github-workflows.md is generated from this table.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from deltaci.core.text import nearest
from deltaci.pipeline.github.converter import Converter
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.yaml import NULL, OBJECT, Node

MAX_LISTED: Final = 12  # keys in one message


class Entry(NamedTuple):
    """A key of an object and its value."""

    key: Node
    value: Node


Entries = dict[str, Entry]


class KeyRule(NamedTuple):
    """How a key is treated: `supported`, `ignored` (it has no effect here; reported as a warning) or `unsupported`."""

    kind: str
    reason: str = ""


def supported(remark: str = "") -> KeyRule:
    """Return the rule for a key that means the same as on GitHub. The remark is for the documentation."""
    return KeyRule("supported", remark)


def ignored(reason: str) -> KeyRule:
    """Return the rule for a key that has no effect here, and without which the job does the same."""
    return KeyRule("ignored", reason)


def unsupported(reason: str) -> KeyRule:
    """Return the rule for a key that is refused, because the job would do something else without it."""
    return KeyRule("unsupported", reason)


NO_PERMISSIONS: Final = "jobs get no token of the forge, so there are no permissions to grant"

KEY_RULES: Final[dict[str, dict[str, KeyRule]]] = {
    "the workflow": {
        "name": supported(),
        "run-name": ignored("runs are named after the change"),
        "on": supported("see the events"),
        "env": supported(),
        "defaults": supported("shell and working-directory of `run`"),
        "concurrency": supported(),
        "permissions": ignored(NO_PERMISSIONS),
        "jobs": supported(),
    },
    "a job": {
        "name": supported("if it uses outputs of other jobs, the job is named by its id"),
        "needs": supported(),
        "if": supported(),
        "runs-on": supported("`ubuntu-*` is `linux`, `macos-*` is `macos`, `windows-*` is `windows`"),
        "environment": ignored(
            "there are no environments here: no approval is waited for, and there are no environment secrets"
        ),
        "concurrency": supported(),
        "outputs": supported(),
        "env": supported(),
        "defaults": supported("shell and working-directory of `run`"),
        "strategy": supported("the matrix must not depend on the outputs of other jobs"),
        "timeout-minutes": supported("default 360"),
        "cancel-timeout-minutes": ignored("the runner decides how long a job may take to end"),
        "continue-on-error": supported("the job may fail: `allow_failure`"),
        "container": supported("see containers"),
        "services": supported("see containers"),
        "steps": supported(),
        "permissions": ignored(NO_PERMISSIONS),
        "snapshot": unsupported("runner images are not built here"),
        "uses": unsupported("reusable workflows are not supported: copy the jobs into this file"),
        "with": unsupported("it belongs to a reusable workflow, which is not supported"),
        "secrets": unsupported("it belongs to a reusable workflow, which is not supported"),
    },
    "'strategy'": {
        "matrix": supported("axes, include and exclude; expressions over github, inputs and vars"),
        "fail-fast": supported(),
        "max-parallel": supported(),
    },
    "'concurrency'": {
        "group": supported(),
        "cancel-in-progress": supported(),
        "queue": ignored("all jobs that wait for the group run, one at a time"),
    },
    "'defaults'": {"run": supported()},
    "'defaults.run'": {"shell": supported(), "working-directory": supported()},
    "a step": {
        "id": supported(),
        "if": supported(),
        "name": supported(),
        "uses": supported("the actions below, and composite actions in the same repository"),
        "run": supported(),
        "with": supported("see the actions"),
        "env": supported(),
        "shell": supported("bash, sh, python, pwsh, or a command with `{0}`; not cmd or powershell"),
        "working-directory": supported(),
        "timeout-minutes": supported("without contexts that only a runner knows"),
        "continue-on-error": supported("without contexts that only a runner knows"),
        "background": unsupported("steps always run one after the other"),
        "wait": unsupported("steps always run one after the other"),
        "wait-all": unsupported("steps always run one after the other"),
        "cancel": unsupported("steps always run one after the other"),
    },
    "'container'": {
        "image": supported(),
        "env": supported("as `env` of the job"),
        "ports": ignored("a job can always reach its own ports"),
        "options": unsupported("options depend on the container engine, and may weaken the isolation"),
        "volumes": unsupported("host directories are not mounted into jobs"),
        "credentials": unsupported("images come from registries that the runner can access itself"),
    },
    "a service": {
        "image": supported(),
        "env": supported(),
        "ports": supported("TCP only"),
        "options": supported("`--health-*` only"),
        "command": supported(),
        "entrypoint": unsupported("a service runs the entrypoint of its image"),
        "volumes": unsupported("host directories are not mounted into jobs"),
        "credentials": unsupported("images come from registries that the runner can access itself"),
    },
    "'runs-on'": {
        "group": ignored("there are no runner groups: a runner is chosen by its labels"),
        "labels": supported(),
    },
    "'push'": {
        "branches": supported(),
        "branches-ignore": supported(),
        "tags": supported(),
        "tags-ignore": supported(),
        "paths": supported(),
        "paths-ignore": supported(),
    },
    "'pull_request'": {
        "types": supported("other types are ignored, with a warning"),
        "branches": supported(),
        "branches-ignore": supported(),
        "paths": supported(),
        "paths-ignore": supported(),
    },
    "a schedule": {"cron": supported(), "timezone": supported()},
    "'workflow_dispatch'": {"inputs": supported()},
    "an input": {
        "description": supported(),
        "type": supported("`environment` is a text"),
        "required": supported(),
        "default": supported(),
        "options": supported(),
        "deprecationMessage": ignored("it is not shown here"),
    },
}


def read_entries(node: Node, object_kind: str, converter: Converter) -> Entries:
    """Return the supported keys of an object with their values, except null. Report all other keys.

    `object_kind` is the kind of object, a key of KEY_RULES such as "a job".
    """
    rules = KEY_RULES[object_kind]
    if node.kind != OBJECT:
        converter.report_unsupported(
            node.position,
            f"{node.describe()} as {object_kind}",
            f"expected an object with {', '.join([*rules][:MAX_LISTED])}",
        )
        return {}
    entries: Entries = {}
    for key_node, value_node in node.value:
        rule = rules.get(key_node.raw)
        if rule is None:
            nearest_word = nearest(key_node.raw, rules)
            expected = ", ".join(sorted(rules)[:MAX_LISTED]) + (" …" if len(rules) > MAX_LISTED else "")
            message = f"the key {quote(key_node.raw)}, which {object_kind} does not have"
            converter.report_unsupported(
                key_node.position, message, "" if nearest_word else f"expected one of: {expected}", nearest_word
            )
        elif rule.kind == "ignored":
            converter.warn(key_node.position, f"{quote(key_node.raw)} has no effect here", rule.reason)
        elif key_node.raw in ("with", "secrets") and object_kind == "a job" and has_key(node, "uses"):
            continue  # Reported for 'uses'.
        elif rule.kind == "unsupported":
            converter.report_unsupported(key_node.position, f"{quote(key_node.raw)} of {object_kind}", rule.reason)
        elif value_node.kind != NULL:
            entries[key_node.raw] = Entry(key_node, value_node)
    return entries


def has_key(node: Node | None, key: str) -> bool:
    """Return whether a node is an object that has a key of this name."""
    return node is not None and node.kind == OBJECT and any(key_node.raw == key for key_node, _ in node.value)
