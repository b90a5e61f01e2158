"""A job of a scenario: its steps, the monitor of its processes, and the faults that its messages meet."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from deltaci.conformance.process_monitor import ProcessMonitor
from deltaci.protocol.messages import Complete, JobSpec, LeaseGranted, StaleReason
from deltaci.protocol.routes import ROOT

TTL_SECONDS: Final = 6
INTERVAL_SECONDS: Final = 1
MAX_RUNTIME_SECONDS: Final = 120


class Fault(msgspec.Struct, frozen=True):
    """A fault that replaces or delays the answer to one message.

    `cut` closes the connection without an answer, `busy` answers 503, `hold` delays the normal answer, and `stale`
    answers that the lease is no longer valid.
    """

    kind: Literal["cut", "busy", "hold", "stale"]
    seconds: float = 0.0
    reason: StaleReason = "LEASE_REVOKED"


# A message that meets one of these two has no effect.
CUT: Final = Fault("cut")
BUSY: Final = Fault("busy")


class ScriptedJob:
    """One job with one lease.

    `on_marker` is called with the job's name and each marker, or None when the job's last process has ended.
    """

    def __init__(
        self,
        job_name: str,
        folder: Path,
        on_marker: Callable[[str, str | None], None],
        *,
        ttl_seconds: int = TTL_SECONDS,
        is_spec_referenced: bool = False,
    ) -> None:
        self.name = job_name
        self.job_id = f"conformance-{job_name}"
        self.lease_id = f"{self.job_id}.{secrets.token_urlsafe(24)}"
        self.cancel_token = secrets.token_urlsafe(24)
        self.monitor = ProcessMonitor(folder, job_name, lambda marker: on_marker(job_name, marker))
        self.ttl_seconds = ttl_seconds
        self.spec = JobSpec(name=job_name)
        self.log = bytearray()
        self.expires_at = 0.0
        self.end_reason: StaleReason | None = None  # Why the lease is no longer valid.
        self.cancel_deadline_seconds = 0  # Greater than 0 once a cancel is requested.
        self._is_spec_referenced = is_spec_referenced
        self._faults: dict[str, deque[Fault]] = {}
        self._result: Complete | None = None

    def step(self, marker: str, *commands: str) -> str:
        """Return a shell script that attaches the monitor, writes the marker and then runs the commands."""
        return "\n".join((self.monitor.attach_command, f'echo "{marker}" >&9', *commands))

    def set_steps(self, *steps: str, env: dict[str, str] | None = None) -> ScriptedJob:
        """Set the steps and environment variables of the job. Return the job."""
        self.spec = JobSpec(name=self.name, steps=list(steps), env=env or {}, executor="process")
        return self

    def inject(self, message_type: str, *faults: Fault) -> ScriptedJob:
        """Apply these faults, one per message and in order, to the next messages of this type. Return the job."""
        self._faults.setdefault(message_type, deque()).extend(faults)
        return self

    def next_fault(self, message_type: str) -> Fault | None:
        """Remove and return the next fault injected for messages of this type; None if there is none."""
        faults = self._faults.get(message_type)
        return faults.popleft() if faults else None

    def granted(self) -> LeaseGranted:
        """Return the `LeaseGranted` message for this job."""
        return LeaseGranted(
            lease_id=self.lease_id,
            job_id=self.job_id,
            run_id="conformance",
            lease_ttl_seconds=self.ttl_seconds,
            heartbeat_interval_seconds=INTERVAL_SECONDS,
            max_runtime_seconds=MAX_RUNTIME_SECONDS,
            job_spec=None if self._is_spec_referenced else self.spec,
            job_spec_ref=f"{ROOT}specs/{self.job_id}" if self._is_spec_referenced else None,
            cancel_token=self.cancel_token,
        )

    def is_repeat(self, result: Complete) -> bool:
        """Return whether this result equals the first one, apart from `sequence_no`. Store it if it is the first."""
        comparable_result = msgspec.structs.replace(result, sequence_no=None)
        if self._result is None:
            self._result = comparable_result
        return self._result == comparable_result

    def append(self, offset: int, chunk: bytes) -> bool:
        """Append to the job's log the bytes that it does not have yet. Return False if there would be a gap."""
        if offset > len(self.log):
            return False
        self.log += chunk[len(self.log) - offset :]
        return True


def to_builtins(message: msgspec.Struct) -> dict[str, Any]:
    """Return a message as a dictionary of JSON values, for the transcript."""
    return dict(msgspec.to_builtins(message))
