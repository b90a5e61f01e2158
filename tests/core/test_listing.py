"""On which lists a record is: what moves are told adds up to what follows from the record."""

from __future__ import annotations

from random import Random

import pytest

from deltaci.core import listing, run
from deltaci.core.attempt import Attempt
from deltaci.core.decide import Decision
from deltaci.core.events import RUN, WORKER
from deltaci.core.listing import ListKey, list_changes, lists_of
from deltaci.core.machine import ABSENT, Command
from deltaci.core.run import Origin, Run
from deltaci.core.status.steps import run_status
from deltaci.core.worker import Worker
from tests.histories import History
from tests.lab import TENANT, Lab

SEEDS = range(20)


class Keeping(Lab):
    """A lab that keeps lists by what moves tell, and compares after every command."""

    def __init__(self) -> None:
        super().__init__()
        self.on: dict[str, frozenset[ListKey]] = {}
        self.moves = 0

    def do(self, command: Command) -> Decision:
        decision = super().do(command)
        before: dict[str, str] = {}
        for event in decision.events:
            if event.entity in (RUN, WORKER):
                before.setdefault(event.entity_id, event.from_ or ABSENT)
        for id, state in before.items():
            record = decision.changed[id]
            joined, left = list_changes(record, state)
            on = self.on.get(id, frozenset())
            assert not joined & on
            assert left <= on
            self.on[id] = (on | joined) - left
            self.moves += bool(joined or left)
        for id, changed in decision.changed.items():
            assert self.on.get(id, frozenset()) == lists_of(changed)
        return decision


@pytest.mark.parametrize("seed", SEEDS)
def test_moves_add_up_to_what_follows_from_the_record(seed: int) -> None:
    """A store that only ever writes moves must hold what a walk through all records would find."""
    history = History(Random(seed))
    lab = history.lab = Keeping()
    for n in range(4):
        lab.register(f"w{n}", labels=("linux",))

    history.go(120).calm()

    assert lab.moves > 5


def test_a_run_is_listed_by_all_that_people_know_of_it() -> None:
    origin = Origin(project="shop", branch="main", labels=("a", "b"), template="build", title="not listed")
    record = Run(id="r1", tenant=TENANT, state=run.RUNNING, origin=origin, started_by="ada")

    named = {name for tenant, name in lists_of(record) if tenant == TENANT}

    assert named == {
        "run",
        "run/state=RUNNING",
        "run/status=RUNNING",
        "run/project=shop",
        "run/branch=main",
        "run/label=a",
        "run/label=b",
        "run/template=build",
        "run/person=ada",
    }


def test_what_is_over_waits_for_whoever_reports_it() -> None:
    """Of all tenants together, and only until it is reported."""
    waits = (listing.ALL_TENANTS, listing.UNREPORTED)
    for state in run.MACHINE.states:
        record = Run(id="r1", tenant=TENANT, state=state, conclusion=run.FAILED)

        assert (waits in lists_of(record)) == run.MACHINE.changes(state, run.Report)
        assert (TENANT, listing.runs_with_status(run_status(record))) in lists_of(record)


def test_a_worker_is_there_or_gone_and_work_is_on_no_list() -> None:
    """The queue's hot path has nothing to do with lists."""
    there = {(TENANT, "worker"), (listing.ALL_TENANTS, listing.PRESENT_WORKERS)}
    assert lists_of(Worker(id="w", tenant=TENANT, state="BUSY")) == there
    assert lists_of(Worker(id="w", tenant=TENANT, state="SHUTDOWN")) == {(TENANT, "worker/gone")}
    assert lists_of(Attempt(id="a", tenant=TENANT)) == frozenset()
    assert list_changes(Attempt(id="a", tenant=TENANT, state="RUNNING"), "LEASED") == (frozenset(), frozenset())


def test_a_name_that_no_index_could_hold_is_told_by_its_fingerprint() -> None:
    """Too long, or with what a database refuses: it is found by the same text, and by no other."""
    plain = "feature/é x=1"
    strange = ["x" * 201, "x" * 202, "a\x00b", "a\nb", "\ud800", "é" * 5000]

    names = {listing.runs_of_branch(value) for value in strange}

    assert listing.runs_of_branch(plain) == f"run/branch={plain}"
    assert listing.runs_of_branch("x" * 200) == "run/branch=" + "x" * 200
    assert len(names) == len(strange)
    assert all(name.isascii() and len(name) < 60 for name in names)
    assert not names & {listing.runs_with_label(value) for value in strange}
