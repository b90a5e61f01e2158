"""Document 003, tested over random histories: its derivation, its invariants and its log.

The long version, with new seeds each time, is in `tests/fuzz/test_workstreams.py`.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from deltaci.audit.verify import verify
from deltaci.cli.app import app
from deltaci.core import attempt
from deltaci.core.status.workstreams import derive_workstream_state
from tests.support.forged_transitions import KINDS, Line, detectable, undetectable
from tests.support.lab import Lab, task
from tests.support.workstream_derivation import DIFFERENCES, TASK_STATES, Derivation, Task, document_003
from tests.support.workstream_histories import Fleet
from tests.support.workstream_invariants import INVARIANTS, Invariants

SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "validate" / "validate_state_transitions.py"
SEEDS: Final = range(150)  # Enough for every row of the table and every invariant to occur often.
FORGED_SEEDS: Final = range(6)
SHARE: Final = 0.15  # Of the forgeries of the common kinds.
STEPS: Final = 120

TASKS: Final = st.builds(Task, st.sampled_from(sorted(TASK_STATES.values())), st.booleans())
QUICK: Final = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def decoded(lab: Lab) -> list[Line]:
    """Return the lines of `transitions.jsonl`."""
    return [msgspec.json.decode(line) for line in lab.transitions()]


def is_legal(lines: list[Line]) -> bool:
    """Return whether the verifier accepts the lines."""
    return verify([msgspec.json.encode(line) for line in lines], "transitions").is_legal


# -- the derivation


@pytest.mark.proves("WST-WD1", "WST-WD2", "WST-WD3", "WST-WD4", "WST-WD5")
@settings(max_examples=250, deadline=None)
@given(tasks=st.lists(TASKS, max_size=6))
def test_the_derived_state_is_document_003s_for_any_tasks(tasks: list[Task]) -> None:
    """The document gives the function; ours must return the same state for all tasks."""
    assert derive_workstream_state(tasks) == document_003(tasks)


@pytest.mark.proves("WST-WD2", "WST-WD4")
def test_a_workstream_without_tasks_is_derived_as_validating() -> None:
    """`all()` of no tasks is true, and this clause comes first."""
    assert derive_workstream_state([]) == document_003([]) == "validating"


@pytest.mark.proves("WST-WI1")
@QUICK
@given(randomness=st.randoms(use_true_random=False), steps=st.integers(0, STEPS))
def test_after_every_decision_a_workstream_has_the_derived_state_or_a_listed_difference(
    randomness: Random, steps: int
) -> None:
    """The table lists all differences, for plans with needs, retries, validation, cancels and timeouts."""
    Fleet(randomness, Derivation).go(steps).calm()


class Counts(NamedTuple):
    """How often each row of the table and each invariant occurred in the fixed histories."""

    rows: Counter[tuple[str, str]]
    invariants: Counter[str]


@pytest.fixture(scope="module")
def counts() -> Counts:
    """Run the fixed histories and return the counts."""
    counts = Counts(Counter(), Counter())
    for seed in SEEDS:
        observers = partial(Derivation, counts=counts.rows), partial(Invariants, counts=counts.invariants)
        Fleet(Random(seed), *observers).go(STEPS).calm()
    return counts


@pytest.mark.proves("WST-WI1", "WST-WG2", "WST-WG3", "WST-WG4")
def test_every_difference_of_the_table_occurs(counts: Counts) -> None:
    """A difference that never occurs could hide a bug later."""
    assert set(counts.rows) == {(row.why, derived) for row in DIFFERENCES for derived in row.derived}


# -- the invariants


@pytest.mark.proves("WST-TI1", "WST-TI2", "WST-TI3", "WST-TI4", "WST-TI5", "WST-TI6")
@pytest.mark.proves("WST-WI1", "WST-WI2", "WST-WI3", "WST-KI1", "WST-KI2", "WST-KI3", "WST-KI4")
@QUICK
@given(randomness=st.randoms(use_true_random=False), steps=st.integers(0, STEPS))
def test_every_invariant_holds_after_every_decision_while_workers_die_and_return(
    randomness: Random, steps: int
) -> None:
    """The rest of the system relies on them during faults, too."""
    history = Fleet(randomness, Invariants).go(steps).calm()

    assert not history.stuck()
    assert is_legal(decoded(history.lab))


def test_every_invariant_applies_often_in_these_histories(counts: Counts) -> None:
    """A history without retries, for example, tests nothing about retries."""
    assert min(counts.invariants[name] for name in INVARIANTS) >= 15, counts.invariants


def leased() -> Lab:
    """Return a lab in which w1 has the lease of a, b is queued, and c needs b."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"), task("b"), task("c", "b"))
    lab.claim(lab.attempt("a"))
    return lab


def failed() -> Lab:
    """Return a lab whose only task failed, with the outcome reported."""
    lab = Lab().plan(task("a"))
    lab.work("a", ok=False)
    lab.report()
    return lab


def completed() -> Lab:
    """Return a lab whose only task is completed."""
    lab = Lab().plan(task("a"))
    lab.work("a")
    return lab


