"""Access to keys, values and items of nodes. Missing nodes, and nodes of another kind, count as empty."""

from __future__ import annotations

from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, Node


def pairs(node: Node | None) -> list[tuple[Node, Node]]:
    """Return the keys and values of an object; none for any other node."""
    return node.value if node is not None and node.kind == OBJECT else []


def items(node: Node | None) -> list[Node]:
    """Return the items of a list. A single value counts as a list of one."""
    if node is None or node.kind == NULL:
        return []
    return node.value if node.kind == LIST else [node]


def entry(node: Node | None, name: str) -> tuple[Node, Node] | None:
    """Return a key and its value, or None."""
    return next((pair for pair in pairs(node) if pair[0].raw == name), None)


def child(node: Node | None, name: str) -> Node | None:
    """Return the value of a key, or None."""
    pair = entry(node, name)
    return pair[1] if pair else None
