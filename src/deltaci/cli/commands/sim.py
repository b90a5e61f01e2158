"""`deltaci sim`: whole deployments under virtual time, with everything that can go wrong, one seed after the other."""

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
    seeds: Annotated[int, typer.Option(min=1, help="How many of them, one after the other.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.0, help="Go on for so long instead.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0.1, max=1000.0, help="How long each history is, in its own time.")] = 6.0,
    runs: Annotated[float, typer.Option(min=0.0, max=100.0, help="How many runs people want in an hour.")] = 2.0,
    mix: Annotated[Path | None, typer.Option(help="Repeat the history of this file instead.", exists=True)] = None,
    shrinks: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Look for a shorter history that breaks the same promise.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON for each history, and one for all of them.")
    ] = False,
) -> None:
    """Let servers, runners and people live through faults in virtual time, and check every step.

    The servers and the runners are the real ones, on machines that are made up. One seed gives one history, byte for
    byte. A history that breaks a promise is made as short as it goes and reported with the command that repeats it; the
    exit code is 1.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order in which Python walks through sets of texts is part of a history.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "deltaci", *sys.argv[1:]], environment)
    try:
        from deltaci.simulation.report import BadMix, mixes, read_mix, tell
    except ModuleNotFoundError as missing:
        typer.echo(f"deltaci sim: {missing.name} is not installed; run: pip install 'deltaci[sim]'", err=True)
        raise typer.Exit(2) from None
    try:
        wanted = [read_mix(mix)] if mix is not None else mixes(seed, seeds, minutes, hours, runs)
    except BadMix as bad:
        typer.echo(f"deltaci sim: {bad}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(1 if tell(wanted, shrinks=shrinks and mix is None, as_json=as_json).broken else 0)
