"""A scripted orchestrator: transport B of the protocol, over real HTTP, with faults where a scenario wants them.

It decides nothing about the runner. It answers, writes down what it heard and saw, and leaves the verdicts to others.
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
from deltaci.conformance.scripted_job import ScriptedJob, to_builtins
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
# What this one answers. A newer runner may try more: it is told that there is nothing, and must cope.
ANSWERED: Final = tuple(
    each for each in PROTOCOL_ROUTES if each.name in ("register", "renew", "lease", "messages", "batch", "specs", "log")
)

_decode_registration = wire.decoder(wire.Registration)
_decode_lease = wire.decoder(wire.LeaseRequest)
_decode_batch = wire.decoder(list[msgspec.Raw])


class ScriptedOrchestrator:
    """The server of one scenario. `handle` answers requests; the rest is for the scenario."""

    def __init__(self, scenario: str, folder: Path, credential_seconds: int = CREDENTIAL_SECONDS) -> None:
        self.transcript = Transcript(scenario=scenario)
        self.is_cut_off = False  # While it is, every request is heard and none is answered.
        self._folder = folder
        self._is_over = False
        self._began = time.monotonic()
        self._changed = asyncio.Event()
        self._jobs: dict[str, ScriptedJob] = {}
        self._grants: deque[list[ScriptedJob]] = deque()
        self._runners = 0
        self._tokens: dict[str, str] = {}
        self._credentials: dict[str, tuple[str, float]] = {}
        self._credential_seconds = credential_seconds

    # -- for the scenario

    def token(self) -> str:
        """A fresh registration token, which is good once."""
        token = f"dci_token_{secrets.token_urlsafe(24)}"
        self._runners += 1
        self._tokens[token] = f"runner-{self._runners}"
        self.transcript.secrets[token] = "registration token"
        return token

    def job(self, name: str, **options: Any) -> ScriptedJob:
        """A new job, which is watched from now on."""
        made = ScriptedJob(name, self._folder, self._saw, **options)
        self._jobs[made.lease_id] = made
        # The job's name in it is none: whoever tells the rest tells the lease.
        self.transcript.secrets |= {made.lease_id.rpartition(".")[2]: "lease_id", made.cancel_token: "cancel_token"}
        return made

    def grant(self, *jobs: ScriptedJob) -> None:
        """Hand these out in one answer to whoever asks next."""
        self._grants.append(list(jobs))
        self._wake()

    async def until(self, is_so: Callable[[], object], seconds: float) -> bool:
        """Wait until it is so, and look again whenever something happens. False: it took too long."""
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    await self._changed.wait()
        except TimeoutError:
            return bool(is_so())
        return True

    async def quiet(self, seconds: float) -> None:
        """Watch for so long."""
        await self.until(lambda: False, seconds)

    def now(self) -> float:
        """Seconds since the scenario began."""
        return time.monotonic() - self._began

    def note(self, what: EntryKind, **fields: Any) -> None:
        """Write down an observation, after everything that the jobs said before it."""
        for each in self._jobs.values():
            each.witness.look()
        self._record(what, **fields)

    def end(self) -> None:
        """Look for the last time: what happens when the runner is ended from outside is not its doing."""
        self.note("ended")
        self._is_over = True

    def close(self) -> Transcript:
        """All that was observed."""
        for each in self._jobs.values():
            each.witness.close()
            self.transcript.logs[each.name] = each.log.decode(errors="replace")
        return self.transcript

    def _saw(self, job: str, word: str | None) -> None:
        self._record("nobody" if word is None else "job", job=job, note=word or "")

    def _record(self, what: EntryKind, **fields: Any) -> None:
        if self._is_over:
            return
        self.transcript.entries.append(Entry(at=round(self.now(), 3), what=what, **fields))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- for the runner

    async def handle(self, request: Request) -> Response | None:
        """Answer one request, or hang up."""
        self.transcript.targets.append(f"{request.method} {request.path}")
        name, _, rest = request.path.removeprefix(ROOT).partition("/")
        methods = [each.method for each in ANSWERED if each.name == name and bool(each.path_parameter) == bool(rest)]
        if not request.path.startswith(ROOT) or not methods:
            return _refused("not_found", f"there is no {request.path[:200]}")
        if request.method not in methods:
            return _refused("wrong_method", f"{request.path} takes {' or '.join(methods)}")
        try:
            return await self._route(name, rest, request)
        except msgspec.DecodeError as error:
            code = "bad_message" if isinstance(error, msgspec.ValidationError) else "bad_json"
            self.note("heard", type="refused", note=f"{name}: {error}")
            return _refused(code, str(error))

    async def _route(self, name: str, rest: str, request: Request) -> Response | None:
        if name == "register":
            return self._register(request)
        runner_id = self._who(request)
        if runner_id is None:
            self.note("heard", type="refused", note=f"{name}: without a credential of this server")
            return _refused("bad_credential", "that is no credential of this server")
        if name in ("messages", "batch"):
            return await self._messages(name, runner_id, request)
        if name == "lease":
            return await self._lease(runner_id, request)
        if name == "renew":
            self.note("heard", type="renew")
            return None if self.is_cut_off else _ok(self._registered(runner_id))
        return self._under_lease(name, rest, request)

    def _register(self, request: Request) -> Response | None:
        asked = _decode_registration(request.body)
        self.note("heard", type="register")
        runner_id = self._tokens.get(asked.token)
        if runner_id is None:
            return _refused("bad_credential", "that is no registration token of this server, or it was used already")
        del self._tokens[asked.token]
        return _ok(self._registered(runner_id))

    def _registered(self, runner_id: str) -> Registered:
        credential = f"dci_credential_{secrets.token_urlsafe(24)}"
        self._credentials[credential] = (runner_id, self.now() + self._credential_seconds)
        self.transcript.secrets[credential] = "credential"
        return Registered(runner_id=runner_id, credential=credential, expires_in_seconds=self._credential_seconds)

    def _who(self, request: Request) -> str | None:
        kind, _, credential = request.headers.get("authorization", "").partition(" ")
        runner_id, expires_at = self._credentials.get(credential, (None, 0.0))
        if kind.lower() != "bearer" or runner_id is None:
            return None
        if self.now() > expires_at:  # It is written down and let pass, so that the other rules can still be shown.
            self.note("heard", type="expired", note=f"{self.now() - expires_at:.1f}")
        return runner_id

    async def _lease(self, runner_id: str, request: Request) -> Response | None:
        asked = _decode_lease(request.body)
        self._check_name("lease", runner_id, asked.runner_id)
        self.note("heard", type="lease")
        if self.is_cut_off:
            return None
        await self.until(lambda: self._grants or request.is_gone() or self.is_cut_off, asked.wait_seconds)
        if request.is_gone() or self.is_cut_off:
            return None
        jobs = self._grants.popleft() if self._grants else []
        for each in jobs:
            each.expires_at = max(each.expires_at, self.now() + each.ttl_seconds)
            self.note("granted", job=each.name, body={"ttl": each.ttl_seconds})
        return _ok({"leases": [each.granted() for each in jobs]})

    async def _messages(self, name: str, runner_id: str, request: Request) -> Response | None:
        parts = _decode_batch(request.body) if name == "batch" else [msgspec.Raw(request.body)]
        said = [wire.decode_message(bytes(part)) for part in parts]
        for each in said:
            self._check_name(type(each).__name__, runner_id, each.runner_id)
            self.note("heard", job=self._name(each), type=type(each).__name__, body=to_builtins(each))
        jobs = [(each, self._jobs.get(each.lease_id)) for each in said]
        reactions = [job.reaction(type(each).__name__) if job and not self.is_cut_off else None for each, job in jobs]
        kinds = {each.kind for each in reactions if each is not None}
        for reaction in reactions:
            if reaction is not None and reaction.kind == "hold":
                await asyncio.sleep(reaction.seconds)
        told = "cut" if self.is_cut_off or "cut" in kinds else "overloaded" if "busy" in kinds else ""
        if told:
            for each in said:
                self.note("answered", job=self._name(each), type=type(each).__name__, answer=told)
            return None if told == "cut" else _refused("overloaded", "too much waits already; try again later")
        answers: list[Any] = []
        for (each, job), reaction in zip(jobs, reactions, strict=True):
            if job is not None and reaction is not None and reaction.kind == "stale":
                job.over = reaction.reason
            answer = self._answer(each, job)
            answers.append(answer)
            told = getattr(answer, "code", type(answer).__name__)
            stop = {"deadline": job.deadline_seconds} if job and isinstance(answer, HeartbeatAck) else {}
            self.note("answered", job=self._name(each), type=type(each).__name__, answer=told, body=stop)
        if name == "batch":
            return _ok(answers)
        [answer] = answers
        return _refused(answer.code, answer.message) if isinstance(answer, Problem) else _told(answer)

    def _answer(self, said: RunnerMessage, job: ScriptedJob | None) -> wire.ServerMessage | Problem:
        """The plain answer, as a server gives it."""
        if job is None:
            return StaleLease(lease_id=said.lease_id, reason="UNKNOWN_LEASE")
        if isinstance(said, Complete) and job.over == "LEASE_COMPLETED" and job.is_repeat(said):
            return CompleteAck(lease_id=said.lease_id, accepted=True)
        if job.over is None and self.now() > job.expires_at:
            job.over = "LEASE_EXPIRED"
        if job.over is not None:
            stale = StaleLease(lease_id=said.lease_id, reason=job.over)
            is_heartbeat = isinstance(said, Heartbeat)
            return msgspec.structs.replace(stale, extend_lease=False, stale=True) if is_heartbeat else stale
        match said:
            case AckLease() if said.job_id != job.job_id:
                return Problem("bad_request", "the lease is for another job")
            case Complete() if job.deadline_seconds:
                return CompleteAck(lease_id=said.lease_id, accepted=False, reason="CANCEL_REQUESTED")
            case Complete():
                job.is_repeat(said)
                job.over = "LEASE_COMPLETED"
                return CompleteAck(lease_id=said.lease_id, accepted=True)
            case CancelAck() if not job.deadline_seconds:
                return Problem("cancel_not_requested", "nobody asked this attempt to stop; go on")
            case CancelAck():
                job.over = "LEASE_CANCELED"
                return CancelAcked(lease_id=said.lease_id, accepted=True)
        job.expires_at = self.now() + job.ttl_seconds
        return HeartbeatAck(
            lease_id=said.lease_id,
            extend_lease=True,
            new_lease_ttl_seconds=job.ttl_seconds,
            cancel_requested=job.deadline_seconds > 0,
            cancel_deadline_seconds=job.deadline_seconds,
            reason="RUN_CANCELED" if job.deadline_seconds else msgspec.UNSET,
        )

    def _under_lease(self, name: str, rest: str, request: Request) -> Response | None:
        """The log, or a specification."""
        lease_id = request.headers.get(LEASE_HEADER.lower(), "")
        job = self._jobs.get(lease_id)
        self.note("heard", job=job.name if job else "", type=name)
        if self.is_cut_off:
            return None
        reaction = job.reaction(name) if job else None
        if job is None or job.over is not None or self.now() > job.expires_at:
            reason = "UNKNOWN_LEASE" if job is None else job.over or "LEASE_EXPIRED"
            return _told(StaleLease(lease_id=lease_id or "none", reason=reason))
        if name == "specs":
            return _ok(job.spec) if rest == job.job_id else _refused("not_found", "the lease is for another one")
        if reaction is not None:
            return None if reaction.kind == "cut" else _refused("overloaded", "too much waits already; try again later")
        if request.method == "POST":
            offset = request.headers.get(OFFSET_HEADER.lower(), "")
            if not offset.isdecimal():
                self.note("heard", type="refused", note=f"log: {OFFSET_HEADER} is {offset[:20]!r}")
                return _refused("bad_request", f"{OFFSET_HEADER} is {offset[:20]!r}; give a number")
            if not job.append(int(offset), request.body):
                return _refused("log_gap", f"the log ends at byte {len(job.log)}, not at {offset}; send it from there")
        return _ok({"size": len(job.log)})

    def _name(self, said: RunnerMessage) -> str:
        job = self._jobs.get(said.lease_id)
        return job.name if job else ""

    def _check_name(self, type: str, runner_id: str, told: str) -> None:
        if told != runner_id and not told.startswith(f"{runner_id}/"):
            self.note(
                "heard", type="refused", note=f"{type}: in the name of {told!r} with the credential of {runner_id!r}"
            )


def _ok(body: Any) -> Response:
    return Response(200, wire.encode(body))


def _told(answer: wire.ServerMessage) -> Response:
    return Response(409 if isinstance(answer, StaleLease) else 200, wire.encode(answer))


def _refused(code: str, message: str) -> Response:
    return Response(status_of(code), wire.encode(Problem(code, message)))
