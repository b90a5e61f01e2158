"""The server's half of the kit: our own server passes, and what cannot be shown says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deltaci.app import registration_token
from deltaci.cli.app import app
from deltaci.conformance.results import NOT_SHOWN, PASS, CheckResult
from deltaci.conformance.scripted_runner import SPEC
from deltaci.conformance.server_checks import SERVER_CHECKS
from tests.conformance.stage import patiently
from tests.e2e.deployment import Deployment, deployed


def visited(place: Deployment, *words: str, runners: int = 2) -> dict[str, CheckResult]:
    """The report about the deployment's server."""
    names = [f"kit-{number}-{len(words)}" for number in range(runners)]
    tokens = [word for name in names for word in ("--token", registration_token(place.folder, name, "default"))]
    command = [sys.executable, "-m", "deltaci", "conformance", "server", f"http://127.0.0.1:{place.port}"]
    found = subprocess.run([*command, *tokens, "--json", *words], capture_output=True, timeout=120, check=False)
    report: dict[str, Any] = json.loads(found.stdout)
    assert found.returncode == (0 if report["compliant"] else 1), found.stderr
    return {each["id"]: CheckResult(**each) for each in report["items"]}


@patiently
async def test_our_server_complies(tmp_path: Path) -> None:
    """All of it but the end of a credential, which lasts longer than anybody wants to wait."""
    async with deployed(tmp_path) as place:
        found = visited(place, "--store", f"sqlite:{tmp_path / 'deltaci.db'}")

        assert list(found) == [promise.id for promise in SERVER_CHECKS]
        others = [each for each in found.values() if each.verdict != PASS]
        assert [(each.id, each.verdict) for each in others] == [("credential-ends", NOT_SHOWN)], others
        assert await place.queue.claim_next("nobody", limit=10) == []  # Nothing is left behind.


@patiently
async def test_what_needs_a_lease_is_not_shown_without_work(tmp_path: Path) -> None:
    """A verdict that nothing was observed for would be a lie."""
    async with deployed(tmp_path) as place:
        found = visited(place, "--only", "strict", "--only", "batch", "--only", "not-yours", runners=1)

        assert {id: each.verdict for id, each in found.items()} == {
            "strict": PASS,
            "batch": NOT_SHOWN,
            "not-yours": NOT_SHOWN,
        }


@patiently
async def test_jobs_that_lie_ready_are_used_and_those_of_others_are_left_alone(tmp_path: Path) -> None:
    """The kit may be pointed at a tenant with real work by mistake."""
    async with deployed(tmp_path, ttl_seconds=60) as place:  # The lease must not be over when it is looked at.
        await place.queue.enqueue(SPEC)
        assert visited(place, "--only", "complete-once")["complete-once"].verdict == PASS

        theirs = (await place.queue.enqueue({"name": "deploy", "steps": ["true"]})).id
        found = visited(place, "--only", "granted", "--only", "complete-once")

        assert {each.verdict for each in found.values()} == {NOT_SHOWN}
        assert "which is not the kit's" in found["granted"].evidence
        assert (await place.queue.get(theirs)).status == "claimed"  # Never acknowledged, so it goes back.


@pytest.mark.parametrize(("url", "says"), [("nowhere", "the server's address is 'nowhere'"), ("ftp://x", "'ftp://x'")])
def test_an_address_that_is_none_is_refused(url: str, says: str) -> None:
    """Before anybody is asked."""
    found = CliRunner().invoke(app, ["conformance", "server", url, "--token", "x"])

    assert found.exit_code == 2
    assert says in found.stderr


def test_a_server_that_is_not_there_fails() -> None:
    """Whoever does not answer does not comply."""
    words = ("conformance", "server", "http://127.0.0.1:1", "--token", "x", "--only", "token-once")

    found = CliRunner().invoke(app, words)

    assert found.exit_code == 1
    assert "FAIL       token-once" in found.stdout
    assert "ConnectionRefusedError" in found.stdout
