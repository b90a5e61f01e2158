"""Document 001 over the engine: each message becomes a command, each decision becomes the answer.

Nothing is decided here. Who speaks was proved before; that a lease is good, and whose it is, the core finds out in the
same transaction in which it accepts the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.core import attempt, ids, lease
from deltaci.core.attempt import Attempt
from deltaci.core.decide import Decision
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.events import worker_actor
from deltaci.core.failures import Facts, FailureRule
from deltaci.core.flaky import failed_tests
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.machine import Command, Record
from deltaci.core.run import Origin, Run
from deltaci.core.text import plain_line
from deltaci.core.timers import ready_at
from deltaci.core.worker import LEFT, Shutdown, Worker, is_over
from deltaci.engine.engine import Claim, ClaimedAttempt, Engine
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.engine.validation import json_copy, short_repr
from deltaci.engine.waiters import ClaimWaiters, Disconnected, LeaseLimit
from deltaci.fleet.liveness import Fleet
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import (
    AckLease,
    CancelAck,
    CancelAcked,
    Complete,
    CompleteAck,
    Heartbeat,
    HeartbeatAck,
    JobSpec,
    LeaseGranted,
    RunnerMessage,
    ServerMessage,
)
from deltaci.protocol.routes import ROOT
from deltaci.server.follower import look
from deltaci.server.runner_api.verdicts import verdict_of
from deltaci.storage.port import Begin, Store, Transaction, load_jobs

MAX_STEP_CHARS: Final = 500  # Of the step that a heartbeat names: it is kept with every one.

Answer = ServerMessage | Refused
FlakyOf = Callable[[str, str], Awaitable[Collection[str]]]  # Of a tenant's attempt: its job's known flaky tests.
RulesOf = Callable[
    [str], Awaitable[tuple[FailureRule, ...]]
]  # A tenant's rules for failures, before the built-in ones.
REPORTED: Final = (
    *("timings", "artifacts", "summary", "steps", "tests", "cost"),
    *("is_skipped", "verdicts", "head", "place"),
)
MAX_REPORTED_TEXT: Final = 2000  # As long as a line of the protocol.


class Runner(msgspec.Struct, frozen=True):
    """Who speaks, as its credential proves it."""

    id: str
    tenant: str

    def may_speak_for(self, id: str) -> bool:
        """One machine may carry many runners: `host` speaks for `host` and for `host/1`."""
        return id == self.id or id.startswith(f"{self.id}/")


class Protocol:
    """The runner's side of the server."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        ttl_seconds: int = lease.TTL_SECONDS,
        limit: LeaseLimit | None = None,
        rules: RulesOf | None = None,
        flaky: FlakyOf | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._ttl_seconds = ttl_seconds
        self._rules = rules
        self._flaky = flaky
        self._fleet = fleet
        self._line = ClaimWaiters(
            engine, store.commit_hints, limit, fleet.eligible_workers if fleet is not None else None
        )

    def stop_waiting(self) -> None:
        """The server is about to end: whoever waits for work is answered now, with none."""
        self._line.close()
        if self._fleet is not None:
            self._fleet.stop_waiting()

    async def lease(
        self, who: Runner, asked: wire.LeaseRequest, gone: Disconnected | None = None
    ) -> list[LeaseGranted]:
        """Hand out up to `slots` attempts; waits for the first one as long as the runner likes.

        Nothing is claimed for a runner that is `gone`: a lease that nobody takes counts against its attempt.
        """
        self._check_speaker(who, asked.runner_id)
        claim = Claim(
            tenant=who.tenant,
            worker_id=asked.runner_id,
            labels=tuple(asked.capabilities),
            limit=asked.slots,
            ttl_seconds=self._ttl_seconds,
            accept_seconds=lease.ACCEPT_SECONDS,
            only_ids=tuple(asked.attempts),
        )
        clock = asyncio.get_running_loop().time
        give_up = clock() + asked.wait_seconds
        fleet = self._fleet
        if fleet is not None:
            await fleet.mark_alive(who.tenant, [asked.runner_id])
        while True:
            if fleet is not None and not await fleet.wait_until_eligible(
                who.tenant, asked.runner_id, give_up - clock(), gone
            ):
                return []
            claimed = await self._line.claim(claim, give_up - clock(), self._until_held(who, asked.runner_id, gone))
            granted = await self._grant(who, claimed)
            is_held = fleet is not None and fleet.is_on_hold(who.tenant, asked.runner_id)
            if granted or not (claimed or is_held):
                return granted

    def _until_held(self, who: Runner, id: str, gone: Disconnected | None) -> Disconnected | None:
        """Whoever may not be given work any more stands in no line."""
        fleet = self._fleet
        return gone if fleet is None else lambda: fleet.wait_until_on_hold(who.tenant, id, gone)

    async def leave(self, who: Runner, asked: wire.LeaveRequest) -> bool:
        """The runner leaves: it gets nothing new. Whether it is gone already; what has no record always is."""
        self._check_speaker(who, asked.runner_id)
        record = await self._store.find(asked.runner_id)
        if not isinstance(record, Worker) or record.tenant != who.tenant or is_over(record):
            return True
        if self._fleet is not None:
            await self._fleet.mark_alive(who.tenant, [record.id])
        try:
            order = Shutdown(id=record.id, actor=worker_actor(record.id), reason=LEFT)
            record = (await self._engine.do(order)).record
        except Refused as refused:
            if refused.code != "wrong_state":
                raise
            record = await self._store.find(record.id)  # It went, or was found silent, meanwhile.
        return not isinstance(record, Worker) or is_over(record)

    async def gone(self, who: Runner, attempts: Sequence[str]) -> list[str]:
        """Those that are not there to be claimed, now: held, over, or never there for this tenant."""
        _, records = await self._store.transact(lambda: look(attempts))
        there = {
            each.id
            for each in records
            if unreadable_refusal(each) is not None or (each.tenant == who.tenant and ready_at(each) is not None)
        }
        return [id for id in attempts if id not in there]

    async def _grant(self, who: Runner, claimed: Sequence[ClaimedAttempt]) -> list[LeaseGranted]:
        """What a runner can execute. The rest is failed at once: no other runner could do better."""
        granted: list[LeaseGranted] = []
        unfit: list[Command] = []
        for each in claimed:
            try:
                granted.append(self._granted(each))
            except Refused as bad:
                facts = Facts(error_code="BAD_SPEC", message=bad.message)
                unfit.append(attempt.Complete(**_under(who, each), is_success=False, facts=facts))
        if unfit:
            await self._engine.do_all(unfit)
        return granted

    def _granted(self, claimed: ClaimedAttempt) -> LeaseGranted:
        record = claimed.attempt
        spec, ref = _spec_of(record)
        return LeaseGranted(
            lease_id=claimed.lease_id,
            job_id=record.job_id or record.id,
            run_id=record.run_id,
            lease_ttl_seconds=self._ttl_seconds,
            heartbeat_interval_seconds=max(1, self._ttl_seconds * lease.HEARTBEAT_SECONDS // lease.TTL_SECONDS),
            # The server ends it when its time is over. The runner does so a little later, should it not hear of that.
            max_runtime_seconds=min(record.timeout_seconds + lease.RUNTIME_BUFFER_SECONDS, wire.MAX_SECONDS),
            job_spec=spec,
            job_spec_ref=ref,
        )

    async def held(self, who: Runner, lease_id: str) -> Attempt:
        """The attempt that this live lease is for; otherwise `StaleLease`, by the clock of all decisions."""
        ref = ids.lease_ref(lease_id)
        now, record = await self._store.transact(lambda: self._look(ref.attempt_id))
        if (unread := unreadable_refusal(record)) is not None:
            raise unread
        if not isinstance(record, Attempt) or record.tenant != who.tenant:
            raise lease.unknown_attempt(ref.attempt_id)
        # The request does not say which of its names the runner speaks by: any of its own will do, another's will not.
        known = record.lease or record.ended_lease
        name = known.worker_id if known is not None and who.may_speak_for(known.worker_id) else who.id
        lease.check_fence(record.lease, record.ended_lease, ref, name, max(now, record.updated_at))
        return record

    async def origin(self, held: Attempt) -> Origin:
        """Where the attempt's run comes from; one of the plain queue comes from nowhere."""
        record = await self._store.find(held.run_id) if held.run_id else None
        if (unread := unreadable_refusal(record)) is not None:
            raise unread
        return record.origin if isinstance(record, Run) and record.tenant == held.tenant else Origin()

    async def looked(self, ids: Sequence[str]) -> list[Record]:
        """Those of these records that exist."""
        return (await self._store.transact(lambda: look(ids)))[1]

    async def load_jobs(self, run_id: str) -> list[Job]:
        """All jobs of a run, finished ones too."""
        return await self._store.read(lambda: load_jobs(run_id)) if run_id else []

    async def hand_back(self, who: Runner, lease_id: str) -> None:
        """The runner leaves, and nothing of its job runs any more: others may have it, and nothing is counted."""
        while True:
            record = await self.held(who, lease_id)
            try:
                await self._engine.do(attempt.Stall(id=record.id, reason=attempt.HANDED_BACK, expected_rev=record.rev))
                return
            except Refused as refused:
                if refused.code != "stale_rev":  # A heartbeat came between: the lease is looked at again.
                    raise

    async def say(self, who: Runner, said: Sequence[RunnerMessage]) -> list[Answer]:
        """Each message is accepted or refused on its own; all that stand are written together."""
        if self._fleet is not None:
            await self._fleet.mark_alive(
                who.tenant, {each.runner_id for each in said if who.may_speak_for(each.runner_id)}
            )
        answers: list[Answer | None] = [None] * len(said)
        commands: list[Command] = []
        places: list[int] = []
        for place, message in enumerate(said):
            try:
                self._check_speaker(who, message.runner_id)
                if isinstance(message, AckLease):
                    await self._check_job(who, message)
                commands.append(await self._informed(who, _command(who, message)))
                places.append(place)
            except Refused as refused:
                answers[place] = _refusal(message, refused)
        commands = await self._judged(commands, [said[place] for place in places])
        for place, found in zip(places, await self._engine.do_all(commands), strict=True):
            message = said[place]
            answers[place] = (
                _refusal(message, found) if isinstance(found, Refused) else await self._heard(message, found)
            )
        return [answer for answer in answers if answer is not None]

    async def _informed(self, who: Runner, command: Command) -> Command:
        """A failure's command with all that it is classed by: the core decides from what the command says."""
        if not isinstance(command, attempt.Complete) or command.is_success:
            return command
        rules = await self._rules(who.tenant) if self._rules is not None else ()
        names, is_all = failed_tests(command.report)
        known = await self._flaky(who.tenant, command.id) if self._flaky is not None and names and is_all else ()
        facts = msgspec.structs.replace(command.facts, flaky_tests=tuple(name for name in names if name in known))
        return msgspec.structs.replace(command, rules=rules, facts=facts)

    async def _judged(self, commands: list[Command], said: Sequence[RunnerMessage]) -> list[Command]:
        """Successes with what their rules say together: which there are only the attempts' records tell."""
        good = [each.id for each in commands if isinstance(each, attempt.Complete) and each.is_success]
        if not good:
            return commands
        found = {each.id: each for each in await self._store.find_all(good)}
        return [_with_verdict(each, told, found.get(each.id)) for each, told in zip(commands, said, strict=True)]

    @staticmethod
    def _check_speaker(who: Runner, id: str) -> None:
        if not who.may_speak_for(id):
            raise Refused("wrong_runner", f"this credential is for runner {who.id}, not for {id}; use that one's own")

    async def _check_job(self, who: Runner, message: AckLease) -> None:
        id = ids.lease_ref(message.lease_id).attempt_id
        if message.job_id not in (id, id.rpartition(".")[0]):
            await self.held(who, message.lease_id)  # A stale lease is stale, whatever else is wrong.
            raise Refused("bad_request", f"the lease is not for job {short_repr(message.job_id)}; name its own")

    async def _heard(self, message: RunnerMessage, decision: Decision) -> ServerMessage:
        record = decision.record
        assert isinstance(record, Attempt)
        if isinstance(message, Complete):
            is_accepted, reason = attempt.complete_answer(record)
            return CompleteAck(lease_id=message.lease_id, accepted=is_accepted, reason=reason)
        if isinstance(message, CancelAck):
            return CancelAcked(lease_id=message.lease_id, accepted=True)
        # A repeat renewed nothing: what it is told must not be longer than what is left.
        at = record.updated_at if decision.events else (await self._store.transact(lambda: self._look(record.id)))[0]
        left = record.lease.expires_at - at if record.lease is not None else 0
        stop = attempt.stop_request(record, at)
        return HeartbeatAck(
            lease_id=message.lease_id,
            extend_lease=True,
            new_lease_ttl_seconds=max(0, left // SECOND),
            cancel_requested=stop is not None,
            cancel_deadline_seconds=stop[1] if stop is not None else 0,
            reason=stop[0] if stop is not None else msgspec.UNSET,
        )

    def _look(self, id: str) -> Transaction[tuple[int, Record | None]]:
        """What time it is, and the record; nothing is written."""
        now, held = yield Begin((id,))
        return self._engine.clock.read(now), held[0].record if held else None


def _under(who: Runner, claimed: ClaimedAttempt) -> dict[str, Any]:
    """What every command under a lease that was just granted has."""
    held = claimed.attempt.lease
    assert held is not None
    return {
        "id": claimed.attempt.id,
        "actor": worker_actor(held.worker_id),
        "lease": ids.lease_ref(claimed.lease_id),
        "tenant": who.tenant,
    }


def job_spec(record: Attempt) -> JobSpec:
    """What the attempt's record asks a runner to do. A plain queue job carries it as its payload."""
    try:
        return msgspec.convert(record.spec or {}, JobSpec)
    except msgspec.ValidationError as error:
        raise Refused("bad_spec", f"the job of attempt {record.id} cannot be executed by a runner: {error}") from None


def _spec_of(record: Attempt) -> tuple[JobSpec | None, str | None]:
    spec = job_spec(record)
    if len(wire.encode(spec)) <= wire.MAX_SPEC_BYTES:
        return spec, None
    return None, f"{ROOT}specs/{quote(record.id)}"


def _command(who: Runner, message: RunnerMessage) -> Command:
    ref = ids.lease_ref(message.lease_id)
    named: dict[str, Any] = {
        "id": ref.attempt_id,
        "actor": worker_actor(message.runner_id),
        "lease": ref,
        "tenant": who.tenant,
    }
    match message:
        case AckLease():
            return attempt.Ack(**named)
        case Heartbeat():
            return attempt.Heartbeat(**named, progress=_progress(message))
        case CancelAck():
            return attempt.CancelAck(**named, report=_report(message))
        case Complete():
            report = _report(message)
            return attempt.Complete(
                **named,
                is_success=message.status == "SUCCEEDED",
                exit_code=message.exit_code,
                result=json_copy("output", message.output),
                report=report,
                facts=Facts(
                    exit_code=message.exit_code,
                    signal=message.signal,
                    error_code=message.error_code or "",
                    message=plain_line(message.summary, MAX_REPORTED_TEXT),
                    log_tail=tuple(plain_line(line, MAX_REPORTED_TEXT) for line in message.log_tail),
                    failed_tests=failed_tests(report)[0],
                ),
            )


def _with_verdict(command: Command, said: RunnerMessage, record: Record | None) -> Command:
    if not (isinstance(command, attempt.Complete) and command.is_success and isinstance(said, Complete)):
        return command
    try:
        spec = job_spec(record) if isinstance(record, Attempt) else JobSpec()
    except Refused:  # It was not granted as a job of a runner, and so it has no rules.
        return command
    return msgspec.structs.replace(command, verdict=verdict_of(said, spec))


def _progress(message: Heartbeat) -> dict[str, Any] | None:
    """How far the runner is, for people; None when it does not say."""
    told: dict[str, Any] = msgspec.to_builtins(message.progress) if message.progress is not None else {}
    if "current_step" in told:
        told["current_step"] = told["current_step"][:MAX_STEP_CHARS]
    if message.log_cursor is not None:
        told["log_bytes"] = message.log_cursor.bytes_sent
    return told or None


def _report(message: Complete | CancelAck) -> dict[str, Any]:
    """What people will want to look at; not the lease, and nothing that is kept elsewhere."""
    if isinstance(message, Complete):
        json_copy("cost", message.cost)
    told: dict[str, Any] = msgspec.to_builtins(message)
    return {name: _plain(told[name]) for name in REPORTED if told.get(name)}


def _plain(value: Any) -> Any:
    """Names, messages and summaries come from the job: they may not say more than a text says."""
    match value:
        case str():
            return plain_line(value, MAX_REPORTED_TEXT)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {_plain(name): _plain(each) for name, each in value.items()}
    return value


def _refusal(message: RunnerMessage, refused: Refused) -> Answer:
    if not isinstance(refused, StaleLease):
        return refused
    stale = stale_lease(message.lease_id, refused)
    return msgspec.structs.replace(stale, extend_lease=False, stale=True) if isinstance(message, Heartbeat) else stale


def stale_lease(lease_id: str, refused: StaleLease) -> wire.StaleLease:
    """The answer to whoever spoke under this lease. The core's reasons are the protocol's words."""
    return wire.StaleLease(lease_id=lease_id, reason=refused.reason)  # type: ignore[arg-type]
