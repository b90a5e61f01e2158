"""The verifier handles any input without an exception."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaci.audit.verify import FORMATS, NotAnEventLogError, verify
from tests.support.lab import Lab, gate, task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def logs() -> dict[str, list[dict[str, Any]]]:
    """Return a legal log in each format, decoded."""
    lab = Lab().plan(task("a", max_attempts=2), gate("ok", "a"), task("b", "ok"))
    lab.register("w1", labels=("linux",))
    lab.after(1).fail(lab.claim(lab.attempt("a")))
    lab.after(60).cancel_run()
    forms = {"canonical": lab.canonical(), "transitions": lab.transitions(), "job-events": lab.job_events()}
    return {name: [msgspec.json.decode(line) for line in lines] for name, lines in forms.items()}


LOGS = logs()
FIELDS = [(name, index, field) for name, lines in LOGS.items() for index, line in enumerate(lines) for field in line]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(log_field=st.sampled_from(FIELDS), value=JSON)
def test_any_value_in_any_field_is_reported_without_an_exception(log_field: tuple[str, int, str], value: Any) -> None:
    """A forged log may contain anything."""
    name, index, field = log_field
    lines = [dict(line) for line in LOGS[name]]
    lines[index][field] = value

    report = verify([msgspec.json.encode(line) for line in lines], name)

    assert report.event_count == len(lines)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(index=st.integers(0, len(LOGS["canonical"]) - 1), value=JSON, data=st.data())
def test_any_value_in_any_metadata_field_is_handled_without_an_exception(
    index: int, value: Any, data: st.DataObject
) -> None:
    """Metadata is the least constrained part of an event."""
    lines = [dict(line) for line in LOGS["canonical"]]
    metadata = dict(lines[index]["metadata"])
    key = data.draw(st.sampled_from([*metadata, "surprise"]))
    lines[index]["metadata"] = {**metadata, key: value}

    verify([msgspec.json.encode(line) for line in lines], "canonical")


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(st.binary(max_size=60) | JSON.map(msgspec.json.encode), max_size=6),
    format=st.sampled_from(["", *FORMATS]),
)
def test_any_bytes_are_rejected_or_reported(lines: list[bytes], format: str) -> None:
    """In every format, and with format detection."""
    try:
        report = verify(lines, format)
    except NotAnEventLogError:
        return

    assert report.violation_count > 0 or report.event_count == 0
