"""Parse YAML 1.2 into nodes with positions. Tags are not allowed; size, depth and number of values are limited.

ruamel.yaml splits the text into events. The types of plain scalars (`true`, `3`, `~`) are resolved here, by the core
schema of YAML 1.2: `on`, `yes` and `no` are texts. Only `YamlError` is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from deltaci.core.text import nearest
from deltaci.pipeline.parse.problems import Position, ProblemList, quote
from deltaci.pipeline.parse.yaml_errors import explain_yaml_error

MAX_BYTES: Final = 512 * 1024
MAX_NODES: Final = 50_000  # including the nodes that aliases repeat
MAX_DEPTH: Final = 24
MAX_DIGITS: Final = 18
REJECTED: Final = "!"  # The `style` of a node whose tag was reported as a problem.

TEXT, NUMBER, BOOL, NULL, LIST, OBJECT = "text", "number", "bool", "null", "list", "object"
KIND_OF_TAG: Final = {
    f"tag:yaml.org,2002:{name}": kind for name, kind in (("str", TEXT), ("seq", LIST), ("map", OBJECT))
}

_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# Characters that YAML does not allow, and those that only some parsers treat as line breaks.
_NOT_ALLOWED: Final = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def needs_escapes(text: str) -> bool:
    """Return whether a text contains characters that YAML allows only as escapes in double quotes."""
    return _NOT_ALLOWED.search(text) is not None


class YamlError(Exception):
    """The text is not valid YAML. The reason was added to the `ProblemList`."""


class Node(msgspec.Struct, eq=False):
    """A value or key of the file, with its kind, original text and position.

    `size` counts it and all nodes within it.
    """

    kind: str
    position: Position
    value: Any = None  # a text, number or boolean; the nodes of a list; the pairs (key, value) of an object
    raw: str = ""  # the text of a scalar as it is in the file
    style: str = ""  # the quote, or `|` or `>`; empty for a plain scalar
    size: int = 1
    depth: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether this is a plain scalar, without quotes and not in a block."""
        return self.kind not in (LIST, OBJECT) and not self.style

    def describe(self) -> str:
        """Return a description of the value for a message, e.g. `the number 3`."""
        if self.kind == TEXT:
            return f"the text {quote(self.value)}" if self.value else "an empty text"
        if self.kind == NUMBER:
            return f"the number {self.raw[:40]}"
        return {BOOL: self.raw, NULL: "nothing", LIST: "a list", OBJECT: "an object"}[self.kind]


def decode_utf8(content: bytes, problems: ProblemList) -> str:
    """Decode the content of a file. Report a problem and raise `YamlError` if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        text_before = content[: error.start].decode("utf-8").removeprefix("\ufeff")
        position = Position(text_before.count("\n") + 1, len(text_before) - (text_before.rfind("\n") + 1) + 1)
        problems.add(position, f"the byte 0x{content[error.start]:02x}, which is not UTF-8", "save the file as UTF-8")
        raise YamlError from error


def parse_yaml(text: str, problems: ProblemList) -> Node:
    """Return the root node of a text with one YAML document.

    Report a problem and raise `YamlError` if it is invalid.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        problems.add(Position(), f"a file of more than {MAX_BYTES // 1024} KiB", "split it into several files")
        raise YamlError
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if invalid_match := _NOT_ALLOWED.search(text):
        line_start = text.rfind("\n", 0, invalid_match.start()) + 1
        position = Position(text.count("\n", 0, invalid_match.start()) + 1, invalid_match.start() - line_start + 1)
        message = (
            f"the character U+{ord(invalid_match[0]):04X}, which is not allowed or not a line break for all parsers"
        )
        problems.add(position, message, f'write it in double quotes as "\\u{ord(invalid_match[0]):04x}"')
        raise YamlError
    builder = _Builder(problems)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.add_event(event)
    except MarkedYAMLError as error:
        position, message, expected = explain_yaml_error(error, text)
        problems.add(position, message, expected)
        raise YamlError from error
    except (YAMLError, ValueError, OverflowError, IndexError, AttributeError, AssertionError, TypeError) as error:
        # The scanner raises other errors for some escapes and directives; no valid file has those.
        problems.add(
            builder.last_position, "something after this that is not YAML", "check escapes, tags and directives"
        )
        raise YamlError from error
    if builder.root_node is None:
        problems.add(Position(), "an empty file", "expected at least: jobs")
        raise YamlError
    return builder.root_node


