"""One job of a workflow as a job of a pipeline."""

from __future__ import annotations

from typing import Final

from deltaci.pipeline.expressions import context_names
from deltaci.pipeline.github.composite_actions import Actions
from deltaci.pipeline.github.containers import Container, container, services, variables
from deltaci.pipeline.github.converter import KNOWN, Desk, items, keyed, listed, made
from deltaci.pipeline.github.keys import has, keys
from deltaci.pipeline.github.runs_on import Machines, as_list, machines, worked_out
from deltaci.pipeline.github.shells import DEFAULT, IN_CONTAINERS, ON_WINDOWS, shell
from deltaci.pipeline.github.steps import steps
from deltaci.pipeline.github.strategy import Strategy, strategy
from deltaci.pipeline.parse.nodes import child
from deltaci.pipeline.parse.problems import shown
from deltaci.pipeline.parse.yaml import BOOL, NUMBER, OBJECT, TEXT, Node

BY_ID: Final = "the job is called by its id"
MINUTES: Final = 360  # How long a job may take on GitHub, if nothing is said.

Keys = dict[str, tuple[Node, Node]]


def job(key: Node, node: Node, defaults: Keys, desk: Desk, actions: Actions) -> Node:
    """A job; `defaults` are those of the workflow, `actions` those of the repository that it may use."""
    found = keys(node, "a job", desk)
    told: dict[str, Node | None] = {}
    called = node.kind == OBJECT and any(name.written == "uses" for name, _ in node.value)
    if "name" in found:
        told["name"] = _name(found["name"][1], desk)
    if "needs" in found:
        told["needs"] = needs(found["needs"][1], desk)
    if "if" in found:
        told["if"] = desk.condition(found["if"][1], "jobs.if")
    planned = strategy(found["strategy"][1], desk) if "strategy" in found else Strategy(None, [{}])
    told["strategy"] = planned.node
    place = Machines()
    if "runs-on" in found:
        place = machines(found["runs-on"][1], planned.combinations, planned.unknown, desk)
        told["runs-on"] = as_list(found["runs-on"][1], place)
    elif not called and node.kind == OBJECT:
        desk.outside(key.at, f"the job {shown(key.written)} without 'runs-on'", "expected it, e.g. ubuntu-latest")
    inner = container(found["container"][1], desk) if "container" in found else Container(None, None)
    told["image"] = inner.image
    if "services" in found:
        told["services"] = services(found["services"][1], desk)
    told["env"] = _env(found, inner, desk)
    told["defaults"] = _defaults(key, found, defaults, place, inner, desk)
    _limits(key, found, told, desk)
    if "steps" in found:
        moves = has(child(told["defaults"], "run"), "working-directory")
        told["steps"] = steps(*found["steps"], desk, actions, moves=moves)
    elif not called and node.kind == OBJECT:
        desk.outside(key.at, f"the job {shown(key.written)} without 'steps'", "expected steps")
    told["checkout"] = Node(BOOL, key.at, False, "false")
    told["network"] = Node(BOOL, key.at, True, "true")
    return keyed(node.at, told)


def _name(node: Node, desk: Desk) -> Node | None:
    """What people call the job; by what is not known when a run is planned it cannot be called."""
    if node.kind == TEXT:
        late = {name for each in desk.expressions(node, "jobs.env") for name in context_names(each)} - KNOWN
        if late:
            desk.note(node.at, f"a name with {shown(min(late))}, which is not known when a run is planned", BY_ID)
            return None
    return desk.line(node, "jobs.name", "name")


def needs(node: Node, desk: Desk) -> Node:
    """The jobs that come before."""
    return listed(node.at, [each for one in items(node) if (each := desk.text(one, "run-name", "needs")) is not None])


def concurrency(node: Node, place: str, desk: Desk) -> Node | None:
    """One at a time."""
    if node.kind != OBJECT:
        group = desk.text(node, place, "concurrency")
        return keyed(node.at, {"group": group}) if group is not None and group.value else None
    found = keys(node, "'concurrency'", desk)
    if "group" not in found:
        desk.outside(node.at, "'concurrency' without 'group'", "expected the group's name")
        return None
    told: dict[str, Node | None] = {"group": desk.text(found["group"][1], place, "group")}
    if "cancel-in-progress" in found:
        told["cancel-in-progress"] = desk.truth(found["cancel-in-progress"][1], place, "cancel-in-progress")
    return keyed(node.at, told)


def run_defaults(node: Node, desk: Desk) -> Keys:
    """What `defaults` says of commands."""
    found = keys(node, "'defaults'", desk)
    return keys(found["run"][1], "'defaults.run'", desk) if "run" in found else {}


def _env(found: Keys, inner: Container, desk: Desk) -> Node | None:
    own = variables(found["env"][1], "jobs.env", desk) if "env" in found else None
    if inner.env is None:
        return own
    beside = variables(inner.env, "jobs.services.env", desk)
    merged = {name.written: (name, value) for part in (beside, own) if part for name, value in part.value}
    return Node(OBJECT, inner.env.at, [*merged.values()])


def _defaults(key: Node, found: Keys, outer: Keys, place: Machines, inner: Container, desk: Desk) -> Node:
    """The shell is always said, as GitHub's own default is none of ours."""
    said = {**outer, **(run_defaults(found["defaults"][1], desk) if "defaults" in found else {})}
    told: dict[str, Node | None] = {}
    if "shell" in said:
        told["shell"] = shell(said["shell"][1], desk, "jobs.defaults")
    elif inner.image is not None and (asked := worked_out(inner.image)):
        told["shell"] = made(key.at, f"${{{{ {asked} && '{IN_CONTAINERS}' || '{DEFAULT}' }}}}")
    elif inner.image is not None:
        told["shell"] = made(key.at, IN_CONTAINERS)
    elif place.windows_if:
        told["shell"] = made(key.at, f"${{{{ {place.windows_if} && '{ON_WINDOWS}' || '{DEFAULT}' }}}}")
    else:
        told["shell"] = made(key.at, ON_WINDOWS if place.is_windows else DEFAULT)
    if "working-directory" in said:
        told["working-directory"] = desk.text(said["working-directory"][1], "jobs.defaults", "working-directory")
    return keyed(key.at, {"run": keyed(key.at, told)})


def _limits(key: Node, found: Keys, told: dict[str, Node | None], desk: Desk) -> None:
    told["timeout-minutes"] = Node(NUMBER, key.at, MINUTES, str(MINUTES))
    if "timeout-minutes" in found:
        told["timeout-minutes"] = desk.number(found["timeout-minutes"][1], "jobs.timeout-minutes", "timeout-minutes")
    if "continue-on-error" in found:
        value = desk.truth(found["continue-on-error"][1], "jobs.continue-on-error", "continue-on-error")
        told["allow_failure"] = value
    if "concurrency" in found:
        told["concurrency"] = concurrency(found["concurrency"][1], "jobs.concurrency", desk)
    if "outputs" in found:
        told["outputs"] = _outputs(found["outputs"][1], desk)


def _outputs(node: Node, desk: Desk) -> Node | None:
    if node.kind != OBJECT:
        desk.outside(node.at, f"{node.described()} as 'outputs'", "expected names with texts")
        return None
    told = []
    for name, each in node.value:
        value = desk.text(each, "jobs.outputs", name.written)
        if value is not None and value.kind == TEXT and value.value:
            told.append((name, value))
    return Node(OBJECT, node.at, told)
