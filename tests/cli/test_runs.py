"""Runs on the command line: started, found, looked at, decided, stopped, done again."""

from __future__ import annotations

import json

import pytest

from tests.cli.terminal import Terminal
from tests.client.hosted import TIME, Player, gate, plan, task


def test_a_run_from_a_plan_is_followed_to_its_good_end(terminal: Terminal, player: Player) -> None:
    """`submit` prints an id that every other command takes."""
    run = terminal.submit("--branch", "main", "--title", "first", "--label", "nightly", plan=plan(task("build")))
    player.finish(player.take(), output={"n": 1}, cost={"cents": 2, "io_bytes": 2048})

    assert terminal.deltaci("show", run, "--watch").exit_code == 0
    shown = terminal.text("show", run)
    [line] = [line for line in shown.splitlines() if line.startswith("build")]
    assert line.split()[:5] == ["build", "✓", "SUCCEEDED", "1/1", player.name]
    assert terminal.json("show", run)["jobs"][0]["name"] == "build"
    assert run in terminal.text("runs")
    assert terminal.json("outputs", run) == {"build": {"n": 1}}
    assert '"n": 1' in terminal.text("outputs", run)
    assert terminal.json("costs", run)["total"] == {"cents": 2, "io_bytes": 2048}
    assert "2.0 KiB" in terminal.text("costs", run)


def test_a_failed_run_is_told_by_the_exit_code(terminal: Terminal, player: Player) -> None:
    """Scripts read nothing else."""
    waiting = terminal.program("submit", terminal.file("plan.json", plan(task("test"))), "--wait")
    player.fail(player.take(), log_tail=["AssertionError: 1 != 2"])
    out, _ = waiting.communicate(timeout=60)

    assert waiting.returncode == 1
    assert "✗ FAILED" in out.decode()
    run = out.decode().splitlines()[0]
    followed = terminal.deltaci("show", run, "--watch")
    assert followed.exit_code == 1
    assert "run     " in followed.stdout
    assert "FAILED" in terminal.text("show", run)


@pytest.mark.proves("MOD-15")
def test_a_run_that_waits_only_for_optional_jobs_says_until_when(terminal: Terminal, player: Player) -> None:
    """Its outcome is decided, so that a person wonders why it does not end."""
    ask = {**gate("ask"), "needs": [], "allow_failure": True}
    run = terminal.submit(plan=plan(task("build"), ask))
    player.finish(player.take())

    shown = terminal.text("show", run)
    explained = terminal.text("explain", run)

    assert "every required job has ended; jobs that no worker runs wait until 20" in " ".join(shown.split())
    assert "will succeed when its optional jobs have ended" in " ".join(explained.split())
    terminal.text("cancel", run)


def test_waiting_and_following_as_json(terminal: Terminal, player: Player) -> None:
    """One document for what is waited for, a line for each event of what is followed."""
    whole = terminal.program("submit", terminal.file("plan.json", plan(task("a"))), "--wait", "--json")
    player.finish(player.take())
    out, _ = whole.communicate(timeout=60)
    assert (whole.returncode, json.loads(out)["status"]) == (0, "SUCCEEDED")

    lines = terminal.program("submit", "plan.json", "--follow", "--json")
    player.finish(player.take())
    out, _ = lines.communicate(timeout=60)
    events = [json.loads(line) for line in out.splitlines()]
    assert (lines.returncode, events[0]["to"]) == (0, "CREATED")


def test_a_run_from_a_template(terminal: Terminal) -> None:
    """With its inputs, and the version that is named."""
    saved = {"plan": plan(task("a")), "inputs": {"env": {"required": True}}, "description": "to the stage"}
    assert terminal.text("template", "save", "stage", terminal.file("stage.json", saved)) == "saved stage@1\n"

    run = terminal.text("submit", "--template", "stage@1", "--input", "env=dev=1").strip()

    assert terminal.json("show", run)["inputs"] == {"env": "dev=1"}
    assert "stage@1" in terminal.text("show", run)
    assert "env=dev=1" in terminal.text("show", run)
    terminal.text("cancel", run)


