"""A scripted orchestrator: transport B of the protocol over real HTTP, with the faults that a scenario injects.

It does not judge the runner. It answers, and records what it received and observed in a transcript.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from deltaci.conformance.http_server import Request, Response
from deltaci.conformance.scripted_job import Fault, ScriptedJob, to_builtins
from deltaci.conformance.transcript import Entry, EntryKind, Transcript
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import (
    AckLease,
    CancelAck,
    CancelAcked,
    Complete,
    CompleteAck,
    Heartbeat,
    HeartbeatAck,
    Problem,
    Registered,
    RunnerMessage,
    StaleLease,
)
from deltaci.protocol.routes import LEASE_HEADER, OFFSET_HEADER, PROTOCOL_ROUTES, ROOT, status_of

CREDENTIAL_SECONDS: Final = 600
# The routes that this server implements. It answers 404 to the others, which a newer runner must tolerate.
IMPLEMENTED_ROUTES: Final = tuple(
    route
    for route in PROTOCOL_ROUTES
    if route.name in ("register", "renew", "lease", "messages", "batch", "specs", "log")
)
OVERLOADED: Final = "too many requests are pending; try again later"

_decode_registration = wire.decoder(wire.Registration)
_decode_lease = wire.decoder(wire.LeaseRequest)
_decode_batch = wire.decoder(list[msgspec.Raw])


class ScriptedOrchestrator:
    """The server of one scenario. `handle` answers requests; the scenario calls the other public methods."""

    def __init__(self, scenario_name: str, folder: Path, credential_seconds: int = CREDENTIAL_SECONDS) -> None:
        self.transcript = Transcript(scenario=scenario_name)
        self.is_cut_off = False  # While true, requests are recorded but not answered.
        self._folder = folder
        self._has_ended = False
        self._started_at = time.monotonic()
        self._observation_event = asyncio.Event()
        self._jobs: dict[str, ScriptedJob] = {}
        self._pending_grants: deque[list[ScriptedJob]] = deque()
        self._runner_count = 0
        self._runner_ids_by_token: dict[str, str] = {}
        self._credentials: dict[str, tuple[str, float]] = {}
        self._credential_seconds = credential_seconds

    # -- for the scenario

    def token(self) -> str:
        """Create and return a registration token for a new runner, valid once."""
        token = f"dci_token_{secrets.token_urlsafe(24)}"
        self._runner_count += 1
        self._runner_ids_by_token[token] = f"runner-{self._runner_count}"
        self.transcript.secrets[token] = "registration token"
        return token

    def job(self, job_name: str, **job_options: Any) -> ScriptedJob:
        """Create a job and start to monitor its processes. `job_options` are passed to `ScriptedJob`."""
        job = ScriptedJob(job_name, self._folder, self._on_marker, **job_options)
        self._jobs[job.lease_id] = job
        # Only the random part of the lease id is a secret; its prefix is the name of the job.
        self.transcript.secrets |= {job.lease_id.rpartition(".")[2]: "lease_id", job.cancel_token: "cancel_token"}
        return job

    def grant(self, *jobs: ScriptedJob) -> None:
        """Schedule a grant of these jobs, all in one answer to the next request for work."""
        self._pending_grants.append(list(jobs))
        self._notify()

    async def until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until the condition is true. Return whether it is true, which is False after a timeout.

        The condition is evaluated again after every recorded observation.
        """
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._observation_event.wait()
        except TimeoutError:
            return bool(condition())
        return True

    async def observe(self, seconds: float) -> None:
        """Wait for this long while requests are answered and recorded."""
        await self.until(lambda: False, seconds)

    def now(self) -> float:
        """Return the seconds since the start of the scenario."""
        return time.monotonic() - self._started_at

    def note(self, kind: EntryKind, **entry_fields: Any) -> None:
        """Record an observation in the transcript, after all markers that the jobs wrote before it."""
        for job in self._jobs.values():
            job.monitor.poll()
        self._record(kind, **entry_fields)

    def end(self) -> None:
        """Record the end of the scenario and ignore later observations, because the kit itself then ends the runner."""
        self.note("ended")
        self._has_ended = True

    def close(self) -> Transcript:
        """Stop monitoring the jobs. Add their logs to the transcript and return it."""
        for job in self._jobs.values():
            job.monitor.close()
            self.transcript.logs[job.name] = job.log.decode(errors="replace")
        return self.transcript

    def _on_marker(self, job_name: str, marker: str | None) -> None:
        """Record a marker that a process of this job wrote; None means that its last process has ended."""
        self._record("nobody" if marker is None else "job", job=job_name, note=marker or "")

    def _record(self, kind: EntryKind, **entry_fields: Any) -> None:
        """Append an observation to the transcript, unless the scenario has ended."""
        if self._has_ended:
            return
        self.transcript.entries.append(Entry(at=round(self.now(), 3), kind=kind, **entry_fields))
        self._notify()

    def _notify(self) -> None:
        """Wake all calls of `until`, which then evaluate their conditions again."""
        self._observation_event.set()
        self._observation_event = asyncio.Event()

    # -- for the runner

    async def handle(self, request: Request) -> Response | None:
        """Answer one request; None closes the connection without an answer."""
        self.transcript.targets.append(f"{request.method} {request.path}")
        route_name, _, path_parameter = request.path.removeprefix(ROOT).partition("/")
        methods = [
            route.method
            for route in IMPLEMENTED_ROUTES
            if route.name == route_name and bool(route.path_parameter) == bool(path_parameter)
        ]
        if not request.path.startswith(ROOT) or not methods:
            return _problem("not_found", f"there is no {request.path[:200]}")
        if request.method not in methods:
            return _problem("wrong_method", f"{request.path} takes {' or '.join(methods)}")
        try:
            return await self._route(route_name, path_parameter, request)
        except msgspec.DecodeError as error:
            error_code = "bad_message" if isinstance(error, msgspec.ValidationError) else "bad_json"
            self.note("heard", type="refused", note=f"{route_name}: {error}")
            return _problem(error_code, str(error))

    async def _route(self, route_name: str, path_parameter: str, request: Request) -> Response | None:
        if route_name == "register":
            return self._answer_registration(request)
        runner_id = self._authenticate(request)
        if runner_id is None:
            self.note("heard", type="refused", note=f"{route_name}: without a credential of this server")
            return _problem("bad_credential", "that is no credential of this server")
        if route_name in ("messages", "batch"):
            return await self._answer_messages(route_name, runner_id, request)
        if route_name == "lease":
            return await self._answer_lease_request(runner_id, request)
        if route_name == "renew":
            self.note("heard", type="renew")
            return None if self.is_cut_off else _ok(self._issue_credential(runner_id))
        return self._answer_under_lease(route_name, path_parameter, request)

    def _answer_registration(self, request: Request) -> Response | None:
        registration = _decode_registration(request.body)
        self.note("heard", type="register")
        runner_id = self._runner_ids_by_token.get(registration.token)
        if runner_id is None:
            return _problem("bad_credential", "that is no registration token of this server, or it was used already")
        del self._runner_ids_by_token[registration.token]
        return _ok(self._issue_credential(runner_id))

    def _issue_credential(self, runner_id: str) -> Registered:
        """Create a new credential for this runner and return the message with it."""
        credential = f"dci_credential_{secrets.token_urlsafe(24)}"
        self._credentials[credential] = (runner_id, self.now() + self._credential_seconds)
        self.transcript.secrets[credential] = "credential"
        return Registered(runner_id=runner_id, credential=credential, expires_in_seconds=self._credential_seconds)

    def _authenticate(self, request: Request) -> str | None:
        """Return the id of the runner that the request's credential was issued to; None if it has no valid credential.

        An expired credential is recorded but accepted, so that the other rules can still be checked.
        """
        scheme, _, credential = request.headers.get("authorization", "").partition(" ")
        runner_id, expires_at = self._credentials.get(credential, (None, 0.0))
        if scheme.lower() != "bearer" or runner_id is None:
            return None
        if self.now() > expires_at:
            self.note("heard", type="expired", note=f"{self.now() - expires_at:.1f}")
        return runner_id

    async def _answer_lease_request(self, runner_id: str, request: Request) -> Response | None:
        """Answer a request for work with the next scheduled grant, waiting for one as long as the runner asks."""
        lease_request = _decode_lease(request.body)
        self._check_runner_id("lease", runner_id, lease_request.runner_id)
        self.note("heard", type="lease")
        if self.is_cut_off:
            return None
        await self.until(
            lambda: self._pending_grants or request.is_disconnected() or self.is_cut_off, lease_request.wait_seconds
        )
        if request.is_disconnected() or self.is_cut_off:
            return None
        jobs = self._pending_grants.popleft() if self._pending_grants else []
        for job in jobs:
            job.expires_at = max(job.expires_at, self.now() + job.ttl_seconds)
            self.note("granted", job=job.name, body={"ttl": job.ttl_seconds})
        return _ok({"leases": [job.granted() for job in jobs]})

    async def _answer_messages(self, route_name: str, runner_id: str, request: Request) -> Response | None:
        """Answer one message or a batch, after applying the faults that were injected for these messages."""
        encoded_messages = _decode_batch(request.body) if route_name == "batch" else [msgspec.Raw(request.body)]
        messages = [wire.decode_message(bytes(encoded_message)) for encoded_message in encoded_messages]
        for message in messages:
            self._check_runner_id(type(message).__name__, runner_id, message.runner_id)
            self.note("heard", job=self._job_name(message), type=type(message).__name__, body=to_builtins(message))
        jobs = [self._jobs.get(message.lease_id) for message in messages]
        faults = [
            job.next_fault(type(message).__name__) if job and not self.is_cut_off else None
            for message, job in zip(messages, jobs, strict=True)
        ]
        for fault in faults:
            if fault is not None and fault.kind == "hold":
                await asyncio.sleep(fault.seconds)
        fault_kinds = {fault.kind for fault in faults if fault is not None}
        failure_kind = (
            "cut" if self.is_cut_off or "cut" in fault_kinds else "overloaded" if "busy" in fault_kinds else ""
        )
        if failure_kind:
            for message in messages:
                self.note("answered", job=self._job_name(message), type=type(message).__name__, answer=failure_kind)
            return None if failure_kind == "cut" else _problem("overloaded", OVERLOADED)
        answers = [
            self._answer_and_record(message, job, fault)
            for message, job, fault in zip(messages, jobs, faults, strict=True)
        ]
        if route_name == "batch":
            return _ok(answers)
        [answer] = answers
        return _problem(answer.code, answer.message) if isinstance(answer, Problem) else _encode_answer(answer)

    def _answer_and_record(
        self, message: RunnerMessage, job: ScriptedJob | None, fault: Fault | None
    ) -> wire.ServerMessage | Problem:
        """Apply the fault to the lease, if it is `stale`; then return the answer to the message and record it."""
        if job is not None and fault is not None and fault.kind == "stale":
            job.end_reason = fault.reason
        answer = self._answer(message, job)
        answer_name = answer.code if isinstance(answer, Problem) else type(answer).__name__
        cancel_fields = {"deadline": job.cancel_deadline_seconds} if job and isinstance(answer, HeartbeatAck) else {}
        self.note(
            "answered", job=self._job_name(message), type=type(message).__name__, answer=answer_name, body=cancel_fields
        )
        return answer

    def _answer(self, message: RunnerMessage, job: ScriptedJob | None) -> wire.ServerMessage | Problem:
        """Return the answer that a conforming server gives to a message, and update the job's lease."""
        if job is None:
            return StaleLease(lease_id=message.lease_id, reason="UNKNOWN_LEASE")
        if isinstance(message, Complete) and job.end_reason == "LEASE_COMPLETED" and job.is_repeat(message):
            return CompleteAck(lease_id=message.lease_id, accepted=True)
        if job.end_reason is None and self.now() > job.expires_at:
            job.end_reason = "LEASE_EXPIRED"
        if job.end_reason is not None:
            stale_answer = StaleLease(lease_id=message.lease_id, reason=job.end_reason)
            is_heartbeat = isinstance(message, Heartbeat)
            return (
                msgspec.structs.replace(stale_answer, extend_lease=False, stale=True) if is_heartbeat else stale_answer
            )
        match message:
            case AckLease() if message.job_id != job.job_id:
                return Problem("bad_request", "the lease is for another job")
            case Complete() if job.cancel_deadline_seconds:
                return CompleteAck(lease_id=message.lease_id, accepted=False, reason="CANCEL_REQUESTED")
            case Complete():
                job.is_repeat(message)
                job.end_reason = "LEASE_COMPLETED"
                return CompleteAck(lease_id=message.lease_id, accepted=True)
            case CancelAck() if not job.cancel_deadline_seconds:
                return Problem("cancel_not_requested", "no cancel was requested for this attempt; continue")
            case CancelAck():
                job.end_reason = "LEASE_CANCELED"
                return CancelAcked(lease_id=message.lease_id, accepted=True)
        job.expires_at = self.now() + job.ttl_seconds
        return HeartbeatAck(
            lease_id=message.lease_id,
            extend_lease=True,
            new_lease_ttl_seconds=job.ttl_seconds,
            cancel_requested=job.cancel_deadline_seconds > 0,
            cancel_deadline_seconds=job.cancel_deadline_seconds,
            reason="RUN_CANCELED" if job.cancel_deadline_seconds else msgspec.UNSET,
        )

    def _answer_under_lease(self, route_name: str, path_parameter: str, request: Request) -> Response | None:
        """Answer a request for the log or the job specification of a lease."""
        lease_id = request.headers.get(LEASE_HEADER.lower(), "")
        job = self._jobs.get(lease_id)
        self.note("heard", job=job.name if job else "", type=route_name)
        if self.is_cut_off:
            return None
        fault = job.next_fault(route_name) if job else None
        if job is None or job.end_reason is not None or self.now() > job.expires_at:
            stale_reason = "UNKNOWN_LEASE" if job is None else job.end_reason or "LEASE_EXPIRED"
            return _encode_answer(StaleLease(lease_id=lease_id or "none", reason=stale_reason))
        if route_name == "specs":
            return (
                _ok(job.spec) if path_parameter == job.job_id else _problem("not_found", "the lease is for another one")
            )
        if fault is not None:
            return None if fault.kind == "cut" else _problem("overloaded", OVERLOADED)
        if request.method == "POST":
            offset_text = request.headers.get(OFFSET_HEADER.lower(), "")
            if not offset_text.isdecimal():
                self.note("heard", type="refused", note=f"log: {OFFSET_HEADER} is {offset_text[:20]!r}")
                return _problem("bad_request", f"{OFFSET_HEADER} is {offset_text[:20]!r}; give a number")
            if not job.append(int(offset_text), request.body):
                return _problem(
                    "log_gap", f"the log ends at byte {len(job.log)}, not at {offset_text}; send it from there"
                )
        return _ok({"size": len(job.log)})

    def _job_name(self, message: RunnerMessage) -> str:
        """Return the name of the job that a message is about; empty if its lease is unknown."""
        job = self._jobs.get(message.lease_id)
        return job.name if job else ""

    def _check_runner_id(self, request_type: str, runner_id: str, claimed_id: str) -> None:
        """Record a violation if a request carries the id of another runner. Ids of later incarnations are allowed."""
        if claimed_id != runner_id and not claimed_id.startswith(f"{runner_id}/"):
            self.note(
                "heard",
                type="refused",
                note=f"{request_type}: in the name of {claimed_id!r} with the credential of {runner_id!r}",
            )


def _ok(body: Any) -> Response:
    return Response(200, wire.encode(body))


def _encode_answer(answer: wire.ServerMessage) -> Response:
    return Response(409 if isinstance(answer, StaleLease) else 200, wire.encode(answer))


def _problem(code: str, message: str) -> Response:
    return Response(status_of(code), wire.encode(Problem(code, message)))
