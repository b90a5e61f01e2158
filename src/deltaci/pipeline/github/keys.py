"""Which keys of a workflow are understood, have no effect here, or are outside, and why: the subset as one table.

docs/github-workflows.md shows it, and a test compares the two.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from deltaci.core.text import nearest
from deltaci.pipeline.github.converter import Desk
from deltaci.pipeline.parse.problems import shown
from deltaci.pipeline.parse.yaml import NULL, OBJECT, Node

MAX_LISTED: Final = 12


class Rule(NamedTuple):
    """How a key is treated: `inside`, `note` (it has no effect here, and that is said) or `outside`."""

    kind: str
    why: str = ""


def inside(how: str = "") -> Rule:
    """It means here what it means on GitHub; `how` is for the table."""
    return Rule("inside", how)


def note(why: str) -> Rule:
    """It has no effect here, and nothing goes wrong without it."""
    return Rule("note", why)


def outside(why: str) -> Rule:
    """It cannot be done here, and without it something else would be done than was asked for."""
    return Rule("outside", why)


NO_TOKEN: Final = "there is no token of the forge here, so that there are no permissions to give"

KEYS: Final[dict[str, dict[str, Rule]]] = {
    "the workflow": {
        "name": inside(),
        "run-name": note("runs are named after the change"),
        "on": inside("see the events"),
        "env": inside(),
        "defaults": inside("shell and working-directory of `run`"),
        "concurrency": inside(),
        "permissions": note(NO_TOKEN),
        "jobs": inside(),
    },
    "a job": {
        "name": inside("with the outputs of other jobs in it, the job is called by its id"),
        "needs": inside(),
        "if": inside(),
        "runs-on": inside("`ubuntu-*` is `linux`, `macos-*` is `macos`, `windows-*` is `windows`"),
        "environment": note("there are no environments here: nothing waits for an approval, and it has no secrets"),
        "concurrency": inside(),
        "outputs": inside(),
        "env": inside(),
        "defaults": inside("shell and working-directory of `run`"),
        "strategy": inside("the matrix must not depend on the outputs of other jobs"),
        "timeout-minutes": inside("360 if nothing is said"),
        "cancel-timeout-minutes": note("a runner says how long a job may take to end"),
        "continue-on-error": inside("the job may fail: `allow_failure`"),
        "container": inside("see containers"),
        "services": inside("see containers"),
        "steps": inside(),
        "permissions": note(NO_TOKEN),
        "snapshot": outside("images of runners are not made here"),
        "uses": outside("workflows that are called are not read here: copy its jobs into this file"),
        "with": outside("it belongs to a workflow that is called, and those are not read here"),
        "secrets": outside("it belongs to a workflow that is called, and those are not read here"),
    },
    "'strategy'": {
        "matrix": inside("axes, include and exclude; expressions over github, inputs and vars"),
        "fail-fast": inside(),
        "max-parallel": inside(),
    },
    "'concurrency'": {
        "group": inside(),
        "cancel-in-progress": inside(),
        "queue": note("whatever waits for the group waits for its turn"),
    },
    "'defaults'": {"run": inside()},
    "'defaults.run'": {"shell": inside(), "working-directory": inside()},
    "a step": {
        "id": inside(),
        "if": inside(),
        "name": inside(),
        "uses": inside("the actions below, and actions of the same repository that are made of steps"),
        "run": inside(),
        "with": inside("see the actions"),
        "env": inside(),
        "shell": inside("bash, sh, python, pwsh, or a command with `{0}`; neither cmd nor powershell"),
        "working-directory": inside(),
        "timeout-minutes": inside("without what only a runner knows"),
        "continue-on-error": inside("without what only a runner knows"),
        "background": outside("steps run one after the other here"),
        "wait": outside("steps run one after the other here"),
        "wait-all": outside("steps run one after the other here"),
        "cancel": outside("steps run one after the other here"),
    },
    "'container'": {
        "image": inside(),
        "env": inside("as `env` of the job"),
        "ports": note("a job reaches its own ports anyway"),
        "options": outside("options are for one container engine, and may weaken the isolation"),
        "volumes": outside("folders of the machine are not given to jobs"),
        "credentials": outside("images come from registries that the runner can read by itself"),
    },
    "a service": {
        "image": inside(),
        "env": inside(),
        "ports": inside("TCP only"),
        "options": inside("`--health-*` only"),
        "command": inside(),
        "entrypoint": outside("a service runs the image's own entrypoint"),
        "volumes": outside("folders of the machine are not given to jobs"),
        "credentials": outside("images come from registries that the runner can read by itself"),
    },
    "'runs-on'": {
        "group": note("there are no groups of runners: a runner is chosen by its labels"),
        "labels": inside(),
    },
    "'push'": {
        "branches": inside(),
        "branches-ignore": inside(),
        "tags": inside(),
        "tags-ignore": inside(),
        "paths": inside(),
        "paths-ignore": inside(),
    },
    "'pull_request'": {
        "types": inside("what else can happen to a pull request is left out, with a note"),
        "branches": inside(),
        "branches-ignore": inside(),
        "paths": inside(),
        "paths-ignore": inside(),
    },
    "a schedule": {"cron": inside(), "timezone": inside()},
    "'workflow_dispatch'": {"inputs": inside()},
    "an input": {
        "description": inside(),
        "type": inside("`environment` is a text"),
        "required": inside(),
        "default": inside(),
        "options": inside(),
        "deprecationMessage": note("nobody is told here"),
    },
}


def keys(node: Node, of: str, desk: Desk) -> dict[str, tuple[Node, Node]]:
    """The keys of a part that mean something here; all others are said. What has no value is as if it were absent."""
    table = KEYS[of]
    if node.kind != OBJECT:
        desk.outside(
            node.at, f"{node.described()} as {of}", f"expected an object with {', '.join([*table][:MAX_LISTED])}"
        )
        return {}
    found: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value:
        rule = table.get(key.written)
        if rule is None:
            near = nearest(key.written, table)
            known = ", ".join(sorted(table)[:MAX_LISTED]) + (" …" if len(table) > MAX_LISTED else "")
            told = f"the key {shown(key.written)}, which {of} does not have"
            desk.outside(key.at, told, "" if near else f"expected one of: {known}", near)
        elif rule.kind == "note":
            desk.note(key.at, f"{shown(key.written)} has no effect here", rule.why)
        elif key.written in ("with", "secrets") and of == "a job" and has(node, "uses"):
            continue  # It is said of 'uses'.
        elif rule.kind == "outside":
            desk.outside(key.at, f"{shown(key.written)} of {of}", rule.why)
        elif value.kind != NULL:
            found[key.written] = (key, value)
    return found


def has(node: Node | None, name: str) -> bool:
    """Whether there is an object that has a key."""
    return node is not None and node.kind == OBJECT and any(key.written == name for key, _ in node.value)
