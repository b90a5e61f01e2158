"""Whatever goes wrong, and however two servers interleave: a forge never goes back, and ends up with the truth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core import run
from deltaci.forges.http import Outlet, Unreachable
from deltaci.forges.status_state import (
    Answer,
    Call,
    Done,
    Later,
    Mark,
    Patience,
    Report,
    Tell,
    Told,
    failed,
    next_step,
    pause,
    succeeded,
)
from deltaci.storage.memory import MemoryStore
from tests.contract.places import Place
from tests.forges.reporting import Desk, desk, turns
from tests.lab import TENANT, Lease

ORDER = ("waiting to start", "under way")


class Mouth(Outlet):
    """The way to a forge that takes a while, and loses questions and answers. `effects` is what the forge has heard."""

    def __init__(self, random: Random, effects: list[tuple[str, str]]) -> None:
        super().__init__()
        self._random = random
        self._effects = effects

    async def say(self, call: Call) -> Answer:
        """Perhaps it is heard, and perhaps it is answered."""
        await turns(self._random.randrange(20))
        luck = self._random.random()
        if luck < 0.15:
            raise Unreachable("the question is lost")
        if luck < 0.25:
            return Answer(503)
        self._effects.append((call.body["target_url"].rpartition("/")[2], call.body["description"]))
        await turns(self._random.randrange(20))
        if luck < 0.4:
            raise Unreachable("the answer is lost")
        return Answer(201)


async def history(random: Random, folder: Path) -> tuple[list[tuple[str, str]], dict[str, str], list[str]]:
    """Some runs of one commit, told by two servers: what the forge heard, how each was reported, and their ids."""
    place = Place("memory", lambda _: shared)
    shared = MemoryStore(clock=place.now)
    effects: list[tuple[str, str]] = []
    quick = Patience(first_seconds=0.001, most_seconds=0.005, hold_seconds=30)
    mouths = [Mouth(random, effects), Mouth(random, effects)]
    async with (
        desk(place, folder, patience=quick, outlet=mouths[0]) as one,
        desk(place, folder, patience=quick, outlet=mouths[1]) as two,
    ):
        await one.notebook.write("p", "github", TENANT, repository="o/h", api_url="https://x", api_token="t")
        ids: list[str] = []
        held: list[Lease] = []
        for _ in range(random.randrange(1, 10)):
            at = random.choice((one, two))
            await turns(random.randrange(60))
            await _happen(random, at, ids, held)
        if not ids:
            await one.begin("r0")
            ids.append("r0")
        for id in ids:
            if not run.is_over(await one.server.find(id, run.Run)):
                await one.server.do(run.Cancel(id=id, actor="user:ada"))
        while held:
            await one.end(held.pop())
        told = {id: str((await one.reported(id)).metadata.get("told")) for id in ids}
        return effects, told, ids


async def _happen(random: Random, at: Desk, ids: list[str], held: list[Lease]) -> None:
    match random.choice(("begin", "work", "end")):
        case "begin":
            ids.append(f"r{len(ids)}")
            await at.begin(ids[-1])
        case "work":
            for claimed in await at.server.claim("w1"):
                held.append(Lease("w1", claimed.lease_id))
                await at.server.do(at.started(held[-1]))
        case "end" if held:
            await at.end(held.pop(random.randrange(len(held))), ok=random.random() < 0.5)


@pytest.mark.parametrize("seed", range(25))
def test_a_forge_never_goes_back_and_ends_up_with_the_truth(seed: int, tmp_path: Path) -> None:
    """Time is real here, so a seed does not repeat a history exactly; but each is another one."""
    effects, told, ids = asyncio.run(asyncio.wait_for(history(Random(seed), tmp_path), 30))

    steps = [(ids.index(id), ORDER.index(said) if said in ORDER else len(ORDER)) for id, said in effects]
    assert steps == sorted(steps)
    assert steps[-1] == (len(ids) - 1, len(ORDER))
    for place, id in enumerate(ids):
        is_heard = (place, len(ORDER)) in steps
        assert is_heard or told[id].startswith("superseded"), (id, told[id], effects)


# -- the decision alone

PATIENCE = Patience()
REPORT = Report(run_id="r1", commit="c", context="deltaci", state="running", description="under way")
NEWER = Mark(True, 2, "r2", 1)


@pytest.mark.parametrize(
    ("told", "mark", "step"),
    [
        (Told(), Mark(True, 1, "r1", 3), Tell),
        (Told(mark=Mark(True, 1, "r1", 2), state="pending"), Mark(True, 1, "r1", 3), Tell),
        (Told(mark=Mark(True, 1, "r1", 3), state="running"), Mark(True, 1, "r1", 3), Done),
        (Told(mark=Mark(True, 1, "r1", 4), state="success"), Mark(True, 1, "r1", 3), Done),
        (Told(mark=NEWER, state="pending"), Mark(True, 1, "r1", 3), Done),
        (Told(mark=NEWER, state="pending", is_unsure=True), Mark(True, 1, "r1", 3), Done),
        (Told(mark=Mark(True, 1, "r1", 2), tried=NEWER), Mark(True, 1, "r1", 3), Done),
        (Told(mark=Mark(True, 1, "r1", 2), tried=NEWER), NEWER, Tell),
        (Told(mark=NEWER), Mark(False, 3, "r3", 1), Done),
        (Told(mark=Mark(False, 3, "r3", 1)), NEWER, Tell),
        (Told(mark=Mark(True, 1, "r1", 3), state="running", is_unsure=True), Mark(True, 1, "r1", 3), Tell),
        (Told(mark=Mark(True, 1, "r1", 2), state="running", description="under way"), Mark(True, 1, "r1", 3), Done),
        (Told(mark=Mark(True, 1, "r0", 2), state="running", description="under way"), Mark(True, 1, "r1", 3), Tell),
        (
            Told(mark=Mark(True, 1, "r1", 1), tried=Mark(True, 1, "r1", 2), state="running", description="under way"),
            Mark(True, 1, "r1", 3),
            Tell,
        ),
        (Told(holder="other", held_until=101.0), Mark(True, 1, "r1", 3), Later),
        (Told(holder="other", held_until=100.0), Mark(True, 1, "r1", 3), Tell),
        (Told(holder="me", held_until=101.0), Mark(True, 1, "r1", 3), Tell),
        (Told(failing=Mark(True, 1, "r1", 3), next_at=101.0), Mark(True, 1, "r1", 3), Later),
        (Told(failing=Mark(True, 1, "r1", 2), next_at=101.0), Mark(True, 1, "r1", 3), Tell),
        (Told(failing=Mark(True, 1, "r1", 3), is_given_up=True), Mark(True, 1, "r1", 3), Done),
    ],
)
def test_what_is_told_next_follows_from_what_was_told(told: Told, mark: Mark, step: type) -> None:
    assert isinstance(next_step(told, mark, REPORT, "me", 100.0, PATIENCE), step)


def test_who_tells_has_a_turn_of_his_own() -> None:
    """Longer than a request can take."""
    step = next_step(Told(), Mark(True, 1, "r1", 1), REPORT, "me", 100.0, PATIENCE)

    assert isinstance(step, Tell)
    assert (step.held.holder, step.held.held_until) == ("me", 100.0 + PATIENCE.hold_seconds)
    assert not succeeded(step.held, Mark(True, 1, "r1", 1), REPORT, "7").holder


def test_another_step_is_tried_anew() -> None:
    """What kept one state from being told need not keep the next one."""
    first = Mark(True, 1, "r1", 1)
    told = Told()
    for at in range(PATIENCE.max_refusals):
        told = failed(told, first, "no", is_refused=True, pause=1.0, now=float(at), patience=PATIENCE)
    assert told.is_given_up

    after = failed(told, Mark(True, 1, "r1", 2), "no", is_refused=True, pause=1.0, now=99.0, patience=PATIENCE)

    assert (after.tries, after.refusals, after.since, after.is_given_up) == (1, 1, 99.0, False)


@given(tries=st.integers(0, 10_000), dice=st.floats(0, 1), asked=st.floats(0, 1e9))
def test_waits_are_bounded(tries: int, dice: float, asked: float) -> None:
    wait = pause(tries, Answer(503, wait_seconds=asked), dice, PATIENCE)

    assert PATIENCE.first_seconds / 2 <= wait <= max(PATIENCE.most_seconds, PATIENCE.max_wait_seconds)
    assert wait >= min(asked, PATIENCE.max_wait_seconds)
