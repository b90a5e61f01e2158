"""Folders that are none: every command says so in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaci.cli.app import app


@pytest.mark.parametrize(
    "words",
    [
        ("token", "w1", "--data", "file/below"),
        ("server", "--data", "file", "--port", "0"),
        ("runner", "--work", "file"),
        ("runner", "--nats", "nats://h", "--nats-credentials", "missing"),
        ("secret", "list", "--data", "file/below"),
        ("up", "--once"),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_that_is_a_file_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The first thing that goes wrong on another machine; a traceback would hide it."""
    (tmp_path / "file").touch()
    (tmp_path / ".state").touch()
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(app, list(words))

    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert len(result.stderr.strip().splitlines()) == 1
