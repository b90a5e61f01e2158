"""The messages of docs/spec/runner-protocol.md as they travel: what is taken, what is refused, and their page."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from deltaci.core.errors import CODES, STALE_REASONS
from deltaci.protocol import messages as wire
from deltaci.protocol.examples import DOCUMENT_EXAMPLES, OWN_EXAMPLES
from deltaci.protocol.routes import PROTOCOL_ROUTES, REFUSALS
from deltaci.protocol.schema_names import schema_name
from scripts.docgen import protocol

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocol.md"
KINDS: dict[str, type[msgspec.Struct]] = {
    schema_name(kind): kind for kind in (*protocol.FROM_RUNNER, *protocol.FROM_SERVER, *protocol.AROUND)
}
EXAMPLES = {**DOCUMENT_EXAMPLES, **OWN_EXAMPLES}
REQUEST: Any = wire.LeaseRequest | wire.RunnerMessage  # All that a runner sends, wherever it sends it.
decode_request = wire.decoder(REQUEST)


def decoded(name: str, text: str | bytes) -> Any:
    """Decode a message as its receiver does."""
    kind = KINDS[name]
    if kind in protocol.FROM_RUNNER:
        return decode_request(text)
    return wire.decode_answer(text) if kind in protocol.FROM_SERVER else wire.decoder(kind)(text)


def altered(name: str, path: str = "", value: Any = None, *, without: str = "") -> bytes:
    """Return the example with one value changed or without one field. `path` is like `progress.percent`."""
    message = json.loads(EXAMPLES[name])
    if without:
        del message[without]
        return json.dumps(message).encode()
    *parents, last = path.split(".")
    inner = message
    for part in parents:
        inner = inner[int(part) if part.isdecimal() else part]
    inner[last] = value
    return json.dumps(message).encode()


def refusal(name: str, text: bytes) -> str:
    """Return the error with which the text is refused."""
    with pytest.raises(msgspec.ValidationError) as caught:
        decoded(name, text)
    return str(caught.value)


# -- refusals


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("Registered", "Problem")])
def test_an_unknown_field_is_refused_by_name(name: str) -> None:
    """A misspelled field that is silently dropped would be noticed too late."""
    assert "unknown field `speed`" in refusal(name, altered(name, "speed", 9))


@pytest.mark.parametrize(
    ("name", "path", "value", "error"),
    [
        ("LeaseGranted", "job_spec.colour", "red", "unknown field `colour` - at `$.job_spec`"),
        ("Complete", "artifacts.0.size", 1, "unknown field `size` - at `$.artifacts[0]`"),
        ("AckLease", "lease_id", 5, "Expected `str`, got `int` - at `$.lease_id`"),
        ("AckLease", "lease_id", "", "length >= 1 - at `$.lease_id`"),
        ("AckLease", "runner_id", "w1\n", "regex"),
        ("AckLease", "runner_id", "w1\nerror: forged", "at `$.runner_id`"),
        ("Lease", "capabilities", ["a,b"], "at `$.capabilities[0]`"),
        ("Heartbeat", "progress", 35, "Expected `object | null`, got `int` - at `$.progress`"),
        ("LeaseGranted", "job_spec.steps", 5, "Expected `array`, got `int` - at `$.job_spec.steps`"),
        ("Complete", "status", "TIMED_OUT", "Invalid enum value 'TIMED_OUT' - at `$.status`"),
        ("Complete", "status", "succeeded", "Invalid enum value 'succeeded' - at `$.status`"),
        ("CancelAck", "final_status", "FAILED", "Invalid enum value 'FAILED' - at `$.final_status`"),
        ("StaleLease", "reason", "TIRED", "Invalid enum value 'TIRED' - at `$.reason`"),
        ("Heartbeat", "progress.percent", 101, "at `$.progress.percent`"),
        ("Heartbeat", "progress.percent", -0.5, "at `$.progress.percent`"),
        ("Heartbeat", "log_cursor.bytes_sent", -1, "`int` >= 0 - at `$.log_cursor.bytes_sent`"),
        ("Complete", "exit_code", 2**32, "at `$.exit_code`"),
        ("Complete", "exit_code", 2**70, "at `$.exit_code`"),
        ("Complete", "signal", 256, "`int` <= 255 - at `$.signal`"),
        ("Lease", "slots", 0, "`int` >= 1 - at `$.slots`"),
        ("Lease", "wait_seconds", 601, "`float` <= 600.0 - at `$.wait_seconds`"),
        ("LeaseGranted", "lease_ttl_seconds", 2**31, "at `$.lease_ttl_seconds`"),
        ("AckLease", "accepted_at", "2026-01-04T08:00:00", "with a timezone component - at `$.accepted_at`"),
        ("Complete", "timings.started_at", "yesterday", "Invalid RFC3339 encoded datetime - at `$.timings.started_at`"),
        ("AckLease", "type", "Hello", "Invalid value 'Hello' - at `$.type`"),
        ("AckLease", "type", "HeartbeatAck", "Invalid value 'HeartbeatAck' - at `$.type`"),
        ("AckLease", "type", 1, "at `$.type`"),
    ],
)
def test_an_invalid_value_is_refused_with_its_path(name: str, path: str, value: Any, error: str) -> None:
    """The author of a runner must see from the answer alone what to change."""
    assert error in refusal(name, altered(name, path, value))


@pytest.mark.parametrize("name", [*DOCUMENT_EXAMPLES, "Lease"])
def test_a_message_without_its_type_or_sender_is_refused(name: str) -> None:
    """Neither has a default."""
    key = "runner_id" if name == "Lease" else "lease_id"

    assert "missing required field `type`" in refusal(name, altered(name, without="type"))
    assert f"missing required field `{key}`" in refusal(name, altered(name, without=key))


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_are_refused_and_raise_nothing_else(data: bytes) -> None:
    """Untrusted input must only raise msgspec's errors."""
    for read in (decode_request, wire.decode_answer, wire.decode_message, wire.decoder(wire.Registration)):
        with pytest.raises(msgspec.MsgspecError):
            read(data)


