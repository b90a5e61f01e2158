"""The checker finds every kind of violation: each invariant has a log that breaks it, and a legal log breaks none."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from msgspec import structs

from deltaci.simulation.checker import history_checker
from deltaci.simulation.checker.executions import ExecutionChecker
from deltaci.simulation.checker.history_checker import INVARIANTS, Violation
from deltaci.simulation.history import LOGGER, Simulation
from deltaci.simulation.scenario import draw_scenario
from tests.simulation import illegal_job_order, illegal_leases, illegal_runs, illegal_worker_failures
from tests.simulation.log_builder import CASES, Case, LogBuilder
from tests.simulation.planted import TABLE

# The modules that know only the documents and the log.
INDEPENDENT_MODULES = {
    "acknowledgements",
    "executions",
    "history_checker",
    "job_order",
    "leases",
    "optional_jobs",
    "tracked",
    "transitions",
    "worker_failures",
}


def test_a_legal_log_is_legal() -> None:
    """The steps that the illegal logs are made of, in a legal order."""
    log = LogBuilder()
    log.worker()
    log.plan({"name": "a"}, {"name": "b", "needs": ("a",)})
    log.claim()
    log.start()
    log.wait(100)
    log.renew()
    log.succeed()
    log.queue("b")
    log.commit()
    log.claim("b")
    log.start("b")
    log.succeed("b")
    log.run("VALIDATING", "all_jobs_done")
    log.run("SUCCESS", "all_required_succeeded")
    log.commit()
    log.run("REPORTED", "statuses_published", "reporter", conclusion="SUCCESS")
    log.commit()

    log.checker.check_end()
    assert log.checker.is_over("r")


@pytest.mark.parametrize(("invariant", "case"), CASES, ids=[f"{name}: {case.__name__}" for name, case in CASES])
def test_a_violation_is_reported_under_its_invariant(invariant: str, case: Case) -> None:
    with pytest.raises(Violation) as raised:
        case(LogBuilder())

    assert raised.value.invariant == invariant, raised.value


def test_every_invariant_can_be_broken() -> None:
    """By a log that is built by hand, by a mistake that is planted in the real code, or by a test in this file."""
    planted = {json.loads(line)["invariant"] for line in TABLE.read_text().splitlines()}
    own_modules = {
        module.__name__ for module in (illegal_job_order, illegal_leases, illegal_runs, illegal_worker_failures)
    }
    assert own_modules == {case.__module__ for _, case in CASES}
    covered = (
        {name for name, _ in CASES}
        | planted
        | {"overlap", "group-overlap", "stopped", "unowned", "told", "error", "log", "record"}
    )

    assert set(INVARIANTS) == covered


def test_two_executions_of_one_attempt_are_found() -> None:
    """Two runners execute one attempt at the same time, whatever the log says."""
    simulation = Simulation(structs.replace(draw_scenario(5, hours=0.1), has_clock_jumps=False))
    simulation.executions.executing["r/a.1"] = {(1, "r0")}
    simulation.executions.record_start("r/a.1", 2, "r1")

    assert simulation.run().invariant == "overlap"


@pytest.mark.parametrize("is_forged", [False, True])
def test_executions_of_two_attempts_of_one_group_are_found(is_forged: bool) -> None:
    """A runner still executes a cancelled deployment while another one begins, whatever the log says.

    After a forged result, the log cannot know that it does.
    """
    log = LogBuilder()
    log.plan({"name": "a", "group": "g"}, {"name": "b", "group": "g"}, {"name": "c", "group": "other"})
    violations: list[Violation] = []
    executions = ExecutionChecker(log.checker, lambda _: None, violations.append, has_clock_jumps=False)
    if is_forged:
        executions.mark_forged("r/a.1", 1)

    executions.record_start("r/a.1", 1, "w1")
    executions.record_start("r/b.1", 1, "w2")
    executions.record_end("r/a.1", 1, "w1", None)
    executions.record_end("r/b.1", 1, "w2", None)
    executions.record_start("r/b.1", 1, "w2")
    executions.record_start("r/c.1", 1, "w3")

    # The log has no leases for these executions, which is another violation.
    overlaps = [violation for violation in violations if violation.invariant != "unowned"]
    assert [violation.invariant for violation in overlaps] == ([] if is_forged else ["group-overlap"])


def test_a_start_without_a_lease_is_found() -> None:
    """A process starts for an attempt that was never leased."""
    simulation = Simulation(structs.replace(draw_scenario(5, hours=0.1), has_clock_jumps=False))
    simulation.executions.record_start("r/a.1", 1, "r0")

    assert simulation.run().invariant == "unowned"


def test_an_unreported_end_is_found() -> None:
    """A job ended long ago, but its lease is still live."""
    simulation = Simulation(draw_scenario(5, hours=0.1))
    simulation.executions.unreported_ends["r/a.1", 1] = "r0"
    simulation.executions.executing["r/b.1"] = {(1, "r1")}  # So that the simulation continues for a while.

    assert simulation.run().invariant == "told"


def test_a_logged_error_is_found() -> None:
    """An internal error that is caught and logged would otherwise stay unnoticed."""
    simulation = Simulation(draw_scenario(5, hours=0.1))
    simulation._loop.call_outside(10.0, lambda: LOGGER.error("internal error"))

    assert simulation.run().invariant == "error"


def test_a_job_that_did_not_stop_is_found() -> None:
    """The runner reports that it stopped, but its process still runs."""
    simulation = Simulation(draw_scenario(5, hours=1.0))

    def record_end(
        attempt_id: str, lease_number: int, worker_id: str, exit_code: int | None, *, is_rule: bool = False
    ) -> None:
        if exit_code is not None:
            simulation.executions.exit_codes[attempt_id, lease_number] = exit_code

    simulation.executions.record_end = record_end  # type: ignore[method-assign]

    assert simulation.run().invariant == "stopped"


def test_a_changed_log_is_found() -> None:
    """Committed events are never written again."""
    simulation = Simulation(draw_scenario(5, hours=1.0))
    simulation._database.log = lambda: simulation.log[1:]  # type: ignore[method-assign]

    assert simulation.run().invariant == "log"


def test_a_record_that_disagrees_with_the_log_is_found() -> None:
    """Records and events are written together, or neither is."""
    simulation = Simulation(draw_scenario(5, hours=1.0))
    simulation._database.record = lambda record_id: None  # type: ignore[method-assign]

    assert simulation.run().invariant == "record"


def test_the_checker_imports_nothing_outside_itself() -> None:
    """If it shared code with what it checks, it would share its mistakes."""
    for name in INDEPENDENT_MODULES:
        tree = ast.parse(Path(history_checker.__file__).with_name(f"{name}.py").read_text())
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        own_modules = {module for module in modules if module.startswith("deltaci")}

        assert own_modules <= {f"deltaci.simulation.checker.{module}" for module in INDEPENDENT_MODULES}, name
