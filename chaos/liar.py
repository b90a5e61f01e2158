"""A runner that does not keep the protocol: it says whatever may be said, under any lease, in any name."""

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


def registered(caller: HttpClient, data: Path, name: str, tenant: str = "default") -> ScriptedRunner:
    """A runner that came in properly."""
    reply = caller.request("POST", "register", {"token": registration_token(data, name, tenant)})
    return ScriptedRunner(caller, decode(reply.body, Registered))


def leased(visitor: ScriptedRunner, wait_seconds: float = 10.0) -> HeldLease:
    """The first piece of work that it is given, acknowledged."""
    reply = visitor.lease(wait_seconds)
    held = HeldLease(decode(reply.body["leases"][0], LeaseGranted), visitor)
    told = held.send("AckLease")
    assert told.status == 200, f"the acknowledgement of a fresh lease was answered with {told}"
    return held


def under(held: HeldLease, by: ScriptedRunner) -> Iterator[tuple[str, Reply]]:
    """Everything that can be said or asked for under a lease, said by this one in its own name."""
    mine = {"runner_id": by.runner_id}
    lease = {"Delta_Lease": held.granted.lease_id}
    kinds = ("AckLease", "Heartbeat", "CancelAck", "Complete")
    for kind in kinds:
        yield kind, held.send(kind, by, **mine)
    yield "Complete, failed", held.send("Complete", by, status="FAILED", exit_code=1, **mine)
    yield "batch", by.request("POST", "batch", [held.message(kind, **mine) for kind in kinds])
    yield "log size", by.request("GET", "log", **lease)
    yield "log", held.log(0, b"a lie\n", by)
    yield "artifact", by.request("PUT", "artifacts/lie.txt", b"a lie", **lease)
    yield "cache, written", by.request("PUT", "caches/lie", b"a lie", **lease)
    yield "cache, read", by.request("GET", "caches/known", **lease)
    yield "secrets", by.request("GET", "secrets", **lease)
    yield "specification", by.request("GET", f"specs/{held.granted.job_id}", **lease)
    asked = {"type": "Control", "lease_ids": [held.granted.lease_id], "wait_seconds": 0, **mine}
    yield "control", by.request("POST", "control", asked)
    yield "hand back", by.request("POST", "hand-back", **lease)


def is_accepted(what: str, reply: Reply) -> bool:
    """Whether it had any effect, or told anything."""
    if reply.status >= 300:
        return False
    if what == "batch":
        return any(each.get("type") in GOOD_ANSWERS for each in reply.body)
    if what == "control":
        return bool(reply.body["cancels"])
    return True


def forged(data: Path, honest: ScriptedRunner) -> dict[str, str]:
    """Credentials that are none, each made from what a thief could know; and two that only the server itself makes."""
    body, seal = honest.credential.removeprefix(PREFIX).split(".")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=="))
    key = load_server_key(data / KEY_FILE)

    def altered(**fields: Any) -> str:
        raw = json.dumps({**claims, **fields}).encode()
        return f"{PREFIX}{base64.urlsafe_b64encode(raw).decode().rstrip('=')}.{seal}"

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
        "an empty body": f"{PREFIX}.{seal}",
        "swapped parts": f"{PREFIX}{seal}.{body}",
        "one bit of the seal": f"{PREFIX}{body}.{('A' if seal[0] != 'A' else 'B') + seal[1:]}",
        "half of the seal": f"{PREFIX}{body}.{seal[: len(seal) // 2]}",
        "another server's key": signed(bytes(32), issued),
        "expired": signed(key, issued - 2 * CREDENTIAL_SECONDS),
        "a registration token": signed(key, issued, "register"),
        "no ASCII": f"{PREFIX}{body}.\xff\xfe",
        "very long": PREFIX + "A" * 30_000,
        "three parts": f"{PREFIX}{body}.{seal}.{seal}",
    }
