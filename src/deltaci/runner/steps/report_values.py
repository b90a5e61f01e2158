"""One number out of a report that a job wrote, in JSON or XML.

Reports come from jobs, so they are hostile until proven otherwise. Nothing of a report is kept but what the path leads
to, entities are refused, and size and depth are bounded; a report that ends in the middle is no report. Whatever is
wrong is a `Refused` that says what was found.
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.parsers import expat

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.report_paths import Element, JsonPath, ReportPath, XmlPath

MAX_REPORT_BYTES: Final = 64 * 1024**2
MAX_DEPTH: Final = 256
MAX_SHOWN: Final = 80
_SLICE: Final = 1024**2
_BOM: Final = b"\xef\xbb\xbf"
_XML_STARTS: Final = (b"<", b"\xff\xfe", b"\xfe\xff")  # The others are how UTF-16 begins.
_NUMBER: Final = re.compile(r"([+-]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][+-]?[0-9]{1,3})?)\s*%?")


def number_in(data: bytes, path: ReportPath) -> tuple[float, str]:
    """The number that the path leads to, and how it is written."""
    if len(data) > MAX_REPORT_BYTES:
        raise Refused("too_large", f"a report of {len(data)} bytes, at most {MAX_REPORT_BYTES} are read")
    data = data.removeprefix(_BOM)
    is_xml = data.lstrip()[:2].startswith(_XML_STARTS)
    if isinstance(path, XmlPath):
        if not is_xml:
            raise Refused("unreadable", "a report that is no XML, and a path for XML")
        written = _Finder(path).find(data)
    else:
        if is_xml:
            raise Refused("unreadable", "a report that is no JSON, and a path for JSON")
        written = _in_json(data, path)
    match = _NUMBER.fullmatch(written.strip())
    value = float(match[1]) if match else float("inf")
    if not abs(value) < float("inf"):
        raise Refused("unreadable", f"{_shown(written)}, which is no number")
    return value, written.strip()


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")


# -- JSON


def _in_json(data: bytes, path: JsonPath) -> str:
    """The number or text there. Each level is read as a type that has nothing but what the path asks for."""
    raw = msgspec.Raw(data)
    try:
        for at, part in enumerate(path.parts):
            inner = msgspec.json.decode(raw, type=_level(part))
            found = inner.found
            if not bytes(found):
                raise Refused("not_found", f"nothing at {_told(path.parts[: at + 1])!r}")
            raw = found
    except msgspec.ValidationError:
        raise Refused("not_found", f"nothing at {_told(path.parts)!r}: what is before it is of another kind") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("unreadable", f"a report that is not JSON: {error}") from None
    except RecursionError:
        raise Refused("too_large", "a report that is too deep") from None
    try:
        value = msgspec.json.decode(raw)
    except msgspec.ValidationError:
        raise Refused("unreadable", f"{_shown(bytes(raw).decode('ascii', 'replace'))}, which is no number") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("unreadable", f"a report that is not JSON: {error}") from None
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bytes(raw).decode("ascii", "replace").strip()
    kind = {bool: "true or false", type(None): "null", dict: "an object", list: "a list"}[type(value)]
    raise Refused("unreadable", f"{kind} at {_told(path.parts)!r}, which is no number")


def _level(part: str | int) -> type[Any]:
    """A type of which only one key, or one place, is not skipped."""
    nothing = msgspec.Raw(b"")
    if isinstance(part, str):
        return msgspec.defstruct("Level", [("found", msgspec.Raw, nothing)], rename={"found": part})
    fields = [(f"_{place}", msgspec.Raw, nothing) for place in range(part)]
    return msgspec.defstruct("Level", [*fields, ("found", msgspec.Raw, nothing)], array_like=True)


def _told(parts: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


# -- XML


class _Finder:
    """Reads all of a document, and keeps the first value that the path leads to."""

    def __init__(self, path: XmlPath) -> None:
        self._elements = path.elements if path.is_absolute else (None, *path.elements)
        self._attribute = path.attribute
        self._depth = 0
        self._matched = 0  # How many elements from the outermost one on are those of the path.
        self._counts: list[int] = [0] * (len(self._elements) + 1)
        self._found: str | None = None
        self._text: list[str] | None = None
        self._chars = 0
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity

    def find(self, data: bytes) -> str:
        """The value, as it is written."""
        try:
            for at in range(0, len(data), _SLICE):
                self._parser.Parse(data[at : at + _SLICE], False)
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise self._refused(f"a report that is not XML: {expat.ErrorString(error.code)}") from None
        except (LookupError, ValueError) as error:
            raise self._refused(f"a report in an encoding that cannot be read: {error}") from None
        if self._found is None:
            raise Refused("not_found", "nothing there: no element, or none that has it")
        return self._found

    def _refused(self, what: str) -> Refused:
        return Refused("unreadable", f"{what}, in line {self._parser.CurrentLineNumber}")

    def _doctype(self, _name: str, _system: str | None, _public: str | None, has_internal: int) -> None:
        # Reports of coverage often name a document type; it is not fetched. What is defined on the spot is refused.
        if has_internal:
            raise self._refused("a document type with definitions")

    def _entity(self, *_: object) -> None:
        raise self._refused("the definition of an entity")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        depth = self._depth
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"a report that is more than {MAX_DEPTH} elements deep")
        if self._found is not None or self._matched != depth or depth >= len(self._elements):
            return
        if not self._is_it(self._elements[depth], tag.rpartition(":")[2], attributes, depth):
            return
        self._matched += 1
        if self._matched < len(self._elements):
            self._counts[self._matched] = 0
        elif self._attribute:
            self._found = attributes.get(self._attribute)
        else:
            self._text = []

    def _is_it(self, wanted: Element | None, tag: str, attributes: dict[str, str], depth: int) -> bool:
        if wanted is None:
            return True
        if tag != wanted.name:
            return False
        self._counts[depth] += 1
        if wanted.attribute:
            return attributes.get(wanted.attribute) == wanted.value
        return not wanted.number or self._counts[depth] == wanted.number

    def _characters(self, text: str) -> None:
        if self._text is not None and self._depth == len(self._elements) and self._chars < MAX_SHOWN * 10:
            self._text.append(text)
            self._chars += len(text)

    def _end(self, _tag: str) -> None:
        if self._text is not None and self._depth == len(self._elements):
            self._found, self._text = "".join(self._text), None
        self._depth -= 1
        self._matched = min(self._matched, self._depth)
