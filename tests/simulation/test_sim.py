"""Histories of whole deployments in virtual time: a seed gives one history, and none breaks an invariant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest

from deltaci.simulation.checker.transitions import LEASE_TRANSITIONS, TRANSITIONS, Edge
from deltaci.simulation.coverage import ALL_EDGES, unvisited
from deltaci.simulation.history import History, Simulation
from deltaci.simulation.scenario import Scenario, draw_scenario
from deltaci.simulation.shrink import Shrinker, describe
from tests.simulation.planted import FAULTS

HOURS = 2.0
MAX_SEEDS = 300
# Together they make every transition; otherwise other seeds are tried.
COVER = (12, 30, 34, 36, 54, 93, 94, 107, 118, 141, 156, 254)
SEEDS = (*range(12), *COVER)


@cache
def played(seed: int) -> History:
    """Return the history of this seed, which is played once."""
    return Simulation(draw_scenario(seed, HOURS)).run()


@cache
def simulated(*arguments: str, hash_seed: str = "0") -> list[dict[str, object]]:
    """Return the histories that `deltaci sim` prints."""
    command = [sys.executable, "-m", "deltaci", "sim", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": hash_seed})
    assert done.returncode in (0, 1), done.stderr.decode()
    *histories, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert summary["histories"] == len(histories)
    return histories


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_breaks_no_invariant(seed: int) -> None:
    """Servers are killed between any two commits, runners die, hang and forge messages, network and clocks fail."""
    repeat = f"again: deltaci sim --seed {seed} --seeds 1 --hours {HOURS:g}"

    history = played(seed)

    assert history.invariant == "", f"{history.message}; {repeat}"


def test_a_seed_always_gives_the_same_history() -> None:
    """Byte for byte, also in another process with another hash seed."""
    one = simulated("--seed", "3", "--seeds", "2", "--hours", "2")
    other = simulated("--seed", "3", "--seeds", "2", "--hours", "2", hash_seed="7")

    assert [history["digest"] for history in one] == [history["digest"] for history in other]
    assert one[0]["digest"] != one[1]["digest"]


def test_every_transition_is_made() -> None:
    """A transition that no history makes is not tested. `deltaci sim` lists the missing ones."""
    edges: set[Edge] = set()
    for seed in (*COVER, *range(MAX_SEEDS)):
        edges |= played(seed).edges
        if not unvisited(edges):
            break

    assert unvisited(edges) == []
    assert edges <= ALL_EDGES


def test_the_checker_and_the_core_have_the_same_transitions() -> None:
    """They are written down independently, from the same documents."""
    leases = {("lease", source, to, "") for source, targets in LEASE_TRANSITIONS.items() for to in targets}

    assert set(TRANSITIONS) | leases == ALL_EDGES


def test_a_broken_scenario_is_shrunk() -> None:
    """Only what is needed for the violation is left."""
    with FAULTS["slot is not freed"].planted():
        scenario = draw_scenario(3, hours=3.0)
        history = Simulation(scenario).run()
        shrinker = Shrinker(scenario, history, max_tries=60)
        shrunk = shrinker.run()
        simulation = Simulation(msgspec.json.decode(msgspec.json.encode(shrunk), type=Scenario))
        repeated = simulation.run()

    assert history.invariant == shrinker.history.invariant == repeated.invariant == "worker"
    assert repeated.digest == shrinker.history.digest
    assert len(shrunk.actions) == 1
    assert shrunk.faults == ()
    assert shrunk.hours < 3
    assert any("worker r" in line for line in describe(shrunk, simulation.log))


def test_a_scenario_is_played_from_a_file(tmp_path: Path) -> None:
    """A scenario in a file can be edited and played."""
    file = tmp_path / "mix.json"
    file.write_bytes(msgspec.json.encode(draw_scenario(3, hours=2.0)))

    [from_file] = simulated("--mix", str(file))
    drawn_again, _ = simulated("--seed", "3", "--seeds", "2", "--hours", "2")

    assert from_file["digest"] == drawn_again["digest"]
