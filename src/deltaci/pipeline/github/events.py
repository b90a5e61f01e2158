"""`on` of a workflow: which of GitHub's events can happen here, and what a run by hand asks for."""

from __future__ import annotations

from typing import Final, get_args

from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.github.converter import Desk, items, keyed, listed, made
from deltaci.pipeline.github.keys import keys
from deltaci.pipeline.parse.checks import check_cron
from deltaci.pipeline.parse.problems import shown
from deltaci.pipeline.parse.shapes import shape
from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, TEXT, Node

INSIDE: Final = ("push", "pull_request", "schedule", "workflow_dispatch")
NEVER: Final = (
    *("branch_protection_rule", "check_run", "check_suite", "create", "delete", "deployment", "deployment_status"),
    *("discussion", "discussion_comment", "fork", "gollum", "image_version", "issue_comment", "issues", "label"),
    *("merge_group", "milestone", "page_build", "project", "project_card", "project_column", "public"),
    *("pull_request_comment", "pull_request_review", "pull_request_review_comment", "registry_package", "release"),
    *("repository_dispatch", "status", "watch", "workflow_call", "workflow_run"),
)
UNSAFE: Final = "pull_request_target"
UNSAFE_WHY: Final = (
    "it gives the secrets to what a stranger wrote, which never happens here: use pull_request, or start it by hand"
)
TYPES: Final = get_args(model.PullRequestType)
OTHER_TYPES: Final = (
    *("assigned", "auto_merge_disabled", "auto_merge_enabled", "converted_to_draft", "demilestoned", "dequeued"),
    *("edited", "enqueued", "locked", "milestoned", "review_request_removed", "review_requested", "unassigned"),
    "unlocked",
)
INPUT_TYPES: Final = ("string", "number", "boolean", "choice", "environment")


def events(key: Node, on: Node, desk: Desk) -> Node:
    """The events of `on` as a pipeline has them. None at all is no mistake: nothing starts it then but people."""
    found: dict[str, Node | None] = {}
    for name, value in _named(key, on, desk):
        word = name.written
        if word == "workflow_dispatch":
            found["manual"] = _manual(name, value, desk)
        elif word == "schedule":
            found["schedule"] = _schedules(name, value, desk)
        elif word in ("push", "pull_request"):
            found[word] = _filtered(name, value, word, desk)
        elif word == UNSAFE:
            desk.note(name.at, f"{shown(word)} does not start this here", UNSAFE_WHY)
        elif word in NEVER:
            desk.note(name.at, f"{shown(word)} never happens here", "it does not start this")
        else:
            known = (*INSIDE, UNSAFE, *NEVER)
            near = nearest(word, known)
            desk.outside(name.at, f"the event {shown(word)}", "" if near else f"expected {', '.join(INSIDE)} …", near)
    if not any(found.values()):
        desk.note(key.at, "nothing starts this here", "it can only be run by name")
    return keyed(on.at, found)


def _named(key: Node, on: Node, desk: Desk) -> list[tuple[Node, Node]]:
    if on.kind == OBJECT:
        return [(name, value) for name, value in on.value]
    if on.kind in (TEXT, LIST):
        named = []
        for name in items(on):
            if name.kind == TEXT:
                named.append((name, Node(NULL, name.at)))
            else:
                desk.outside(name.at, f"{name.described()} as an event", "expected its name, e.g. push")
        return named
    desk.outside(key.at, f"{on.described()} as 'on'", "expected events, e.g. push")
    return []


def _filtered(key: Node, value: Node, event: str, desk: Desk) -> Node | None:
    if value.kind == NULL:
        return Node(OBJECT, key.at, [])
    found = keys(value, f"'{event}'", desk)
    told: dict[str, Node | None] = {}
    for name, (at, patterns) in found.items():
        if name == "types":
            told[name] = _types(patterns, desk)
            if told[name] is None:
                return None
            continue
        if name.removesuffix("-ignore") + "-ignore" in found and not name.endswith("-ignore"):
            desk.outside(at.at, f"{shown(name)} and '{name}-ignore' together", "GitHub takes one of them")
        texts = [desk.line(each, "run-name", name) for each in items(patterns)]
        kept = [each for each in texts if each is not None and each.value]
        told[name] = listed(patterns.at, kept) if kept else None
    return keyed(value.at, told)