def test_the_same_key_starts_one_run(terminal: Terminal) -> None:
    """A script that is run again does no harm."""
    first = terminal.submit("--idempotency-key", "monday", plan=plan(gate("a")))

    assert terminal.submit("--idempotency-key", "monday", plan=plan(gate("a"))) == first
    told = terminal.refused(3, "submit", "-", "--idempotency-key", "monday", input=json.dumps(plan(gate("b"))))
    assert "request_id_reused" in told
    terminal.text("cancel", first)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("submit",), "give one of"),
        (("submit", "--template", "a", "b"), "give one of"),
        (("submit", "missing.json"), "missing.json"),
        (("submit", "plan.json", "--input", "a=1"), "needs --template or --repository"),
        (("submit", "--template", "a", "--input", "b"), "NAME=VALUE"),
        (("submit", "--template", "a", "--input", "b=1", "--input", "b=2"), "twice"),
        (("submit", "--template", "a@b"), "NAME@VERSION"),
        (("runs", "--since", "yesterday"), "is not a time"),
        (("runs", "--watch"), "terminal"),
        (("show", "a/b"), "names a job"),
        (("logs", "a"), "names a run"),
        (("logs", "a/b", "--raw", "--json"), "exclude"),
        (("explain", "a/b/c"), "is not a valid name"),
        (("events", "export", "--format", "yaml"), "expected one of: canonical, transitions, job-events"),
        (("key", "create", "ada", "--scope", "root"), "unknown scope"),
        (("key", "create", "ada", "--expires", "soon"), "is not a duration"),
        (("show", "r", "--server", "nowhere"), "is not a server URL"),
        (("show", "r", "--key-file", "missing"), "missing"),
        (("show", "r", "--tenant", "ä"), "--tenant"),
        (("show",), "Missing argument"),
        (("unknown",), "No such command"),
        (("runs", "--limit", "0"), "--limit"),
        (("completion", "tcsh"), "bash, zsh or fish"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_told_in_a_line(terminal: Terminal, words: tuple[str, ...], told: str) -> None:
    """And nothing was asked."""
    terminal.file("plan.json", plan(task("a")))

    assert told in terminal.refused(2, *words)


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00", '{"jobs": ' + "[" * 100_000])
def test_a_file_that_is_no_plan_is_told_in_a_line(terminal: Terminal, content: str) -> None:
    """With its name."""
    (terminal.folder / "bad.json").write_text(content)

    assert "bad.json" in terminal.refused(2, "submit", "bad.json")


def test_a_plan_that_the_server_refuses_names_the_place(terminal: Terminal) -> None:
    """The field, not the whole plan."""
    told = terminal.refused(3, "submit", "-", input='{"jobs": [{"name": "a", "work": {"steps": 5}}]}')

    assert "$.plan.jobs[0].work.steps" in told
    cycle = plan(task("a", needs=["b"]), task("b", needs=["a"]))
    assert "dependency_cycle" in terminal.refused(3, "submit", "-", input=json.dumps(cycle))


def test_runs_are_found_by_what_they_are(terminal: Terminal) -> None:
    """All that is given must hold."""
    first = terminal.submit("--project", "p", "--branch", "x", "--label", "l", plan=plan(gate("a")))
    second = terminal.submit("--project", "p", "--branch", "y", plan=plan(gate("a")))

    def found(*words: str) -> list[str]:
        return [run["id"] for run in terminal.json("runs", "--project", "p", *words)]

    assert found() == [second, first]
    assert found("--limit", "1") == [second]
    assert found("--all") == [second, first]
    assert found("--branch", "x") == found("--label", "l") == [first]
    assert found("--status", "waiting_approval", "--person", "ada", "--since", "1h") == [second, first]
    assert found("--state", "RUNNING") == found("--template", "t") == found("--until", "2020-01-01") == []
    assert terminal.text("runs", "--branch", "none") == "no runs; start one with 'deltaci submit'\n"
    assert "the newest 1" in terminal.text("runs", "--limit", "1")
    for run in (first, second):
        terminal.text("cancel", run)


def test_a_gate_is_shown_before_it_is_decided(terminal: Terminal) -> None:
    """Whoever approves must see what."""
    run = terminal.submit("--title", "release 7", plan=plan(gate("ok"), gate("sure"), task("deploy")))

    shown = terminal.text("approve", run, "--job", "ok", "--comment", "fine")
    assert "release 7" in shown
    assert "ok: opens sure" in shown
    assert "approved ok; the run is ? WAITING_APPROVAL" in shown
    assert terminal.refused(3, "approve", run, "--plan-hash", "other").startswith("deltaci approve: ")
    assert terminal.json("approve", run)["jobs"] == ["sure"]
    rejected = terminal.submit(plan=plan(gate("ok")))
    assert "rejected ok; the run is ✗ FAILED" in terminal.text("reject", rejected, "--comment", "no")
    assert "wrong_state" in terminal.refused(3, "reject", rejected)
    assert terminal.json("reject", terminal.submit(plan=plan(gate("ok"))))["jobs"] == ["ok"]
    terminal.text("cancel", run)


def test_a_run_and_a_job_are_stopped_and_what_failed_is_done_again(terminal: Terminal) -> None:
    """Each by its name."""
    run = terminal.submit(plan=plan(task("a", needs=[]), task("py3.11", needs=[])))

    assert "is now ■ CANCELED" in terminal.text("cancel", f"{run}/py3.11", "--reason", "not needed")
    assert terminal.json("cancel", run)["status"] == "CANCELED"
    again = terminal.text("rerun", run, "--failed").strip()
    assert terminal.json("show", again)["rerun_of"] == run
    assert f"a rerun of {run}" in terminal.text("show", again)
    one, two = (terminal.json("rerun", run, "--idempotency-key", "k")["id"] for _ in range(2))
    assert one == two
    terminal.text("cancel", one)
    waiting = terminal.program("rerun", run, "--wait")
    assert waiting.stdout is not None
    third = waiting.stdout.readline().decode().strip()
    terminal.text("cancel", third)
    waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    terminal.text("cancel", again)


@pytest.mark.proves("STP-R8")
def test_a_canceled_run_is_shown_and_waited_for_until_its_runner_has_stopped(
    terminal: Terminal, player: Player
) -> None:
    """A person who reads CANCELED deploys the next version: then no process of the old one may run."""
    waiting = terminal.program("submit", terminal.file("plan.json", plan(task("py3.11"))), "--wait")
    assert waiting.stdout is not None
    run = waiting.stdout.readline().decode().strip()
    lease = player.take()

    output = terminal.text("cancel", run)

    assert f"{run} is being cancelled; until its jobs have stopped it is ● RUNNING (CANCEL_REQUESTED)" in output
    assert "RUNNING (canceling)" in next(line for line in terminal.text("runs").splitlines() if run in line)
    assert "RUNNING (canceling)" in terminal.text("show", run)
    assert run not in [each["id"] for each in terminal.json("runs", "--status", "CANCELED")]
    assert "is being cancelled" in terminal.refused(3, "approve", run)
    assert waiting.poll() is None

    player.say(lease, "CancelAck", final_status="CANCELED", ts=TIME)

    waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert run in [each["id"] for each in terminal.json("runs", "--status", "CANCELED")]


def test_why_is_answered_for_a_run_a_job_and_an_attempt(terminal: Terminal, player: Player) -> None:
    """In words, with the events that they rest on."""
    run = terminal.submit(plan=plan(task("py3.11"), gate("ok")))
    player.finish(player.take())

    assert "ok" in terminal.text("explain", run)
    assert terminal.json("explain", f"{run}/ok")["entity"] == "job"
    assert terminal.json("explain", f"{run}/py3.11")["entity"] == "job"
    assert terminal.json("explain", f"{run}/py3.11.1")["entity"] == "attempt"
    assert "history:" in terminal.text("explain", f"{run}/py3.11.1")
    assert "not_found" in terminal.refused(3, "explain", f"{run}/none.1")
    terminal.text("cancel", run)


def test_what_a_job_waits_for_is_in_its_line(terminal: Terminal, player: Player) -> None:
    """A worker, a retry, others, people."""
    later = {"max_attempts": 2, "base_delay_seconds": 500}
    run = terminal.submit(
        plan=plan(
            task("flaky", needs=[], retry=later),
            task("gpu", needs=[], runs_on=["gpu"]),
            task("after", needs=["flaky", "gpu"]),
            gate("ok", needs=[], approval={"role": "ops", "approvers": 2}),
        )
    )
    player.fail(player.take(), error_code="CACHE_FETCH")

    lines = {line.split()[0]: line for line in terminal.text("show", run).splitlines() if line.strip()}

    assert "waits for a worker with gpu" in lines["gpu"]
    assert "waits for flaky, gpu" in lines["after"]
    assert "waits for 2 people with role ops to approve" in lines["ok"]
    assert "next attempt in" in lines["flaky"]
    assert "1/2" in lines["flaky"]
    terminal.text("cancel", run)
