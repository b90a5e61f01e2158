"""The runner that the kit plays against a server: its registration, its leases, and its expectations of answers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from deltaci.conformance.http_client import HttpClient, Reply
from deltaci.protocol.messages import MAX_SPEC_BYTES, JobSpec, LeaseGranted, Registered
from deltaci.protocol.routes import ROOT

JOB_NAME: Final = "deltaci-conformance"  # The kit touches only jobs with this name.
SPEC: Final[dict[str, Any]] = {"name": JOB_NAME, "steps": ["true"]}
LARGE_SPEC: Final[dict[str, Any]] = {"name": JOB_NAME, "steps": [f": '{'x' * MAX_SPEC_BYTES}'"]}
WAIT_SECONDS: Final = 5.0


class CheckFailed(Exception):
    """Raised when the server broke a rule; the text is the evidence."""


class NotCheckable(Exception):
    """Raised when a rule cannot be checked in this situation; the text says why."""


class JobSource(Protocol):
    """Creates and cancels jobs of the server under test."""

    def enqueue(self, spec: dict[str, Any]) -> str:
        """Add a job and return its id."""

    def cancel(self, job_id: str) -> None:
        """Request a cancel of the job."""


class HeldLease(msgspec.Struct):
    """A granted lease and the scripted runner that it was granted to."""

    granted: LeaseGranted
    runner: ScriptedRunner

    def message(self, message_type: str, **message_fields: Any) -> dict[str, Any]:
        """Return a message of this type under the lease, with all required fields.

        `message_fields` override or add fields.
        """
        timestamp = datetime.now(UTC).isoformat()
        required_fields: dict[str, dict[str, Any]] = {
            "AckLease": {"job_id": self.granted.job_id, "accepted_at": timestamp},
            "Heartbeat": {"ts": timestamp},
            "Complete": {"status": "SUCCEEDED", "exit_code": 0},
            "CancelAck": {"final_status": "CANCELED", "ts": timestamp},
        }
        common_fields = {"type": message_type, "lease_id": self.granted.lease_id, "runner_id": self.runner.runner_id}
        return {**common_fields, **required_fields[message_type], **message_fields}

    def send(self, message_type: str, sender: ScriptedRunner | None = None, **message_fields: Any) -> Reply:
        """Send a message under this lease with the credential of `sender`, by default of the lease's runner."""
        return (sender or self.runner).request("POST", "messages", self.message(message_type, **message_fields))

    def log(self, offset: int | str, chunk: bytes, sender: ScriptedRunner | None = None) -> Reply:
        """Send bytes to append to the log of this lease, which begin at `offset`. Return the reply."""
        return (sender or self.runner).request(
            "POST", "log", chunk, Delta_Lease=self.granted.lease_id, Delta_Offset=str(offset)
        )


class ScriptedRunner:
    """A runner that is registered with the server under test."""

    def __init__(self, client: HttpClient, registration: Registered) -> None:
        self._client = client
        self.runner_id = registration.runner_id
        self.credential = registration.credential
        self.expires_at = time.monotonic() + registration.expires_in_seconds

    def request(self, method: str, route_name: str, body: Any = b"", **headers: str) -> Reply:
        """Send a request with the runner's credential and return the reply."""
        return self._client.request(method, route_name, body, self.credential, **headers)

    def lease(self, wait_seconds: float = 0.0, **message_fields: Any) -> Reply:
        """Send a request for work that waits up to `wait_seconds`.

        `message_fields` override or add fields of the message.
        """
        lease_request = {"type": "Lease", "runner_id": self.runner_id, "wait_seconds": wait_seconds, **message_fields}
        return self.request("POST", "lease", lease_request)

    def granted_leases(self, reply: Reply) -> list[HeldLease]:
        """Return the leases granted in a reply to a request for work.

        Raise `NotCheckable` if one is for a job that is not the kit's own. That lease was not acknowledged, so its job
        returns to the queue.
        """
        expect(reply, 200, "", "a request for work")
        granted_leases = [HeldLease(decode(granted, LeaseGranted), self) for granted in reply.body.get("leases", [])]
        for lease in granted_leases:
            if self.spec(lease.granted).name != JOB_NAME:
                raise NotCheckable(
                    f"the server granted job {lease.granted.job_id!r}, which is not the kit's; it was not acknowledged "
                    "and goes back to the queue: use tokens of a tenant that has no other work"
                )
        return granted_leases

    def spec(self, granted: LeaseGranted) -> JobSpec:
        """Return the job specification from the grant, or read it from `job_spec_ref`."""
        if granted.job_spec is not None:
            return granted.job_spec
        spec_path = (granted.job_spec_ref or "").rpartition(ROOT)[2]
        reply = expect(self.request("GET", spec_path, Delta_Lease=granted.lease_id), 200, "", f"GET {spec_path}")
        spec: JobSpec = decode(reply.body, JobSpec)
        return spec


def decode(response_body: Any, expected_type: type[msgspec.Struct]) -> Any:
    """Decode a message as strictly as a runner does. Raise `CheckFailed` if it is not of this type."""
    try:
        return msgspec.convert(response_body, expected_type)
    except msgspec.ValidationError as error:
        raise CheckFailed(f"expected {expected_type.__name__}; the answer is not one: {error}") from None


def expect(reply: Reply, expected_status: int, expected_code: str, request_name: str = "the request") -> Reply:
    """Return the reply. Raise `CheckFailed` if its status or code differs; an empty code matches any."""
    if reply.status != expected_status or (expected_code and reply.code != expected_code):
        raise CheckFailed(
            f"{request_name}: expected {expected_status} {expected_code}".rstrip() + f", the answer was {reply}"
        )
    return reply
