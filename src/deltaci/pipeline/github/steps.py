"""The steps of a job: commands, and actions that a runner does itself."""

from __future__ import annotations

from deltaci.core.text import nearest
from deltaci.pipeline.github.builtin_actions import DROPPED, built_in
from deltaci.pipeline.github.composite_actions import Actions, Uses, inlined, is_local
from deltaci.pipeline.github.containers import variables
from deltaci.pipeline.github.converter import Desk, keyed, listed
from deltaci.pipeline.github.keys import KEYS, keys
from deltaci.pipeline.github.rust_toolchain import as_keys, is_toolchain, toolchain
from deltaci.pipeline.github.shells import shell
from deltaci.pipeline.parse.problems import Place, shown
from deltaci.pipeline.parse.yaml import LIST, OBJECT, TEXT, Node


def steps(key: Node, node: Node, desk: Desk, actions: Actions, *, moves: bool = False) -> Node | None:
    """All steps of a job; `moves` says that they run in a folder of their own."""
    if node.kind != LIST:
        desk.outside(key.at, f"{node.described()} as 'steps'", "expected a list of steps")
        return None
    told: list[Node] = []
    ids: dict[str, Place] = {}
    for number, each in enumerate(node.value):
        told += step(each, desk, Uses(each, each, number, actions, moves=moves))
        _check_id(each, ids, desk)
    if not node.value:
        desk.outside(key.at, "a job without steps", "expected one at least")
    return listed(node.at, told)


def _check_id(node: Node, ids: dict[str, Place], desk: Desk) -> None:
    for key, value in node.value if node.kind == OBJECT else ():
        if key.written == "id" and value.kind == TEXT:
            word = value.value.lower()
            if word in ids:
                told = f"the id {shown(value.value)} a second time"
                desk.outside(value.at, told, f"the step in line {ids[word].line} has it")
            ids.setdefault(word, value.at)


def step(node: Node, desk: Desk, asked: Uses) -> list[Node]:
    """What a step becomes: itself, the steps of the action that it uses, or nothing."""
    if node.kind == OBJECT:
        uses = next((value for key, value in node.value if key.written == "uses"), None)
        if uses is not None and is_local(uses):
            found = keys(node, "a step", desk)
            for _, value in found["with"][1].value if "with" in found and found["with"][1].kind == OBJECT else ():
                desk.scalar(value, "steps.with")
            return inlined(asked._replace(node=node, uses=uses), desk, step)
    made_of = _step(node, desk)
    return [made_of] if made_of is not None else []


def _step(node: Node, desk: Desk) -> Node | None:
    if node.kind != OBJECT:
        desk.outside(node.at, f"{node.described()} as a step", "expected an object with 'run' or 'uses'")
        return None
    found = keys(node, "a step", desk)
    told: dict[str, Node | None] = {}
    if not ("run" in found or "uses" in found):
        if not any(nearest(key.written, KEYS["a step"]) in ("run", "uses") for key, _ in node.value):
            desk.outside(node.at, "a step without 'run' or 'uses'", "expected one of them")
        return None
    if "run" in found and "uses" in found:
        desk.outside(found["uses"][0].at, "'uses' beside 'run'", "a step does one of both")
        return None
    if "run" in found:
        told["run"] = desk.text(found["run"][1], "steps.run", "run")
        _commands(found, told, desk)
    else:
        _uses(found, told, desk)
    if "name" in found:
        told["name"] = desk.line(found["name"][1], "steps.name", "name")
    if "id" in found:
        told["id"] = desk.text(found["id"][1], "steps.name", "id")
    common(found, told, desk)
    command = told.get("run")
    if command is None and "uses" not in told:
        return None  # It was said.
    if command is not None and not command.value.strip():
        desk.note(found["run"][0].at, "a command that is empty", "it does nothing")
        return None
    return keyed(node.at, told)


def common(found: dict[str, tuple[Node, Node]], told: dict[str, Node | None], desk: Desk) -> None:
    """What commands and actions have in common."""
    if "if" in found:
        told["if"] = desk.condition(found["if"][1], "steps.if")
    if "env" in found:
        told["env"] = variables(found["env"][1], "steps.env", desk)
    if "timeout-minutes" in found:
        told["timeout-minutes"] = desk.number(found["timeout-minutes"][1], "steps.timeout-minutes", "timeout-minutes")
    if "continue-on-error" in found:
        value = desk.truth(found["continue-on-error"][1], "steps.continue-on-error", "continue-on-error")
        told["continue-on-error"] = value


def _commands(found: dict[str, tuple[Node, Node]], told: dict[str, Node | None], desk: Desk) -> None:
    if "with" in found:
        desk.outside(found["with"][0].at, "'with' in a step without 'uses'", "use 'env' for a command")
    if "shell" in found:
        told["shell"] = shell(found["shell"][1], desk)
    if "working-directory" in found:
        told["working-directory"] = desk.text(
            found["working-directory"][1], "steps.working-directory", "working-directory"
        )


def _uses(found: dict[str, tuple[Node, Node]], told: dict[str, Node | None], desk: Desk) -> None:
    for name in ("shell", "working-directory"):
        if name in found:
            desk.outside(found[name][0].at, f"{shown(name)} in a step that runs no command", "remove it")
    uses = found["uses"][1]
    if uses.kind != TEXT:
        desk.outside(uses.at, f"{uses.described()} as 'uses'", "expected an action, e.g. actions/checkout@v4")
        return
    given = found["with"][1] if "with" in found else None
    name = uses.value.partition("@")[0].strip()
    if name.lower() in DROPPED:
        desk.note(uses.at, f"the action {shown(name)} has no effect here", DROPPED[name.lower()])
        return
    if is_toolchain(uses):
        if (command := toolchain(uses, given, desk)) is not None:
            own = variables(found.pop("env")[1], "steps.env", desk) if "env" in found else None
            told.update(as_keys(command, own))
        return
    made_of = built_in(uses, given, desk)
    if made_of is not None:
        told["uses"] = made_of.uses
        told["with"] = made_of.with_ if made_of.with_.value else None
