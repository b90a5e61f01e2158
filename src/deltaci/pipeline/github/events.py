"""Converts `on` of a workflow: the supported events with their filters, and the inputs of a manual run."""

from __future__ import annotations

from typing import Final, get_args

from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.github.converter import Converter, list_node, object_node, text_node
from deltaci.pipeline.github.keys import read_entries
from deltaci.pipeline.parse.checks import check_cron
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.shapes import get_shape
from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, TEXT, Node, items

SUPPORTED_EVENTS: Final = ("push", "pull_request", "schedule", "workflow_dispatch")
IGNORED_EVENTS: Final = (
    *("branch_protection_rule", "check_run", "check_suite", "create", "delete", "deployment", "deployment_status"),
    *("discussion", "discussion_comment", "fork", "gollum", "image_version", "issue_comment", "issues", "label"),
    *("merge_group", "milestone", "page_build", "project", "project_card", "project_column", "public"),
    *("pull_request_comment", "pull_request_review", "pull_request_review_comment", "registry_package", "release"),
    *("repository_dispatch", "status", "watch", "workflow_call", "workflow_run"),
)
UNSAFE_EVENT: Final = "pull_request_target"
UNSAFE_EVENT_REASON: Final = "it would give secrets to code from forks: use pull_request, or start it manually"
SUPPORTED_TYPES: Final = get_args(model.PullRequestType)
IGNORED_TYPES: Final = (
    *("assigned", "auto_merge_disabled", "auto_merge_enabled", "converted_to_draft", "demilestoned", "dequeued"),
    *("edited", "enqueued", "locked", "milestoned", "review_request_removed", "review_requested", "unassigned"),
    "unlocked",
)
INPUT_TYPES: Final = ("string", "number", "boolean", "choice", "environment")


def convert_events(key_node: Node, on_node: Node, converter: Converter) -> Node:
    """Convert `on` to that of a pipeline. Report unsupported events, and warn if no event starts the workflow."""
    nodes_by_key: dict[str, Node | None] = {}
    for name_node, value_node in _event_entries(key_node, on_node, converter):
        event_name = name_node.raw
        if event_name == "workflow_dispatch":
            nodes_by_key["manual"] = _convert_manual_start(name_node, value_node, converter)
        elif event_name == "schedule":
            nodes_by_key["schedule"] = _convert_schedules(name_node, value_node, converter)
        elif event_name in ("push", "pull_request"):
            nodes_by_key[event_name] = _convert_filters(name_node, value_node, event_name, converter)
        elif event_name == UNSAFE_EVENT:
            converter.warn(
                name_node.position, f"{quote(event_name)} does not start this workflow here", UNSAFE_EVENT_REASON
            )
        elif event_name in IGNORED_EVENTS:
            converter.warn(
                name_node.position,
                f"{quote(event_name)} does not start this workflow here",
                "the event does not occur here",
            )
        else:
            all_events = (*SUPPORTED_EVENTS, UNSAFE_EVENT, *IGNORED_EVENTS)
            nearest_word = nearest(event_name, all_events)
            converter.report_unsupported(
                name_node.position,
                f"the event {quote(event_name)}",
                "" if nearest_word else f"expected {', '.join(SUPPORTED_EVENTS)} …",
                nearest_word,
            )
    if not any(nodes_by_key.values()):
        converter.warn(key_node.position, "no event starts this workflow here", "it can only be started by name")
    return object_node(on_node.position, nodes_by_key)


def _event_entries(key_node: Node, on_node: Node, converter: Converter) -> list[tuple[Node, Node]]:
    """Return the names and settings of all events of `on`, which is an object, a list or a single name."""
    if on_node.kind == OBJECT:
        return [(name_node, value_node) for name_node, value_node in on_node.value]
    if on_node.kind in (TEXT, LIST):
        event_entries = []
        for name_node in items(on_node):
            if name_node.kind == TEXT:
                event_entries.append((name_node, Node(NULL, name_node.position)))
            else:
                converter.report_unsupported(
                    name_node.position, f"{name_node.describe()} as an event", "expected its name, e.g. push"
                )
        return event_entries
    converter.report_unsupported(key_node.position, f"{on_node.describe()} as 'on'", "expected events, e.g. push")
    return []


def _convert_filters(key_node: Node, value_node: Node, event_name: str, converter: Converter) -> Node | None:
    """Convert the filters of `push` or `pull_request`. Return None if no supported type starts the workflow."""
    if value_node.kind == NULL:
        return Node(OBJECT, key_node.position, [])
    entries = read_entries(value_node, f"'{event_name}'", converter)
    nodes_by_key: dict[str, Node | None] = {}
    for filter_name, (filter_key, patterns_node) in entries.items():
        if filter_name == "types":
            nodes_by_key[filter_name] = _convert_types(patterns_node, converter)
            if nodes_by_key[filter_name] is None:
                return None
            continue
        if filter_name.removesuffix("-ignore") + "-ignore" in entries and not filter_name.endswith("-ignore"):
            converter.report_unsupported(
                filter_key.position,
                f"{quote(filter_name)} and '{filter_name}-ignore' together",
                "GitHub accepts only one of them",
            )
        pattern_lines = [
            converter.convert_line(pattern_node, "run-name", filter_name) for pattern_node in items(patterns_node)
        ]
        non_empty = [pattern_line for pattern_line in pattern_lines if pattern_line is not None and pattern_line.value]
        nodes_by_key[filter_name] = list_node(patterns_node.position, non_empty) if non_empty else None
    return object_node(value_node.position, nodes_by_key)


