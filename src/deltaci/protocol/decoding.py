"""Strict decoding of JSON to one type, which raises only errors of msgspec for any input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class _NoMessage(msgspec.Struct, tag_field="type", tag=""):
    """A placeholder that turns a single tagged struct into a union, so that msgspec requires its tag."""


def decoder(message_type: type[T]) -> Callable[[bytes | str], T]:
    """Return a function that decodes JSON to this type strictly and raises only errors of msgspec."""
    # msgspec requires the `type` field only of a union: a single tagged struct may be sent without it.
    is_tagged = getattr(getattr(message_type, "__struct_config__", None), "tag", None) is not None
    union: Any = message_type | _NoMessage if is_tagged else message_type
    decode = msgspec.json.Decoder(union).decode

    def decode_strictly(json_text: bytes | str) -> T:
        try:
            try:
                decoded_message: T = decode(json_text)
            except msgspec.ValidationError as error:
                decoded_message = _decode_with_integers(json_text, union, error)
            if isinstance(decoded_message, _NoMessage):
                raise msgspec.ValidationError("Invalid value - at `$.type`")
            return decoded_message
        except UnicodeDecodeError:
            raise msgspec.DecodeError("it is not UTF-8") from None
        except RecursionError:
            raise msgspec.DecodeError("it is nested too deep") from None

    return decode_strictly


def _decode_with_integers(json_text: bytes | str, expected_type: Any, error: msgspec.ValidationError) -> Any:
    """Decode again with `2.0` and `2e3` as integers, which they are to JSON Schema; raise `error` if that fails too."""
    try:
        return msgspec.convert(with_integers(msgspec.json.decode(json_text)), expected_type)
    except msgspec.ValidationError:
        raise error from None


def with_integers(value: Any) -> Any:
    """Return a JSON value in which each float with an integral value of at most 2**53 is an int."""
    match value:
        case float() if value.is_integer() and abs(value) <= 2**53:
            return int(value)
        case list():
            return [with_integers(element) for element in value]
        case dict():
            return {member_name: with_integers(member) for member_name, member in value.items()}
    return value
