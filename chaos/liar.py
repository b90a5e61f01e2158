"""A runner that breaks the protocol: it sends any message, under any lease, in any name."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deltaci.app import KEY_FILE, registration_token
from deltaci.conformance.http_client import HttpClient, Reply
from deltaci.conformance.scripted_runner import HeldLease, ScriptedRunner, decode
from deltaci.protocol.messages import LeaseGranted, Registered
from deltaci.server.auth.credentials import CREDENTIAL_SECONDS, PREFIX, Signer, load_server_key

GOOD_ANSWERS: Final = ("HeartbeatAck", "CompleteAck", "CancelAcked")
ROUTES: Final = (
    ("POST", "renew"), ("POST", "lease"), ("POST", "control"), ("POST", "messages"), ("POST", "batch"),
    ("GET", "specs/x"), ("POST", "hand-back"), ("GET", "log"), ("POST", "log"), ("PUT", "artifacts/x"),
    ("GET", "caches/x"), ("PUT", "caches/x"), ("GET", "secrets"),
)  # fmt: skip


def register_runner(http_client: HttpClient, data: Path, name: str, tenant: str = "default") -> ScriptedRunner:
    """Register a runner properly."""
    reply = http_client.request("POST", "register", {"token": registration_token(data, name, tenant)})
    return ScriptedRunner(http_client, decode(reply.body, Registered))


def lease_job(runner: ScriptedRunner, wait_seconds: float = 10.0) -> HeldLease:
    """Lease the first job that the runner gets, and acknowledge it."""
    reply = runner.lease(wait_seconds)
    lease = HeldLease(decode(reply.body["leases"][0], LeaseGranted), runner)
    answer = lease.send("AckLease")
    assert answer.status == 200, f"the acknowledgement of a fresh lease was answered with {answer}"
    return lease


def send_everything(lease: HeldLease, by: ScriptedRunner) -> Iterator[tuple[str, Reply]]:
    """Send every message and request under this lease, as the runner `by`. Yields each with its reply."""
    sender = {"runner_id": by.runner_id}
    lease_header = {"Delta_Lease": lease.granted.lease_id}
    kinds = ("AckLease", "Heartbeat", "CancelAck", "Complete")
    for kind in kinds:
        yield kind, lease.send(kind, by, **sender)
    yield "Complete, failed", lease.send("Complete", by, status="FAILED", exit_code=1, **sender)
    yield "batch", by.request("POST", "batch", [lease.message(kind, **sender) for kind in kinds])
    yield "log size", by.request("GET", "log", **lease_header)
    yield "log", lease.log(0, b"a lie\n", by)
    yield "artifact", by.request("PUT", "artifacts/lie.txt", b"a lie", **lease_header)
    yield "cache, written", by.request("PUT", "caches/lie", b"a lie", **lease_header)
    yield "cache, read", by.request("GET", "caches/known", **lease_header)
    yield "secrets", by.request("GET", "secrets", **lease_header)
    yield "specification", by.request("GET", f"specs/{lease.granted.job_id}", **lease_header)
    control = {"type": "Control", "lease_ids": [lease.granted.lease_id], "wait_seconds": 0, **sender}
    yield "control", by.request("POST", "control", control)
    yield "hand back", by.request("POST", "hand-back", **lease_header)


def is_accepted(kind: str, reply: Reply) -> bool:
    """Return whether the request had an effect or revealed anything."""
    if reply.status >= 300:
        return False
    if kind == "batch":
        return any(answer.get("type") in GOOD_ANSWERS for answer in reply.body)
    if kind == "control":
        return bool(reply.body["cancels"])
    return True


def forged_credentials(data: Path, honest: ScriptedRunner) -> dict[str, str]:
    """Return forged credentials by name.

    Most are made from what a thief could know; two can be made only with the server's key.
    """
    body, signature = honest.credential.removeprefix(PREFIX).split(".")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=="))
    key = load_server_key(data / KEY_FILE)

    def altered(**fields: Any) -> str:
        raw = json.dumps({**claims, **fields}).encode()
        return f"{PREFIX}{base64.urlsafe_b64encode(raw).decode().rstrip('=')}.{signature}"

    def signed(by: bytes, at: float, use: Any = "run") -> str:
        return Signer(by, lambda: at).sign(use, honest.runner_id, claims["tenant"], CREDENTIAL_SECONDS)

    issued = float(claims["issued_at"])
    return {
        "invented": "invented",
        "only the prefix": PREFIX,
        "another runner's name": altered(runner_id="somebody"),
        "another tenant": altered(tenant="other"),
        "a longer life": altered(expires_at=issued + 10**9),
        "another use": altered(use="register"),
        "no seal": f"{PREFIX}{body}.",
        "an empty body": f"{PREFIX}.{signature}",
        "swapped parts": f"{PREFIX}{signature}.{body}",
        "one bit of the seal": f"{PREFIX}{body}.{('A' if signature[0] != 'A' else 'B') + signature[1:]}",
        "half of the seal": f"{PREFIX}{body}.{signature[: len(signature) // 2]}",
        "another server's key": signed(bytes(32), issued),
        "expired": signed(key, issued - 2 * CREDENTIAL_SECONDS),
        "a registration token": signed(key, issued, "register"),
        "no ASCII": f"{PREFIX}{body}.\xff\xfe",
        "very long": PREFIX + "A" * 30_000,
        "three parts": f"{PREFIX}{body}.{signature}.{signature}",
    }
