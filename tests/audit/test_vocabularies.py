"""The log of a run in each vocabulary equals the exports, and every step is allowed."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.projections.job_events import job_events
from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.audit.projections.vocabularies import CANONICAL, VOCABULARIES, job_of, project_log
from deltaci.core.events import Event, to_json_line
from tests.support.histories import History

SEEDS = range(12)


@cache
def log(seed: int) -> tuple[Event, ...]:
    """Return the events of all runs of a random history."""
    return tuple(History(Random(seed)).go(150).calm().lab.log)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_step_has_a_rule_or_the_reason_of_an_extension(name: str) -> None:
    """The interface shows it beside the step."""
    for seed in SEEDS:
        for step in project_log(VOCABULARIES[name], log(seed)):
            assert bool(step.rule) != bool(step.why) or name == CANONICAL.name, step
            assert step.kind in VOCABULARIES[name].kinds or step.event.entity == "worker"


def test_the_canonical_vocabulary_equals_the_canonical_log() -> None:
    """Including the lines of leases."""
    for seed in SEEDS:
        assert [to_json_line(step.event) for step in project_log(CANONICAL, log(seed))] == list(
            canonical_lines(log(seed))
        )


def test_the_queue_vocabulary_equals_its_export() -> None:
    """A takeover is four steps in both."""
    for seed in SEEDS:
        exported = [
            (
                job_event["job_id"],
                job_event["from_status"],
                job_event["to_status"],
                job_event["type"],
                job_event["actor"],
            )
            for job_event in job_events(log(seed))
        ]
        steps = project_log(VOCABULARIES["queue"], log(seed))
        assert [
            (step.event.entity_id, step.source, step.target, step.trigger, step.actor) for step in steps
        ] == exported


def test_the_workstreams_vocabulary_equals_its_export() -> None:
    """The export has no creations; approvals are not tasks in either."""
    for seed in SEEDS:
        exported = [
            (transition["entity_id"], transition["from_state"], transition["to_state"], transition["trigger"])
            for transition in TransitionsExporter().export(log(seed))
            if transition["event_type"] != "worker_state_transition"
        ]
        steps = (step for step in project_log(VOCABULARIES["workstreams"], log(seed)) if step.source is not None)
        assert [(step.event.entity_id, step.source, step.target, step.trigger) for step in steps] == exported


def test_the_job_name_is_derived_from_the_id_of_the_event() -> None:
    """Job names may contain dots."""

    def job_name(entity: str, entity_id: str) -> str:
        run = {"run_id": "r1", "from_": None, "to": "", "trigger": "", "actor": "", "severity": "", "request_id": ""}
        return job_of(Event(seq=1, at=0, tenant="", entity=entity, entity_id=entity_id, rev=1, metadata={}, **run))  # type: ignore[arg-type]

    assert job_name("run", "r1") == ""
    assert job_name("job", "r1/a.b") == "a.b"
    assert job_name("attempt", "r1/a.b.2") == "a.b"
    assert job_name("lease", "r1/a.b.2#3") == "a.b"
