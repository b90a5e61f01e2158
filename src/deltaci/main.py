"""The command `deltaci`, and the only place that wires concrete parts together."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from deltaci import __version__

# Each command is in a module of its own below `cli`, which is imported when it is called: starting a runner should not
# wait for what only the simulator needs.
COMMANDS: Final = {
    "up": "up",
    "server": "server",
    "token": "server",
    "runner": "runner",
    "secret": "secret",
    "verify": "verify",
    "conformance": "conformance",
    "sim": "sim",
}


class Commands(TyperGroup):
    """The commands, each imported when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of them, or none."""
        if cmd_name not in COMMANDS:
            return None
        found = get_command(import_module(f"deltaci.cli.{COMMANDS[cmd_name]}").app)
        # A module with several commands is a group of them, unless it is one in its own right.
        inside = getattr(found, "commands", {}).get(cmd_name)
        found = inside or found
        found.name = cmd_name
        return found


app = typer.Typer(
    name="deltaci",
    cls=Commands,
    help="Delta CI: a self-hosted CI and job orchestrator whose every step can be proved legal.",
    no_args_is_help=True,
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
    try:
        app()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
