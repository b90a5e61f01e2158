"""Shell completion, as the shells ask for it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deltaci.cli.registry import COMMANDS
from tests.cli.terminal import ROOT, Terminal
from tests.client.hosted import gate, plan

PATIENCE_SECONDS = 60
MOST_SECONDS = 15


@pytest.fixture
def shims(tmp_path: Path) -> Path:
    """A folder with a command `deltaci`, as an installation has one."""
    return folder_with_command(tmp_path, "-m deltaci")


@pytest.fixture
def patient_shims(tmp_path: Path) -> Path:
    """The same, with a command that waits longer than a second for the server, which may be busy here."""
    start = "from deltaci.cli import completers; completers.SECONDS = 60.0; from deltaci.cli.app import main; main()"
    return folder_with_command(tmp_path, f'-c "{start}"')


def folder_with_command(folder: Path, words: str) -> Path:
    """Write a command `deltaci` that starts Python with these words, and return its folder."""
    program = folder / "deltaci"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
    program.chmod(0o755)
    return folder


def run_in(shell: list[str], script: str, folder: Path, shims: Path, **more: str) -> str:
    """What a shell says to a script."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DELTACI_")}
    environment |= {"PATH": f"{shims}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), **more}
    done = subprocess.run(
        [*shell, script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert not done.stderr
    return done.stdout


def completed(folder: Path, shims: Path, *words: str, **more: str) -> list[str]:
    """What bash offers behind these words, the last of which is being written."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
        eval "$(deltaci completion bash)"
        COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
        $(complete -p deltaci | sed 's/.*-F \\([^ ]*\\) .*/\\1/') deltaci '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return run_in(["bash", "--norc", "-c"], script, folder, shims, **more).split()


def test_bash_completes_commands_and_options(tmp_path: Path, shims: Path) -> None:
    """Without a server; and what is only listed is not imported."""
    assert completed(tmp_path, shims, "deltaci", "") == list(COMMANDS)
    assert completed(tmp_path, shims, "deltaci", "rej") == ["reject"]
    assert completed(tmp_path, shims, "deltaci", "template", "s") == ["show", "save"]
    assert "--branch" in completed(tmp_path, shims, "deltaci", "runs", "--b")
    assert completed(tmp_path, shims, "deltaci", "events", "export", "--format", "t") == ["transitions"]
    assert completed(tmp_path, shims, "deltaci", "show", "") == []


def test_bash_completes_ids_from_the_server(terminal: Terminal, patient_shims: Path) -> None:
    """Runs, and behind a slash their jobs."""
    run = terminal.submit(plan=plan(gate("ok"), gate("sure")))

    assert run in completed(terminal.folder, patient_shims, "deltaci", "show", "r")
    assert completed(terminal.folder, patient_shims, "deltaci", "logs", f"{run}/o") == [f"{run}/ok"]
    assert completed(terminal.folder, patient_shims, "deltaci", "show", "x") == []
    terminal.text("cancel", run)


def test_a_server_that_says_nothing_is_not_waited_for(terminal: Terminal, shims: Path) -> None:
    """Whoever presses Tab waits for a second, and a busy machine's start of a program."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It lets everybody in, and answers nobody.
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        assert completed(terminal.folder, shims, "deltaci", "show", "r", DELTACI_SERVER=url) == []
        assert time.monotonic() - begun < MOST_SECONDS


@pytest.mark.parametrize(("shell", "check"), [("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["-n"])])
def test_every_script_can_be_read_by_its_shell(
    tmp_path: Path, shims: Path, terminal: Terminal, shell: str, check: list[str]
) -> None:
    """Where that shell is installed."""
    script = terminal.text("completion", shell)

    assert "deltaci" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([shell, *check, file], check=True, timeout=PATIENCE_SECONDS)
