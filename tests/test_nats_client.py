"""What both sides agree on before they meet on NATS: names, and what can never work."""

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
def test_a_name_is_one_token_and_no_two_share_one(one: str, two: str) -> None:
    """A tenant called `*` or `a.b` must not see another's dispatches."""
    for text in (one, two):
        assert re.fullmatch(r"[a-z0-9]{1,101}", nats_subjects.token(text))
    assert (nats_subjects.token(one) == nats_subjects.token(two)) == (one == two)


def test_names_of_one_tenant_are_not_those_of_another() -> None:
    """Permissions are given by them."""
    named = [
        f(tenant)
        for tenant in ("acme", "acme2", "ac", "a.b", "*", ">", "")
        for f in (nats_subjects.stream, nats_subjects.all_dispatches, nats_subjects.new_queues)
    ]
    named += [
        f(tenant, "x")
        for tenant in ("a", "b", "a.x")
        for f in (nats_subjects.control, nats_subjects.inbox, nats_subjects.next_dispatch)
    ]

    assert len(set(named)) == len(named)
    assert nats_subjects.dispatch("a", "k", "id").startswith(nats_subjects.queue("a", "k").removesuffix("*"))


def test_a_runner_takes_from_every_subset_of_its_labels() -> None:
    """In the same canonical form in which a job's labels are stored; too many of them are left to HTTP."""
    assert nats_subjects.queue_keys([]) == [""]
    assert nats_subjects.queue_keys(["x64", "linux", "x64"]) == ["", "linux", "x64", "linux,x64"]
    assert len(nats_subjects.queue_keys("abcdef")) == 64
    assert nats_subjects.queue_keys("abcdefg") == []


@pytest.mark.parametrize("url", ["", "nats://", "http://host:4222", "host:4222", "nats://a:1,ftp://b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """At once, and not by trying again for ever."""
    with pytest.raises(ValueError, match="give one like nats://host:4222"):
        NatsAddress(url).check()


def test_the_address_is_shown_without_its_secret() -> None:
    """It is written to logs."""
    address = NatsAddress("nats://ada:s3cret@one:4222, tls://t0ken@two:4222")

    address.check()

    assert str(address) == "nats://one:4222, tls://two:4222"


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most installations need no NATS; who wants it must learn what to install."""
    monkeypatch.setitem(sys.modules, "nats", None)

    with pytest.raises(ValueError, match=r"pip install 'deltaci\[nats\]'"):
        NatsAddress("nats://host:4222").check()
