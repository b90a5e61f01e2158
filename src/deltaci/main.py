"""The command `deltaci`, and the only place that wires concrete parts together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from deltaci import __version__
from deltaci.cli import conformance, runner, secret, server, sim, up, verify

app = typer.Typer(
    name="deltaci",
    help="Delta CI: a self-hosted CI and job orchestrator whose every step can be proved legal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (up, server, runner, verify, sim):
    app.registered_commands += part.app.registered_commands
app.add_typer(secret.app, name="secret")
app.add_typer(conformance.app, name="conformance")


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
