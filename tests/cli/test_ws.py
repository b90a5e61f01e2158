"""`deltaci ws`: workstreams as people start, see and stop them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from deltaci.controllers.merge_queue.records import BatchView, EntryView, QueueView
from deltaci.core import job
from tests.cli.terminal import Terminal
from tests.cli.test_completion import completed, patient_shims
from tests.cli.test_manners import pseudo_terminal
from tests.client.hosted import WAIT_SECONDS, Player, gate, plan
from tests.support.workstream_context import BASE, StandIn

T = TypeVar("T")

__all__ = ["patient_shims"]

FILE = """\
workstream: login
title: Log in with a key
project: shop
base: main
tasks:
  - name: schema
    run: make schema
  - name: api
    needs: schema
    run: make api
    post_execution: make test
  - name: notes
    needs: schema
    critical: false
    run: make notes
"""


class Streams:
    """A desk whose server starts workstreams."""

    def __init__(self, terminal: Terminal) -> None:
        service, loop = terminal.hosted._service, terminal.hosted._loop
        assert service is not None
        assert loop is not None
        self.terminal, self._service, self._loop = terminal, service, loop
        self.stand_in = StandIn(service)
        (terminal.folder / "login.yml").write_text(FILE)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Where the server runs."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    def validate(self, command: job.Validate) -> None:
        """What the server would find."""
        self.do(self._service.engine.do(command))

    def create(self, *words: str) -> str:
        """Its id."""
        return self.terminal.text("ws", "create", "login.yml", *words).strip()


@pytest.fixture
def streams(terminal: Terminal) -> Streams:
    """Nothing waits to be merged at first."""
    return Streams(terminal)


def test_a_broken_file_is_told_with_its_lines_and_starts_nothing(streams: Streams) -> None:
    """Before any server is asked: exit code 2."""
    (streams.terminal.folder / "bad.yml").write_text(FILE.replace("needs: schema", "needs: shcema", 1))

    result = streams.terminal.deltaci("ws", "create", "bad.yml", DELTACI_SERVER="http://127.0.0.1:9")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "bad.yml:9:12: there is no task 'shcema'; did you mean 'schema'?",
        "  9 |     needs: shcema",
        "    |            ^",
        "deltaci ws create: 1 problem; nothing was started",
    ]
    assert "cannot be read" in streams.terminal.refused(2, "ws", "create", "nowhere.yml")


def test_what_the_server_refuses_is_one_line(streams: Streams) -> None:
    """With what to do about it."""
    terminal = streams.terminal

    assert "there is no project 'shpo'" in terminal.refused(3, "ws", "create", "login.yml", "--project", "shpo")
    assert "base: 'a..b' as a branch" in terminal.refused(3, "ws", "create", "login.yml", "--base", "a..b")
    assert "there is no workstream 'r404'" in terminal.refused(3, "ws", "show", "r404")
    assert "there is no workstream 'r404'" in terminal.refused(3, "ws", "cancel", "r404")
    assert "names a job" in terminal.refused(2, "ws", "show", "r404/a")
    assert "expected cancelled, completed" in terminal.refused(3, "ws", "list", "--state", "running")


def test_a_workstream_is_shown_with_stages_and_reasons(streams: Streams) -> None:
    """Both vocabularies; what each task waits for; what it added; where the tree is."""
    terminal = streams.terminal
    with terminal.hosted.player("ws-one") as player:
        id = streams.create("--base", "next")
        ready = terminal.text("ws", "show", id)
        lease = player.take()
        player.finish(lease)
        streams.validate(job.Validate(id=f"{id}/schema", is_passed=True))
        streams.do(streams.stand_in.join("default", id, "schema", "c" * 40, place=f"{player.name}:/trees/{id}"))
        taken = player.take()
        found = terminal.text("ws", "show", id)
        terminal.text("ws", "cancel", id)
        player.say(taken, "CancelAck", stopped_at="2026-01-04T08:00:00Z")

    assert f"workstream  login  ({id})" in ready
    assert "· ready  (run: QUEUED)" in ready
    assert "waits for schema" in ready
    assert "● executing  (run: RUNNING)" in found
    assert f"base        next at {BASE[:10]}" in found
    assert f"branch      ws/login-{id[1:7]}, now cccccccccc" in found
    assert f"tree        {player.name}:/trees/{id}" in found
    assert "1 completed, 1 queued, 1 running" in found
    [schema] = [line for line in found.splitlines() if " schema " in line and "completed" in line and "1/1" in line]
    assert schema.split()[:4] == ["1", "schema", "✓", "completed"]
    assert "+cccccccccc" in schema
    assert "waits for the worktree, held by" in found


def test_waiting_ends_with_the_outcome_and_its_reason(streams: Streams) -> None:
    """Not critical is not counted; a failed rule is named with what was found; exit code 1."""
    terminal = streams.terminal
    with terminal.hosted.player() as player:
        process = terminal.program("ws", "create", "login.yml", "--wait")
        assert process.stdout is not None
        id = process.stdout.readline().decode().strip()
        player.finish(player.take())
        streams.validate(job.Validate(id=f"{id}/schema", is_passed=True))
        wrong = {"rule": "make test", "is_passed": False, "found": "exit code 2", "wanted": "exit code 0"}
        for _ in range(2):
            lease = player.take()
            if lease["job_id"].endswith("/notes"):
                player.fail(lease)
            else:
                player.finish(lease, verdicts=[wrong])
                break
        out, err = process.communicate(timeout=WAIT_SECONDS)

    told = out.decode()
    assert (process.returncode, err) == (1, b"")
    assert "task       schema             running → validating" in told
    assert "workstream                    executing → failed" in told
    assert "login ✗ failed" in told
    assert "  api: rule make test: found exit code 2, expected exit code 0" in told
    assert "  merge: merge: not merged" in told
    assert terminal.json("ws", "show", id)["state"] == "failed"


def test_what_was_completed_ends_with_zero(streams: Streams, player: Player) -> None:
    """Only then."""
    terminal = streams.terminal
    (terminal.folder / "one.yml").write_text("workstream: one\nproject: shop\ntasks: [{name: a, run: make}]\n")
    process = terminal.program(
        "ws", "create", "one.yml", "--wait", "--json", "--idempotency-key", "k1", env={"USER": "ada"}
    )
    player.finish(player.take())
    id = terminal.json("ws", "create", "one.yml", "--idempotency-key", "k1")["id"]
    streams.validate(job.Validate(id=f"{id}/a", is_passed=True))
    out, err = process.communicate(timeout=WAIT_SECONDS)

    assert (process.returncode, err) == (0, b"")
    assert (json.loads(out)["id"], json.loads(out)["state"]) == (id, "completed")
    assert terminal.deltaci("ws", "show", id, "--watch").exit_code == 0


def test_workstreams_are_listed_and_stopped(streams: Streams) -> None:
    """With the words of both."""
    terminal = streams.terminal
    id = streams.create()

    told = terminal.text("ws", "cancel", id, "--reason", "wrong base")
    seen = terminal.text("ws", "show", id)
    listed = terminal.text("ws", "list", "--state", "cancelled", "--project", "shop")

    assert f"{id} is now ■ cancelled" in told
    assert "the run was cancelled" in seen
    [line] = [each for each in listed.splitlines() if id in each]
    assert line.split()[:4] == [id, "login", "■", "cancelled"]
    assert "wrong base" in line
    assert (
        terminal.text("ws", "list", "--project", "other") == "no workstreams; start one with 'deltaci ws create FILE'\n"
    )
    assert id in [each["id"] for each in terminal.json("ws", "list")]


def test_the_merge_queue_is_shown_in_its_order(streams: Streams) -> None:
    """With what is tested together; nothing is said plainly."""
    terminal = streams.terminal
    one, two = streams.create(), streams.create()
    first = EntryView(id=one, title="a", method="merge", head="d" * 40, at=1, batch=7)
    second = msgspec.structs.replace(first, id=two, batch=0, problem="the runner is away", not_before=1)
    batch = BatchView(
        number=7, method="merge", members=(one,), doing="testing", start=BASE, commit="e" * 40, run_id="r9"
    )

    assert terminal.text("ws", "queue") == "no workstream waits to be merged\n"
    streams.stand_in.waiting = [
        QueueView(project="shop", base="main", entries=(first, second), batches=(batch,), problem="no way in")
    ]
    shown, seen = terminal.text("ws", "queue", "shop"), terminal.text("ws", "show", two)
    for id in (one, two):
        terminal.text("ws", "cancel", id)

    assert shown.splitlines()[0] == "shop, main"
    assert [line.split()[:3] for line in shown.splitlines()[2:4]] == [["1", one, "merge"], ["2", two, "merge"]]
    assert f"batch 7: testing by r9: {one} on {BASE[:10]}; main would become eeeeeeeeee" in shown
    assert "the runner is away; next attempt" in shown
    assert "the whole queue waits: no way in" in shown
    assert "merge: number 2 in the queue of main, waits to be tested (the runner is away)" in seen
    assert terminal.text("ws", "queue", "other") == "no workstream waits to be merged in other\n"
    assert [queue["base"] for queue in terminal.json("ws", "queue")["queues"]] == ["main"]


def test_nothing_in_a_workstream_speaks_to_the_terminal(streams: Streams) -> None:
    """Its title is somebody's text."""
    terminal = streams.terminal
    title = '"\\u202eevil \\u2028 [bold]x[/bold]"'
    (terminal.folder / "evil.yml").write_text(FILE.replace("Log in with a key", title))
    id = terminal.text("ws", "create", "evil.yml").strip()

    shown = terminal.text("ws", "show", id) + terminal.text("ws", "list")
    terminal.text("ws", "cancel", id)

    assert "\u202e" not in shown
    assert "[bold]x[/bold]" in shown


