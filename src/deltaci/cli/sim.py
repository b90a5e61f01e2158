"""`deltaci sim`: whole deployments under virtual time, with everything that can go wrong, one seed after the other."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from deltaci.sim.coverage import EVERY, unvisited
from deltaci.sim.law import Edge
from deltaci.sim.mix import Mix, drawn
from deltaci.sim.shrink import Shrinker, in_words
from deltaci.sim.world import History, World

app = typer.Typer()

FOLDER: Final = Path(".state/sim")  # Where the short forms of broken histories are kept.


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


@app.command("sim")
def sim_command(
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many of them, one after the other.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.0, help="Go on for so long instead.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0.1, max=1000.0, help="How long each history is, in its own time.")] = 6.0,
    mix: Annotated[Path | None, typer.Option(help="Repeat the history of this file instead.", exists=True)] = None,
    shrinks: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Look for a shorter history that breaks the same promise.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON for each history, and one for all of them.")
    ] = False,
) -> None:
    """Let servers, runners and people live through faults in virtual time, and check every step.

    The servers are the real ones: write path, timers and protocol. One seed gives one history, byte for byte. A history
    that breaks a promise is made as short as it goes and reported with the command that repeats it; the exit code is 1.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order in which Python walks through sets of texts is part of a history.
        os.execve(sys.executable, [sys.executable, "-m", "deltaci.main", *sys.argv[1:]], _environment())
    histories: list[History] = []
    edges: set[Edge] = set()
    for each in _mixes(seed, seeds, minutes, hours, mix):
        world = World(each)
        history = world.run()
        histories.append(history)
        edges |= history.edges
        _tell(history, each, as_json=as_json)
        if history.invariant and mix is not None:
            _explain(each, world, as_json=as_json)
        elif history.invariant and shrinks:
            _shrink(each, history, as_json=as_json)
    summary = _summary(histories, edges)
    _sum_up(summary, as_json=as_json)
    raise typer.Exit(1 if summary.broken else 0)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": "0"}


def _mixes(seed: int, seeds: int, minutes: float, hours: float, mix: Path | None) -> Iterator[Mix]:
    if mix is not None:
        yield msgspec.json.decode(mix.read_bytes(), type=Mix)
        return
    until = time.monotonic() + minutes * 60
    number = seed
    while (time.monotonic() < until) if minutes else (number < seed + seeds):
        yield drawn(number, hours)
        number += 1


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
    for each in summary.unvisited:
        print(f"  not taken: {each}")
