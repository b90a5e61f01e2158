"""Document 003, proved over random histories: its derivation, its invariants and its log.

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
from tests.derivation import DIFFERENCES, TASK_WORDS, Derivation, Task, document_003
from tests.fleets import Fleet
from tests.forgeries import KINDS, Line, seen, unseen
from tests.invariants import INVARIANTS, Invariants
from tests.lab import Lab, task

SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "validate" / "validate_state_transitions.py"
SEEDS: Final = range(150)  # So many that every row of the table and every invariant is met many times.
FORGED_SEEDS: Final = range(6)
SHARE: Final = 0.15  # Of all forgeries: some hundreds of each common kind, in seconds.
STEPS: Final = 120

TASKS: Final = st.builds(Task, st.sampled_from(sorted(TASK_WORDS.values())), st.booleans())
QUICK: Final = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def decoded(lab: Lab) -> list[Line]:
    """The lines of `transitions.jsonl`."""
    return [msgspec.json.decode(line) for line in lab.transitions()]


def is_legal(lines: list[Line]) -> bool:
    """What the verifier says."""
    return verify([msgspec.json.encode(line) for line in lines], "transitions").is_legal


# -- the derivation


@pytest.mark.proves("WST-WD1", "WST-WD2", "WST-WD3", "WST-WD4", "WST-WD5")
@settings(max_examples=250, deadline=None)
@given(tasks=st.lists(TASKS, max_size=6))
def test_the_derived_state_is_document_003s_for_any_tasks(tasks: list[Task]) -> None:
    """The document gives the function; ours may be written otherwise, but never say something else."""
    assert derive_workstream_state(tasks) == document_003(tasks)


@pytest.mark.proves("WST-WD2", "WST-WD4")
def test_a_workstream_without_tasks_is_derived_as_validating() -> None:
    """Of no task it is true that all are completed; the clauses are asked in this order."""
    assert derive_workstream_state([]) == document_003([]) == "validating"


@pytest.mark.proves("WST-WI1")
@QUICK
@given(randomness=st.randoms(use_true_random=False), steps=st.integers(0, STEPS))
def test_a_workstream_stands_after_every_decision_where_its_tasks_and_the_table_say(
    randomness: Random, steps: int
) -> None:
    """Plans with needs, retries and rules, people who cancel, time that runs out: the table has all differences."""
    Fleet(randomness, Derivation).go(steps).calm()


class Met(NamedTuple):
    """How often the fixed histories came by each row of the table, and by each invariant."""

    rows: Counter[tuple[str, str]]
    invariants: Counter[str]


@pytest.fixture(scope="module")
def met() -> Met:
    """What the fixed histories came by."""
    found = Met(Counter(), Counter())
    for seed in SEEDS:
        watchers = partial(Derivation, met=found.rows), partial(Invariants, seen=found.invariants)
        Fleet(Random(seed), *watchers).go(STEPS).calm()
    return found


@pytest.mark.proves("WST-WI1", "WST-WG2", "WST-WG3", "WST-WG4")
def test_every_difference_of_the_table_really_occurs(met: Met) -> None:
    """An excuse that nothing needs would hide a fault one day."""
    assert set(met.rows) == {(row.why, derived) for row in DIFFERENCES for derived in row.derived}


# -- the invariants


@pytest.mark.proves("WST-TI1", "WST-TI2", "WST-TI3", "WST-TI4", "WST-TI5", "WST-TI6")
@pytest.mark.proves("WST-WI1", "WST-WI2", "WST-WI3", "WST-KI1", "WST-KI2", "WST-KI3", "WST-KI4")
@QUICK
@given(randomness=st.randoms(use_true_random=False), steps=st.integers(0, STEPS))
def test_every_invariant_holds_after_every_decision_while_workers_die_and_return(
    randomness: Random, steps: int
) -> None:
    """They are what everybody else builds on; they hold in the middle of trouble or not at all."""
    history = Fleet(randomness, Invariants).go(steps).calm()

    assert not history.stuck()
    assert is_legal(decoded(history.lab))


def test_every_invariant_has_much_to_say_about_such_histories(met: Met) -> None:
    """A history in which nobody retries shows nothing about retries."""
    assert min(met.invariants[name] for name in INVARIANTS) >= 15, met.invariants


def held() -> Lab:
    """w1 has a; b waits for somebody, and c for b."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"), task("b"), task("c", "b"))
    lab.claim(lab.attempt("a"))
    return lab


def failed() -> Lab:
    """The only task failed, and all is told."""
    lab = Lab().plan(task("a"))
    lab.work("a", ok=False)
    lab.report()
    return lab


def completed() -> Lab:
    """The only task is completed."""
    lab = Lab().plan(task("a"))
    lab.work("a")
    return lab


