"""The command `deltaci`: its options, and exit codes after Ctrl-C and a closed pipe."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from deltaci import __version__
from deltaci.cli.registry import LazyCommands

COMPLETING: Final = "_DELTACI_COMPLETE"  # How a shell asks what could come next.


app = typer.Typer(
    name="deltaci",
    cls=LazyCommands,
    help="Delta CI: a self-hosted CI system and job orchestrator with verifiable event logs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_asked: bool) -> None:
    if is_asked:
        print(f"deltaci {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line. Ctrl-C and a closed pipe are no accidents."""
    if COMPLETING in os.environ:
        completion_init()
    try:
        app(prog_name="deltaci")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
