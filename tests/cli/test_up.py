"""`deltaci up`: the first thing that anybody sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaci.main import app


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


def test_version_and_help_are_there() -> None:
    """People ask a command what it is before they trust it."""
    version, help_ = CliRunner().invoke(app, ["--version"]), CliRunner().invoke(app, ["--help"])

    assert version.stdout.startswith("deltaci ")
    assert {"up", "verify"} <= set(help_.stdout.split())
