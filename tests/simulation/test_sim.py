"""Histories of whole deployments in virtual time: the same seed gives the same one, and none breaks a promise."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from deltaci.core import lease
from deltaci.core.ids import LeaseRef
from deltaci.core.lease import Lease
from deltaci.engine.timers import Timers
from deltaci.sim.mix import drawn
from deltaci.sim.world import World

SEEDS = range(12)


def told(*words: str, hash_seed: str = "0") -> list[dict[str, object]]:
    """The histories that the command tells."""
    command = [sys.executable, "-m", "deltaci.main", "sim", "--json", *words]
    done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": hash_seed})
    assert done.returncode in (0, 1), done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_breaks_no_promise(seed: int) -> None:
    """Servers die between any two commits, runners die, hang and lie, the network and the clocks go wrong."""
    history = World(drawn(seed, hours=3.0)).run()

    assert history.invariant == "", history.message
    assert history.faults >= 60
    assert history.events > 100


def test_one_seed_is_one_history() -> None:
    """Byte for byte, in another process too, whatever order Python has for its sets."""
    one = told("--seed", "3", "--seeds", "2", "--hours", "2")
    other = told("--seed", "3", "--seeds", "2", "--hours", "2", hash_seed="7")

    assert [each["digest"] for each in one] == [each["digest"] for each in other]
    assert one[0]["digest"] != one[1]["digest"]


def found(seeds: int, first: int = 0) -> set[str]:
    """Which promises so many histories break."""
    return {World(drawn(seed, hours=2.0)).run().invariant for seed in range(first, first + seeds)} - {""}


def test_a_fence_that_lets_everybody_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator must be able to fail: without the fence a zombie finishes its successor's work."""
    real = lease.check_fence

    def forgetful(held: Lease | None, ended: Lease | None, ref: LeaseRef, worker_id: str, at: int) -> Lease:
        return held if held is not None else real(held, ended, ref, worker_id, at)

    monkeypatch.setattr(lease, "check_fence", forgetful)

    assert found(40, first=50)


def test_timers_that_stand_still_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost must come back: safety alone would not notice that nothing happens."""

    async def still(_self: Timers) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Timers, "run", still)

    assert found(5) == {"liveness"}
