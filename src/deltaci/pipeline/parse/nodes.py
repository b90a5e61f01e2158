"""Ways through the nodes of a file: keys, values and items, as far as they are there."""

from __future__ import annotations

from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, Node


def pairs(node: Node | None) -> list[tuple[Node, Node]]:
    """Keys and values of an object; of anything else none."""
    return node.value if node is not None and node.kind == OBJECT else []


def items(node: Node | None) -> list[Node]:
    """The items of a list; something single is a list of one."""
    if node is None or node.kind == NULL:
        return []
    return node.value if node.kind == LIST else [node]


def entry(node: Node | None, name: str) -> tuple[Node, Node] | None:
    """A key and its value."""
    return next((pair for pair in pairs(node) if pair[0].raw == name), None)


def child(node: Node | None, name: str) -> Node | None:
    """The value of a key."""
    found = entry(node, name)
    return found[1] if found else None
