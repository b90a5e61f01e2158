"""The checker has teeth: for each promise a log that breaks it is reported under its name, and a legal one is not."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from msgspec import structs

from deltaci.simulation.checker import history_checker
from deltaci.simulation.checker.history_checker import INVARIANTS, Violation
from deltaci.simulation.history import LOGGER, Simulation
from deltaci.simulation.scenario import draw_scenario
from tests.simulation import illegal_job_order, illegal_leases, illegal_runs, illegal_worker_failures
from tests.simulation.log_builder import CASES, Case, Log
from tests.simulation.planted import TABLE

# The modules that know only the documents and the log.
INDEPENDENT_MODULES = {
    "acknowledgements",
    "executions",
    "history_checker",
    "job_order",
    "leases",
    "tracked",
    "transitions",
    "worker_failures",
}


def test_a_legal_log_is_legal() -> None:
    """All the pieces that the others are made of, put together rightly."""
    log = Log()
    log.worker()
    log.plan({"name": "a"}, {"name": "b", "needs": ("a",)})
    log.claim()
    log.start()
    log.wait(100)
    log.renew()
    log.succeed()
    log.queue("b")
    log.settle()
    log.claim("b")
    log.start("b")
    log.succeed("b")
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")
    log.settle()
    log.run("REPORTED", "statuses_published", "reporter", conclusion="SUCCESS")
    log.settle()

    log.checker.check_end()
    assert log.checker.is_over("r")


@pytest.mark.parametrize(("invariant", "case"), CASES, ids=[f"{name}: {case.__name__}" for name, case in CASES])
def test_what_breaks_a_promise_is_reported_under_its_name(invariant: str, case: Case) -> None:
    """One step too far, and the right reason for it."""
    with pytest.raises(Violation) as raised:
        case(Log())

    assert raised.value.invariant == invariant, raised.value


def test_every_promise_can_be_broken() -> None:
    """Either by a log that is written by hand, or by a mistake that is planted in the real code, or right here."""
    planted = {json.loads(line)["invariant"] for line in TABLE.read_text().splitlines()}
    ours = {module.__name__ for module in (illegal_job_order, illegal_leases, illegal_runs, illegal_worker_failures)}
    assert ours == {case.__module__ for _, case in CASES}
    shown = {name for name, _ in CASES} | planted | {"overlap", "stopped", "unowned", "told", "error", "log", "record"}

    assert set(INVARIANTS) == shown


def test_an_attempt_that_runs_twice_is_found() -> None:
    """Two runners that execute one attempt at the same time, whatever the log says."""
    simulation = Simulation(structs.replace(draw_scenario(5, hours=0.1), has_clock_jumps=False))
    simulation.executions.executing["r/a.1"] = {(1, "r0")}
    simulation.executions.record_start("r/a.1", 2, "r1")

    assert simulation.run().invariant == "overlap"


def test_what_begins_without_a_lease_is_found() -> None:
    """Nobody was given it, and somebody works on it."""
    simulation = Simulation(structs.replace(draw_scenario(5, hours=0.1), has_clock_jumps=False))
    simulation.executions.record_start("r/a.1", 1, "r0")

    assert simulation.run().invariant == "unowned"


def test_an_end_that_nobody_hears_of_is_found() -> None:
    """A job ended long ago, and its lease is still thought to be live."""
    simulation = Simulation(draw_scenario(5, hours=0.1))
    simulation.executions.unreported_ends["r/a.1", 1] = "r0"
    simulation.executions.executing["r/b.1"] = {(1, "r1")}  # So that it goes on for a while.

    assert simulation.run().invariant == "told"


def test_an_error_that_was_only_written_down_is_found() -> None:
    """Whoever catches an error of ours and goes on hides it from everybody who does not read the log."""
    simulation = Simulation(draw_scenario(5, hours=0.1))
    simulation._loop.call_outside(10.0, lambda: LOGGER.error("an error of ours"))

    assert simulation.run().invariant == "error"


def test_a_runner_that_did_not_stop_is_found() -> None:
    """It says that it stopped, and what it should have stopped still runs."""
    simulation = Simulation(draw_scenario(5, hours=1.0))

    def record_end(
        attempt_id: str, number: int, worker_id: str, exit_code: int | None, *, is_rule: bool = False
    ) -> None:
        if exit_code is not None:
            simulation.executions.exit_codes[attempt_id, number] = exit_code

    simulation.executions.record_end = record_end  # type: ignore[method-assign]

    assert simulation.run().invariant == "stopped"


def test_a_log_that_is_changed_afterwards_is_found() -> None:
    """What was committed is never written again."""
    simulation = Simulation(draw_scenario(5, hours=1.0))
    simulation._database.log = lambda: simulation.log[1:]  # type: ignore[method-assign]

    assert simulation.run().invariant == "log"


def test_a_record_that_the_log_does_not_tell_is_found() -> None:
    """Both are written together, or neither is."""
    simulation = Simulation(draw_scenario(5, hours=1.0))
    simulation._database.record = lambda id: None  # type: ignore[method-assign]

    assert simulation.run().invariant == "record"


def test_the_checker_knows_only_the_documents() -> None:
    """It would believe the same mistakes if it shared code with what it checks."""
    for name in INDEPENDENT_MODULES:
        tree = ast.parse(Path(history_checker.__file__).with_name(f"{name}.py").read_text())
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        ours = {module for module in modules if module.startswith("deltaci")}

        assert ours <= {f"deltaci.simulation.checker.{module}" for module in INDEPENDENT_MODULES}, name
