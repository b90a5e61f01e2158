"""The shells in which steps run: a known name, or a command template in which `{0}` stands for the script file."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.sandbox.cell import SHELL
from deltaci.runner.workspace.layout import Layout
from deltaci.runner.workspace.safe_fs import write_file

MAX_ARGUMENT_BYTES: Final = 100_000  # The kernel takes no argument of more than 128 KiB.
SHELLS: Final = {
    "bash": ("bash --noprofile --norc -eo pipefail {0}", ".sh"),
    "sh": ("sh -e {0}", ".sh"),
    "python": ("python {0}", ".py"),
    "pwsh": ("pwsh -NoLogo -NoProfile -NonInteractive -File {0}", ".ps1"),
}
_LARGE_SCRIPT_SHELL: Final = "bash -eo pipefail {0}"


class ShellCommand(msgspec.Struct, frozen=True):
    """A script for a cell, and the shell with which the cell runs it."""

    script: str
    shell: tuple[str, ...] = SHELL


def shell_command(shell: str, script: str, layout: Layout, step_index: int) -> ShellCommand:
    """Return the command that runs a script in a shell.

    The script is written to a file if the shell takes a file, or if it is too large for an argument.
    Raise `Refused` if the shell is neither in `SHELLS` nor a command with `{0}` for the script.
    """
    shell_name = shell.strip()
    if not shell_name:
        if len(script.encode("utf-8", "surrogatepass")) <= MAX_ARGUMENT_BYTES:
            return ShellCommand(script)
        shell_name = _LARGE_SCRIPT_SHELL
    command_template, file_suffix = SHELLS.get(shell_name, (shell_name, ""))
    if "{0}" not in command_template or "\0" in command_template:
        raise Refused(
            "bad_spec",
            f"the shell {shell[:80]!r} is not known; use {', '.join(SHELLS)}, or a command with {{0}} for the script",
        )
    try:
        template_words = shlex.split(command_template)
    except ValueError as error:
        raise Refused("bad_spec", f"the shell {shell[:80]!r} cannot be read: {error}") from None
    script_path = str(
        write_file(layout.root, f"{layout.relative(layout.temp)}/script-{step_index}{file_suffix}", script)
    )
    return ShellCommand(
        "exec " + shlex.join(argument.replace("{0}", script_path) for argument in template_words), ("sh", "-c")
    )
