"""`deltaci completion`: print a shell completion script."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

app = typer.Typer(add_completion=False)

VARIABLE = "_DELTACI_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@app.command("completion")
def completion_command(
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", autocompletion=lambda: list(SHELLS))
    ],
) -> None:
    """Print a shell completion script for commands, options and run ids.

    Examples:

      bash:  eval "$(deltaci completion bash)"   in ~/.bashrc

      zsh:   eval "$(deltaci completion zsh)"    in ~/.zshrc, after compinit

      fish:  deltaci completion fish > ~/.config/fish/completions/deltaci.fish
    """
    if shell not in SHELLS:
        print(f"deltaci completion: unsupported shell {shell!r}; expected bash, zsh or fish", file=sys.stderr)
        raise typer.Exit(2)
    print(get_completion_script(prog_name="deltaci", complete_var=VARIABLE, shell=shell))