BROKEN: Final[tuple[tuple[str, Callable[[], Lab], str, dict[str, object]], ...]] = (
    ("task 1", leased, "r1/b", {"state": "RUNNING"}),
    ("task 3", leased, "r1/b", {"worker_id": "w1"}),
    ("task 4", leased, "r1/a", {"attempts": 2}),
    ("task 5", leased, "r1/a", {"started_at": 1}),
    ("task 5", failed, "r1/a", {"completed_at": 0}),
    ("task 6", leased, "r1/c", {"started_at": 2**60}),
    ("workstream 1", leased, "r1", {"state": "VALIDATING"}),
    ("workstream 2", failed, "r1", {"conclusion": "SUCCESS"}),
    ("workstream 4", failed, "r1", {"conclusion": "CANCELED"}),
    ("workstream 4", failed, "r1", {"reason": ""}),
    ("workstream 4", failed, "r1/a", {"last_error": None}),
    ("worker 1", leased, "w1", {"max_concurrent_tasks": 0}),
    ("worker 1", leased, "w1", {"state": "IDLE"}),
    ("worker 3", leased, "w1", {"state": "SHUTDOWN"}),
    ("worker 4", leased, "w1", {"tasks": ()}),
    ("worker 4", leased, "w1", {"state": "UNRESPONSIVE"}),
    ("worker 4", leased, "r1/a.1", {"lease": None}),
    ("trust", leased, "w1", {"infra_failures": 3}),
    ("verdict", completed, "r1/a.1", {"verdict": attempt.Verdict(is_passed=False)}),
)


@pytest.mark.parametrize(("name", "scene", "id", "fields"), BROKEN)
def test_a_violated_invariant_is_detected(
    name: str, scene: Callable[[], Lab], id: str, fields: dict[str, object]
) -> None:
    """One wrong field of one record violates the named invariant."""
    lab = scene()
    observer = Invariants(lab)
    observer.check_events(lab.log)
    observer.check_records(record for record in lab.unit.records.values() if record is not None)
    record = lab.unit.find(id)
    assert record is not None
    wrong = lab.unit.records[id] = msgspec.structs.replace(record, **fields)

    with pytest.raises(AssertionError, match=name):
        observer.check_records([wrong, *lab.unit.live_jobs("r1"), lab.job("a")])


def test_a_missing_step_and_a_step_after_the_end_are_detected() -> None:
    """An entity has one state at a time and never leaves a terminal one."""
    lab = failed()
    ended = lab.last("r1/a")
    again = msgspec.structs.replace(ended, from_=ended.to, to="QUEUED")
    missing = [event for event in lab.log if (event.entity_id, event.to) != ("r1/a", "RUNNING")]

    for name, log in (("task 1", missing), ("task 2", [*lab.log, again])):
        with pytest.raises(AssertionError, match=name):
            Invariants(lab).check_events(log)


def test_a_heartbeat_of_an_unresponsive_worker_is_detected() -> None:
    """A worker that sends a message must have recovered first."""
    lab = leased()
    busy, log = lab.last("w1"), list(lab.log)
    silent = msgspec.structs.replace(busy, from_="BUSY", to="UNRESPONSIVE", trigger="health_check_timeout")
    claimed = lab.last("r1/a.1")
    heartbeat = msgspec.structs.replace(claimed, from_="LEASED", to="STARTING", trigger="heartbeat", actor="worker:w1")

    Invariants(lab).check_events([*log, heartbeat])
    with pytest.raises(AssertionError, match="worker 2"):
        Invariants(lab).check_events([*log, silent, heartbeat])


# -- the log


@pytest.mark.proves("WST-E4", "WST-V1", "WST-V2", "WST-V4")
def test_the_validator_script_and_the_verify_command_accept_every_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script that document 003 names, and `deltaci verify`, read the exported file."""
    for seed in range(12):
        file = tmp_path / f"{seed}.jsonl"
        file.write_bytes(b"\n".join(Fleet(Random(seed)).go(STEPS).calm().leave().lab.transitions()) + b"\n")
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(file)])

        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")

        assert ended.value.code in (None, 0), capsys.readouterr().out
        assert CliRunner().invoke(app, ["verify", str(file)]).exit_code == 0


@pytest.mark.proves("WST-V1", "WST-V2", "WST-V4", "WST-E3")
def test_one_forged_name_number_or_position_is_rejected() -> None:
    """State, trigger, severity, order, retry_count, worker and time are each tied to another part of the log."""
    checked = Counter[str]()

    for seed in FORGED_SEEDS:
        draw, lines = Random(seed), decoded(Fleet(Random(seed)).go(80).calm().lab)
        for forgery in detectable(lines):
            if forgery.kind in ("order", "retry_count", "worker") or draw.random() < SHARE:
                checked[forgery.kind] += 1
                assert not is_legal(forgery.lines), next(
                    (forgery.kind, was, now) for was, now in zip(lines, forgery.lines, strict=True) if was != now
                )

    assert set(checked) == set(KINDS)


@pytest.mark.proves("WST-V2")
def test_undetectable_changes_leave_a_legal_log() -> None:
    """The file alone cannot prove that these changes were not made."""
    checked = Counter[str]()

    for seed in FORGED_SEEDS:
        for forgery in undetectable(decoded(Fleet(Random(seed)).go(80).calm().lab)):
            checked[forgery.kind] += 1
            assert is_legal(forgery.lines), forgery.kind

    assert len(checked) == 2
