"""A run's log in the words of each document: the same as the exports say, and nothing that the document forbids."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.projections.job_events import job_events
from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.audit.projections.vocabularies import CANONICAL, VOCABULARIES, job_of, project_log
from deltaci.core.events import Event, to_json_line
from tests.histories import History

SEEDS = range(12)


@cache
def log(seed: int) -> tuple[Event, ...]:
    """Everything that happened in one history, of all of its runs."""
    return tuple(History(Random(seed)).go(150).calm().lab.log)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_step_is_allowed_by_a_rule_or_says_who_demands_it(name: str) -> None:
    """What is shown beside a step is why it is legal."""
    for seed in SEEDS:
        for each in project_log(VOCABULARIES[name], log(seed)):
            assert bool(each.rule) != bool(each.why) or name == CANONICAL.name, each
            assert each.kind in VOCABULARIES[name].kinds or each.event.entity == "worker"


def test_our_own_words_are_the_canonical_log() -> None:
    """A lease's change has a line of its own there and here."""
    for seed in SEEDS:
        assert [to_json_line(each.event) for each in project_log(CANONICAL, log(seed))] == list(
            canonical_lines(log(seed))
        )


def test_the_queues_words_are_those_of_its_export() -> None:
    """A takeover is four steps in both."""
    for seed in SEEDS:
        told = [
            (each["job_id"], each["from_status"], each["to_status"], each["type"], each["actor"])
            for each in job_events(log(seed))
        ]
        found = project_log(VOCABULARIES["queue"], log(seed))
        assert [(each.event.entity_id, each.source, each.target, each.trigger, each.actor) for each in found] == told


def test_the_workstreams_words_are_those_of_its_export() -> None:
    """Its export has no births; approvals are no tasks in both."""
    for seed in SEEDS:
        told = [
            (each["entity_id"], each["from_state"], each["to_state"], each["trigger"])
            for each in TransitionsExporter().export(log(seed))
            if each["event_type"] != "worker_state_transition"
        ]
        found = (each for each in project_log(VOCABULARIES["workstreams"], log(seed)) if each.source is not None)
        assert [(each.event.entity_id, each.source, each.target, each.trigger) for each in found] == told


def test_every_event_knows_its_job() -> None:
    """By its id alone, with a name of any kind."""

    def about(entity: str, entity_id: str) -> str:
        run = {"run_id": "r1", "from_": None, "to": "", "trigger": "", "actor": "", "severity": "", "request_id": ""}
        return job_of(Event(seq=1, at=0, tenant="", entity=entity, entity_id=entity_id, rev=1, metadata={}, **run))  # type: ignore[arg-type]

    assert about("run", "r1") == ""
    assert about("job", "r1/a.b") == "a.b"
    assert about("attempt", "r1/a.b.2") == "a.b"
    assert about("lease", "r1/a.b.2#3") == "a.b"