BROKEN: Final[tuple[tuple[str, Callable[[], Lab], str, dict[str, object]], ...]] = (
    ("task 1", held, "r1/b", {"state": "RUNNING"}),
    ("task 3", held, "r1/b", {"worker_id": "w1"}),
    ("task 4", held, "r1/a", {"attempts": 2}),
    ("task 5", held, "r1/a", {"started_at": 1}),
    ("task 5", failed, "r1/a", {"completed_at": 0}),
    ("task 6", held, "r1/c", {"started_at": 2**60}),
    ("workstream 1", held, "r1", {"state": "VALIDATING"}),
    ("workstream 2", failed, "r1", {"conclusion": "SUCCESS"}),
    ("workstream 4", failed, "r1", {"conclusion": "CANCELED"}),
    ("workstream 4", failed, "r1", {"reason": ""}),
    ("workstream 4", failed, "r1/a", {"last_error": None}),
    ("worker 1", held, "w1", {"max_concurrent_tasks": 0}),
    ("worker 1", held, "w1", {"state": "IDLE"}),
    ("worker 3", held, "w1", {"state": "SHUTDOWN"}),
    ("worker 4", held, "w1", {"tasks": ()}),
    ("worker 4", held, "w1", {"state": "UNRESPONSIVE"}),
    ("worker 4", held, "r1/a.1", {"lease": None}),
    ("trust", held, "w1", {"infra_failures": 3}),
    ("verdict", completed, "r1/a.1", {"verdict": attempt.Verdict(is_passed=False)}),
)


@pytest.mark.parametrize(("name", "scene", "id", "fields"), BROKEN)
def test_a_broken_invariant_is_noticed(name: str, scene: Callable[[], Lab], id: str, fields: dict[str, object]) -> None:
    """Who watches the watchers: one field of one record is wrong, and the invariant that it breaks says so."""
    lab = scene()
    watcher = Invariants(lab)
    watcher.hear(lab.log)
    watcher.look(record for record in lab.unit.records.values() if record is not None)
    known = lab.unit.find(id)
    assert known is not None
    wrong = lab.unit.records[id] = msgspec.structs.replace(known, **fields)

    with pytest.raises(AssertionError, match=name):
        watcher.look([wrong, *lab.unit.live_jobs("r1"), lab.job("a")])


def test_a_step_that_is_missing_or_comes_after_the_end_is_noticed() -> None:
    """An entity is in one state at a time, and it leaves the last one never."""
    lab = failed()
    ended = lab.last("r1/a")
    again = msgspec.structs.replace(ended, from_=ended.to, to="QUEUED")
    missing = [event for event in lab.log if (event.entity_id, event.to) != ("r1/a", "RUNNING")]

    for name, log in (("task 1", missing), ("task 2", [*lab.log, again])):
        with pytest.raises(AssertionError, match=name):
            Invariants(lab).hear(log)


def test_a_heartbeat_of_a_silent_worker_is_noticed() -> None:
    """Whoever speaks has recovered first."""
    lab = held()
    busy, log = lab.last("w1"), list(lab.log)
    silent = msgspec.structs.replace(busy, from_="BUSY", to="UNRESPONSIVE", trigger="health_check_timeout")
    claimed = lab.last("r1/a.1")
    beat = msgspec.structs.replace(claimed, from_="LEASED", to="STARTING", trigger="heartbeat", actor="worker:w1")

    Invariants(lab).hear([*log, beat])
    with pytest.raises(AssertionError, match="worker 2"):
        Invariants(lab).hear([*log, silent, beat])


# -- the log


@pytest.mark.proves("WST-E4", "WST-V1", "WST-V2", "WST-V4")
def test_the_validator_and_the_command_accept_every_such_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script that document 003 names, and `deltaci verify`, on the file that people get."""
    for seed in range(12):
        file = tmp_path / f"{seed}.jsonl"
        file.write_bytes(b"\n".join(Fleet(Random(seed)).go(STEPS).calm().leave().lab.transitions()) + b"\n")
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(file)])

        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(SCRIPT), run_name="__main__")

        assert left.value.code in (None, 0), capsys.readouterr().out
        assert CliRunner().invoke(app, ["verify", str(file)]).exit_code == 0


@pytest.mark.proves("WST-V1", "WST-V2", "WST-V4", "WST-E3")
def test_one_forged_word_number_or_place_is_refused() -> None:
    """State, trigger, severity, order, retry_count, worker and time: each is held by something else in the log."""
    tried = Counter[str]()

    for seed in FORGED_SEEDS:
        draw, lines = Random(seed), decoded(Fleet(Random(seed)).go(80).calm().lab)
        for forged in seen(lines):
            if forged.kind in ("order", "retry_count", "worker") or draw.random() < SHARE:
                tried[forged.kind] += 1
                assert not is_legal(forged.lines), next(
                    (forged.kind, was, now) for was, now in zip(lines, forged.lines, strict=True) if was != now
                )

    assert set(tried) == set(KINDS)


@pytest.mark.proves("WST-V2")
def test_what_the_log_cannot_show_is_known() -> None:
    """Changes that leave a log which could have been: the proof of the file alone ends here."""
    tried = Counter[str]()

    for seed in FORGED_SEEDS:
        for forged in unseen(decoded(Fleet(Random(seed)).go(80).calm().lab)):
            tried[forged.kind] += 1
            assert is_legal(forged.lines), forged.kind

    assert len(tried) == 3
