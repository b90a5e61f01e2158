"""`strategy` of a job: the matrix as GitHub reads it, with all of its combinations where they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from deltaci.pipeline.expressions import ExpressionError, parse_template
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.values import Value
from deltaci.pipeline.github.converter import Desk, is_expression, keyed, listed, made
from deltaci.pipeline.github.keys import keys
from deltaci.pipeline.github.runs_on import as_expression
from deltaci.pipeline.parse.problems import Place, shown
from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, TEXT, Node
from deltaci.pipeline.planning.matrix import BadMatrix, expand

PLACE: Final = "jobs.strategy"
ROWS: Final = ("include", "exclude")


class Strategy(NamedTuple):
    """What was read: for the pipeline, and the combinations, as far as they are known already."""

    node: Node | None
    combinations: Sequence[Mapping[str, Value]] | None
    unknown: frozenset[str] = frozenset()  # axes that the combinations do not have


def strategy(node: Node, desk: Desk) -> Strategy:
    """The strategy of a job. Without a matrix there is nothing to say, and one combination without values."""
    found = keys(node, "'strategy'", desk)
    if "matrix" not in found:
        for key, _ in found.values():
            desk.note(key.at, f"{shown(key.written)} has no effect here", "there is no matrix")
        return Strategy(None, [{}])
    matrix = _matrix(found["matrix"][1], desk)
    told: dict[str, Node | None] = {"matrix": matrix.node}
    if "fail-fast" in found:
        told["fail-fast"] = desk.truth(found["fail-fast"][1], PLACE, "fail-fast")
    if "max-parallel" in found:
        told["max-parallel"] = desk.number(found["max-parallel"][1], PLACE, "max-parallel")
    return matrix._replace(node=keyed(node.at, told))


def _matrix(node: Node, desk: Desk) -> Strategy:
    if is_expression(node):
        return Strategy(desk.text(node, PLACE), None)
    if node.kind != OBJECT:
        desk.outside(node.at, f"{node.described()} as 'matrix'", "expected axes, each a list of values")
        return Strategy(None, None)
    told: list[tuple[Node, Node]] = []
    values: dict[str, Any] = {}
    is_known = True
    for key, each in node.value:
        if each.kind == NULL and key.written in ROWS:
            continue
        part, known = _rows(key, each, desk) if key.written in ROWS else _axis(key, each, desk)
        if part is None:
            is_known = False
            continue
        told.append((key, part))
        is_known = is_known and known is not None
        values[key.written] = known
    if is_known:
        return Strategy(Node(OBJECT, node.at, told), _combinations(node, values, desk))
    unknown = frozenset(key for key, value in values.items() if value is None)
    return Strategy(Node(OBJECT, node.at, told), None if unknown & {*ROWS} else _partly(values), unknown)


def _partly(values: dict[str, Any]) -> list[Mapping[str, Value]] | None:
    """The combinations of what is known, also those that are excluded by what is not."""
    known = {key: value for key, value in values.items() if value is not None and key != "exclude"}
    try:
        return [each.values for each in expand("job", {"matrix": known}).combinations] if known else None
    except BadMatrix:
        return None


def _axis(key: Node, node: Node, desk: Desk) -> tuple[Node | None, list[Any] | None]:
    if is_expression(node):
        return desk.text(node, PLACE), None
    if node.kind != LIST:
        desk.outside(node.at, f"{node.described()} as the axis {shown(key.written)}", "expected a list of values")
        return None, None
    kept: list[Node] = []
    seen: set[bytes] = set()
    for each in node.value:
        looked_at = _looked_at(each if each.kind != NULL else made(each.at, ""), desk)
        same = msgspec.json.encode(_literal(looked_at))
        if same in seen and OPEN.encode() not in same:
            desk.note(each.at, f"{looked_at.described()} a second time", "it makes no second job here")
            continue
        seen.add(same)
        kept.append(looked_at)
    return _carried(listed(node.at, kept), kept)


def _rows(key: Node, node: Node, desk: Desk) -> tuple[Node | None, list[Any] | None]:
    if is_expression(node):
        return desk.text(node, PLACE), None
    if node.kind != LIST:
        desk.outside(node.at, f"{node.described()} as {shown(key.written)}", "expected a list of combinations")
        return None, None
    kept: list[Node] = []
    seen: set[bytes] = set()
    for each in node.value:
        if each.kind != OBJECT:
            desk.outside(each.at, f"{each.described()} in {shown(key.written)}", "expected names with values")
            return None, None
        filled = [(name, value if value.kind != NULL else made(value.at, "")) for name, value in each.value]
        looked_at = _looked_at(Node(OBJECT, each.at, filled), desk)
        same = msgspec.json.encode(_literal(looked_at))
        if same in seen and OPEN.encode() not in same:
            desk.note(each.at, "a combination a second time", "it makes no second job here")
            continue
        seen.add(same)
        kept.append(looked_at)
    parts = [value for row in kept for _, value in row.value]
    return _carried(listed(node.at, kept), parts)


def _looked_at(node: Node, desk: Desk) -> Node:
    """A value with its numbers as GitHub reads them, and its expressions checked."""
    if node.kind == LIST:
        return listed(node.at, [_looked_at(each, desk) for each in node.value])
    if node.kind == OBJECT:
        return Node(OBJECT, node.at, [(key, _looked_at(each, desk)) for key, each in node.value])
    return node if node.kind == NULL else desk.scalar(node, PLACE) or node


def _carried(node: Node, parts: list[Node]) -> tuple[Node, list[Any] | None]:
    """A list as a pipeline has it. There nothing is evaluated inside of lists and objects, so it is carried as JSON."""
    known = None if any(OPEN in text for text in _texts(node)) else _literal(node)
    if not any(OPEN in text for part in parts if part.kind in (LIST, OBJECT) for text in _texts(part)):
        return node, known
    return made(node.at, f"{OPEN} {_as_json(node)} {CLOSE}"), known


def _literal(node: Node) -> Any:
    if node.kind == LIST:
        return [_literal(each) for each in node.value]
    if node.kind == OBJECT:
        return {key.written: _literal(each) for key, each in node.value}
    return node.value


def _texts(node: Node) -> list[str]:
    if node.kind == LIST:
        return [text for each in node.value for text in _texts(each)]
    if node.kind == OBJECT:
        return [text for _, each in node.value for text in _texts(each)]
    return [node.value] if node.kind == TEXT else []


def _as_json(node: Node) -> str:
    """An expression that gives a value: JSON, in which expressions are filled in as JSON."""
    arguments: list[str] = []
    written = _json(node, arguments)
    if not arguments:
        return f"fromJSON({_quoted(msgspec.json.encode(_literal(node)).decode())})"
    return f"fromJSON(format({', '.join([_quoted(written), *arguments])}))"


def _json(node: Node, arguments: list[str]) -> str:
    if node.kind == LIST:
        return f"[{','.join(_json(each, arguments) for each in node.value)}]"
    if node.kind == OBJECT:
        inner = ",".join(f"{_escaped(key.written)}:{_json(each, arguments)}" for key, each in node.value)
        return "{{" + inner + "}}"
    if node.kind == TEXT and OPEN in node.value:
        try:
            arguments.append(f"toJSON({as_expression(parse_template(node.value))})")
        except ExpressionError:  # It was said.
            arguments.append("null")
        return f"{{{len(arguments) - 1}}}"
    return _escaped(node.value)


def _escaped(value: Any) -> str:
    return msgspec.json.encode(value).decode().replace("{", "{{").replace("}", "}}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _combinations(node: Node, values: dict[str, Any], desk: Desk) -> list[Mapping[str, Value]] | None:
    try:
        return [combination.values for combination in expand("job", {"matrix": values}).combinations]
    except BadMatrix as bad:
        for problem in bad.problems:
            where = problem.where[1:]
            name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in problem.where).lstrip(".")
            desk.outside(_place(node, where), f"{name}: {problem.message}")
        return None


def _place(node: Node, where: Sequence[str | int]) -> Place:
    for key in where:
        if isinstance(key, int) and node.kind == LIST and key < len(node.value):
            node = node.value[key]
        elif node.kind == OBJECT:
            found = next((each for name, each in node.value if name.written == key), None)
            node = found if found is not None else node
    return node.at