def test_ids_are_completed(streams: Streams, patient_shims: Path) -> None:
    """Of workstreams, not of other runs."""
    terminal = streams.terminal
    other, id = terminal.submit(plan=plan(gate("ok"))), streams.create()

    offered = completed(terminal.folder, patient_shims, "deltaci", "ws", "show", "r")
    terminal.text("ws", "cancel", id)
    terminal.text("cancel", other)

    assert id in offered
    assert other not in offered


def test_on_a_terminal_it_lives_and_nothing_is_wider(streams: Streams) -> None:
    """Until it is over; the exit code tells how it ended."""
    terminal = streams.terminal
    id = streams.create()
    terminal.text(
        "ws", "cancel", id, "--reason", "a reason that is much longer than the terminal is wide, or nearly so"
    )
    for words, code in ((("ws", "show", id, "--watch"), 1), (("ws", "list"), 0)):
        with pseudo_terminal(80) as (ours, theirs):
            process = terminal.program(*words, stdout=theirs, stderr=subprocess.STDOUT, env={"TERM": "xterm-256color"})
            os.close(theirs)
            seen = b""
            with suppress(OSError):  # The other end is closed.
                while part := os.read(ours, 65536):
                    seen += part
            assert process.wait(WAIT_SECONDS) == code
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
        assert "cancelled" in text
        assert all(len(line) <= 80 for line in text.splitlines())
