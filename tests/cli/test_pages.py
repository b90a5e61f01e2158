"""The pages about the command line and the client say what is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deltaci.cli.registry import COMMANDS, loaded
from tests.cli.terminal import ROOT, Terminal


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_line_of_the_list_is_the_first_of_the_help(name: str) -> None:
    """The list is shown without importing the commands, so it could be wrong without being noticed."""
    first = " ".join(loaded(name).help.split("\n\n")[0].split())

    assert first.startswith(COMMANDS[name].line.rstrip("."))


WITHOUT_EXAMPLES = ("Servers", "Verification")


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.panel not in WITHOUT_EXAMPLES])
def test_every_command_has_an_example(name: str) -> None:
    """People read examples first."""
    command = loaded(name)
    for each in getattr(command, "commands", {}).values() or [command]:
        assert re.search(rf"Examples?:\n\n +deltaci {name}", each.help), each.name


def test_the_plan_on_the_page_is_one(terminal: Terminal) -> None:
    """Whoever copies it must not be refused."""
    [plan] = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "cli.md").read_text("utf-8"), re.DOTALL)

    run = terminal.submit(plan=json.loads(plan))

    assert [job["name"] for job in terminal.json("show", run)["jobs"]] == ["build", "release gate", "deploy"]
    assert "release gate" in terminal.text("show", run)
    terminal.text("cancel", run)


def test_the_programs_on_the_clients_page_run(terminal: Terminal, tmp_path: Path) -> None:
    """As they stand."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text("utf-8"), re.DOTALL)
    environment = {"DELTACI_SERVER": terminal.hosted.url, "DELTACI_KEY": terminal.hosted.token()}
    said = []
    for program in programs:
        (tmp_path / "program.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        said.append(done.stdout)

    assert said[0].splitlines()[:2] == ["WAITING_APPROVAL and ['gate'] decided", "SUCCEEDED ['gate', 'check']"]
    assert said[1] == "3 runs\n"
