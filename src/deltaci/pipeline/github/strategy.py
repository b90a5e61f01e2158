"""Converts `strategy` of a job, and expands the matrix as far as its values are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from deltaci.pipeline.expressions import ExpressionError, parse_template
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.values import Value
from deltaci.pipeline.github.converter import Converter, is_expression, list_node, object_node, text_node
from deltaci.pipeline.github.keys import read_entries
from deltaci.pipeline.github.runs_on import as_expression
from deltaci.pipeline.parse.problems import Position, quote
from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, TEXT, Node
from deltaci.pipeline.planning.matrix import MatrixError, expand

AVAILABILITY_KEY: Final = "jobs.strategy"
COMBINATION_LISTS: Final = ("include", "exclude")


class Strategy(NamedTuple):
    """The converted `strategy` (or `matrix`), and the matrix combinations if they are known before a run is planned."""

    node: Node | None
    combinations: Sequence[Mapping[str, Value]] | None
    unknown_axes: frozenset[str] = frozenset()  # axes that the combinations do not have


def convert_strategy(node: Node, converter: Converter) -> Strategy:
    """Convert `strategy` of a job. Without a matrix, the result has one combination without values."""
    entries = read_entries(node, "'strategy'", converter)
    if "matrix" not in entries:
        for key_node, _ in entries.values():
            converter.warn(key_node.position, f"{quote(key_node.raw)} has no effect here", "there is no matrix")
        return Strategy(None, [{}])
    matrix = _convert_matrix(entries["matrix"].value, converter)
    nodes_by_key: dict[str, Node | None] = {"matrix": matrix.node}
    if "fail-fast" in entries:
        nodes_by_key["fail-fast"] = converter.convert_boolean(entries["fail-fast"].value, AVAILABILITY_KEY, "fail-fast")
    if "max-parallel" in entries:
        nodes_by_key["max-parallel"] = converter.convert_number(
            entries["max-parallel"].value, AVAILABILITY_KEY, "max-parallel"
        )
    return matrix._replace(node=object_node(node.position, nodes_by_key))


def _convert_matrix(node: Node, converter: Converter) -> Strategy:
    if is_expression(node):
        return Strategy(converter.convert_text(node, AVAILABILITY_KEY), None)
    if node.kind != OBJECT:
        converter.report_unsupported(
            node.position, f"{node.describe()} as 'matrix'", "expected axes, each a list of values"
        )
        return Strategy(None, None)
    converted_pairs: list[tuple[Node, Node]] = []
    values_by_key: dict[str, Any] = {}
    are_values_known = True
    for key_node, value_node in node.value:
        if value_node.kind == NULL and key_node.raw in COMBINATION_LISTS:
            continue
        converted_value, known_values = (
            _convert_combination_list(key_node, value_node, converter)
            if key_node.raw in COMBINATION_LISTS
            else _convert_axis(key_node, value_node, converter)
        )
        if converted_value is None:
            are_values_known = False
            continue
        converted_pairs.append((key_node, converted_value))
        are_values_known = are_values_known and known_values is not None
        values_by_key[key_node.raw] = known_values
    if are_values_known:
        return Strategy(
            Node(OBJECT, node.position, converted_pairs), _expand_combinations(node, values_by_key, converter)
        )
    unknown_axes = frozenset(key_node for key_node, value in values_by_key.items() if value is None)
    return Strategy(
        Node(OBJECT, node.position, converted_pairs),
        None if unknown_axes & {*COMBINATION_LISTS} else _expand_known_axes(values_by_key),
        unknown_axes,
    )


def _expand_known_axes(values_by_key: dict[str, Any]) -> list[Mapping[str, Value]] | None:
    """Return the combinations of the known axes and `include`, ignoring `exclude`. Return None if invalid or empty."""
    matrix = {
        axis: axis_value for axis, axis_value in values_by_key.items() if axis_value is not None and axis != "exclude"
    }
    try:
        return (
            [combination.values for combination in expand("job", {"matrix": matrix}).combinations] if matrix else None
        )
    except MatrixError:
        return None


def _convert_axis(key: Node, node: Node, converter: Converter) -> tuple[Node | None, list[Any] | None]:
    if is_expression(node):
        return converter.convert_text(node, AVAILABILITY_KEY), None
    if node.kind != LIST:
        converter.report_unsupported(
            node.position, f"{node.describe()} as the axis {quote(key.raw)}", "expected a list of values"
        )
        return None, None
    item_nodes: list[Node] = []
    json_texts: set[bytes] = set()
    for value_node in node.value:
        converted_item = _convert_value(
            value_node if value_node.kind != NULL else text_node(value_node.position, ""), converter
        )
        value_json = msgspec.json.encode(_to_value(converted_item))
        if value_json in json_texts and OPEN.encode() not in value_json:
            converter.warn(
                value_node.position, f"{converted_item.describe()} a second time", "the repetition has no effect here"
            )
            continue
        json_texts.add(value_json)
        item_nodes.append(converted_item)
    return _embed(list_node(node.position, item_nodes), item_nodes)


def _convert_combination_list(key: Node, node: Node, converter: Converter) -> tuple[Node | None, list[Any] | None]:
    if is_expression(node):
        return converter.convert_text(node, AVAILABILITY_KEY), None
    if node.kind != LIST:
        converter.report_unsupported(
            node.position, f"{node.describe()} as {quote(key.raw)}", "expected a list of combinations"
        )
        return None, None
    item_nodes: list[Node] = []
    json_texts: set[bytes] = set()
    for combination_node in node.value:
        if combination_node.kind != OBJECT:
            converter.report_unsupported(
                combination_node.position,
                f"{combination_node.describe()} in {quote(key.raw)}",
                "expected names with values",
            )
            return None, None
        pairs_without_null = [
            (name_node, value_node if value_node.kind != NULL else text_node(value_node.position, ""))
            for name_node, value_node in combination_node.value
        ]
        converted_item = _convert_value(Node(OBJECT, combination_node.position, pairs_without_null), converter)
        value_json = msgspec.json.encode(_to_value(converted_item))
        if value_json in json_texts and OPEN.encode() not in value_json:
            converter.warn(
                combination_node.position, "a combination a second time", "the repetition has no effect here"
            )
            continue
        json_texts.add(value_json)
        item_nodes.append(converted_item)
    value_nodes = [value_node for combination in item_nodes for _, value_node in combination.value]
    return _embed(list_node(node.position, item_nodes), value_nodes)


def _convert_value(node: Node, converter: Converter) -> Node:
    """Return a copy of a matrix value with its scalars converted as GitHub reads them. Check its expressions."""
    if node.kind == LIST:
        return list_node(node.position, [_convert_value(item_node, converter) for item_node in node.value])
    if node.kind == OBJECT:
        return Node(
            OBJECT,
            node.position,
            [(key_node, _convert_value(item_node, converter)) for key_node, item_node in node.value],
        )
    return node if node.kind == NULL else converter.convert_scalar(node, AVAILABILITY_KEY) or node


def _embed(node: Node, value_nodes: list[Node]) -> tuple[Node, list[Any] | None]:
    """Return a list in the form of a pipeline file, and its values if it contains no expressions.

    Pipeline files have no expressions within nested lists and objects: a list whose `value_nodes` include such a value
    becomes one expression, `fromJSON(…)`.
    """
    known_values = None if any(OPEN in text for text in _all_texts(node)) else _to_value(node)
    if not any(
        OPEN in text
        for value_node in value_nodes
        if value_node.kind in (LIST, OBJECT)
        for text in _all_texts(value_node)
    ):
        return node, known_values
    return text_node(node.position, f"{OPEN} {_build_json_expression(node)} {CLOSE}"), known_values


def _to_value(node: Node) -> Any:
    if node.kind == LIST:
        return [_to_value(item_node) for item_node in node.value]
    if node.kind == OBJECT:
        return {key_node.raw: _to_value(item_node) for key_node, item_node in node.value}
    return node.value


def _all_texts(node: Node) -> list[str]:
    """Return the texts within a node, without keys."""
    if node.kind == LIST:
        return [text for item_node in node.value for text in _all_texts(item_node)]
    if node.kind == OBJECT:
        return [text for _, item_node in node.value for text in _all_texts(item_node)]
    return [node.value] if node.kind == TEXT else []


def _build_json_expression(node: Node) -> str:
    """Return the source of an expression that evaluates to a list whose texts contain expressions."""
    format_arguments: list[str] = []
    pattern = _build_json_pattern(node, format_arguments)
    if not format_arguments:
        return f"fromJSON({_quote_string(msgspec.json.encode(_to_value(node)).decode())})"
    return f"fromJSON(format({', '.join([_quote_string(pattern), *format_arguments])}))"


def _build_json_pattern(node: Node, format_arguments: list[str]) -> str:
    """Return a pattern for format() that gives JSON. Append an argument for each text with expressions."""
    if node.kind == LIST:
        return f"[{','.join(_build_json_pattern(item_node, format_arguments) for item_node in node.value)}]"
    if node.kind == OBJECT:
        joined_pairs = ",".join(
            f"{_escape_braces(key_node.raw)}:{_build_json_pattern(item_node, format_arguments)}"
            for key_node, item_node in node.value
        )
        return "{{" + joined_pairs + "}}"
    if node.kind == TEXT and OPEN in node.value:
        try:
            format_arguments.append(f"toJSON({as_expression(parse_template(node.value))})")
        except ExpressionError:  # Reported already.
            format_arguments.append("null")
        return f"{{{len(format_arguments) - 1}}}"
    return _escape_braces(node.value)


def _escape_braces(value: Any) -> str:
    """Return a value as JSON with the braces doubled, as format() requires."""
    return msgspec.json.encode(value).decode().replace("{", "{{").replace("}", "}}")


def _quote_string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _expand_combinations(
    node: Node, values_by_key: dict[str, Any], converter: Converter
) -> list[Mapping[str, Value]] | None:
    """Return all combinations of a matrix. Report its problems and return None if it is invalid."""
    try:
        return [combination.values for combination in expand("job", {"matrix": values_by_key}).combinations]
    except MatrixError as error:
        for problem in error.problems:
            problem_path = problem.path[1:]
            path_text = "".join(
                f"[{path_part}]" if isinstance(path_part, int) else f".{path_part}" for path_part in problem.path
            ).lstrip(".")
            converter.report_unsupported(_position_at(node, problem_path), f"{path_text}: {problem.message}")
        return None


def _position_at(node: Node, path: Sequence[str | int]) -> Position:
    """Return the position of the node at a path within `node`, or of its nearest existing ancestor."""
    for path_part in path:
        if isinstance(path_part, int) and node.kind == LIST and path_part < len(node.value):
            node = node.value[path_part]
        elif node.kind == OBJECT:
            child_node = next((value_node for key_node, value_node in node.value if key_node.raw == path_part), None)
            node = child_node if child_node is not None else node
    return node.position
