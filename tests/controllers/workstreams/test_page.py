"""The first workstream of docs/workstreams.md, as a newcomer types it: real processes, real git."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("deltaci.controllers.workstreams.controller")

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "workstreams.md").read_text("utf-8")
FIRST = PAGE.partition("## The first one")[2].partition("\n## ")[0]
WAIT_SECONDS = 120


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Somebody with a command `deltaci`, a git identity, and `deltaci up` in a first terminal."""
    program = tmp_path / "bin" / "deltaci"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m deltaci "$@"\n')
    program.chmod(0o755)
    person = {"NAME": "Ada", "EMAIL": "ada@example.org"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DELTACI_", "GIT_"))},
        **{f"GIT_{role}_{what}": said for role in ("AUTHOR", "COMMITTER") for what, said in person.items()},
        "HOME": str(tmp_path),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    up = subprocess.Popen(["deltaci", "up"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        assert any("Ctrl-C stops it" in line for line in up.stdout), "the server did not start"
        yield environment
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.communicate(timeout=WAIT_SECONDS)
        finally:
            up.kill()
            up.wait()


def typed() -> list[str]:
    """What the page says to type, after the server was started."""
    lines = [line.removeprefix("$ ") for line in FIRST.splitlines() if line.startswith("$ ")]
    assert lines[0] == "deltaci up"
    assert "sorry.yml" in lines[-1]
    return lines[1:-1]


def run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As a shell does it."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_the_first_workstream_is_merged(tmp_path: Path, newcomer: dict[str, str]) -> None:
    """And the second one, whose rule does not hold, is not."""
    [text] = re.findall(r"```yaml\n(.*?)```", FIRST, re.DOTALL)
    (tmp_path / "hello.yml").write_text(text)
    (tmp_path / "sorry.yml").write_text(text.replace("contains: thank", "contains: sorry"))

    said = [run(command, tmp_path, newcomer) for command in typed()]
    sorry = run("deltaci ws create sorry.yml --wait", tmp_path, newcomer)
    verified = run("deltaci verify .state/transitions.jsonl", tmp_path, newcomer)

    assert [each.returncode for each in said] == [0] * len(said), [
        (each.args, each.stdout, each.stderr) for each in said
    ]
    assert said[-1].stdout == "hello\nthank you\n"
    assert "hello ✓ completed" in said[-2].stdout
    assert "merge: squash: merged into main as" in said[-2].stdout
    assert sorry.returncode == 1, sorry.stdout + sorry.stderr
    assert "thank: rule" in sorry.stdout
    assert verified.returncode == 0, verified.stdout
