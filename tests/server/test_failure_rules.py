"""Whose rules are asked first, and how soon a change is known elsewhere."""

from __future__ import annotations

import pytest

from deltaci.core.errors import Refused
from deltaci.core.failures import FailureRule
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.server.failure_rules import CACHE_SECONDS, KIND, FailureRules, StoredRules
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import on_loop

OWN = "rules: [{name: own, class: INFRA, signals: 11}]"
SERVER = FailureRule(name="of-the-server", failure_class="USER", is_retryable=False, signals=(11,))


@on_loop
async def test_a_tenants_rules_precede_the_servers_and_reach_other_servers_in_two_seconds() -> None:
    """The test moves the clock."""
    now = [0.0]
    store = MemoryStore()
    engine = Engine(store)
    here, there = (FailureRules(engine, store, lambda: now[0], [SERVER]) for _ in range(2))

    await engine.start()
    assert await there.for_tenant("us") == (SERVER,)
    await here.save("us", OWN, actor="user:ada", by="ada", at=5, expected_version=0)
    assert [rule.name for rule in await here.for_tenant("us")] == ["own", "of-the-server"]
    assert await there.for_tenant("us") == (SERVER,)
    now[0] += CACHE_SECONDS
    assert [rule.name for rule in await there.for_tenant("us")] == ["own", "of-the-server"]
    assert await there.for_tenant("them") == (SERVER,)
    with pytest.raises(Refused, match="at version 1, not 0"):
        await there.save("us", "rules: []", actor="user:eve", by="eve", at=6, expected_version=0)
    assert (await here.read("us")).by == "ada"
    await engine.stop()


@on_loop
async def test_unreadable_stored_rules_are_shown_but_not_applied() -> None:
    """A result must be accepted whatever is stored as rules."""
    store = MemoryStore()
    engine = Engine(store)
    rules = FailureRules(engine, store, lambda: 0.0)
    await engine.start()
    stored_rules = StoredRules(text="rules: [{name: own, class: NEW}]", by="ada", at=1, version=1)
    await Resources(engine, store, KIND, StoredRules).put("us", KIND, stored_rules, actor="user:ada")
    await engine.stop()

    assert await rules.for_tenant("us") == ()
    assert (await rules.read("us")).text == "rules: [{name: own, class: NEW}]"
