"""Whose rules are asked first, and how soon a change is known elsewhere."""

from __future__ import annotations

import pytest

from deltaci.core.errors import Refused
from deltaci.core.failures import FailureRule
from deltaci.server.failure_rules import CACHE_SECONDS, KIND, FailureRules
from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import Document
from tests.contract.backends import on_loop

OWN = "rules: [{name: own, class: INFRA, signals: 11}]"
SERVER = FailureRule(name="of-the-server", failure_class="USER", is_retryable=False, signals=(11,))


@on_loop
async def test_a_tenants_rules_precede_the_servers_and_reach_other_servers_in_two_seconds() -> None:
    """The test moves the clock."""
    now = [0.0]
    store = MemoryStore()
    here, there = (FailureRules(store, lambda: now[0], [SERVER]) for _ in range(2))

    assert await there.for_tenant("us") == (SERVER,)
    await here.save("us", OWN, by="ada", at=5, expected_version=0)
    assert [rule.name for rule in await here.for_tenant("us")] == ["own", "of-the-server"]
    assert await there.for_tenant("us") == (SERVER,)
    now[0] += CACHE_SECONDS
    assert [rule.name for rule in await there.for_tenant("us")] == ["own", "of-the-server"]
    assert await there.for_tenant("them") == (SERVER,)
    with pytest.raises(Refused, match="at version 1, not 0"):
        await there.save("us", "rules: []", by="eve", at=6, expected_version=0)
    assert (await here.read("us")).by == "ada"


@on_loop
async def test_unreadable_stored_rules_are_shown_but_not_applied() -> None:
    """A result must be accepted whatever is stored as rules."""
    store = MemoryStore()
    body = b'{"text": "rules: [{name: own, class: NEW}]", "by": "ada", "at": 1}'
    await store.put_documents([Document(kind=KIND, tenant="us", name=KIND, version=0, at=0, body=body)])
    rules = FailureRules(store, lambda: 0.0)

    assert await rules.for_tenant("us") == ()
    assert (await rules.read("us")).text == "rules: [{name: own, class: NEW}]"
