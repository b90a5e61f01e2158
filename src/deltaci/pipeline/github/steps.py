"""Converts the steps of a job: commands, builtin actions, and composite actions, which are inlined."""

from __future__ import annotations

from deltaci.core.text import nearest
from deltaci.pipeline.github.builtin_actions import IGNORED_ACTIONS, convert_builtin_action
from deltaci.pipeline.github.composite_actions import ActionUse, RepositoryActions, inline_action, is_local_action
from deltaci.pipeline.github.containers import convert_env
from deltaci.pipeline.github.converter import Converter, list_node, object_node
from deltaci.pipeline.github.keys import KEY_RULES, Entries, read_entries
from deltaci.pipeline.github.rust_toolchain import command_keys, convert_rust_toolchain, is_rust_toolchain
from deltaci.pipeline.github.shells import convert_shell
from deltaci.pipeline.parse.problems import Position, quote
from deltaci.pipeline.parse.yaml import LIST, OBJECT, TEXT, Node, child


def convert_steps(
    key: Node, node: Node, converter: Converter, actions: RepositoryActions, *, has_working_directory: bool = False
) -> Node | None:
    """Convert all steps of a job, and report duplicate ids. Report a problem and return None if they are no list.

    `has_working_directory` says that the job sets a default working directory.
    """
    if node.kind != LIST:
        converter.report_unsupported(key.position, f"{node.describe()} as 'steps'", "expected a list of steps")
        return None
    converted_steps: list[Node] = []
    position_by_id: dict[str, Position] = {}
    for step_index, step_node in enumerate(node.value):
        converted_steps += convert_step(
            step_node,
            converter,
            ActionUse(step_node, step_node, step_index, actions, has_working_directory=has_working_directory),
        )
        _check_id(step_node, position_by_id, converter)
    if not node.value:
        converter.report_unsupported(key.position, "a job without steps", "expected at least one")
    return list_node(node.position, converted_steps)


def _check_id(step_node: Node, position_by_id: dict[str, Position], converter: Converter) -> None:
    """Report the id of a step that an earlier step has, else add its position to `position_by_id`."""
    for key_node, value_node in step_node.value if step_node.kind == OBJECT else ():
        if key_node.raw == "id" and value_node.kind == TEXT:
            step_id = value_node.value.lower()
            if step_id in position_by_id:
                message = f"the id {quote(value_node.value)} a second time"
                converter.report_unsupported(
                    value_node.position, message, f"the step in line {position_by_id[step_id].line} has it"
                )
            position_by_id.setdefault(step_id, value_node.position)


def convert_step(step_node: Node, converter: Converter, use: ActionUse) -> list[Node]:
    """Convert a step to a list: one step, the steps of a composite action, or none if it is unsupported."""
    if step_node.kind == OBJECT:
        uses = child(step_node, "uses")
        if uses is not None and is_local_action(uses):
            entries = read_entries(step_node, "a step", converter)
            for _, input_node in (
                entries["with"].value.value if "with" in entries and entries["with"].value.kind == OBJECT else ()
            ):
                converter.convert_scalar(input_node, "steps.with")
            return inline_action(use._replace(node=step_node, uses=uses), converter, convert_step)
    converted_step = _convert_plain_step(step_node, converter)
    return [converted_step] if converted_step is not None else []