def _convert_types(node: Node, converter: Converter) -> Node | None:
    """Return the supported types of pull request events, or None if there are none. Report all others."""
    supported_types = []
    for type_node in items(node):
        type_name = type_node.raw
        if type_name in SUPPORTED_TYPES:
            supported_types.append(text_node(type_node.position, type_name))
        elif type_name in IGNORED_TYPES:
            converter.warn(
                type_node.position,
                f"{quote(type_name)} of a pull request does not start this workflow here",
                "not all forges report it",
            )
        else:
            nearest_word = nearest(type_name, (*SUPPORTED_TYPES, *IGNORED_TYPES))
            converter.report_unsupported(
                type_node.position,
                f"{quote(type_name)} as a type",
                "" if nearest_word else f"expected {', '.join(SUPPORTED_TYPES)}",
                nearest_word,
            )
    if not supported_types:
        converter.warn(
            node.position, "none of these types is supported here", "pull requests do not start this workflow"
        )
    return list_node(node.position, supported_types) if supported_types else None


def _convert_schedules(key_node: Node, value_node: Node, converter: Converter) -> Node | None:
    if value_node.kind != LIST:
        converter.report_unsupported(
            key_node.position, f"{value_node.describe()} as 'schedule'", "expected a list of 'cron: …'"
        )
        return None
    schedules = []
    for schedule_node in value_node.value:
        entries = read_entries(schedule_node, "a schedule", converter)
        cron = entries.get("cron")
        if cron is None or cron.value.kind != TEXT:
            converter.report_unsupported(
                schedule_node.position, "a schedule without 'cron'", "expected five fields, e.g. '0 3 * * 1-5'"
            )
            continue
        cron_expression = text_node(cron.value.position, " ".join(cron.value.value.split()))
        check_cron(cron_expression, converter.report_unsupported)
        time_zone = (
            converter.convert_text(entries["timezone"].value, "run-name", "timezone") if "timezone" in entries else None
        )
        if time_zone is not None and "timezone" not in get_shape(model.Schedule).fields:
            converter.report_unsupported(
                time_zone.position, f"the time zone {quote(time_zone.value)}", "times are in UTC"
            )
            time_zone = None
        schedules.append(object_node(schedule_node.position, {"cron": cron_expression, "timezone": time_zone}))
    return list_node(value_node.position, schedules) if schedules else None


# -- manual runs


def _convert_manual_start(key_node: Node, value_node: Node, converter: Converter) -> Node:
    entries = {} if value_node.kind == NULL else read_entries(value_node, "'workflow_dispatch'", converter)
    if "inputs" not in entries:
        return Node(OBJECT, key_node.position, [])
    inputs_node = entries["inputs"].value
    if inputs_node.kind != OBJECT:
        converter.report_unsupported(
            inputs_node.position, f"{inputs_node.describe()} as 'inputs'", "expected names, each with its own keys"
        )
        return Node(OBJECT, key_node.position, [])
    converted_inputs = [
        (name_node, _convert_input(name_node, input_node, converter)) for name_node, input_node in inputs_node.value
    ]
    return Node(
        OBJECT,
        value_node.position,
        [(text_node(value_node.position, "inputs"), Node(OBJECT, inputs_node.position, converted_inputs))],
    )


def _convert_input(name_node: Node, value_node: Node, converter: Converter) -> Node:
    entries = {} if value_node.kind == NULL else read_entries(value_node, "an input", converter)
    nodes_by_key: dict[str, Node | None] = {}
    if "description" in entries:
        nodes_by_key["description"] = converter.convert_line(entries["description"].value, "run-name", "description")
    type_node = entries["type"].value if "type" in entries else text_node(name_node.position, "string")
    if type_node.raw not in INPUT_TYPES:
        nearest_word = nearest(type_node.raw, INPUT_TYPES)
        converter.report_unsupported(
            type_node.position, type_node.describe(), f"expected one of: {', '.join(INPUT_TYPES)}", nearest_word
        )
    elif type_node.raw == "environment":
        converter.warn(type_node.position, "'environment' is a text here", "there are no environments here")
    else:
        nodes_by_key["type"] = text_node(type_node.position, type_node.raw)
    if "required" in entries:
        nodes_by_key["required"] = converter.convert_boolean(entries["required"].value, "run-name", "required")
    if "default" in entries:
        default_node = entries["default"].value
        has_typed_default = type_node.raw in ("boolean", "number")
        nodes_by_key["default"] = (converter.convert_scalar if has_typed_default else converter.convert_text)(
            default_node, "run-name", "default"
        )
        if type_node.raw == "boolean":
            nodes_by_key["default"] = converter.convert_boolean(default_node, "run-name", "default")
    if "options" in entries and type_node.raw == "choice":
        options_node = entries["options"].value
        nodes_by_key["options"] = list_node(
            options_node.position,
            [
                option_text
                for option_node in items(options_node)
                if (option_text := converter.convert_text(option_node, "run-name"))
            ],
        )
    if type_node.raw == "choice" and "options" not in entries:
        converter.report_unsupported(
            name_node.position, f"the input {quote(name_node.raw)}, a choice without 'options'", "expected a list"
        )
    return object_node(value_node.position, nodes_by_key)
