"""The machine of resources, and a log of administrative events in which something is missing or altered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from deltaci.audit.verify import verify
from deltaci.core.ids import administration_id, resource_id
from deltaci.core.resource import (
    DELETED,
    PRESENT,
    DeleteResource,
    ImportResource,
    PutResource,
    PutResources,
    Resource,
    ResourceCommand,
)
from tests.support.lab import TENANT, Lab

ADA: Final = "user:ada"

Line = dict[str, Any]
C = TypeVar("C", bound=ResourceCommand)


def command(kind: type[C], name: str = "a", tenant: str = TENANT, **fields: Any) -> C:
    """Return a command of a person, or one that imports."""
    if kind is not ImportResource:
        fields = {"actor": ADA, **fields}
    return kind(id=resource_id(tenant, "setting", name), tenant=tenant, kind="setting", name=name, **fields)


def put(name: str = "a", value: int = 1, **fields: Any) -> PutResource:
    return command(PutResource, name, body={"value": value}, **fields)


def resource(lab: Lab, name: str = "a", tenant: str = TENANT) -> Resource:
    return lab.unit.get(resource_id(tenant, "setting", name), Resource)


def history() -> Lab:
    """Return a log with six administrative events of two tenants."""
    lab = Lab()
    for step in (put(), put(value=2), put("b"), command(DeleteResource), put("a", 3), put(tenant="other")):
        lab.after(1).do(step)
    return lab


# -- refused


def test_no_runner_changes_a_resource() -> None:
    """Only a person or the server itself does."""
    assert Lab().refused(put(actor="worker:w1")).code == "wrong_actor"
    lab = Lab()
    assert lab.refused(command(ImportResource, actor=ADA, body={})).code == "wrong_actor"


def test_what_does_not_exist_cannot_be_deleted() -> None:
    """It never existed, or was never of this tenant."""
    lab = Lab()
    lab.do(put())

    assert lab.refused(command(DeleteResource, "b")).code == "not_found"
    assert lab.refused(command(DeleteResource, tenant="other")).code == "not_found"


def test_a_change_at_another_rev_is_refused() -> None:
    """0 stands for a resource that never existed."""
    lab = Lab()
    lab.do(put(expected_rev=0))

    assert lab.refused(put(value=2, expected_rev=0)).code == "stale_rev"
    assert lab.refused(command(DeleteResource, expected_rev=2)).code == "stale_rev"
    lab.do(put(value=2, expected_rev=1))

    assert resource(lab).body == {"value": 2}


def test_several_resources_change_together_or_not_at_all() -> None:
    """One that is refused takes the others back, and their numbers."""
    lab = Lab()
    lab.do(put())
    puts = tuple(put(name, 2, expected_rev=0) for name in ("b", "a"))

    assert lab.refused(PutResources(id=puts[0].id, actor=ADA, puts=puts)).code == "stale_rev"
    lab.do(PutResources(id=puts[0].id, actor=ADA, puts=puts[:1]))

    assert [event.metadata["number"] for event in lab.log] == [1, 2]


# -- changes


@pytest.mark.proves("MOD-14")
def test_a_deleted_name_can_be_used_again_and_its_rev_continues() -> None:
    """So that an event is found by its entity and rev."""
    lab = Lab()
    for step in (put(), command(DeleteResource), command(DeleteResource), put(value=1)):
        lab.do(step)

    assert [(event.from_, event.to, event.trigger, event.rev) for event in lab.log] == [
        (None, PRESENT, "created", 1),
        (PRESENT, DELETED, "deleted", 2),
        (DELETED, PRESENT, "created", 3),
    ]


def test_an_equal_body_changes_nothing() -> None:
    """A repeat has no event; a change of the sealed part alone has one, which does not show it."""
    lab = Lab()
    lab.do(put(sealed="s1"))

    assert lab.do(put(sealed="s1")).events == []
    [event] = lab.do(put(sealed="s2")).events

    assert event.metadata["before"] == event.metadata["after"] == {"value": 1}
    assert event.metadata["is_sealed_changed"]
    assert "s2" not in str(lab.log)


def test_an_import_creates_only_what_never_existed() -> None:
    """It may run again at every start, on several servers, after a person has changed or deleted the resource."""
    lab = Lab()
    imported = command(ImportResource, body={"value": 7})
    for step in (imported, imported, put(value=8), imported, command(DeleteResource), imported):
        lab.do(step)

    assert [(event.trigger, event.actor) for event in lab.log] == [
        ("imported", "orchestrator"),
        ("updated", ADA),
        ("deleted", ADA),
    ]


def test_the_events_of_a_tenant_are_numbered() -> None:
    """Other tenants have other numbers. The ids of two tenants differ, whatever their names are."""
    lab = history()

    assert [event.metadata["number"] for event in lab.log] == [1, 2, 3, 4, 5, 1]
    assert lab.unit.get(administration_id(TENANT), Resource).number == 5
    assert resource_id("a", "k", "b") != resource_id("a/k:", "k", "b")
    assert resource_id("a/k", "k", "b") != resource_id("a%2Fk", "k", "b") != resource_id("a", "k", "k:b")


# -- the verifier


def violations(lab: Lab, alter: Callable[[list[Line]], object] = lambda _: None) -> set[str]:
    """Return the rules that the log breaks after it was altered."""
    log: list[Line] = [json.loads(line) for line in lab.canonical()]
    alter(log)
    report = verify([json.dumps(line).encode() for line in log], "canonical")
    return {violation.rule for violation in report.violations}


@pytest.mark.proves("MOD-14")
@pytest.mark.parametrize("missing", range(4))
def test_a_log_with_a_missing_administrative_event_is_not_legal(missing: int) -> None:
    """Also if it is the only event of its resource."""
    lab = history()

    assert not violations(lab)
    assert "MOD-14" in violations(lab, lambda log: log.pop(missing))


@pytest.mark.proves("MOD-14")
@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (0, "number", 2),
        (0, "name", "c"),
        (0, "kind", "other"),
        (0, "before", {"value": 0}),
        (0, "after", None),
        (1, "before", {"value": 0}),
        (1, "after", {"value": 1}),
        (1, "after", {"value": 9}),
        (3, "after", {"value": 2}),
        (4, "before", {"value": 2}),
    ],
)
def test_a_log_with_an_altered_administrative_event_is_not_legal(line: int, key: str, value: object) -> None:
    """What an event shows before the change is what the last one showed after it."""
    assert "MOD-14" in violations(history(), lambda log: log[line]["metadata"].update({key: value}))


@pytest.mark.proves("MOD-14")
def test_an_administrative_event_needs_a_person_or_the_server() -> None:
    """A runner has no part in it, and only the server imports."""
    lab = history()

    assert violations(lab, lambda log: log[0].update(actor="worker:w1"))
    assert violations(lab, lambda log: log[0].update(trigger="imported"))
    assert violations(lab, lambda log: log[1].update(trigger="deleted"))