def _convert_plain_step(node: Node, converter: Converter) -> Node | None:
    if node.kind != OBJECT:
        converter.report_unsupported(
            node.position, f"{node.describe()} as a step", "expected an object with 'run' or 'uses'"
        )
        return None
    entries = read_entries(node, "a step", converter)
    nodes_by_key: dict[str, Node | None] = {}
    if not ("run" in entries or "uses" in entries):
        if not any(nearest(key_node.raw, KEY_RULES["a step"]) in ("run", "uses") for key_node, _ in node.value):
            converter.report_unsupported(node.position, "a step without 'run' or 'uses'", "expected one of them")
        return None
    if "run" in entries and "uses" in entries:
        converter.report_unsupported(entries["uses"].key.position, "'uses' beside 'run'", "a step has one of them")
        return None
    if "run" in entries:
        nodes_by_key["run"] = converter.convert_text(entries["run"].value, "steps.run", "run")
        _convert_command_keys(entries, nodes_by_key, converter)
    else:
        _convert_action(entries, nodes_by_key, converter)
    if "name" in entries:
        nodes_by_key["name"] = converter.convert_line(entries["name"].value, "steps.name", "name")
    if "id" in entries:
        nodes_by_key["id"] = converter.convert_text(entries["id"].value, "steps.name", "id")
    convert_common_keys(entries, nodes_by_key, converter)
    command_node = nodes_by_key.get("run")
    if command_node is None and "uses" not in nodes_by_key:
        return None  # Reported already.
    if command_node is not None and not command_node.value.strip():
        converter.warn(entries["run"].key.position, "an empty command", "the step is left out")
        return None
    return object_node(node.position, nodes_by_key)


def convert_common_keys(entries: Entries, nodes_by_key: dict[str, Node | None], converter: Converter) -> None:
    """Add the keys that commands and actions share: `if`, `env`, `timeout-minutes` and `continue-on-error`."""
    if "if" in entries:
        nodes_by_key["if"] = converter.convert_condition(entries["if"].value, "steps.if")
    if "env" in entries:
        nodes_by_key["env"] = convert_env(entries["env"].value, "steps.env", converter)
    if "timeout-minutes" in entries:
        nodes_by_key["timeout-minutes"] = converter.convert_number(
            entries["timeout-minutes"].value, "steps.timeout-minutes", "timeout-minutes"
        )
    if "continue-on-error" in entries:
        converted_node = converter.convert_boolean(
            entries["continue-on-error"].value, "steps.continue-on-error", "continue-on-error"
        )
        nodes_by_key["continue-on-error"] = converted_node


def _convert_command_keys(entries: Entries, nodes_by_key: dict[str, Node | None], converter: Converter) -> None:
    if "with" in entries:
        converter.report_unsupported(
            entries["with"].key.position, "'with' in a step without 'uses'", "use 'env' for a command"
        )
    if "shell" in entries:
        nodes_by_key["shell"] = convert_shell(entries["shell"].value, converter)
    if "working-directory" in entries:
        nodes_by_key["working-directory"] = converter.convert_text(
            entries["working-directory"].value, "steps.working-directory", "working-directory"
        )


def _convert_action(entries: Entries, nodes_by_key: dict[str, Node | None], converter: Converter) -> None:
    """Add the keys of the step that replaces an action. Add none if the action is unsupported or has no effect."""
    for key_name in ("shell", "working-directory"):
        if key_name in entries:
            converter.report_unsupported(
                entries[key_name].key.position, f"{quote(key_name)} in a step that runs no command", "remove it"
            )
    uses = entries["uses"].value
    if uses.kind != TEXT:
        converter.report_unsupported(
            uses.position, f"{uses.describe()} as 'uses'", "expected an action, e.g. actions/checkout@v4"
        )
        return
    with_node = entries["with"].value if "with" in entries else None
    key_name = uses.value.partition("@")[0].strip()
    if key_name.lower() in IGNORED_ACTIONS:
        converter.warn(
            uses.position, f"the action {quote(key_name)} has no effect here", IGNORED_ACTIONS[key_name.lower()]
        )
        return
    if is_rust_toolchain(uses):
        if (command := convert_rust_toolchain(uses, with_node, converter)) is not None:
            step_env = convert_env(entries.pop("env").value, "steps.env", converter) if "env" in entries else None
            nodes_by_key.update(command_keys(command, step_env))
        return
    converted_step = convert_builtin_action(uses, with_node, converter)
    if converted_step is not None:
        nodes_by_key["uses"] = converted_step.uses
        nodes_by_key["with"] = converted_step.with_ if converted_step.with_.value else None
