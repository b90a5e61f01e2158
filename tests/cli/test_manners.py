"""What every command has in common: exit codes, Ctrl-C, closed pipes, a server that is not there, nothing unsafe."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest
from typer.testing import CliRunner

from deltaci.cli.app import app
from tests.cli.terminal import Terminal
from tests.client.hosted import gate, plan, task

ASKING = (
    *(("runs",), ("show", "r"), ("logs", "r/a"), ("explain", "r"), ("cancel", "r"), ("approve", "r"), ("rerun", "r")),
    *(("submit", "-t", "t"), ("artifacts", "list", "r"), ("outputs", "r"), ("events", "export"), ("events", "follow")),
    *(("template", "list"), ("key", "list"), ("workers",), ("whoami",), ("tenant",)),
    *(("ws", "list"), ("ws", "show", "r"), ("ws", "cancel", "r"), ("ws", "queue")),
)


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where nobody answers: the port is taken, and does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_no_key_is_told_with_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Before anything is sent anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DELTACI_KEY", raising=False)

    result = CliRunner().invoke(app, list(words))

    assert result.exit_code == 4
    assert "deltaci key create" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_server_that_is_not_there_is_told_with_its_address(
    nowhere: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some patience, which a test has not."""
    monkeypatch.setattr("deltaci.cli.session.PATIENCE_SECONDS", 0.01)
    for words in ASKING:
        told = terminal.refused(5, *words, DELTACI_SERVER=nowhere)
        assert f"{nowhere} cannot be reached" in told


def test_a_page_of_somebody_else_is_no_answer(terminal: Terminal) -> None:
    """The address of something else that speaks HTTP."""
    told = terminal.refused(3, "runs", "--server", f"{terminal.hosted.url}/elsewhere")

    assert "not a response of Delta CI" in told or "not_found" in told


def test_ctrl_c_ends_a_command_without_a_word(terminal: Terminal) -> None:
    """130, and no traceback: the run goes on."""
    run, file = terminal.submit(plan=plan(gate("ok"))), terminal.file("gate.json", plan(gate("ok")))
    for words in (
        ("show", run, "--watch"),
        ("events", "follow"),
        ("submit", file, "--wait"),
        ("runs", "--watch", "--json"),
    ):
        process = terminal.program(*words)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 130, words
        # Python itself reports an interrupt in a destructor or a callback as one that it ignored.
        assert b"Traceback" not in err or b"Exception ignored" in err, (words, err)
    terminal.text("cancel", run)


def test_a_closed_pipe_ends_a_command_without_a_word(terminal: Terminal) -> None:
    """`deltaci events export | head -1`."""
    big = terminal.submit(plan=plan(*(task(f"t{number}", needs=[]) for number in range(300))))
    terminal.text("cancel", big)
    for words in (
        ("events", "export"),
        ("events", "follow"),
        ("show", "RUN", "--watch"),
        ("runs", "--watch", "--json"),
    ):
        run = terminal.submit(plan=plan(gate("ok")))
        process = terminal.program(*(run if word == "RUN" else word for word in words))
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        terminal.text("cancel", run)  # Something more to tell.
        try:
            process.wait(20)
        finally:
            process.kill()
        with process.stderr as err:
            assert b"Traceback" not in err.read(), words
        assert process.returncode == 141, words


def test_what_people_wrote_never_speaks_to_the_terminal(terminal: Terminal) -> None:
    """A title may be anything that the server takes."""
    evil = "\u202eevil\u2028 [bold]markup[/bold] \x9b31m"
    run = terminal.submit("--title", evil, "--branch", evil, plan=plan(gate("ok")))
    terminal.text("approve", run, "--comment", evil)

    for words in (("runs",), ("show", run), ("explain", f"{run}/ok"), ("events", "follow", "--run", run)):
        shown = terminal.text(*words)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", shown), words
    assert "[bold]markup[/bold]" in terminal.text("runs")


@contextmanager
def pseudo_terminal(columns: int) -> Iterator[tuple[int, int]]:
    """Our end of a terminal, and the program's."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def test_on_a_terminal_there_are_colours_and_nothing_is_wider(terminal: Terminal) -> None:
    """Whoever pipes it gets neither."""
    run = terminal.submit("--title", "a title that is much longer than the terminal is wide", plan=plan(gate("ok")))
    terminal.text("reject", run)
    for words, code in ((("runs",), 0), (("show", run, "--watch"), 1)):
        with pseudo_terminal(80) as (ours, theirs):
            process = terminal.program(*words, stdout=theirs, stderr=subprocess.STDOUT, env={"TERM": "xterm-256color"})
            os.close(theirs)
            seen = b""
            with suppress(OSError):  # The other end is closed.
                while part := os.read(ours, 65536):
                    seen += part
            assert process.wait(30) == code
        text = seen.decode()
        assert "\x1b[31m" in text
        assert all(len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)) <= 80 for line in text.splitlines())
    assert "\x1b" not in terminal.text("runs")