class _Builder:
    """Builds the tree of nodes from the events of the YAML parser."""

    def __init__(self, problems: ProblemList) -> None:
        self.problems = problems
        self.root_node: Node | None = None
        self.last_position = Position()
        self._open: list[tuple[Node, list[Node], str]] = []  # node, its children, its anchor
        self._anchors: dict[str, Node | None] = {}  # None: not yet complete
        self._node_count = 0
        self._document_count = 0

    def add_event(self, event: Any) -> None:
        """Apply the next event of the parser."""
        self.last_position = position = Position(event.start_mark.line + 1, event.start_mark.column + 1)
        match event:
            case DocumentStartEvent():
                self._begin_document(event, position)
            case AliasEvent():
                aliased = self._resolve_alias(event.anchor, position)
                self._add_node(aliased, "", aliased.size)
            case ScalarEvent():
                self._add_node(self._build_scalar(event, position), event.anchor or "")
            case SequenceStartEvent() | MappingStartEvent():
                kind = LIST if isinstance(event, SequenceStartEvent) else OBJECT
                self._has_rejected_tag(event.tag, kind, position)
                if len(self._open) >= MAX_DEPTH:
                    self._fail(position, f"more than {MAX_DEPTH} nested levels", "use fewer")
                if event.anchor:
                    self._anchors[event.anchor] = None
                self._open.append((Node(kind, position), [], event.anchor or ""))
            case SequenceEndEvent() | MappingEndEvent():
                node, children, anchor = self._open.pop()
                node.value = children if node.kind == LIST else self._build_pairs(children)
                node.size = 1 + sum(child.size for child in children)
                node.depth = 1 + max((child.depth for child in children), default=0)
                self._add_node(node, anchor)

    def _fail(self, position: Position, found: str, expected: str, suggestion: str = "") -> NoReturn:
        """Report a problem and raise `YamlError`."""
        self.problems.add(position, found, expected, suggestion)
        raise YamlError

    def _begin_document(self, event: Any, position: Position) -> None:
        self._document_count += 1
        if self._document_count > 1:
            self._fail(position, "a second document", "one for each file: remove '---' or split the file")
        if (event.version and tuple(event.version) != (1, 2)) or event.tags:
            self._fail(
                Position(), "a directive that changes how the file is read", "remove the line that begins with '%'"
            )

    def _add_node(self, node: Node, anchor_name: str, added_count: int = 1) -> None:
        """Add a complete node to the innermost open list or object. It counts as `added_count` nodes."""
        self._node_count += added_count  # The children of a node were counted before; an alias repeats them all.
        if self._node_count > MAX_NODES:
            self._fail(self.last_position, f"more than {MAX_NODES:,} values, aliases included", "use fewer")
        if len(self._open) + node.depth > MAX_DEPTH + 1:
            self._fail(self.last_position, f"more than {MAX_DEPTH} nested levels", "use fewer")
        if anchor_name:
            self._anchors[anchor_name] = node
        if self._open:
            self._open[-1][1].append(node)
        elif self.root_node is None:
            self.root_node = node

    def _resolve_alias(self, alias_name: str, position: Position) -> Node:
        node = self._anchors.get(alias_name)
        if node is None and alias_name in self._anchors:
            self._fail(position, f"'*{alias_name}', an alias inside the value that it refers to", "remove it")
        if node is None:
            suggestion = nearest(alias_name, self._anchors)
            self._fail(
                position,
                f"'*{alias_name}', but there is no '&{alias_name}' before it",
                "expected an anchor's name",
                suggestion,
            )
        return node

    def _has_rejected_tag(self, tag: Any, kind: str, position: Position) -> bool:
        """Return whether a tag does not fit the kind of its value, and report it."""
        is_rejected = tag is not None and str(tag) != "!" and KIND_OF_TAG.get(str(tag)) != kind
        if is_rejected:
            tag_name = str(tag).replace("tag:yaml.org,2002:", "!!")
            hint = "remove it, or quote the text if the '!' belongs to it"
            self.problems.add(position, f"the tag {quote(tag_name)}, and tags are not allowed", hint)
        return is_rejected

    def _build_scalar(self, event: Any, position: Position) -> Node:
        text, style = str(event.value), str(event.style or "")
        if event.tag is not None:
            is_rejected = self._has_rejected_tag(event.tag, TEXT, position)
            return Node(TEXT, position, text, text, REJECTED if is_rejected else style or '"')
        kind, value = (TEXT, text) if style else resolve_scalar(text)
        return Node(kind, position, value, text, style)

    def _build_pairs(self, children: list[Node]) -> list[tuple[Node, Node]]:
        """Return keys and values of an object, with merged ones (`<<`). Report invalid and repeated keys."""
        direct_pairs: dict[str, tuple[Node, Node]] = {}
        merged_pairs: dict[str, tuple[Node, Node]] = {}
        for key_node, value_node in zip(children[::2], children[1::2], strict=True):
            if key_node.kind in (LIST, OBJECT):
                self.problems.add(
                    key_node.position,
                    f"{key_node.describe()} as a key",
                    "expected a text; quote it if it begins with { or [",
                )
            elif key_node.raw == "<<" and key_node.is_plain:
                for pair in self._merged_pairs(value_node):
                    merged_pairs.setdefault(pair[0].raw, pair)
            elif key_node.raw in direct_pairs:
                first_position = direct_pairs[key_node.raw][0].position
                message = f"the key {quote(key_node.raw)} a second time"
                self.problems.add(
                    key_node.position, message, f"it is already in line {first_position.line}: remove one of them"
                )
            else:
                direct_pairs[key_node.raw] = (key_node, value_node)
        return [*direct_pairs.values(), *(pair for key, pair in merged_pairs.items() if key not in direct_pairs)]

    def _merged_pairs(self, merge_value: Node) -> Iterator[tuple[Node, Node]]:
        """Yield the keys and values of the objects that the value of a `<<` key refers to. Report any other value."""
        for merged_node in merge_value.value if merge_value.kind == LIST else [merge_value]:
            if merged_node.kind == OBJECT:
                yield from merged_node.value
            else:
                expected = "expected an alias of an object, such as '<<: *name'"
                self.problems.add(merged_node.position, f"{merged_node.describe()} to be merged", expected)


