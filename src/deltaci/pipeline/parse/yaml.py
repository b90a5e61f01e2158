"""YAML 1.2 as nodes that know where they stand. Nothing is constructed from tags; sizes, depths and counts are bounded.

The text is split into events by ruamel.yaml; what a word means (`true`, `3`, `~`) is decided here, by YAML 1.2's
core schema: `on`, `yes` and `no` are texts. Never raises anything but `NotYaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

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
MAX_NODES: Final = 50_000  # With everything that aliases repeat.
MAX_DEPTH: Final = 24
MAX_DIGITS: Final = 18
REJECTED: Final = "!"  # The style of a value that has a tag; this was said, and there is no more to say.

TEXT, NUMBER, BOOL, NULL, LIST, OBJECT = "text", "number", "bool", "null", "list", "object"
KIND_OF_TAG: Final = {
    f"tag:yaml.org,2002:{name}": kind for name, kind in (("str", TEXT), ("seq", LIST), ("map", OBJECT))
}

_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# YAML's own list of characters, without those that only some count as the end of a line.
_STRANGE: Final = re.compile(r"[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def needs_escapes(text: str) -> bool:
    """Whether a text has characters that can only be written as escapes."""
    return _STRANGE.search(text) is not None


class YamlError(Exception):
    """The text cannot be read at all; the problems say why."""


class Node(msgspec.Struct, eq=False):
    """A part of the file: what it is, what it says, how it was written, and where."""

    kind: str
    position: Position
    value: Any = None  # a text, number or truth; the nodes of a list; pairs of key and value
    raw: str = ""
    style: str = ""  # the quote, or `|` or `>`; empty for plain words
    size: int = 1
    depth: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether it is a word without quotes."""
        return self.kind not in (LIST, OBJECT) and not self.style

    def describe(self) -> str:
        """What was found, for a message."""
        if self.kind == TEXT:
            return f"the text {quote(self.value)}" if self.value else "an empty text"
        if self.kind == NUMBER:
            return f"the number {self.raw[:40]}"
        return {BOOL: self.raw, NULL: "nothing", LIST: "a list", OBJECT: "an object"}[self.kind]


