"""Reads one number from a report that a job wrote, in JSON or XML.

Reports are untrusted. Only the value at the path is decoded and kept, XML entities are refused, size and depth are
limited, and a truncated report is an error. Every error is a `Refused` that describes the invalid content.
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.parsers import expat

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.reports.report_paths import Element, JsonPath, ReportPath, XmlPath

MAX_REPORT_BYTES: Final = 64 * 1024**2
MAX_DEPTH: Final = 256
MAX_QUOTED: Final = 80
_CHUNK_BYTES: Final = 1024**2
_BOM: Final = b"\xef\xbb\xbf"
_XML_STARTS: Final = (b"<", b"\xff\xfe", b"\xfe\xff")  # The last two are the byte order marks of UTF-16.
_NUMBER: Final = re.compile(r"([+-]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][+-]?[0-9]{1,3})?)\s*%?")


def read_number(report_content: bytes, path: ReportPath) -> tuple[float, str]:
    """Return the number at the path in a JSON or XML report, and its text there. Raise `Refused` if there is none."""
    if len(report_content) > MAX_REPORT_BYTES:
        raise Refused("too_large", f"a report of {len(report_content)} bytes; at most {MAX_REPORT_BYTES} are read")
    report_content = report_content.removeprefix(_BOM)
    is_xml = report_content.lstrip()[:2].startswith(_XML_STARTS)
    if isinstance(path, XmlPath):
        if not is_xml:
            raise Refused("unreadable", "a report that is not XML, and a path for XML")
        number_text = _XmlReader(path).read(report_content)
    else:
        if is_xml:
            raise Refused("unreadable", "a report that is not JSON, and a path for JSON")
        number_text = _read_json(report_content, path)
    number_match = _NUMBER.fullmatch(number_text.strip())
    value = float(number_match[1]) if number_match else float("inf")
    if not abs(value) < float("inf"):
        raise Refused("unreadable", f"{_quote(number_text)}, which is not a number")
    return value, number_text.strip()


def _quote(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


# -- JSON


def _read_json(json_text: bytes, path: JsonPath) -> str:
    """Return the text of the number or string at the path.

    Each level is decoded as a type that has only the next key or index of the path, so that msgspec skips everything
    else without building objects for it.
    """
    value_json = msgspec.Raw(json_text)
    try:
        for index, path_part in enumerate(path.parts):
            inner_value = msgspec.json.decode(value_json, type=_level(path_part)).found
            if not bytes(inner_value):
                raise Refused("not_found", f"nothing at {_format_path(path.parts[: index + 1])!r}")
            value_json = inner_value
    except msgspec.ValidationError:
        message = f"nothing at {_format_path(path.parts)!r}: a part of the path has another type"
        raise Refused("not_found", message) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("unreadable", f"a report that is not JSON: {error}") from None
    except RecursionError:
        raise Refused("too_large", "a report that is nested too deeply") from None
    try:
        json_value = msgspec.json.decode(value_json)
    except msgspec.ValidationError:
        raise Refused(
            "unreadable", f"{_quote(bytes(value_json).decode('ascii', 'replace'))}, which is not a number"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("unreadable", f"a report that is not JSON: {error}") from None
    if isinstance(json_value, str):
        return json_value
    if isinstance(json_value, int | float) and not isinstance(json_value, bool):
        return bytes(value_json).decode("ascii", "replace").strip()
    type_text = {bool: "a boolean", type(None): "null", dict: "an object", list: "a list"}[type(json_value)]
    raise Refused("unreadable", f"{type_text} at {_format_path(path.parts)!r}, which is not a number")


def _level(path_part: str | int) -> type[Any]:
    """Return a struct type whose only decoded field `found` is at this key of an object or index of a list."""
    absent = msgspec.Raw(b"")
    if isinstance(path_part, str):
        return msgspec.defstruct("Level", [("found", msgspec.Raw, absent)], rename={"found": path_part})
    field_definitions = [(f"_{index}", msgspec.Raw, absent) for index in range(path_part)]
    return msgspec.defstruct("Level", [*field_definitions, ("found", msgspec.Raw, absent)], array_like=True)


def _format_path(path_parts: tuple[str | int, ...]) -> str:
    return "".join(
        f"[{path_part}]" if isinstance(path_part, int) else f".{path_part}" for path_part in path_parts
    ).removeprefix(".")


# -- XML


class _XmlReader:
    """Parses a whole XML document and stores the first value at the path."""

    def __init__(self, path: XmlPath) -> None:
        self._elements = path.elements if path.is_absolute else (None, *path.elements)
        self._attribute = path.attribute
        self._depth = 0
        self._matched_element_count = 0  # How many of the open elements, from the outermost one, match the path.
        self._sibling_counts: list[int] = [0] * (len(self._elements) + 1)  # Siblings of the same name, at each depth.
        self._value: str | None = None
        self._text: list[str] | None = None
        self._text_length = 0
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._on_start_tag
        parser.EndElementHandler = self._on_end_tag
        parser.CharacterDataHandler = self._on_text
        parser.StartDoctypeDeclHandler = self._on_doctype
        parser.EntityDeclHandler = self._on_entity

    def read(self, xml_text: bytes) -> str:
        """Parse the document and return the text of the value. Raise `Refused` if there is none."""
        try:
            for offset in range(0, len(xml_text), _CHUNK_BYTES):
                self._parser.Parse(xml_text[offset : offset + _CHUNK_BYTES], False)
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise self._refused(f"a report that is not XML: {expat.ErrorString(error.code)}") from None
        except (LookupError, ValueError) as error:
            raise self._refused(f"a report in an encoding that cannot be read: {error}") from None
        if self._value is None:
            raise Refused("not_found", "no element matches the path, or it lacks the attribute")
        return self._value

    def _refused(self, message: str) -> Refused:
        """Return the error with this message and the current line."""
        return Refused("unreadable", f"{message}, in line {self._parser.CurrentLineNumber}")

    def _on_doctype(self, _name: str, _system: str | None, _public: str | None, has_internal: int) -> None:
        # Coverage reports often name an external document type, which is not fetched. Internal definitions are refused.
        if has_internal:
            raise self._refused("a document type with definitions")

    def _on_entity(self, *_: object) -> None:
        raise self._refused("the definition of an entity")

    def _on_start_tag(self, tag: str, value_by_attribute: dict[str, str]) -> None:
        """Handle an open tag: count it if it continues the path, and read the value at the end of the path."""
        depth = self._depth
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"a report that is more than {MAX_DEPTH} elements deep")
        if self._value is not None or self._matched_element_count != depth or depth >= len(self._elements):
            return
        if not self._matches(self._elements[depth], tag.rpartition(":")[2], value_by_attribute, depth):
            return
        self._matched_element_count += 1
        if self._matched_element_count < len(self._elements):
            self._sibling_counts[self._matched_element_count] = 0
        elif self._attribute:
            self._value = value_by_attribute.get(self._attribute)
        else:
            self._text = []

    def _matches(self, element: Element | None, tag: str, value_by_attribute: dict[str, str], depth: int) -> bool:
        """Return whether an open tag matches an element of the path, and count the tag.

        None matches every root element.
        """
        if element is None:
            return True
        if tag != element.name:
            return False
        self._sibling_counts[depth] += 1
        if element.attribute:
            return value_by_attribute.get(element.attribute) == element.value
        return not element.number or self._sibling_counts[depth] == element.number

    def _on_text(self, text: str) -> None:
        if self._text is not None and self._depth == len(self._elements) and self._text_length < MAX_QUOTED * 10:
            self._text.append(text)
            self._text_length += len(text)

    def _on_end_tag(self, _tag: str) -> None:
        if self._text is not None and self._depth == len(self._elements):
            self._value, self._text = "".join(self._text), None
        self._depth -= 1
        self._matched_element_count = min(self._matched_element_count, self._depth)
