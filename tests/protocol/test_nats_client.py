"""NATS subject names, and the validation of the address of NATS."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.protocol import nats_subjects
from deltaci.protocol.nats_client import NatsAddress

TEXTS = st.text(max_size=300).filter(lambda text: text.isprintable() or not text)


@given(TEXTS, TEXTS)
def test_every_name_is_one_unique_token(one: str, two: str) -> None:
    """A tenant called `*` or `a.b` must not see another's dispatches."""
    for text in (one, two):
        assert re.fullmatch(r"[a-z0-9]{1,101}", nats_subjects.token(text))
    assert (nats_subjects.token(one) == nats_subjects.token(two)) == (one == two)


def test_names_of_different_tenants_differ() -> None:
    """NATS permissions are granted by name."""
    names = [
        subject(tenant)
        for tenant in ("acme", "acme2", "ac", "a.b", "*", ">", "")
        for subject in (nats_subjects.stream, nats_subjects.all_dispatches, nats_subjects.new_queues)
    ]
    names += [
        subject(tenant, "x")
        for tenant in ("a", "b", "a.x")
        for subject in (nats_subjects.control, nats_subjects.inbox, nats_subjects.next_dispatch)
    ]

    assert len(set(names)) == len(names)
    assert nats_subjects.dispatch("a", "k", "id").startswith(nats_subjects.queue("a", "k").removesuffix("*"))


def test_a_runner_consumes_the_queue_of_every_subset_of_its_labels() -> None:
    """Keys have the canonical form of stored labels. A runner with too many labels uses HTTP only."""
    assert nats_subjects.queue_keys([]) == [""]
    assert nats_subjects.queue_keys(["x64", "linux", "x64"]) == ["", "linux", "x64", "linux,x64"]
    assert len(nats_subjects.queue_keys("abcdef")) == 64
    assert nats_subjects.queue_keys("abcdefg") == []


@pytest.mark.parametrize("url", ["", "nats://", "http://host:4222", "host:4222", "nats://a:1,ftp://b"])
def test_a_malformed_address_is_refused(url: str) -> None:
    """It is refused at once instead of retried for ever."""
    with pytest.raises(ValueError, match="give one like nats://host:4222"):
        NatsAddress(url).check()


def test_the_text_of_an_address_has_no_secret() -> None:
    """The text is written to logs."""
    address = NatsAddress("nats://ada:s3cret@one:4222, tls://t0ken@two:4222")

    address.check()

    assert str(address) == "nats://one:4222, tls://two:4222"


def test_the_error_for_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS is an optional dependency, so the error must say what to install."""
    monkeypatch.setitem(sys.modules, "nats", None)

    with pytest.raises(ValueError, match=r"pip install 'deltaci\[nats\]'"):
        NatsAddress("nats://host:4222").check()
