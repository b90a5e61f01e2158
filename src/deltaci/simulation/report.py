"""Histories one after the other, told to people or to programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from deltaci.simulation.checker.law import Edge
from deltaci.simulation.coverage import EVERY, unvisited
from deltaci.simulation.history import History, World
from deltaci.simulation.scenario import Mix, drawn
from deltaci.simulation.shrink import Shrinker, in_words

FOLDER: Final = Path(".state/sim")  # Where the short forms of broken histories are kept.


MOST_LISTED: Final = 10


class BadMix(Exception):
    """The file is no mix."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All histories together. `unvisited` are the steps of the machines that none of them took."""

    histories: int
    broken: list[int]
    hours: float
    faults: int
    acknowledged: int
    cpu_seconds: float
    edges: int
    unvisited: list[str]


def read_mix(file: Path) -> Mix:
    """What a file says that a history is made of."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Mix)
    except (OSError, msgspec.DecodeError) as error:
        raise BadMix(f"{file} is no mix: {error}; 'deltaci sim' writes one to {FOLDER} when a seed fails") from None


def mixes(seed: int, seeds: int, minutes: float, hours: float, runs_an_hour: float) -> Iterator[Mix]:
    """Of so many seeds, or for so long."""
    until = time.monotonic() + minutes * 60
    number = seed
    while (time.monotonic() < until) if minutes else (number < seed + seeds):
        yield drawn(number, hours, runs_an_hour)
        number += 1


def tell(wanted: Iterable[Mix], *, shrinks: bool, as_json: bool) -> Summary:
    """Let them happen, and say what came of each. After Ctrl-C what there is by then is summed up."""
    histories: list[History] = []
    edges: set[Edge] = set()
    try:
        for each in wanted:
            world = World(each)
            history = world.run()
            histories.append(history)
            edges |= history.edges
            _tell(history, each, as_json=as_json)
            if history.invariant and shrinks:
                _shrink(each, history, as_json=as_json)
            elif history.invariant:
                _explain(each, world, as_json=as_json)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    summary = _summary(histories, edges)
    _sum_up(summary, as_json=as_json)
    return summary


def _shrink(mix: Mix, history: History, *, as_json: bool) -> None:
    """Make it short, keep that, and say what it is."""
    shrinker = Shrinker(mix, history)
    short = shrinker.run()
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"seed-{mix.seed}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(short)))
    if not as_json:
        print(f"  short: deltaci sim --mix {file}")
        print(f"  {shrinker.history.message}")
    world = World(short)
    world.run()
    _explain(short, world, as_json=as_json)


def _explain(mix: Mix, world: World, *, as_json: bool) -> None:
    for line in in_words(mix, world.log):
        print(f"  {line}", file=sys.stderr if as_json else sys.stdout, flush=True)


def _tell(history: History, mix: Mix, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(history).decode() + "\n")
        sys.stdout.flush()
    elif history.invariant:
        print(f"seed {history.seed}: {history.message}", flush=True)
        print(f"  again: deltaci sim --seed {history.seed} --seeds 1 --hours {mix.hours:g}", flush=True)
    else:
        print(
            f"seed {history.seed}: legal; {history.hours:.1f} h, {history.events} events, {history.messages} messages, "
            f"{history.faults} faults, digest {history.digest}",
            flush=True,
        )


def _summary(histories: list[History], edges: set[Edge]) -> Summary:
    return Summary(
        histories=len(histories),
        broken=[each.seed for each in histories if each.invariant],
        hours=sum(each.hours for each in histories),
        faults=sum(each.faults for each in histories),
        acknowledged=sum(each.acknowledged for each in histories),
        cpu_seconds=sum(each.cpu_seconds for each in histories),
        edges=len(edges & EVERY),
        unvisited=unvisited(edges),
    )


def _sum_up(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
        return
    speed = summary.hours / max(summary.cpu_seconds, 1e-9)
    print(
        f"{summary.histories} histories, {len(summary.broken)} broken; {summary.hours:.0f} simulated hours with "
        f"{summary.faults} faults in {summary.cpu_seconds:.1f} s of CPU: {speed:.1f} h/s"
    )
    print(f"{summary.edges} of {len(EVERY)} steps of the machines were taken; {summary.acknowledged} acknowledgements")
    for each in summary.unvisited[:MOST_LISTED]:
        print(f"  not taken: {each}")
    if len(summary.unvisited) > MOST_LISTED:
        print(
            f"  and {len(summary.unvisited) - MOST_LISTED} others (--json lists them all); more seeds take more steps"
        )
