"""`deltaci secret`: values come in by stdin only, and never come out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaci.cli.app import app
from deltaci.core.events import Event
from deltaci.server.auth.credentials import load_server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.blobs.store import FolderBlobStore
from deltaci.storage.sqlite import SqliteStore
from tests.cli.terminal import Terminal
from tests.contract.backends import legal


def said(data: Path, *words: str, value: str | bytes = "") -> tuple[int, str]:
    """The exit code and everything that was shown."""
    shown = CliRunner().invoke(app, ["secret", *words, "--data", str(data)], input=value)
    return shown.exit_code, shown.output


def names(data: Path, *words: str) -> list[str]:
    """Which there are."""
    code, shown = said(data, "list", "--json", *words)
    assert code == 0
    return [secret["name"] for secret in json.loads(shown)]


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
    assert names(tmp_path) == []


def test_a_value_is_no_argument(tmp_path: Path) -> None:
    """Arguments can be read by everybody on the machine."""
    assert said(tmp_path, "set", "A", "hunter2")[0] == 2


def test_what_is_set_is_listed_sealed_and_removed(tmp_path: Path) -> None:
    """By tenant; the server opens it with its own key."""
    assert said(tmp_path, "set", "A", value="hunter2\nline two\n") == (0, "")
    assert said(tmp_path, "set", "B", "--tenant", "other", value="hunter3") == (0, "")

    assert names(tmp_path) == ["A"]
    held = Secrets(FolderBlobStore(tmp_path / "blobs"), load_server_key(tmp_path / "server.key"))
    assert held.decrypt("default", ["A"]) == {"A": "hunter2\nline two"}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hunter" not in written
    assert said(tmp_path, "remove", "A") == (0, "")
    assert names(tmp_path) == []
    assert names(tmp_path, "--tenant", "other") == ["B"]
    assert said(tmp_path, "list")[1] == "no secrets; set one with 'deltaci secret set NAME'\n"


def test_a_change_without_a_server_is_an_event_of_its_store(tmp_path: Path) -> None:
    """As one through a server: who, when, before and after, and not the value."""
    assert said(tmp_path, "set", "A", "--project", "shop", value="hunter2") == (0, "")
    assert said(tmp_path, "set", "A", "--project", "shop", value="hunter3") == (0, "")
    assert said(tmp_path, "remove", "A", "--project", "shop") == (0, "")
    assert CliRunner().invoke(app, ["token", "w1", "--data", str(tmp_path)]).output.startswith("dci_")

    async def log() -> list[Event]:
        store = SqliteStore(str(tmp_path / "deltaci.db"))
        await store.open()
        try:
            return await store.events(0, 100)
        finally:
            await store.close()

    events = legal(asyncio.run(log()))
    found = [(event.trigger, event.metadata["kind"], event.metadata["name"]) for event in events]
    assert found == [
        *((trigger, "secret", "A shop") for trigger in ("created", "updated", "deleted")),
        ("created", "registration-token", "w1"),
    ]
    versions = [[(event.metadata[side] or {}).get("version") for side in ("before", "after")] for event in events[:3]]
    assert versions == [[None, 1], [1, 2], [2, None]]
    assert all(event.actor.startswith("user:") for event in events)
    assert "hunter" not in str(events)


@pytest.mark.parametrize("words", [("secret", "set", "A"), ("token", "w1")], ids=lambda words: words[0])
def test_a_command_does_not_write_to_another_store_than_the_server(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A server has used the folder, with a store that is elsewhere."""
    (tmp_path / "repositories").mkdir()

    refused = CliRunner().invoke(app, [*words, "--data", str(tmp_path)], input="hunter2")
    accepted = CliRunner().invoke(
        app, [*words, "--data", str(tmp_path), "--store", f"sqlite:{tmp_path}/other.db"], input="hunter2"
    )

    assert (refused.exit_code, accepted.exit_code) == (1, 0)
    assert "name its store with --store" in refused.output
    assert not (tmp_path / "deltaci.db").exists()


def test_scopes_without_a_server(tmp_path: Path) -> None:
    """In the folder of one that does not run."""
    assert said(tmp_path, "set", "A", "--project", "shop", value="hunter2") == (0, "")
    assert said(tmp_path, "set", "A", "--project", "shop", "--branch", "rel/*", value="hunter3") == (0, "")
    assert said(tmp_path, "set", "A", "--branch", "main", value="hunter4")[0] == 1

    assert [line.split()[:3] for line in said(tmp_path, "list")[1].splitlines()[1:]] == [
        ["A", "shop", "1"],
        ["A", "shop", "rel/*"],
    ]
    assert said(tmp_path, "remove", "A")[0] == 1
    assert said(tmp_path, "remove", "A", "--project", "shop", "--branch", "rel/*") == (0, "")
    assert names(tmp_path) == ["A"]


def test_scopes_through_a_server(terminal: Terminal) -> None:
    """Of the folder where it runs, or with a key; who set it is remembered."""
    terminal.text("secret", "set", "A", "--project", "shop", "--branch", "rel/*", input="hunter2\n")
    terminal.text("secret", "set", "A", "--project", "shop", "--branch", "rel/*", input="hunter3\n")
    terminal.text("secret", "set", "B", input="hunter2")
    weak = terminal.json("key", "create", "eve", "--scope", "run")["token"]

    [first, second] = terminal.json("secret", "list")
    named = [first[each] for each in ("name", "project", "branch", "version", "set_by")]
    assert named == ["A", "shop", "rel/*", 2, "ada"]
    assert (second["name"], second["project"]) == ("B", "")
    assert "rel/*" in terminal.text("secret", "list")
    assert "missing_scope" in terminal.refused(4, "secret", "set", "A", input="hunter9", DELTACI_KEY=weak)
    told = terminal.refused(3, "secret", "set", "A", "--branch", "x", input="hunter9")
    assert "name the project" in told
    assert "hunter9" not in told
    assert "not_found" in terminal.refused(3, "secret", "remove", "A")
    terminal.text("secret", "remove", "A", "--project", "shop", "--branch", "rel/*")
    assert [each["name"] for each in terminal.json("secret", "list")] == ["B"]
