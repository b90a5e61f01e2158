"""Logs, events, artifacts: what runs leave behind, on the command line."""

from __future__ import annotations

import json

import pytest

from deltaci.runner.log.sections import SectionWriter
from tests.cli.terminal import Terminal
from tests.client.hosted import Player, gate, plan, task

EVIL = b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \xe2\x80\xaeback\rshown\n"


def test_a_log_never_speaks_to_the_terminal(terminal: Terminal, player: Player) -> None:
    """Except with --raw, byte by byte."""
    run = terminal.submit(plan=plan(task("a")))
    lease = player.take()
    player.log(lease, b"one\n" + EVIL + b"no end")
    player.finish(lease)

    assert terminal.text("logs", f"{run}/a") == "one\nshown\nno end\n"
    assert terminal.text("logs", f"{run}/a.1", "--follow") == "one\nshown\nno end\n"
    assert terminal.deltaci("logs", f"{run}/a", "--raw").stdout_bytes == b"one\n" + EVIL + b"no end"
    lines = [json.loads(line) for line in terminal.text("logs", f"{run}/a", "--json").splitlines()]
    assert lines[0] == {"attempt": 1, "lease": 1, "line": "one"}


def test_the_steps_of_a_log_are_shown_as_steps(terminal: Terminal, player: Player) -> None:
    """Only those that the runner wrote: a job that writes the same is only quoted."""
    writer = SectionWriter("0" * 32)
    forged = SectionWriter("1" * 32)
    run = terminal.submit(plan=plan(task("a")))
    lease = player.take()
    parts = [writer.header(), writer.begin(0, "make"), b"hello\n", forged.end(0, 0, 1), writer.end(0, 2, 1.5)]
    player.log(lease, b"".join(parts))
    player.finish(lease)

    shown = terminal.text("logs", f"{run}/a").splitlines()

    assert shown[:2] == ["── make", "hello"]
    assert shown[2].startswith("::step 1111")
    assert shown[3] == "── exited with 2 after 1.5 s"


def test_a_log_is_followed_through_a_retry(terminal: Terminal, player: Player) -> None:
    """And says where another attempt begins."""
    run = terminal.submit(plan=plan(task("a", retry={"max_attempts": 2, "base_delay_seconds": 0})))
    following = terminal.program("logs", f"{run}/a", "-f")
    first = player.take()
    player.log(first, b"one\n")
    assert following.stdout is not None
    assert following.stdout.readline() == b"one\n"
    player.hand_back(first)
    second = player.take()
    player.log(second, b"two\n")
    player.fail(second, error_code="CACHE_FETCH")
    third = player.take()
    player.log(third, b"three\n")
    player.finish(third)
    out, err = following.communicate(timeout=60)

    assert (following.returncode, out) == (0, b"two\nthree\n")
    assert b"reassigned to another worker: attempt 1, lease 2" in err
    assert b"retried: attempt 2, lease 1" in err
    assert terminal.text("logs", f"{run}/a.1", "--lease", "1") == "one\n"


def test_a_log_that_is_not_there_is_told(terminal: Terminal) -> None:
    """No worker, no job, no attempt."""
    run = terminal.submit(plan=plan(task("a")))

    assert "no worker has taken it yet" in terminal.deltaci("logs", f"{run}/a").stderr
    assert "no attempt 7 of a job 'a'" in terminal.refused(3, "logs", f"{run}/a.7")
    assert "not_found" in terminal.refused(3, "logs", f"{run}/b")
    terminal.text("cancel", run)


def test_files_are_listed_and_got(terminal: Terminal, player: Player) -> None:
    """By job, by attempt, by pattern; each below the folder that was named."""
    run = terminal.submit(plan=plan(task("a"), task("b")))
    for name in ("a", "b"):
        lease = player.take()
        kept = [player.keep(lease, f"dist/{name}.txt", name.encode() * 2000), player.keep(lease, "log", b"")]
        player.finish(lease, artifacts=kept)

    assert [each["path"] for each in terminal.json("artifacts", "list", run)] == [
        "dist/a.txt",
        "log",
        "dist/b.txt",
        "log",
    ]
    shown = terminal.text("artifacts", "list", f"{run}/b").splitlines()
    assert shown[1].split() == ["b", "1", "2.0", "KiB", "dist/b.txt"]
    got = terminal.text("artifacts", "get", f"{run}/a.1", "dist/*", "-o", "out").splitlines()
    assert got == ["out/a.1/dist/a.txt"]
    assert (terminal.folder / got[0]).read_bytes() == b"a" * 2000
    assert len(terminal.json("artifacts", "get", run, "-o", "all")) == 4
    assert "has no matching artifacts" in terminal.refused(2, "artifacts", "get", run, "*.exe")
    assert "no artifacts" in terminal.text("artifacts", "list", f"{run}/c")
    assert "no outputs" in terminal.text("outputs", run)
    assert "no usage was reported" in terminal.text("costs", run)


@pytest.mark.parametrize("format", ["canonical", "transitions", "job-events"])
def test_what_is_exported_verifies(terminal: Terminal, player: Player, format: str) -> None:
    """Of one run, and of everything: into a file, or through a pipe."""
    run = terminal.submit(plan=plan(task("a", retry={"max_attempts": 2, "base_delay_seconds": 0}), gate("ok")))
    player.fail(player.take(), error_code="CACHE_FETCH")
    player.finish(player.take())
    terminal.text("approve", run)
    terminal.text("show", run, "--watch")

    told = terminal.json("events", "export", "--run", run, "--format", format, "-o", "events.jsonl")
    everything = terminal.text("events", "export", "--format", format)

    assert told["lines"] == len((terminal.folder / "events.jsonl").read_bytes().splitlines())
    assert terminal.json("verify", "events.jsonl", "--format", format)["legal"]
    assert terminal.json("verify", "-", input=everything)["legal"]


def test_events_are_followed_until_the_run_is_over(terminal: Terminal) -> None:
    """As lines, or as JSON."""
    run = terminal.submit(plan=plan(gate("ok")))
    terminal.text("approve", run)

    shown = terminal.text("events", "follow", "--run", run)
    lines = [json.loads(line) for line in terminal.text("events", "follow", "--run", run, "--json").splitlines()]

    assert "WAITING_APPROVAL → SUCCEEDED" in shown
    assert "approved by user:ada" in shown
    assert [each["seq"] for each in lines] == sorted(each["seq"] for each in lines)
    after = terminal.text("events", "follow", "--run", run, "--json", "--after", str(lines[-2]["seq"]))
    assert json.loads(after.splitlines()[0]) == lines[-1]
