"""The lists of a record: the changes that are reported add up to the lists that are derived from it."""

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
from tests.support.histories import History
from tests.support.lab import TENANT, Lab

SEEDS = range(20)


class ListingLab(Lab):
    """A lab that maintains lists from `list_changes` and compares them with `lists_of` after every command."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[str, frozenset[ListKey]] = {}
        self.change_count = 0

    def do(self, command: Command) -> Decision:
        decision = super().do(command)
        before: dict[str, str] = {}
        for event in decision.events:
            if event.entity in (RUN, WORKER):
                before.setdefault(event.entity_id, event.from_ or ABSENT)
        for id, state in before.items():
            record = decision.changed[id]
            joined, left = list_changes(record, state)
            listed = self.listed.get(id, frozenset())
            assert not joined & listed
            assert left <= listed
            self.listed[id] = (listed | joined) - left
            self.change_count += bool(joined or left)
        for id, changed in decision.changed.items():
            assert self.listed.get(id, frozenset()) == lists_of(changed)
        return decision


@pytest.mark.parametrize("seed", SEEDS)
def test_list_changes_add_up_to_the_derived_lists(seed: int) -> None:
    """A store that writes only the changes must have the lists that a scan of all records would yield."""
    history = History(Random(seed))
    lab = history.lab = ListingLab()
    for n in range(4):
        lab.register(f"w{n}", labels=("linux",))

    history.go(120).calm()

    assert lab.change_count > 5


def test_a_run_is_listed_by_every_searchable_field() -> None:
    origin = Origin(project="shop", branch="main", labels=("a", "b"), template="build", title="not listed")
    record = Run(id="r1", tenant=TENANT, state=run.RUNNING, origin=origin, started_by="ada")

    names = {name for tenant, name in lists_of(record) if tenant == TENANT}

    assert names == {
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


def test_an_ended_run_is_listed_until_it_is_reported() -> None:
    """In the list of all tenants."""
    unreported = (listing.ALL_TENANTS, listing.UNREPORTED)
    for state in run.MACHINE.states:
        record = Run(id="r1", tenant=TENANT, state=state, conclusion=run.FAILED)

        assert (unreported in lists_of(record)) == run.MACHINE.changes(state, run.Report)
        assert (TENANT, listing.runs_with_status(run_status(record))) in lists_of(record)


def test_a_worker_is_present_or_gone_and_an_attempt_is_on_no_list() -> None:
    """The hot path of the queue does not write lists."""
    present = {(TENANT, "worker"), (listing.ALL_TENANTS, listing.PRESENT_WORKERS)}
    assert lists_of(Worker(id="w", tenant=TENANT, state="BUSY")) == present
    assert lists_of(Worker(id="w", tenant=TENANT, state="SHUTDOWN")) == {(TENANT, "worker/gone")}
    assert lists_of(Attempt(id="a", tenant=TENANT)) == frozenset()
    assert list_changes(Attempt(id="a", tenant=TENANT, state="RUNNING"), "LEASED") == (frozenset(), frozenset())


def test_a_value_that_no_index_could_hold_is_replaced_by_its_hash() -> None:
    """Too long, or with characters that a database refuses: still found by exactly this text."""
    plain = "feature/é x=1"
    unusual = ["x" * 201, "x" * 202, "a\x00b", "a\nb", "\ud800", "é" * 5000]

    names = {listing.runs_of_branch(value) for value in unusual}

    assert listing.runs_of_branch(plain) == f"run/branch={plain}"
    assert listing.runs_of_branch("x" * 200) == "run/branch=" + "x" * 200
    assert len(names) == len(unusual)
    assert all(name.isascii() and len(name) < 60 for name in names)
    assert not names & {listing.runs_with_label(value) for value in unusual}