def resolve_scalar(text: str) -> tuple[str, Any]:
    """Return the kind and the value of a plain scalar, by the core schema of YAML 1.2."""
    if text in _NULLS:
        return NULL, None
    if text in _BOOLS:
        return BOOL, _BOOLS[text]
    if len(text) <= MAX_DIGITS and _INTEGER.fullmatch(text):
        return NUMBER, int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if len(text) <= MAX_DIGITS + 6 and _FLOAT.fullmatch(text) and not _INTEGER.fullmatch(text):
        number = float(text)
        return (NUMBER, number) if abs(number) != float("inf") else (TEXT, text)
    return TEXT, text


# --- Access to nodes -----------------------------------------------------------------------------


def pairs(node: Node | None) -> list[tuple[Node, Node]]:
    """Return the keys and values of an object node; an empty list for any other node and None."""
    return node.value if node is not None and node.kind == OBJECT else []


def items(node: Node | None) -> list[Node]:
    """Return the items of a list node, no items for null and None, and any other node as a list of one."""
    if node is None or node.kind == NULL:
        return []
    return node.value if node.kind == LIST else [node]


def entry(node: Node | None, key: str) -> tuple[Node, Node] | None:
    """Return the key of this name and its value from an object node, or None."""
    return next((pair for pair in pairs(node) if pair[0].raw == key), None)


def child(node: Node | None, key: str) -> Node | None:
    """Return the value of the key of this name from an object node, or None."""
    key_and_value = entry(node, key)
    return key_and_value[1] if key_and_value else None
