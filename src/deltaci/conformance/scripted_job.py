"""A job of a scenario: what the runner is asked to do, how it is watched, and how its messages are answered."""

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
    """What happens to one message instead of the plain answer."""

    kind: Literal["cut", "busy", "hold", "stale"]
    seconds: float = 0.0
    reason: StaleReason = "LEASE_REVOKED"


# Neither counts: a server that dies, or has too much to do, has done nothing.
CUT: Final = Fault("cut")
BUSY: Final = Fault("busy")


class ScriptedJob:
    """One lease of one job."""

    def __init__(
        self,
        name: str,
        folder: Path,
        tell: Callable[[str, str | None], None],
        *,
        ttl_seconds: int = TTL_SECONDS,
        by_ref: bool = False,
    ) -> None:
        self.name = name
        self.job_id = f"conformance-{name}"
        self.lease_id = f"{self.job_id}.{secrets.token_urlsafe(24)}"
        self.cancel_token = secrets.token_urlsafe(24)
        self.witness = ProcessMonitor(folder, name, lambda word: tell(name, word))
        self.ttl_seconds = ttl_seconds
        self.spec = JobSpec(name=name)
        self.log = bytearray()
        self.expires_at = 0.0
        self.over: StaleReason | None = None
        self.deadline_seconds = 0  # More: it is asked to stop.
        self._by_ref = by_ref
        self._reactions: dict[str, deque[Fault]] = {}
        self._result: Complete | None = None

    def step(self, word: str, *commands: str) -> str:
        """A step that is seen from its first moment on."""
        return "\n".join((self.witness.takes_hold, f'echo "{word}" >&9', *commands))

    def runs(self, *steps: str, env: dict[str, str] | None = None) -> ScriptedJob:
        """What it consists of."""
        self.spec = JobSpec(name=self.name, steps=list(steps), env=env or {}, executor="process")
        return self

    def reacts(self, type: str, *reactions: Fault) -> ScriptedJob:
        """What happens to the first messages of this type."""
        self._reactions.setdefault(type, deque()).extend(reactions)
        return self

    def reaction(self, type: str) -> Fault | None:
        """What happens to this one."""
        waiting = self._reactions.get(type)
        return waiting.popleft() if waiting else None

    def granted(self) -> LeaseGranted:
        """The lease as the runner gets it."""
        return LeaseGranted(
            lease_id=self.lease_id,
            job_id=self.job_id,
            run_id="conformance",
            lease_ttl_seconds=self.ttl_seconds,
            heartbeat_interval_seconds=INTERVAL_SECONDS,
            max_runtime_seconds=MAX_RUNTIME_SECONDS,
            job_spec=None if self._by_ref else self.spec,
            job_spec_ref=f"{ROOT}specs/{self.job_id}" if self._by_ref else None,
            cancel_token=self.cancel_token,
        )

    def is_repeat(self, result: Complete) -> bool:
        """Whether this result is, word for word, the one that was accepted. Remembers the first."""
        to_builtins = msgspec.structs.replace(result, sequence_no=None)
        if self._result is None:
            self._result = to_builtins
        return self._result == to_builtins

    def append(self, offset: int, data: bytes) -> bool:
        """Add to its log; False when there would be a hole."""
        if offset > len(self.log):
            return False
        self.log += data[len(self.log) - offset :]
        return True


def to_builtins(message: msgspec.Struct) -> dict[str, Any]:
    """A message as it stands in a transcript."""
    return dict(msgspec.to_builtins(message))
