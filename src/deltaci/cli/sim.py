"""`deltaci sim`: whole deployments under virtual time, with everything that can go wrong, one seed after the other."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import msgspec
import typer

from deltaci.sim.mix import drawn
from deltaci.sim.world import History, World

app = typer.Typer()


@app.command("sim")
def sim_command(
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many of them, one after the other.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.0, help="Go on for so long instead.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0.1, max=1000.0, help="How long each history is, in its own time.")] = 6.0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each history.")] = False,
) -> None:
    """Let servers, runners and people live through faults in virtual time, and check every step.

    The servers are the real ones: write path, timers and protocol. One seed gives one history, byte for byte. A history
    that breaks a promise is reported with the command that repeats it, and the exit code is 1.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order in which Python walks through sets of texts is part of a history.
        os.execve(sys.executable, [sys.executable, "-m", "deltaci.main", *sys.argv[1:]], _environment())
    until = time.monotonic() + minutes * 60
    histories: list[History] = []
    number = seed
    while (time.monotonic() < until) if minutes else (number < seed + seeds):
        history = World(drawn(number, hours)).run()
        histories.append(history)
        number += 1
        _tell(history, hours, as_json=as_json)
    failed = [history for history in histories if history.invariant]
    if not as_json:
        simulated, spent = sum(each.hours for each in histories), sum(each.cpu_seconds for each in histories)
        faults = sum(each.faults for each in histories)
        print(
            f"{len(histories)} histories, {len(failed)} broken; {simulated:.0f} simulated hours with {faults} faults "
            f"in {spent:.1f} s of CPU: {simulated / max(spent, 1e-9):.1f} h/s"
        )
    raise typer.Exit(1 if failed else 0)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": "0"}


def _tell(history: History, hours: float, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(history).decode() + "\n")
        sys.stdout.flush()
    elif history.invariant:
        print(f"seed {history.seed}: {history.message}", flush=True)
        print(f"  again: deltaci sim --seed {history.seed} --seeds 1 --hours {hours:g}", flush=True)
    else:
        print(
            f"seed {history.seed}: legal; {history.hours:.1f} h, {history.events} events, {history.messages} messages, "
            f"{history.faults} faults, digest {history.digest}",
            flush=True,
        )
