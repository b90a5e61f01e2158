"""Access to keys, values and items of nodes. A node that is None or of another kind has none."""

from __future__ import annotations

from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, Node


def pairs(node: Node | None) -> list[tuple[Node, Node]]:
    """Return the keys and values of an object node; an empty list for any other node and None."""
    return node.value if node is not None and node.kind == OBJECT else []


def items(node: Node | None) -> list[Node]:
    """Return the items of a list node, no items for null and None, and any other node as a list of one."""
    if node is None or node.kind == NULL:
        return []
    return node.value if node.kind == LIST else [node]


def entry(node: Node | None, name: str) -> tuple[Node, Node] | None:
    """Return the key of this name and its value from an object node, or None."""
    return next((pair for pair in pairs(node) if pair[0].raw == name), None)


def child(node: Node | None, name: str) -> Node | None:
    """Return the value of the key of this name from an object node, or None."""
    pair = entry(node, name)
    return pair[1] if pair else None
