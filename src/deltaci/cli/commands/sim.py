"""`deltaci sim`: simulate whole deployments with faults in virtual time, once for each seed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command("sim")
def sim_command(
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.0, help="Run for this many minutes instead.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0.1, max=1000.0, help="Length of each history in virtual hours.")] = 6.0,
    runs: Annotated[float, typer.Option(min=0.0, max=100.0, help="Runs started per hour.")] = 2.0,
    mix: Annotated[Path | None, typer.Option(help="Play the scenario in this file instead.", exists=True)] = None,
    shrinks: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Shrink a history that breaks an invariant.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each history, and the summary, as a line of JSON.")
    ] = False,
) -> None:
    """Simulate servers, runners, users and faults in virtual time, and check every event.

    The code of servers and runners is the real one; machines, network, database and clocks are simulated. A seed always
    gives the same history. A history that breaks an invariant is shrunk and reported with the command that repeats it;
    the exit code is then 1.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The iteration order of sets of strings is part of a history.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "deltaci", *sys.argv[1:]], environment)
    try:
        from deltaci.simulation.report import BadScenario, play, read_scenario, scenarios
    except ModuleNotFoundError as missing:
        typer.echo(f"deltaci sim: {missing.name} is not installed; run: pip install 'deltaci[sim]'", err=True)
        raise typer.Exit(2) from None
    try:
        chosen = [read_scenario(mix)] if mix is not None else scenarios(seed, seeds, minutes, hours, runs)
    except BadScenario as bad:
        typer.echo(f"deltaci sim: {bad}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(1 if play(chosen, shrinks=shrinks and mix is None, as_json=as_json).broken else 0)
