"""The kit passes conforming runners, and names the one rule that each faulty runner breaks."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deltaci.cli.app import app
from deltaci.conformance.results import FAIL, PASS, CheckResult
from deltaci.conformance.runner_checks import RUNNER_CHECKS, check_runner
from deltaci.conformance.transcript import Transcript
from tests.conformance.stage import OURS, SMALL, transcripts_of
from tests.e2e.deployment import is_alive

# Each fault of the small runner, the scenarios in which it shows, and the one rule that it breaks.
FAULTS = {
    "eager": (["life"], "PRO-C1"),
    "no-ack": (["life"], "PRO-C2"),
    "rare-heartbeats": (["life"], "PRO-C3"),
    "no-heartbeats": (["life"], "PRO-C3"),
    "no-log": (["life"], "PRO-C4"),
    "no-reference": (["life"], "PRO-C4"),
    "two-results": (["life"], "PRO-C5"),
    "deaf": (["cancel"], "PRO-C6"),
    "hasty": (["cancel"], "PRO-C6"),
    "zombie": (["stale"], "PRO-C7"),
    "unfenced": (["no-lease", "same-twice"], "PRO-H1"),
    "late": (["silence", "late-result"], "PRO-H2"),
    "restless": (["life"], "PRO-Q8"),
    "liar": (["no-lease"], "PRO-U2"),
    "gives-up": (["lost-answers"], "PRO-F4"),
    "extra-field": (["life"], "PRO-M11"),
    "chatty": (["life"], "PRO-X2"),
    "careless": (["life"], "PRO-X2"),
    "never-renews": (["life"], "PRO-X3"),
}


def conformance(*words: str) -> list[str]:
    """Return the command line of the kit."""
    return [sys.executable, "-m", "deltaci", "conformance", *words]


def results_of(kit: subprocess.CompletedProcess[bytes]) -> dict[str, CheckResult]:
    """Return the items of a JSON report by id."""
    report: dict[str, Any] = json.loads(kit.stdout)
    return {item["id"]: CheckResult(**item) for item in report["items"]}


@pytest.fixture(scope="module")
def faulty_transcripts() -> dict[str, dict[str, Transcript]]:
    """Return the transcripts of every faulty runner. They run concurrently, because they mostly wait.

    The kit judges real intervals. If a busy machine delayed a runner, its scenarios are repeated with fewer others: a
    real fault shows every time.
    """
    transcripts = transcripts_of(
        {fault: ([*SMALL, fault], scenarios) for fault, (scenarios, _) in FAULTS.items()}, patience_seconds=12
    )
    for _ in range(2):
        late = [fault for fault in FAULTS if failed_rules(transcripts[fault]) != {FAULTS[fault][1]}]
        transcripts |= transcripts_of(
            {fault: ([*SMALL, fault], FAULTS[fault][0]) for fault in late}, patience_seconds=30
        )
    return transcripts


def failed_rules(transcripts: dict[str, Transcript]) -> set[str]:
    """Return the rules that the kit reports as broken."""
    return {item.id for item in check_runner(transcripts) if item.verdict == FAIL}


def run_kit(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the kit, up to three times if a busy machine delayed the runner."""
    for _ in range(3):
        done = subprocess.run(conformance(*words), capture_output=True, timeout=600, check=False)
        if {item.verdict for item in results_of(done).values()} == {PASS}:
            break
    return done


@pytest.mark.parametrize("fault", FAULTS)
def test_only_the_broken_rule_fails(faulty_transcripts: dict[str, dict[str, Transcript]], fault: str) -> None:
    """The report must point to the fault and to nothing else."""
    results = check_runner(faulty_transcripts[fault])

    assert {result.id for result in results if result.verdict == FAIL} == {FAULTS[fault][1]}, results


@pytest.mark.proves("PRO-H1", "PRO-H2", "PRO-Q8", "PRO-X2", "PRO-X3", "PRO-U2", "PRO-Q2", "PRO-M11")
@pytest.mark.proves("PRO-C1", "PRO-C2", "PRO-C3", "PRO-C4", "PRO-C5", "PRO-C6", "PRO-C7")
def test_our_runner_complies() -> None:
    """Our runner, as a real process, passes the checklist of document 001."""
    words = ("runner", "--json", "--timeout", "60", "--", *OURS)

    kit = run_kit(*words)

    results = results_of(kit)
    failures = [result for result in results.values() if result.verdict != PASS]
    assert results
    assert not failures
    assert list(results) == [check.id for check in RUNNER_CHECKS]
    assert kit.returncode == 0, kit.stderr


def test_another_implementation_complies() -> None:
    """A runner of 200 lines with the standard library passes, so any language will do.

    It gets server, token and working folder from placeholders in its command, not from the environment.
    """
    named = ("DELTACI_SERVER={server}", "DELTACI_TOKEN={token}", "DELTACI_WORK={work}")
    words = ("runner", "--json", "--timeout", "60", "--", "env", "-i", f"PATH={os.environ['PATH']}", *named, *SMALL)

    kit = run_kit(*words)

    results = results_of(kit)
    failures = [result for result in results.values() if result.verdict != PASS]
    assert results
    assert not failures
    assert kit.returncode == 0, kit.stderr


# -- the command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runner", "--only", "PRO-C9", "--", "true"], "unknown item 'PRO-C9'; expected one of: PRO-C1"),
        (["runner", "--", "/no/such/runner"], "'/no/such/runner' cannot be started"),
    ],
)
def test_an_invalid_call_is_refused(words: list[str], message: str) -> None:
    """Nothing is started."""
    result = CliRunner().invoke(app, ["conformance", *words])

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_runner_that_requests_no_work_fails_and_the_rest_is_not_shown(tmp_path: Path) -> None:
    """Rules that were not exercised are not passed. The transcript is written all the same."""
    transcript = tmp_path / "transcript.json"
    words = ("runner", "--only", "PRO-C1", "--only", "PRO-C2", "--timeout", "3", "--transcript", str(transcript))

    kit = subprocess.run(conformance(*words, "--", "false"), capture_output=True, timeout=60, check=False)

    lines = kit.stdout.decode().splitlines()
    assert lines[0].split(None, 2)[:2] == ["FAIL", "PRO-C1"]
    assert "the runner exited with 1" in lines[1]
    assert lines[2].startswith("NOT SHOWN  PRO-C2")
    assert "life          begins" in kit.stderr.decode()
    assert kit.returncode == 1
    assert json.loads(transcript.read_bytes())["life"]["entries"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopping_the_kit_ends_all_processes(tmp_path: Path, number: signal.Signals) -> None:
    """A daemon in another session that ignores signals ends with the kit, even if the kit is killed."""
    pipe = tmp_path / "pids"
    os.mkfifo(pipe)
    # All processes hold the pipe, so that it ends when the last of them ends.
    stubborn = "trap '' TERM INT HUP; while :; do tail -f /dev/null; done"
    script = f'exec 9> {pipe}; setsid sh -c "{stubborn}" & echo $$ $! >&9; {stubborn}'
    kit = subprocess.Popen(
        conformance("runner", "--only", "PRO-C1", "--", "sh", "-c", script), stderr=subprocess.DEVNULL
    )
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([reader], [], [], 60)[0], "the runner did not begin"
        pids = [int(pid) for pid in os.read(reader, 100).split()]
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)

        kit.send_signal(number)

        assert kit.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
        assert select.select([reader], [], [], 60)[0], "a process is left"
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