def _types(node: Node, desk: Desk) -> Node | None:
    kept = []
    for each in items(node):
        word = each.written
        if word in TYPES:
            kept.append(made(each.at, word))
        elif word in OTHER_TYPES:
            desk.note(each.at, f"{shown(word)} of a pull request starts nothing here", "it is not told by all forges")
        else:
            near = nearest(word, (*TYPES, *OTHER_TYPES))
            desk.outside(each.at, f"{shown(word)} as a type", "" if near else f"expected {', '.join(TYPES)}", near)
    if not kept:
        desk.note(node.at, "none of these types starts anything here", "no pull request starts this")
    return listed(node.at, kept) if kept else None


def _schedules(key: Node, value: Node, desk: Desk) -> Node | None:
    if value.kind != LIST:
        desk.outside(key.at, f"{value.described()} as 'schedule'", "expected a list of 'cron: …'")
        return None
    kept = []
    for each in value.value:
        found = keys(each, "a schedule", desk)
        cron = found.get("cron")
        if cron is None or cron[1].kind != TEXT:
            desk.outside(each.at, "a schedule without 'cron'", "expected five fields, e.g. '0 3 * * 1-5'")
            continue
        node = made(cron[1].at, " ".join(cron[1].value.split()))
        check_cron(node, desk.outside)
        zone = desk.text(found["timezone"][1], "run-name", "timezone") if "timezone" in found else None
        if zone is not None and "timezone" not in shape(model.Schedule).fields:
            desk.outside(zone.at, f"the time zone {shown(zone.value)}", "times are in UTC here")
            zone = None
        kept.append(keyed(each.at, {"cron": node, "timezone": zone}))
    return listed(value.at, kept) if kept else None


# -- by hand


def _manual(key: Node, value: Node, desk: Desk) -> Node:
    found = {} if value.kind == NULL else keys(value, "'workflow_dispatch'", desk)
    if "inputs" not in found:
        return Node(OBJECT, key.at, [])
    inputs = found["inputs"][1]
    if inputs.kind != OBJECT:
        desk.outside(inputs.at, f"{inputs.described()} as 'inputs'", "expected names, each with its own keys")
        return Node(OBJECT, key.at, [])
    told = [(name, _input(name, each, desk)) for name, each in inputs.value]
    return Node(OBJECT, value.at, [(made(value.at, "inputs"), Node(OBJECT, inputs.at, told))])


def _input(name: Node, value: Node, desk: Desk) -> Node:
    found = {} if value.kind == NULL else keys(value, "an input", desk)
    told: dict[str, Node | None] = {}
    if "description" in found:
        told["description"] = desk.line(found["description"][1], "run-name", "description")
    kind = found["type"][1] if "type" in found else made(name.at, "string")
    if kind.written not in INPUT_TYPES:
        near = nearest(kind.written, INPUT_TYPES)
        desk.outside(kind.at, kind.described(), f"expected one of: {', '.join(INPUT_TYPES)}", near)
    elif kind.written == "environment":
        desk.note(kind.at, "'environment' is a text here", "there are no environments to choose from")
    else:
        told["type"] = made(kind.at, kind.written)
    if "required" in found:
        told["required"] = desk.truth(found["required"][1], "run-name", "required")
    if "default" in found:
        default = found["default"][1]
        as_is = kind.written in ("boolean", "number")
        told["default"] = (desk.scalar if as_is else desk.text)(default, "run-name", "default")
        if kind.written == "boolean":
            told["default"] = desk.truth(default, "run-name", "default")
    if "options" in found and kind.written == "choice":
        options = found["options"][1]
        told["options"] = listed(options.at, [each for one in items(options) if (each := desk.text(one, "run-name"))])
    if kind.written == "choice" and "options" not in found:
        desk.outside(name.at, f"the input {shown(name.written)}, a choice without 'options'", "expected a list")
    return keyed(value.at, told)
