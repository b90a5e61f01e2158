"""Values of expressions: types, conversions, truth and comparison.

The rules are those of GitHub's documentation: values of different types are compared as numbers, strings are compared
case-insensitively, arrays and objects are equal only to themselves, and numbers are formatted with at most 15 digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias, TypeGuard

Value: TypeAlias = bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"] | None
Number: TypeAlias = int | float

NULL, BOOLEAN, NUMBER, TEXT, ARRAY, OBJECT = "null", "boolean", "number", "text", "Array", "Object"

MAX_EXACT_INTEGER: Final = 2**53  # above this, a double does not represent every integer
MAX_NUMBER_LENGTH: Final = 2_000  # characters; longer strings convert to NaN
MAX_INDEX: Final = 2**31 - 1
# Checked first, because isinstance(…, Mapping) is slow.
_COMMON_TYPES: Final = (str, int, float, list, tuple, type(None))
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+")
_OCTAL: Final = re.compile(r"0o[0-7]+")


class FilteredList(list["Value"]):
    """The result of an object filter (`target.*`). A following index applies to each of its items, not to the list."""


def is_list(value: Value) -> TypeGuard[Sequence[Value]]:
    return isinstance(value, list | tuple)


def is_object(value: Value) -> TypeGuard[Mapping[str, Value]]:
    return isinstance(value, dict) or (not isinstance(value, _COMMON_TYPES) and isinstance(value, Mapping))


def is_primitive(value: Value) -> TypeGuard[bool | int | float | str | None]:
    """Return whether the value is neither an array nor an object."""
    return not is_list(value) and not is_object(value)


def type_name(value: Value) -> str:
    """Return the name of the value's type in the expression language."""
    match value:
        case None:
            return NULL
        case bool():
            return BOOLEAN
        case int() | float():
            return NUMBER
        case str():
            return TEXT
        case _:
            return ARRAY if is_list(value) else OBJECT


def is_truthy(value: Value) -> bool:
    """Return whether a value counts as true. False are only false, 0, NaN, null and `''`; an empty array is true."""
    match value:
        case None:
            return False
        case bool() | str():
            return bool(value)
        case int() | float():
            return value != 0 and not math.isnan(_double(value))
        case _:
            return True


def to_number(value: Value) -> float:
    """Convert to a number: null is 0, true is 1, a string is parsed, an array or an object is NaN."""
    match value:
        case None:
            return 0.0
        case int() | float():
            return _double(value)
        case str():
            return parse_number(value)
        case _:
            return math.nan


def parse_number(text: str) -> float:
    """Parse a decimal, hexadecimal or octal number, or Infinity.

    Return 0 for an empty string, NaN for any other text.
    """
    stripped = text.strip()
    if not stripped:
        return 0.0
    if len(stripped) > MAX_NUMBER_LENGTH:
        return math.nan
    if _DECIMAL.fullmatch(stripped):
        return float(stripped)
    if _HEX.fullmatch(stripped):
        return _double(int(stripped[2:], 16))
    if _OCTAL.fullmatch(stripped):
        return _double(int(stripped[2:], 8))
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(stripped, math.nan)


def to_text(value: Value) -> str:
    """Convert to a string: null is empty; arrays and objects become `Array` and `Object`."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return format_number(value)
        case str():
            return value
        case _:
            return type_name(value)


def format_number(value: Number) -> str:
    """Return a number as text of at most 15 digits. Very large and small ones have an exponent: 1E+15, 1E-05."""
    double = _double(value)
    if math.isnan(double):
        return "NaN"
    if math.isinf(double):
        return "Infinity" if double > 0 else "-Infinity"
    return "0" if double == 0 else format(double, ".15G")


def fold_case(text: str) -> str:
    """Return the text in upper case, character by character, for case-insensitive comparison."""
    if text.isascii():
        return text.upper()
    return "".join(map(_fold_character, text))


def is_equal(left: Value, right: Value) -> bool:
    """Return whether `left == right` holds.

    Strings are compared without regard to case, arrays and objects by identity, and values of different types as
    numbers.
    """
    if type_name(left) == type_name(right):
        match left, right:
            case str(), str():
                return fold_case(left) == fold_case(right)
            case ((bool() | int() | float() | None), (bool() | int() | float() | None)):
                return to_number(left) == to_number(right)
            case _:
                return left is right
    # Arrays and objects convert to NaN, which equals nothing.
    return to_number(left) == to_number(right)


def is_less(left: Value, right: Value) -> bool:
    """Return whether `left < right` holds.

    Two strings are compared without regard to case, other values as numbers (NaN is never less).
    """
    if isinstance(left, str) and isinstance(right, str):
        return fold_case(left) < fold_case(right)
    return to_number(left) < to_number(right)


def compare(operator: str, left: Value, right: Value) -> bool:
    """Return whether `left operator right` holds, for one of the six comparison operators."""
    match operator:
        case "==":
            return is_equal(left, right)
        case "!=":
            return not is_equal(left, right)
        case "<":
            return is_less(left, right)
        case ">":
            return is_less(right, left)
        case "<=":
            return is_equal(left, right) or is_less(left, right)
        case _:
            return is_equal(left, right) or is_less(right, left)


def array_index(key: Value) -> int | None:
    """Return a key converted to an array index, or None if it is not a valid index. 1.9 is index 1, as on GitHub."""
    number = to_number(key)
    return int(number) if 0 <= number <= MAX_INDEX else None


def _double(value: Number) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    """Return the upper-case character. Non-ASCII never becomes ASCII, and one character never becomes two."""
    upper = character.upper()
    return upper if len(upper) == 1 and upper.isascii() == character.isascii() else character
