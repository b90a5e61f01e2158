"""Reads messages: one kind of thing at a time, strictly, and with nothing but msgspec's errors for what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class _Nothing(msgspec.Struct, tag_field="type", tag=""):
    """What nobody sends."""


def decoder(kind: type[T]) -> Callable[[bytes | str], T]:
    """Reads one kind of thing, and raises nothing but msgspec's errors whatever it is given."""
    # Of one kind alone msgspec does not ask for its `type`; of two it does.
    is_tagged = getattr(getattr(kind, "__struct_config__", None), "tag", None) is not None
    asked: Any = kind | _Nothing if is_tagged else kind
    decode = msgspec.json.Decoder(asked).decode

    def read(data: bytes | str) -> T:
        try:
            try:
                found: T = decode(data)
            except msgspec.ValidationError as error:
                found = _with_whole_numbers(data, asked, error)
            if isinstance(found, _Nothing):
                raise msgspec.ValidationError("Invalid value - at `$.type`")
            return found
        except UnicodeDecodeError:
            raise msgspec.DecodeError("it is not UTF-8") from None
        except RecursionError:
            raise msgspec.DecodeError("it is nested too deep") from None

    return read


def _with_whole_numbers(data: bytes | str, kind: Any, error: msgspec.ValidationError) -> Any:
    """The same once more for those who write whole numbers as `2.0` or `2e3`: to JSON Schema these are integers."""
    try:
        return msgspec.convert(with_integers(msgspec.json.decode(data)), kind)
    except msgspec.ValidationError:
        raise error from None


def with_integers(value: Any) -> Any:
    """The value with whole numbers as such, however they are written."""
    match value:
        case float() if value.is_integer() and abs(value) <= 2**53:
            return int(value)
        case list():
            return [with_integers(each) for each in value]
        case dict():
            return {name: with_integers(each) for name, each in value.items()}
    return value
