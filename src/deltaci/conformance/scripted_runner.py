"""The scripted runner that visits a server: who it is, what it holds, and what it expects to hear."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from deltaci.conformance.http_client import HttpClient, Reply
from deltaci.protocol.messages import MAX_SPEC_BYTES, JobSpec, LeaseGranted, Registered
from deltaci.protocol.routes import ROOT

JOB_NAME: Final = "deltaci-conformance"  # The only jobs that the kit touches.
SPEC: Final[dict[str, Any]] = {"name": JOB_NAME, "steps": ["true"]}
LARGE_SPEC: Final[dict[str, Any]] = {"name": JOB_NAME, "steps": [f": '{'x' * MAX_SPEC_BYTES}'"]}
WAIT_SECONDS: Final = 5.0


class CheckFailed(Exception):
    """The server broke the rule; the text is the evidence."""


class NotCheckable(Exception):
    """The rule cannot be shown here; the text says why."""


class JobSource(Protocol):
    """Where jobs for the server come from, when the kit may make its own."""

    def enqueue(self, spec: dict[str, Any]) -> str:
        """Add a job; its id."""

    def cancel(self, id: str) -> None:
        """Ask for a stop."""


class HeldLease(msgspec.Struct):
    """A lease, and whose it is."""

    granted: LeaseGranted
    visitor: ScriptedRunner

    def message(self, type: str, **fields: Any) -> dict[str, Any]:
        """One of the runner's messages, with everything that it needs."""
        now = datetime.now(UTC).isoformat()
        needs: dict[str, dict[str, Any]] = {
            "AckLease": {"job_id": self.granted.job_id, "accepted_at": now},
            "Heartbeat": {"ts": now},
            "Complete": {"status": "SUCCEEDED", "exit_code": 0},
            "CancelAck": {"final_status": "CANCELED", "ts": now},
        }
        told = {"type": type, "lease_id": self.granted.lease_id, "runner_id": self.visitor.runner_id}
        return {**told, **needs[type], **fields}

    def say(self, type: str, by: ScriptedRunner | None = None, **fields: Any) -> Reply:
        """Send it."""
        return (by or self.visitor).ask("POST", "messages", self.message(type, **fields))

    def log(self, offset: int | str, data: bytes, by: ScriptedRunner | None = None) -> Reply:
        """Append to its log."""
        return (by or self.visitor).ask(
            "POST", "log", data, Delta_Lease=self.granted.lease_id, Delta_Offset=str(offset)
        )


class ScriptedRunner:
    """One registered runner."""

    def __init__(self, caller: HttpClient, told: Registered) -> None:
        self._caller = caller
        self.runner_id = told.runner_id
        self.credential = told.credential
        self.expires_at = time.monotonic() + told.expires_in_seconds

    def ask(self, method: str, name: str, body: Any = b"", **headers: str) -> Reply:
        """Ask with its credential."""
        return self._caller.ask(method, name, body, self.credential, **headers)

    def lease(self, wait_seconds: float = 0.0, **fields: Any) -> Reply:
        """Ask for work."""
        asked = {"type": "Lease", "runner_id": self.runner_id, "wait_seconds": wait_seconds, **fields}
        return self.ask("POST", "lease", asked)

    def held(self, reply: Reply) -> list[HeldLease]:
        """The leases of an answer. A job that is not the kit's own is left alone: it was never acknowledged."""
        expect(reply, 200, "", "a request for work")
        found = [HeldLease(decode(each, LeaseGranted), self) for each in reply.body.get("leases", [])]
        for each in found:
            if self.spec(each.granted).name != JOB_NAME:
                raise NotCheckable(
                    f"the server granted job {each.granted.job_id!r}, which is not the kit's; it was not acknowledged "
                    "and goes back to the queue: use tokens of a tenant that has no other work"
                )
        return found

    def spec(self, granted: LeaseGranted) -> JobSpec:
        """What the job consists of, from the lease or from where it says."""
        if granted.job_spec is not None:
            return granted.job_spec
        ref = (granted.job_spec_ref or "").rpartition(ROOT)[2]
        reply = expect(self.ask("GET", ref, Delta_Lease=granted.lease_id), 200, "", f"GET {ref}")
        spec: JobSpec = decode(reply.body, JobSpec)
        return spec


def decode(body: Any, type: type[msgspec.Struct]) -> Any:
    """A message as a runner reads it: strictly."""
    try:
        return msgspec.convert(body, type)
    except msgspec.ValidationError as error:
        raise CheckFailed(f"expected {type.__name__}; its answer is none: {error}") from None


def expect(reply: Reply, status: int, word: str, what: str = "the request") -> Reply:
    """The answer must be this; `word` may be empty when only the status counts."""
    if reply.status != status or (word and reply.word != word):
        raise CheckFailed(f"{what}: expected {status} {word}".rstrip() + f", the answer was {reply}")
    return reply
