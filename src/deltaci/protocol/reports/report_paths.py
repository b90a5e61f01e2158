"""Parse the path of a number in a JSON or XML report; errors have a column.

In JSON, keys are separated by dots; `[0]` is an index of a list, and `["a.b"]` a key with other characters:
`totals.percent_covered`, `runs[0].summary["lines/covered"]`. In XML, elements are separated by slashes, starting below
the root element; an attribute with `@` may end the path, otherwise it is the text of the element: `./@line-rate`,
`packages/package[@name='core']/@line-rate`, `totals/line[2]`. A path with a slash or an `@` is an XML path.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.protocol.patterns.path_patterns import BadPattern

MAX_LENGTH: Final = 1000
MAX_PARTS: Final = 32
MAX_INDEX: Final = 999

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_QUOTED: Final = re.compile(r"\[\"[^\"]*\"\]|'[^']*'")
_KEY: Final = re.compile(r"[^.\[\]\"'/@\s]+")
_SUBSCRIPT: Final = re.compile(r"\[(?:([0-9]{1,9})|\"([^\"]+)\")\]")
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")
_PREDICATE: Final = re.compile(r"\[(?:([0-9]{1,9})|@([A-Za-z_][\w.-]*)='([^']*)')\]")


class Element(NamedTuple):
    """One step of an XML path: an element name, and optionally its number or an attribute value to select it by."""

    name: str
    number: int = 0  # From 1, as in XPath; 0: any.
    attribute: str = ""
    value: str = ""


class JsonPath(NamedTuple):
    """A JSON path: keys and list indices."""

    parts: tuple[str | int, ...]


class XmlPath(NamedTuple):
    """An XML path: elements, and an attribute or the text of the last element.

    The root element is part of the path only if the path is absolute.
    """

    elements: tuple[Element, ...]
    attribute: str = ""
    is_absolute: bool = False


ReportPath = JsonPath | XmlPath


def parse(text: str) -> ReportPath:
    """Parse a path. Raise `BadPattern` if it is malformed."""
    if not text.strip():
        raise BadPattern(1, "nothing", "a path, such as 'totals.percent_covered' or './@line-rate'")
    if len(text) > MAX_LENGTH:
        raise BadPattern(MAX_LENGTH + 1, f"{len(text)} characters", f"at most {MAX_LENGTH}")
    if forbidden := _FORBIDDEN.search(text):
        raise BadPattern(forbidden.start() + 1, "a control character or '\\'", "a path on one line, without '\\'")
    path = _parse_xml(text) if re.search("[/@]", _QUOTED.sub("", text)) else _parse_json(text)
    parts = path.parts if isinstance(path, JsonPath) else path.elements
    if len(parts) > MAX_PARTS:
        raise BadPattern(1, f"a path of {len(parts)} parts", f"at most {MAX_PARTS}")
    return path


def _parse_json(text: str) -> JsonPath:
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        if text[position] == "[":
            subscript = _SUBSCRIPT.match(text, position)
            if subscript is None:
                raise BadPattern(position + 1, "'['", "a place such as '[0]', or a key such as '[\"a.b\"]'")
            parts.append(subscript[2] if subscript[2] is not None else _parse_index(subscript, MAX_INDEX))
            position = subscript.end()
            continue
        if parts:
            if text[position] != ".":
                raise BadPattern(position + 1, f"'{text[position]}'", "'.' before the next key")
            position += 1
        key_match = _KEY.match(text, position)
        if key_match is None:
            actual = f"'{text[position]}'" if position < len(text) else "the end"
            raise BadPattern(position + 1, actual, "a key; one with other signs in it is written '[\"a.b\"]'")
        parts.append(key_match[0])
        position = key_match.end()
    return JsonPath(tuple(parts))


def _parse_xml(text: str) -> XmlPath:
    is_absolute = text.startswith("/")
    position = 1 if is_absolute else 2 if text.startswith("./") else 0
    elements: list[Element] = []
    while True:
        is_attribute = text.startswith("@", position)
        name_match = _NAME.match(text, position + is_attribute)
        if name_match is None:
            actual = f"'{text[position]}'" if position < len(text) else "the end"
            raise BadPattern(position + 1, actual, "the name of an element, or '@' and that of an attribute")
        position = name_match.end()
        if is_attribute:
            if position < len(text):
                raise BadPattern(position + 1, f"'{text[position]}' behind an attribute", "nothing more")
            return XmlPath(tuple(elements), name_match[0], is_absolute)
        predicate = _PREDICATE.match(text, position)
        if predicate is not None:
            position = predicate.end()
            element_number = _parse_index(predicate, 1_000_000) if predicate[1] is not None else 0
            if predicate[1] is not None and not element_number:
                raise BadPattern(predicate.start() + 1, "'[0]'", "a number from 1 on: in XML the first one is '[1]'")
            elements.append(Element(name_match[0], element_number, predicate[2] or "", predicate[3] or ""))
        else:
            elements.append(Element(name_match[0]))
        if position == len(text):
            return XmlPath(tuple(elements), "", is_absolute)
        if text[position] != "/":
            raise BadPattern(position + 1, f"'{text[position]}'", "'/', or '[1]', or \"[@name='a']\"")
        position += 1


def _parse_index(match: re.Match[str], maximum: int) -> int:
    """Return the number in a matched subscript. Raise `BadPattern` if it is above the maximum."""
    number = int(match[1])
    if number > maximum:
        raise BadPattern(match.start() + 1, f"'{match[0]}'", f"at most [{maximum}]")
    return number
