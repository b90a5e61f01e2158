"""Where a number stands in a report: a small path through JSON or XML, read once, with the column of what is wrong.

In JSON, keys with dots between them, `[0]` for a place in a list, and `["a.b"]` for a key that has other signs in it:
`totals.percent_covered`, `runs[0].summary["lines/covered"]`. In XML, elements with slashes between them, from the
outermost one on, and an attribute with `@` at the end, or none for the text of the element: `./@line-rate`,
`packages/package[@name='core']/@line-rate`, `totals/line[2]`. Whatever has a slash or an `@` is a path of XML.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.protocol.path_patterns import BadPattern

MAX_LENGTH: Final = 1000
MAX_PARTS: Final = 32
MAX_INDEX: Final = 999

_STRANGE: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_QUOTED: Final = re.compile(r"\[\"[^\"]*\"\]|'[^']*'")
_KEY: Final = re.compile(r"[^.\[\]\"'/@\s]+")
_PLACE: Final = re.compile(r"\[(?:([0-9]{1,9})|\"([^\"]+)\")\]")
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")
_CHOICE: Final = re.compile(r"\[(?:([0-9]{1,9})|@([A-Za-z_][\w.-]*)='([^']*)')\]")


class Element(NamedTuple):
    """One step into XML: a name, and which of those of that name: the first, or the one with this attribute."""

    name: str
    number: int = 0  # From 1 on, as in XPath; 0: any.
    attribute: str = ""
    value: str = ""


class InJson(NamedTuple):
    """Keys, and places in lists."""

    parts: tuple[str | int, ...]


class InXml(NamedTuple):
    """Elements, and at the end an attribute, or the text. The outermost element is named only after a slash."""

    elements: tuple[Element, ...]
    attribute: str = ""
    is_absolute: bool = False


ReportPath = InJson | InXml


def read(text: str) -> ReportPath:
    """The path; raises BadPattern for what is none."""
    if not text.strip():
        raise BadPattern(1, "nothing", "a path, such as 'totals.percent_covered' or './@line-rate'")
    if len(text) > MAX_LENGTH:
        raise BadPattern(MAX_LENGTH + 1, f"{len(text)} characters", f"at most {MAX_LENGTH}")
    if strange := _STRANGE.search(text):
        raise BadPattern(strange.start() + 1, "a control character or '\\'", "a path on one line, without '\\'")
    path = _xml(text) if re.search("[/@]", _QUOTED.sub("", text)) else _json(text)
    parts = path.parts if isinstance(path, InJson) else path.elements
    if len(parts) > MAX_PARTS:
        raise BadPattern(1, f"a path of {len(parts)} parts", f"at most {MAX_PARTS}")
    return path


def _json(text: str) -> InJson:
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        if text[at] == "[":
            place = _PLACE.match(text, at)
            if place is None:
                raise BadPattern(at + 1, "'['", "a place such as '[0]', or a key such as '[\"a.b\"]'")
            parts.append(place[2] if place[2] is not None else _index(place, MAX_INDEX))
            at = place.end()
            continue
        if parts:
            if text[at] != ".":
                raise BadPattern(at + 1, f"'{text[at]}'", "'.' before the next key")
            at += 1
        key = _KEY.match(text, at)
        if key is None:
            found = f"'{text[at]}'" if at < len(text) else "the end"
            raise BadPattern(at + 1, found, "a key; one with other signs in it is written '[\"a.b\"]'")
        parts.append(key[0])
        at = key.end()
    return InJson(tuple(parts))


def _xml(text: str) -> InXml:
    is_absolute = text.startswith("/")
    at = 1 if is_absolute else 2 if text.startswith("./") else 0
    elements: list[Element] = []
    while True:
        is_attribute = text.startswith("@", at)
        name = _NAME.match(text, at + is_attribute)
        if name is None:
            found = f"'{text[at]}'" if at < len(text) else "the end"
            raise BadPattern(at + 1, found, "the name of an element, or '@' and that of an attribute")
        at = name.end()
        if is_attribute:
            if at < len(text):
                raise BadPattern(at + 1, f"'{text[at]}' behind an attribute", "nothing more")
            return InXml(tuple(elements), name[0], is_absolute)
        choice = _CHOICE.match(text, at)
        if choice is not None:
            at = choice.end()
            number = _index(choice, 1_000_000) if choice[1] is not None else 0
            if choice[1] is not None and not number:
                raise BadPattern(choice.start() + 1, "'[0]'", "a number from 1 on: in XML the first one is '[1]'")
            elements.append(Element(name[0], number, choice[2] or "", choice[3] or ""))
        else:
            elements.append(Element(name[0]))
        if at == len(text):
            return InXml(tuple(elements), "", is_absolute)
        if text[at] != "/":
            raise BadPattern(at + 1, f"'{text[at]}'", "'/', or '[1]', or \"[@name='a']\"")
        at += 1


def _index(found: re.Match[str], most: int) -> int:
    number = int(found[1])
    if number > most:
        raise BadPattern(found.start() + 1, f"'{found[0]}'", f"at most [{most}]")
    return number
