"""The order of a plan's steps, and the hash that approvals refer to."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.approvals import Gate
from deltaci.core.job import JobSpec
from deltaci.core.plan import plan_hash, resolve_needs
from tests.support.lab import gate, task


def shuffled(value: Any, draw: Random) -> Any:
    """Return the same content with the keys of its dicts in another order."""
    if isinstance(value, dict):
        keys = list(value)
        draw.shuffle(keys)
        return {key: shuffled(value[key], draw) for key in keys}
    return [shuffled(element, draw) for element in value] if isinstance(value, list) else value


WORK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.proves("MOD-S3")
@given(work=WORK, draw=st.randoms(use_true_random=False))
def test_the_same_plan_has_the_same_hash(work: Any, draw: Random) -> None:
    """The order of keys does not matter."""
    one = plan_hash([task("a", work=work), gate("g", "a")])
    other = plan_hash((task("a", work=shuffled(work, draw)), gate("g", "a")))

    assert one == other
    assert len(one) == 64


@pytest.mark.proves("MOD-S3")
def test_every_change_of_a_plan_changes_its_hash() -> None:
    """A person approves exactly one plan."""
    plain = task("a", work={"steps": ["make"]})
    changed: dict[str, Any] = {
        "name": "b",
        "kind": "approval",
        "needs": ("x",),
        "is_required": False,
        "has_validation": True,
        "max_attempts": 2,
        "base_delay_seconds": 1,
        "max_delay_seconds": 1,
        "jitter": 0.5,
        "timeout_seconds": 1,
        "max_lost_leases": 1,
        "approval_seconds": 1,
        "queue_key": "gpu",
        "priority": 1,
        "work": {"steps": ["make", "install"]},
        "gate": Gate(approvers=2),
        "after": ("x",),
        "family": "f",
        "is_family_fail_fast": True,
        "retry_on": ("INFRA",),
        "group": "g",
        "inputs": "h",
    }
    assert set(changed) == set(JobSpec.__struct_fields__)
    variants = [plan_hash([JobSpec(**{"name": "a", "work": plain.work, field: changed[field]})]) for field in changed]
    variants += [
        plan_hash([plain], is_fail_fast=True),
        plan_hash([plain], has_validation=True),
        plan_hash([plain], timeout_seconds=1),
        plan_hash([plain, task("z")]),
        plan_hash([task("z"), plain]),
        plan_hash([]),
    ]

    assert len({plan_hash([plain]), *variants}) == len(variants) + 1


@pytest.mark.proves("STP-O4", "STP-O3")
def test_steps_without_declared_needs_are_a_sequence() -> None:
    """A list of steps runs in its order."""
    assert resolve_needs([("a", None), ("b", None), ("c", None)]) == ((), ("a",), ("b",))
    assert resolve_needs([("a", None)]) == ((),)
    assert resolve_needs([]) == ()


@pytest.mark.proves("STP-O4")
def test_one_step_with_declared_needs_makes_all_of_them_a_graph() -> None:
    """An empty list declares needs as well."""
    assert resolve_needs([("a", None), ("b", []), ("c", None)]) == ((), (), ())
    assert resolve_needs([("a", None), ("b", None), ("c", ["a", "b"])]) == ((), (), ("a", "b"))
