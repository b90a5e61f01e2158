"""Histories of whole deployments in virtual time: the same seed gives the same one, and none breaks a promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from deltaci.simulation.checker.transitions import LEASE_TRANSITIONS, TRANSITIONS, Edge
from deltaci.simulation.coverage import ALL_EDGES, unvisited
from deltaci.simulation.history import Simulation
from deltaci.simulation.scenario import Scenario, draw_scenario
from deltaci.simulation.shrink import Shrinker, describe
from tests.simulation.planted import FAULTS

SEEDS = range(24)
HOURS = 3.0
MOST_SEEDS = 300
COVER = (30, 34, 54, 93, 94, 107, 118, 141, 156, 254)  # These take every step; if not, others will.


def told(*words: str, hash_seed: str = "0") -> list[dict[str, object]]:
    """The histories that the command tells."""
    command = [sys.executable, "-m", "deltaci", "sim", "--json", *words]
    done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": hash_seed})
    assert done.returncode in (0, 1), done.stderr.decode()
    *histories, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert summary["histories"] == len(histories)
    return histories


def check(seed: int) -> None:
    """It breaks no promise."""
    again = f"again: deltaci sim --seed {seed} --seeds 1 --hours {HOURS:g}"
    history = Simulation(draw_scenario(seed, HOURS)).run()
    assert history.invariant == "", f"{history.message}; {again}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_breaks_no_promise(seed: int) -> None:
    """Servers die between any two commits, runners die, hang and lie, the network and the clocks go wrong."""
    check(seed)


def test_one_seed_is_one_history() -> None:
    """Byte for byte, in another process too, whatever order Python has for its sets."""
    one = told("--seed", "3", "--seeds", "2", "--hours", "2")
    other = told("--seed", "3", "--seeds", "2", "--hours", "2", hash_seed="7")

    assert [each["digest"] for each in one] == [each["digest"] for each in other]
    assert one[0]["digest"] != one[1]["digest"]


def test_every_step_of_the_machines_is_taken() -> None:
    """What no history does, no history shows. The command lists what is missing."""
    edges: set[Edge] = set()
    for seed in (*COVER, *range(MOST_SEEDS)):
        edges |= Simulation(draw_scenario(seed, hours=2.0)).run().edges
        if not unvisited(edges):
            break

    assert unvisited(edges) == []
    assert edges <= ALL_EDGES


def test_the_checker_and_the_core_know_the_same_steps() -> None:
    """Written down twice, from the same documents."""
    leases = {("lease", source, to, "") for source, targets in LEASE_TRANSITIONS.items() for to in targets}

    assert set(TRANSITIONS) | leases == ALL_EDGES


def test_a_broken_history_is_made_short() -> None:
    """Whoever looks for the mistake should not have to read what has nothing to do with it."""
    with FAULTS["slot is not freed"].planted():
        mix = draw_scenario(3, hours=3.0)
        history = Simulation(mix).run()
        shrinker = Shrinker(mix, history, tries=60)
        short = shrinker.run()
        again = Simulation(msgspec.json.decode(msgspec.json.encode(short), type=Scenario))
        repeated = again.run()

    assert history.invariant == shrinker.history.invariant == repeated.invariant == "worker"
    assert repeated.digest == shrinker.history.digest
    assert len(short.actions) == 1
    assert short.faults == ()
    assert short.hours < 3
    assert any("worker r" in line for line in describe(short, again.log))


def test_a_history_is_repeated_from_its_file(tmp_path: Path) -> None:
    """What is drawn from a seed can be changed by hand, and told again."""
    file = tmp_path / "mix.json"
    file.write_bytes(msgspec.json.encode(draw_scenario(3, hours=2.0)))

    [again] = told("--mix", str(file))
    [drawn_again] = told("--seed", "3", "--seeds", "1", "--hours", "2")

    assert again["digest"] == drawn_again["digest"]