@settings(deadline=None)
@given(st.sampled_from(sorted(DOCUMENT_EXAMPLES)), st.data())
def test_a_message_with_bytes_altered_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """A damaged valid message reaches more code than random bytes do."""
    text = bytearray(DOCUMENT_EXAMPLES[name].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))

    with suppress(msgspec.MsgspecError):
        decoded(name, bytes(text))


@pytest.mark.parametrize("bad", [b'"\xff"', b"[" * 100_000, b'{"a":' * 100_000])
def test_invalid_utf8_and_deep_nesting_are_refused(bad: bytes) -> None:
    """msgspec itself raises Python's own errors for these."""
    with pytest.raises(msgspec.DecodeError):
        decode_request(altered("Complete", "output", "X").replace(b'"X"', bad))


# -- examples


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("Lease", marks=pytest.mark.proves("PRO-M10")),
        pytest.param("LeaseGranted", marks=pytest.mark.proves("PRO-M1")),
        pytest.param("AckLease", marks=pytest.mark.proves("PRO-M2")),
        pytest.param("Heartbeat", marks=pytest.mark.proves("PRO-M3")),
        pytest.param("HeartbeatAck", marks=pytest.mark.proves("PRO-M4")),
        pytest.param("Complete", marks=pytest.mark.proves("PRO-M5")),
        pytest.param("CompleteAck", marks=pytest.mark.proves("PRO-M6")),
        "CancelRequested",
        pytest.param("CancelAck", marks=pytest.mark.proves("PRO-M8")),
        pytest.param("StaleLease", marks=pytest.mark.proves("PRO-M9")),
        "CancelAcked",
        "Registration",
        "Registered",
        "Problem",
    ],
)
def test_an_example_survives_decoding_and_encoding(name: str) -> None:
    """A runner that implements document 001 alone can use this server."""
    message = decoded(name, EXAMPLES[name])

    assert type(message) is KINDS[name]
    assert json.loads(wire.encode(message)) == json.loads(EXAMPLES[name])


@pytest.mark.proves("PRO-M11")
def test_another_encoding_carries_the_same_fields() -> None:
    """The fields are the protocol; JSON is only one encoding of them."""
    for name, text in DOCUMENT_EXAMPLES.items():
        message = decoded(name, text)

        other = msgspec.msgpack.encode(message)

        assert msgspec.msgpack.decode(other, type=KINDS[name]) == message
        assert msgspec.msgpack.decode(other).keys() == json.loads(text).keys()


def test_every_example_has_all_fields_of_document_001() -> None:
    """Only extensions, and fields that document 001 leaves open, may be missing from its examples."""
    left_open = {"job_spec_ref", "stale"}
    for name in DOCUMENT_EXAMPLES:
        info = inspect.type_info(KINDS[name])
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            assert isinstance(field.type, inspect.Metadata), field
            is_extension = (field.type.extra_json_schema or {})["description"].startswith("extension: ")
            is_in_example = field.name in json.loads(DOCUMENT_EXAMPLES[name])
            assert is_extension != is_in_example or field.name in {*left_open, "extend_lease"}, (name, field.name)


# -- any message


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for all values of a type."""
    match kind:
        case inspect.Metadata():
            return values(kind.type)
        case inspect.UnionType():
            return st.one_of([values(part) for part in kind.types])
        case inspect.StructType():
            return structs(kind.cls)
        case inspect.ListType():
            return st.lists(values(kind.item_type), max_size=3)
        case inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=3)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.StrType(pattern=str()):
            return st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=","), min_size=1)
        case inspect.StrType():
            return st.text(min_size=kind.min_length or 0, max_size=20)
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.FloatType():
            return st.floats(kind.ge, kind.le)
        case _:
            return _PLAIN[type(kind)]


_PLAIN: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.NoneType: st.none(),
    inspect.BoolType: st.booleans(),
    inspect.DateTimeType: st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2, minutes=30))])),
    inspect.AnyType: st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
}


def structs(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a message or a part of one, with some of its optional fields."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    required = {field.name: values(field.type) for field in info.fields if field.required}
    optional = {field.name: values(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: kind(**fields))


@pytest.mark.parametrize("name", sorted(KINDS))
@settings(deadline=None)
@given(data=st.data())
def test_every_message_survives_encoding_and_decoding(name: str, data: st.DataObject) -> None:
    """Each side decodes every message of the other."""
    message = data.draw(structs(KINDS[name]))

    assert decoded(name, wire.encode(message)) == message


# -- codes and documentation


def test_stale_lease_reasons_are_those_of_core() -> None:
    """The protocol must be able to report every reason of the core."""
    assert set(get_args(wire.StaleReason)) == STALE_REASONS


def test_every_error_code_of_a_route_is_documented() -> None:
    """Every code that is sent is documented, and every documented code is sent."""
    used = {code for route in PROTOCOL_ROUTES for code in route.codes}
    of_routing = {"not_found", "wrong_method"}

    assert used | of_routing == REFUSALS.keys()
    assert {code for code in REFUSALS if code not in CODES} == {"bad_json", "bad_message", "overloaded", "unavailable"}


def test_every_field_has_a_description() -> None:
    """docs/protocol.md is generated from the descriptions."""
    for kind in (*KINDS.values(), *protocol.PARTS):
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            assert isinstance(field.type, inspect.Metadata), f"{kind.__name__}.{field.name} has no description"
