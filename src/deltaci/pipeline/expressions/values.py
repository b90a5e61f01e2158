"""What values are worth: as a number, as a text, as a condition, and next to each other.

The rules are those of GitHub's documentation: values of different types are compared as numbers, texts are the same
in capitals and in small letters, lists and objects are equal only to themselves, and a number is shown with at most
15 digits.
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

EXACT: Final = 2**53  # a whole number beyond this is not exact as a number of GitHub
MAX_NUMBER: Final = 2_000  # characters; a longer text is not a number that anybody wrote
MAX_INDEX: Final = 2**31 - 1
_PLAIN: Final = (str, int, float, list, tuple, type(None))  # asked first: a Mapping is slow to find out
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+")
_OCTAL: Final = re.compile(r"0o[0-7]+")


class Filtered(list["Value"]):
    """A list that came out of `*`: an index applies to each of its items, not to the list."""


def is_list(value: Value) -> TypeGuard[Sequence[Value]]:
    """Is it an array?"""
    return isinstance(value, list | tuple)


def is_object(value: Value) -> TypeGuard[Mapping[str, Value]]:
    """Is it an object, with properties?"""
    return isinstance(value, dict) or (not isinstance(value, _PLAIN) and isinstance(value, Mapping))


def is_primitive(value: Value) -> TypeGuard[bool | int | float | str | None]:
    """Is it neither an array nor an object?"""
    return not is_list(value) and not is_object(value)


def kind(value: Value) -> str:
    """The type of a value, as the language counts types."""
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


def truthy(value: Value) -> bool:
    """Does it count as true? All but false, 0, NaN, null and the empty text; also an empty array does."""
    match value:
        case None:
            return False
        case bool() | str():
            return bool(value)
        case int() | float():
            return value != 0 and not math.isnan(_double(value))
        case _:
            return True


def number(value: Value) -> float:
    """A value as a number: null is 0, true is 1, a text is read, and an array or an object is NaN."""
    match value:
        case None:
            return 0.0
        case int() | float():
            return _double(value)
        case str():
            return number_of_text(value)
        case _:
            return math.nan


def number_of_text(text: str) -> float:
    """The number that a text is: decimal, with an exponent, hexadecimal or octal. The empty text is 0, others NaN."""
    stripped = text.strip()
    if not stripped:
        return 0.0
    if len(stripped) > MAX_NUMBER:
        return math.nan
    if _DECIMAL.fullmatch(stripped):
        return float(stripped)
    if _HEX.fullmatch(stripped):
        return _double(int(stripped[2:], 16))
    if _OCTAL.fullmatch(stripped):
        return _double(int(stripped[2:], 8))
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(stripped, math.nan)


def text(value: Value) -> str:
    """A value as it stands in a text: null is nothing, and arrays and objects only say what they are."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return number_text(value)
        case str():
            return value
        case _:
            return kind(value)


def number_text(value: Number) -> str:
    """A number with at most 15 digits, with an exponent if it is very large or very small: 1E+15, 1E-05."""
    double = _double(value)
    if math.isnan(double):
        return "NaN"
    if math.isinf(double):
        return "Infinity" if double > 0 else "-Infinity"
    return "0" if double == 0 else format(double, ".15G")


def fold(text: str) -> str:
    """A text without the difference between capitals and small letters, letter by letter, in any language."""
    if text.isascii():
        return text.upper()
    return "".join(map(_capital, text))


def equal(left: Value, right: Value) -> bool:
    """Is it `==`? Different types are compared as numbers; arrays and objects are equal only to themselves."""
    if kind(left) == kind(right):
        match left, right:
            case str(), str():
                return fold(left) == fold(right)
            case ((bool() | int() | float() | None), (bool() | int() | float() | None)):
                return number(left) == number(right)
            case _:
                return left is right
    # An array or an object is NaN as a number, and NaN equals nothing.
    return number(left) == number(right)


def less(left: Value, right: Value) -> bool:
    """Is it `<`? Never, if one of both is no number and they are not two texts."""
    if isinstance(left, str) and isinstance(right, str):
        return fold(left) < fold(right)
    return number(left) < number(right)


def compare(operator: str, left: Value, right: Value) -> bool:
    """The value of one of the six comparisons."""
    match operator:
        case "==":
            return equal(left, right)
        case "!=":
            return not equal(left, right)
        case "<":
            return less(left, right)
        case ">":
            return less(right, left)
        case "<=":
            return equal(left, right) or less(left, right)
        case _:
            return equal(left, right) or less(right, left)


def position(key: Value) -> int | None:
    """Which item of an array a key means, or none. 1.9 means the item 1, as it does on GitHub."""
    index = number(key)
    return int(index) if 0 <= index <= MAX_INDEX else None


def _double(value: Number) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@lru_cache(maxsize=4096)
def _capital(letter: str) -> str:
    """One letter as a capital. What is no ASCII never becomes ASCII, and no letter becomes two."""
    capital = letter.upper()
    return capital if len(capital) == 1 and capital.isascii() == letter.isascii() else letter
