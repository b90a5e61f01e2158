"""Our own server passes the server checks, and a check that is not possible says why."""

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
from tests.conformance.stage import with_long_timeout
from tests.e2e.deployment import Deployment, deployed


def check_deployment(deployment: Deployment, *words: str, runners: int = 2) -> dict[str, CheckResult]:
    """Run the kit against the server of a deployment and return its results by item."""
    names = [f"kit-{number}-{len(words)}" for number in range(runners)]
    tokens = [word for name in names for word in ("--token", registration_token(deployment.folder, name, "default"))]
    command = [sys.executable, "-m", "deltaci", "conformance", "server", f"http://127.0.0.1:{deployment.port}"]
    kit = subprocess.run([*command, *tokens, "--json", *words], capture_output=True, timeout=120, check=False)
    report: dict[str, Any] = json.loads(kit.stdout)
    assert kit.returncode == (0 if report["compliant"] else 1), kit.stderr
    return {item["id"]: CheckResult(**item) for item in report["items"]}


@with_long_timeout
async def test_our_server_complies(tmp_path: Path) -> None:
    """Every item passes except the expiry of a credential, which would take too long."""
    async with deployed(tmp_path) as deployment:
        results = check_deployment(deployment, "--store", f"sqlite:{tmp_path / 'deltaci.db'}")

        assert list(results) == [check.id for check in SERVER_CHECKS]
        others = [result for result in results.values() if result.verdict != PASS]
        assert [(result.id, result.verdict) for result in others] == [("credential-ends", NOT_SHOWN)], others
        assert await deployment.queue.claim_next("nobody", limit=10) == []  # No job is left in the queue.


@with_long_timeout
async def test_what_needs_a_lease_is_not_shown_without_work(tmp_path: Path) -> None:
    """Without an observation there is no verdict."""
    async with deployed(tmp_path) as deployment:
        results = check_deployment(deployment, "--only", "strict", "--only", "batch", "--only", "not-yours", runners=1)

        assert {id: result.verdict for id, result in results.items()} == {
            "strict": PASS,
            "batch": NOT_SHOWN,
            "not-yours": NOT_SHOWN,
        }


@with_long_timeout
async def test_waiting_jobs_of_the_kit_are_used_and_other_jobs_are_not_touched(tmp_path: Path) -> None:
    """The kit may be pointed at a tenant with real work by mistake."""
    async with deployed(
        tmp_path, ttl_seconds=60
    ) as deployment:  # The lease must not have expired at the last assertion.
        await deployment.queue.enqueue(SPEC)
        assert check_deployment(deployment, "--only", "complete-once")["complete-once"].verdict == PASS

        other_job = (await deployment.queue.enqueue({"name": "deploy", "steps": ["true"]})).id
        results = check_deployment(deployment, "--only", "granted", "--only", "complete-once")

        assert {result.verdict for result in results.values()} == {NOT_SHOWN}
        assert "which is not the kit's" in results["granted"].evidence
        assert (
            await deployment.queue.get(other_job)
        ).status == "claimed"  # Never acknowledged, so it returns to the queue.


@pytest.mark.parametrize(
    ("url", "message"), [("nowhere", "the server's address is 'nowhere'"), ("ftp://x", "'ftp://x'")]
)
def test_a_malformed_address_is_refused(url: str, message: str) -> None:
    """Nothing is sent."""
    result = CliRunner().invoke(app, ["conformance", "server", url, "--token", "x"])

    assert result.exit_code == 2
    assert message in result.stderr


def test_an_unreachable_server_fails() -> None:
    """A server that does not answer does not comply."""
    words = ("conformance", "server", "http://127.0.0.1:1", "--token", "x", "--only", "token-once")

    result = CliRunner().invoke(app, words)

    assert result.exit_code == 1
    assert "FAIL       token-once" in result.stdout
    assert "ConnectionRefusedError" in result.stdout