def decode_utf8(content: bytes, problems: ProblemList) -> str:
    """The bytes of a file as text."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8").removeprefix("\ufeff")
        at = Position(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        problems.add(at, f"the byte 0x{content[error.start]:02x}, which is not UTF-8", "save the file as UTF-8")
        raise YamlError from error


def parse_yaml(text: str, problems: ProblemList) -> Node:
    """The only document of a text."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        problems.add(Position(), f"a file of more than {MAX_BYTES // 1024} KiB", "split it into several files")
        raise YamlError
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if strange := _STRANGE.search(text):
        line_start = text.rfind("\n", 0, strange.start()) + 1
        at = Position(text.count("\n", 0, strange.start()) + 1, strange.start() - line_start + 1)
        told = (
            f"the character U+{ord(strange[0]):04X}, which is not allowed, or which only some take as the end of a line"
        )
        problems.add(at, told, f'write it in double quotes as "\\u{ord(strange[0]):04x}"')
        raise YamlError
    builder = _Builder(problems)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except MarkedYAMLError as error:
        at, found, expected = explain_yaml_error(error, text)
        problems.add(at, found, expected)
        raise YamlError from error
    except (YAMLError, ValueError, OverflowError, IndexError, AttributeError, AssertionError, TypeError) as error:
        # The scanner stumbles over some escapes and directives in ways of its own; none of them is a file of ours.
        problems.add(builder.last, "something after this that is not YAML", "look at escapes, tags and directives")
        raise YamlError from error
    if builder.root is None:
        problems.add(Position(), "an empty file", "expected at least: jobs")
        raise YamlError
    return builder.root


class _Builder:
    """Puts events together to nodes, without recursion."""

    def __init__(self, problems: ProblemList) -> None:
        self.problems = problems
        self.root: Node | None = None
        self.last = Position()
        self._open: list[tuple[Node, list[Node], str]] = []  # node, its children, its anchor
        self._anchors: dict[str, Node | None] = {}  # None: not yet complete
        self._nodes = 0
        self._documents = 0

    def take(self, event: Any) -> None:
        """The next event."""
        self.last = at = Position(event.start_mark.line + 1, event.start_mark.column + 1)
        match event:
            case DocumentStartEvent():
                self._begin(event, at)
            case AliasEvent():
                aliased = self._aliased(event.anchor, at)
                self._add(aliased, "", aliased.size)
            case ScalarEvent():
                self._add(self._scalar(event, at), event.anchor or "")
            case SequenceStartEvent() | MappingStartEvent():
                kind = LIST if isinstance(event, SequenceStartEvent) else OBJECT
                self._is_tagged(event.tag, kind, at)
                if len(self._open) >= MAX_DEPTH:
                    self._refuse(at, f"more than {MAX_DEPTH} levels inside each other", "a file needs fewer")
                if event.anchor:
                    self._anchors[event.anchor] = None
                self._open.append((Node(kind, at), [], event.anchor or ""))
            case SequenceEndEvent() | MappingEndEvent():
                node, children, anchor = self._open.pop()
                node.value = children if node.kind == LIST else self._pairs(children)
                node.size = 1 + sum(child.size for child in children)
                node.depth = 1 + max((child.depth for child in children), default=0)
                self._add(node, anchor)

    def _refuse(self, at: Position, found: str, expected: str, near: str = "") -> None:
        self.problems.add(at, found, expected, near)
        raise YamlError

    def _begin(self, event: Any, at: Position) -> None:
        self._documents += 1
        if self._documents > 1:
            self._refuse(at, "a second document", "one for each file: remove '---' or split the file")
        if (event.version and tuple(event.version) != (1, 2)) or event.tags:
            self._refuse(
                Position(), "a directive that changes how the file is read", "remove the line that begins with '%'"
            )

    def _add(self, node: Node, anchor: str, count: int = 1) -> None:
        self._nodes += count  # The parts of a list or object were counted as they came; an alias repeats them all.
        if self._nodes > MAX_NODES:
            self._refuse(self.last, f"more than {MAX_NODES:,} values, aliases included", "a file needs fewer")
        if len(self._open) + node.depth > MAX_DEPTH + 1:
            self._refuse(self.last, f"more than {MAX_DEPTH} levels inside each other", "a file needs fewer")
        if anchor:
            self._anchors[anchor] = node
        if self._open:
            self._open[-1][1].append(node)
        elif self.root is None:
            self.root = node

    def _aliased(self, name: str, at: Position) -> Node:
        node = self._anchors.get(name)
        if node is None and name in self._anchors:
            self._refuse(at, f"'*{name}', an alias inside of what it stands for", "remove it")
        if node is None:
            near = nearest(name, self._anchors)
            self._refuse(at, f"'*{name}', but there is no '&{name}' before it", "expected an anchor's name", near)
        assert node is not None
        return node

    def _is_tagged(self, tag: Any, kind: str, at: Position) -> bool:
        is_bad = tag is not None and str(tag) != "!" and KIND_OF_TAG.get(str(tag)) != kind
        if is_bad:
            name = str(tag).replace("tag:yaml.org,2002:", "!!")
            told = "remove it, or quote the text if the '!' belongs to it"
            self.problems.add(at, f"the tag {quote(name)}, and tags are not allowed", told)
        return is_bad

    def _scalar(self, event: Any, at: Position) -> Node:
        text, style = str(event.value), str(event.style or "")
        if event.tag is not None:
            is_bad = self._is_tagged(event.tag, TEXT, at)
            return Node(TEXT, at, text, text, REJECTED if is_bad else style or '"')
        kind, value = (TEXT, text) if style else resolve_scalar(text)
        return Node(kind, at, value, text, style)

    def _pairs(self, children: list[Node]) -> list[tuple[Node, Node]]:
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key, value in zip(children[::2], children[1::2], strict=True):
            if key.kind in (LIST, OBJECT):
                self.problems.add(
                    key.position, f"{key.describe()} as a key", "expected a text; quote it if it begins with { or ["
                )
            elif key.raw == "<<" and key.is_plain:
                for pair in self._merged(value):
                    merged.setdefault(pair[0].raw, pair)
            elif key.raw in own:
                first = own[key.raw][0].position
                told = f"the key {quote(key.raw)} a second time"
                self.problems.add(key.position, told, f"it is in line {first.line} already: remove one of them")
            else:
                own[key.raw] = (key, value)
        return [*own.values(), *(pair for name, pair in merged.items() if name not in own)]

    def _merged(self, value: Node) -> Iterator[tuple[Node, Node]]:
        for each in value.value if value.kind == LIST else [value]:
            if each.kind == OBJECT:
                yield from each.value
            else:
                told = "expected an alias of an object, such as '<<: *name'"
                self.problems.add(each.position, f"{each.describe()} to be merged", told)


def resolve_scalar(text: str) -> tuple[str, Any]:
    """What a plain word means by the core schema of YAML 1.2."""
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
