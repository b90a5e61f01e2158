"""What proves who somebody is, what is stored, what processes and NATS say to each other: any bytes in their place."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest
from hypothesis import strategies as st

from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.machine import Record
from deltaci.protocol import nats_subjects
from deltaci.protocol.examples import DOCUMENT_EXAMPLES, OWN_EXAMPLES
from deltaci.protocol.nats_client import NatsAddress
from deltaci.runner import nats_dispatch
from deltaci.runner.lease.keeper import (
    Cancel,
    Confirmed,
    Hold,
    Lost,
    NewToken,
    Ready,
    Release,
    decode_command,
    decode_event,
)
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.server.auth.credentials import Signer, is_runner_name
from deltaci.server.secrets import MIN_CHARACTERS, Secrets
from deltaci.storage import codec
from deltaci.storage.blobs.memory import MemoryBlobStore
from deltaci.storage.port import UnreadableRecord
from tests.fuzz.json_texts import mutated
from tests.fuzz.profile import fuzzed, only_in_fuzz
from tests.support.lab import TENANT, Lab, gate, task

SIGNER: Final = Signer(b"k" * 32, lambda: 1000.0)
TOKEN: Final = SIGNER.sign("run", "w1", "default", 60)


# -- who it is


@fuzzed(
    300,
    token=st.text(max_size=40)
    | st.text(st.sampled_from("dci_.=-AZaz09é\0"), max_size=60)
    | st.tuples(st.integers(0, len(TOKEN)), st.text(max_size=3), st.integers(0, 5)).map(
        lambda t: TOKEN[: t[0]] + t[1] + TOKEN[t[0] + t[2] :]
    ),
)
def test_a_token_is_ours_or_refused(token: str) -> None:
    """Nobody becomes somebody else by changing a letter."""
    with suppress(Refused):
        claims = SIGNER.read(token, "run")
        assert (claims.runner_id, claims.tenant) == ("w1", "default")


@fuzzed(80, text=st.text(max_size=20) | st.text(st.sampled_from("a.1²٣-"), max_size=30).map(lambda text: f"q1.{text}"))
def test_a_lease_id_is_read_or_stale(text: str) -> None:
    """Runners send it back; anybody may send anything."""
    with suppress(StaleLease):
        ref = ids.lease_ref(text)
        assert text.startswith(ref.attempt_id)


@fuzzed(80, name=st.text(max_size=120))
def test_a_runners_name_is_plain(name: str) -> None:
    """It is printed, and a part of addresses."""
    if is_runner_name(name):
        assert name.isascii()
        assert name.isprintable()
        assert "/" not in name


# -- secrets


@fuzzed(60, tenant=st.text(max_size=10), name=st.text(max_size=10) | st.just("TOKEN"), value=st.text(max_size=60))
def test_a_secret_is_kept_whole_or_refused(tenant: str, name: str, value: str) -> None:
    """A value that comes back changed is worse than none."""
    secrets = Secrets(MemoryBlobStore(), b"k" * 32)
    with suppress(Refused):
        secrets.set(tenant, name, value)

        assert len(value.strip()) >= MIN_CHARACTERS
        assert secrets.decrypt(tenant, [name]) == {name: value}


@fuzzed(100, sealed=st.binary(max_size=80) | st.binary(max_size=60).map(lambda body: b"\x01" + body))
def test_a_seal_that_was_touched_does_not_open(sealed: bytes) -> None:
    """Whoever can write the store of blobs still learns and forges nothing."""
    blobs = MemoryBlobStore()
    secrets = Secrets(blobs, b"k" * 32)
    secrets.set("t", "NAME", "value")
    [key] = [each.key for each in blobs.list()]
    blobs.put(key, sealed)

    with pytest.raises(Refused, match="no_secret"):
        secrets.decrypt("t", ["NAME"])


# -- what is stored


def records() -> list[Record]:
    """Some of every kind."""
    lab = Lab().plan(task("a", max_attempts=2), gate("ok", "a"), task("b", "ok"))
    lab.register("w1", labels=("linux",))
    lab.after(1).fail(lab.claim(lab.attempt("a")))
    return [record for record in lab.unit.records.values() if record is not None]


RECORDS: Final = records()


@fuzzed(150, record=st.sampled_from(RECORDS), data=st.data())
def test_a_record_is_read_back_or_put_aside(record: Record, data: st.DataObject) -> None:
    """Bytes that a disk or another version left must not be anybody else's trouble."""
    kind = codec.KIND_OF[type(record)]
    body = codec.encode(record)
    assert codec.decode_record(record.id, kind, body) == record
    at = data.draw(st.integers(0, len(body)))
    broken = body[:at] + data.draw(st.binary(max_size=4)) + body[at + data.draw(st.integers(0, 3)) :]

    found = codec.decode_record(record.id, data.draw(st.sampled_from((kind, 0, 1, 2, 3, 9))), broken)

    assert isinstance(found, (*codec.KINDS, UnreadableRecord))


@fuzzed(150, fields=st.fixed_dictionaries({"id": st.text(max_size=9), "priority": st.integers(-(2**40), 2**40)}))
def test_a_record_with_odd_fields_is_read_back(fields: dict[str, Any]) -> None:
    """What is written is what is read."""
    record = Attempt(tenant=TENANT, **fields)

    assert codec.decode_record(record.id, codec.KIND_OF[Attempt], codec.encode(record)) == record


# -- what processes and NATS say

HOLD: Final = Hold(
    lease_id="l", runner_id="w", ttl_seconds=9, interval_seconds=1, handle=JobHandle(marker="m"), confirmed_at=1.0
)
ORDERS: Final = [HOLD, Release(lease_id="l"), NewToken(token="t")]
NEWS: Final = [
    Ready(),
    Cancel(lease_id="l", deadline_seconds=1, reason="r"),
    Lost(lease_id="l", reason="r"),
    Confirmed(lease_id="l", until=1.0),
]


@fuzzed(80, said=st.sampled_from([*ORDERS, *NEWS]).map(msgspec.to_builtins).flatmap(mutated))
def test_what_the_keeper_hears_and_says_is_a_line_of_json(said: bytes) -> None:
    """Both ends are ours; a line that was torn is known as one."""
    for decode in (decode_command, decode_event):
        with suppress(msgspec.DecodeError):
            decode(said)


@fuzzed(
    80,
    said=st.sampled_from([OWN_EXAMPLES["Dispatch"], DOCUMENT_EXAMPLES["CancelRequested"]])
    .map(msgspec.json.decode)
    .flatmap(mutated),
)
def test_what_nats_delivers_is_a_hint_or_nothing(said: bytes) -> None:
    """Anybody who may publish there may say anything."""
    for decode in (nats_dispatch._decode_dispatch, nats_dispatch._decode_cancel):
        with suppress(msgspec.DecodeError):
            decode(said)


@only_in_fuzz
@fuzzed(80, a=st.text(max_size=80), b=st.text(max_size=80))
def test_no_two_names_are_one_on_nats(a: str, b: str) -> None:
    """A tenant that could be called like another would hear what is not for it."""
    assert (nats_subjects.token(a) == nats_subjects.token(b)) == (a == b)
    assert nats_subjects.token(a).isalnum()


@fuzzed(
    150, url=st.text(max_size=20) | st.text(st.sampled_from("nats:/[]@,%\0.5 "), max_size=20).map("nats://{}".format)
)
def test_an_address_of_nats_is_good_or_refused(url: str) -> None:
    """It comes from a command line."""
    address = NatsAddress(url)
    with suppress(ValueError):
        address.check()
        assert str(address)
