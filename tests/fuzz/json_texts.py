"""JSON that is nearly right: documents that are valid, and what becomes of them when somebody is careless or evil."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

ODD_TEXTS: Final = (
    *("", "\0", "a\0b", "\x1b[31m", "\u202e", "a\nb", "\r\n", "x" * 5000, "\U0001d54f" * 600, "..", "../../etc", "%00"),
)
ODD_NUMBERS: Final = (
    *(0, -1, 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400),
    *(0.0, -0.0, 0.5, 1e-320, 1e16, 1.7e308, 2.0**63),
)
# As they cannot be made from values: numbers without end, what is none, texts that are no Unicode, and the like.
RAW: Final = (
    *("1e400", "-1e400", "NaN", "Infinity", "-0", "01", "1.", ".5", "1" * 5000, "0." + "0" * 5000 + "1"),
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', '"\\x"', '"unended', "'single'", "[" * 3000, "{" * 3000, "[1,]"),
    *("tru", "nul", "", ",", '{"a" 1}', '{"a": 1, "a": 2}', "{,}", "{1: 2}", '"\t"', "\ufeff1", "//x"),
)

SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(ODD_TEXTS)
    | st.sampled_from(ODD_NUMBERS)
)
VALUES: Final[st.SearchStrategy[Any]] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)

_HOLE: Final = "\x01HOLE\x01"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, the whole of it first."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The document with something else at this place."""
    if not path:
        return new
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = replaced(value[key], tuple(rest), new)
    return copy


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> bytes:
    """A valid document with one to three things wrong with it, at the level of values or of bytes."""
    value = document
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(places(value)))
        value = replaced(value, path, draw(VALUES))
        if isinstance(value, dict) and draw(st.booleans()):
            value = {**value, draw(st.text(max_size=8)): draw(VALUES)}
    path = draw(st.sampled_from(places(value)))
    how = draw(st.sampled_from(("as it is", "raw", "doubled", "bytes", "cut")))
    if how == "raw":
        text = json.dumps(replaced(value, path, _HOLE)).replace(json.dumps(_HOLE), draw(st.sampled_from(RAW)))
        return text.encode("utf-8", "surrogatepass")
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    raw = text.encode("utf-8", "surrogatepass")
    if how == "doubled" and isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        return raw[:-1] + b"," + json.dumps({key: draw(SCALARS)}).encode()[1:]
    if how == "bytes" and raw:
        at = draw(st.integers(0, len(raw) - 1))
        return raw[:at] + draw(st.binary(max_size=4)) + raw[at + draw(st.integers(0, 3)) :]
    if how == "cut":
        return raw[: draw(st.integers(0, len(raw)))]
    return raw
