"""The kit passes who keeps the protocol, and names the rule that everybody else breaks."""

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
from tests.conformance.stage import OURS, SMALL, played
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
    """The command."""
    return [sys.executable, "-m", "deltaci", "conformance", *words]


def verdicts(found: subprocess.CompletedProcess[bytes]) -> dict[str, CheckResult]:
    """The items of a report in JSON."""
    report: dict[str, Any] = json.loads(found.stdout)
    return {each["id"]: CheckResult(**each) for each in report["items"]}


@pytest.fixture(scope="module")
def broken() -> dict[str, dict[str, Transcript]]:
    """What was seen of every broken runner; most of the time is spent waiting, so they wait together.

    The kit judges real intervals. A runner that a busy machine made late is played again, almost alone: a fault of its
    own shows every time.
    """
    transcripts = played(
        {fault: ([*SMALL, fault], scenarios) for fault, (scenarios, _) in FAULTS.items()}, patience_seconds=12
    )
    for _ in range(2):
        late = [fault for fault in FAULTS if failed_rules(transcripts[fault]) != {FAULTS[fault][1]}]
        transcripts |= played({fault: ([*SMALL, fault], FAULTS[fault][0]) for fault in late}, patience_seconds=30)
    return transcripts


def failed_rules(transcripts: dict[str, Transcript]) -> set[str]:
    """Return the rules that the kit reports as broken."""
    return {item.id for item in check_runner(transcripts) if item.verdict == FAIL}


def judged(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the kit; again, up to three times, if a busy machine made a runner late."""
    for _ in range(3):
        done = subprocess.run(conformance(*words), capture_output=True, timeout=600, check=False)
        if {item.verdict for item in verdicts(done).values()} == {PASS}:
            break
    return done


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_rule_is_named_and_no_other(broken: dict[str, dict[str, Transcript]], fault: str) -> None:
    """Whoever reads the report must not look for the error anywhere else."""
    found = check_runner(broken[fault])

    assert {each.id: each.evidence for each in found if each.verdict == FAIL}.keys() == {FAULTS[fault][1]}, found


@pytest.mark.proves("PRO-H1", "PRO-H2", "PRO-Q8", "PRO-X2", "PRO-X3", "PRO-U2", "PRO-Q2", "PRO-M11")
@pytest.mark.proves("PRO-C1", "PRO-C2", "PRO-C3", "PRO-C4", "PRO-C5", "PRO-C6", "PRO-C7")
def test_our_runner_complies() -> None:
    """The checklist of document 001, from outside, on a real process."""
    words = ("runner", "--json", "--timeout", "60", "--", *OURS)

    found = judged(*words)

    items = verdicts(found)
    assert {each.verdict for each in items.values()} == {PASS}, [
        each for each in items.values() if each.verdict != PASS
    ]
    assert list(items) == [check.id for check in RUNNER_CHECKS]
    assert found.returncode == 0, found.stderr


def test_another_implementation_complies() -> None:
    """Two hundred lines with the standard library are enough, so it can be done in any language.

    This one finds what it needs in the words of its command, not in the kit's environment.
    """
    named = ("DELTACI_SERVER={server}", "DELTACI_TOKEN={token}", "DELTACI_WORK={work}")
    words = ("runner", "--json", "--timeout", "60", "--", "env", "-i", f"PATH={os.environ['PATH']}", *named, *SMALL)

    found = judged(*words)

    items = verdicts(found)
    assert {each.verdict for each in items.values()} == {PASS}, [
        each for each in items.values() if each.verdict != PASS
    ]
    assert found.returncode == 0, found.stderr


# -- the command


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runner", "--only", "PRO-C9", "--", "true"], "there is no item 'PRO-C9'; expected one of: PRO-C1"),
        (["runner", "--", "/no/such/runner"], "'/no/such/runner' cannot be started"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(words: list[str], says: str) -> None:
    """Before anything is started."""
    found = CliRunner().invoke(app, ["conformance", *words])

    assert found.exit_code == 2
    assert says in found.stderr


def test_a_runner_that_never_asks_fails_and_the_rest_is_not_shown(tmp_path: Path) -> None:
    """Silence is no proof; and what was observed can be read afterwards."""
    transcript = tmp_path / "transcript.json"
    words = ("runner", "--only", "PRO-C1", "--only", "PRO-C2", "--timeout", "3", "--transcript", str(transcript))

    found = subprocess.run(conformance(*words, "--", "false"), capture_output=True, timeout=60, check=False)

    lines = found.stdout.decode().splitlines()
    assert lines[0].split(None, 2)[:2] == ["FAIL", "PRO-C1"]
    assert "the runner exited with 1" in lines[1]
    assert lines[2].startswith("NOT SHOWN  PRO-C2")
    assert "life          begins" in found.stderr.decode()
    assert found.returncode == 1
    assert json.loads(transcript.read_bytes())["life"]["entries"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whoever_stops_the_kit_leaves_nobody_behind(tmp_path: Path, number: signal.Signals) -> None:
    """A deaf daemon in a session of its own ends with the kit, even with a kit that is killed."""
    pipe = tmp_path / "pids"
    os.mkfifo(pipe)
    # All of them hold the pipe, so that its end is the end of the last of them.
    stubborn = "trap '' TERM INT HUP; while :; do tail -f /dev/null; done"
    script = f'exec 9> {pipe}; setsid sh -c "{stubborn}" & echo $$ $! >&9; {stubborn}'
    kit = subprocess.Popen(
        conformance("runner", "--only", "PRO-C1", "--", "sh", "-c", script), stderr=subprocess.DEVNULL
    )
    line = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([line], [], [], 60)[0], "the runner did not begin"
        pids = [int(pid) for pid in os.read(line, 100).split()]
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)

        kit.send_signal(number)

        assert kit.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
        assert select.select([line], [], [], 60)[0], "somebody is left"
        assert os.read(line, 100) == b""
    finally:
        os.close(line)
