"""`deltaci secret`: values come in by stdin only, and never come out."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaci.blobs.store import FolderBlobs
from deltaci.main import app
from deltaci.server.credentials import server_key
from deltaci.server.secrets import Secrets


def said(data: Path, *words: str, value: str | bytes = "") -> tuple[int, str]:
    """The exit code and everything that was shown."""
    shown = CliRunner().invoke(app, ["secret", *words, "--data", str(data)], input=value)
    return shown.exit_code, shown.output


@pytest.mark.parametrize(
    ("words", "value", "told"),
    [
        (["set", "a-b"], "hunter2", "no name for a secret"),
        (["set", "A"], "abc", "at least 4 characters"),
        (["set", "A"], "", "at least 4 characters"),
        (["set", "A"], b"\xff\xfe hunter2", "decode"),
        (["remove", "A"], "", "no secret 'A'"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_kept(tmp_path: Path, words: list[str], value: str, told: str) -> None:
    """Without the value in it."""
    code, shown = said(tmp_path, *words, value=value)

    assert code == 1
    assert told in shown
    assert "hunter2" not in shown
    assert said(tmp_path, "list") == (0, "")


def test_a_value_is_no_argument(tmp_path: Path) -> None:
    """Arguments can be read by everybody on the machine."""
    assert said(tmp_path, "set", "A", "hunter2")[0] == 2


def test_what_is_set_is_listed_sealed_and_removed(tmp_path: Path) -> None:
    """By tenant; the server opens it with its own key."""
    assert said(tmp_path, "set", "A", value="hunter2\nline two\n") == (0, "")
    assert said(tmp_path, "set", "B", "--tenant", "other", value="hunter3") == (0, "")

    assert said(tmp_path, "list") == (0, "A\n")
    held = Secrets(FolderBlobs(tmp_path / "blobs"), server_key(tmp_path / "server.key"))
    assert held.opened("default", ["A"]) == {"A": "hunter2\nline two"}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hunter" not in written
    assert said(tmp_path, "remove", "A") == (0, "")
    assert said(tmp_path, "list") == (0, "")
    assert said(tmp_path, "list", "--tenant", "other") == (0, "B\n")
