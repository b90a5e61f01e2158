"""`deltaci up`: the first thing that anybody sees."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from deltaci.cli.app import app
from tests.support.plain_http import NO_TLS


def test_up_shows_a_run_that_ends_well_and_leaves_a_log_that_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first minute decides whether there is a second one."""
    monkeypatch.chdir(tmp_path)

    shown = CliRunner().invoke(app, ["up", "--once"])

    assert shown.exit_code == 0, shown.output
    assert "run-1 is REPORTED, its status SUCCEEDED" in shown.stdout
    for log in ("events.jsonl", "transitions.jsonl"):
        assert CliRunner().invoke(app, ["verify", f".state/{log}"]).exit_code == 0


def test_up_prints_a_link_that_signs_in(tmp_path: Path) -> None:
    """From the command to the first page it is one click."""
    words = [sys.executable, "-m", "deltaci", "up", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        [link] = [found[1] for found in (re.search(r"signed in: (\S+)", line) for line in _until(up)) if found]
        url, _, token = link.partition("/sign-in#token=")
        with httpx.Client(verify=NO_TLS, base_url=url, trust_env=False, timeout=30) as http:
            answer = http.post("/sign-in", data={"key": token}, headers={"Origin": url})
            assert answer.headers["location"] == "/runs", answer.text
            assert "run-1" in http.get("/runs").text
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0


def _until(up: subprocess.Popen[str]) -> Iterator[str]:
    assert up.stdout is not None
    for line in up.stdout:
        yield line
        if "Ctrl-C stops it" in line:
            return
    raise AssertionError("it ended by itself")


def test_version_and_help_are_there() -> None:
    """People ask a command what it is before they trust it."""
    version, help_ = CliRunner().invoke(app, ["--version"]), CliRunner().invoke(app, ["--help"])

    assert version.stdout.startswith("deltaci ")
    assert {"up", "verify"} <= set(help_.stdout.split())
