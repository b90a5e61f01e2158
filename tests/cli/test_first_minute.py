"""The first minute with real processes: `deltaci up`, and then every command just works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import ROOT

PATIENCE_SECONDS = 90
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("DELTACI_")}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which `deltaci up` runs."""
    up = subprocess.Popen(
        [sys.executable, "-m", "deltaci", "up"],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert up.stdout is not None
    try:
        for line in up.stdout:
            if b"Ctrl-C stops it" in line:
                break
        yield tmp_path
    finally:
        up.send_signal(signal.SIGINT)
        up.stdout.close()
        up.wait(PATIENCE_SECONDS)


def deltaci(folder: Path, *words: str) -> str:
    """What a command prints that goes well."""
    done = subprocess.run(
        [sys.executable, "-m", "deltaci", *words],
        cwd=folder,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT / "src"), "USER": "ada"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_right_after_up_every_command_just_works(folder: Path) -> None:
    """No address, no key, no configuration: a run of real processes, its log, its files, its proof."""
    work = {
        "steps": ["mkdir out", "echo hello $INPUT_WHO | tee out/greeting", 'echo "[1, 2]" > result.json'],
        "executor": "process",
        "artifacts": [{"path_glob": "out/*"}],
        "output_path": "result.json",
    }
    template = {"plan": {"jobs": [{"name": "greet", "work": work}]}, "inputs": {"who": {"default": "you"}}}
    (folder / "greet.json").write_text(json.dumps(template))

    [first] = json.loads(deltaci(folder, "runs", "--json"))
    assert first["status"] == "SUCCEEDED"
    deltaci(folder, "template", "save", "greet", "greet.json")
    told = deltaci(folder, "submit", "--template", "greet", "--input", "who=ada", "--follow")
    run = told.splitlines()[0]

    assert "✓ SUCCEEDED" in told.splitlines()[-1]
    assert "hello ada" in deltaci(folder, "logs", f"{run}/greet").splitlines()
    assert json.loads(deltaci(folder, "outputs", run, "--json")) == {"greet": [1, 2]}
    deltaci(folder, "artifacts", "get", run, "-o", "got")
    assert (folder / "got" / "greet.1" / "out" / "greeting").read_text() == "hello ada\n"
    assert "wall_seconds" in deltaci(folder, "costs", run)
    assert "greet" in deltaci(folder, "explain", f"{run}/greet.1")
    deltaci(folder, "events", "export", "--run", run, "-o", "events.jsonl")
    assert "legal: " in deltaci(folder, "verify", "events.jsonl")
