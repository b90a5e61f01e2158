"""A server is visited by a scripted runner: one request after the other, a verdict for each promise of the protocol.

Without a lease it can be shown how a server treats strangers and nonsense; the rest needs jobs of the kit's own. They
come from `Work` where the kit may make them, or lie ready; no other job is ever touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from deltaci.conformance.http_client import HttpClient, Reply, ServerUnreachable
from deltaci.conformance.results import FAIL, NOT_SHOWN, PASS, CheckResult
from deltaci.conformance.scripted_runner import (
    LARGE_SPEC,
    SPEC,
    WAIT_SECONDS,
    CheckFailed,
    HeldLease,
    JobSource,
    NotCheckable,
    ScriptedRunner,
    decode,
    expect,
)
from deltaci.protocol import messages as wire

MIN_SECRET_CHARS: Final = 22  # 128 bits in base64.
SLACK_SECONDS: Final = 1.0


class ServerChecks:
    """What is known so far. Each method shows one item and returns its evidence."""

    def __init__(
        self, caller: HttpClient, tokens: Sequence[str], work: JobSource | None, patience_seconds: float
    ) -> None:
        self._caller = caller
        self._tokens = tokens
        self._work = work
        self._patience = patience_seconds
        self._visitors: list[ScriptedRunner] = []
        self._spare: list[HeldLease] = []
        self._live: HeldLease | None = None  # The lease of the longest story.
        self._over: HeldLease | None = None  # The same when it is completed.
        self._lost: HeldLease | None = None  # One that expired.

    # -- what is needed

    def _me(self) -> ScriptedRunner:
        if not self._visitors:
            raise NotCheckable("no runner could register (see token-once)")
        return self._visitors[0]

    def _take(self, spec: dict[str, Any] | None = None) -> HeldLease:
        """A fresh lease of one of the kit's jobs."""
        me = self._me()
        if self._spare and spec is None:
            return self._spare.pop()
        if self._work is not None:
            self._work.enqueue(spec or SPEC)
        elif spec is not None:
            raise NotCheckable("it needs a job of its own: give --store")
        # What lies ready is there at once; what was just enqueued has to be heard of first.
        found = me.held(me.lease(WAIT_SECONDS if self._work is not None else 0.0))
        if not found:
            raise NotCheckable(f"there is no work: give --store, or enqueue two jobs with the payload {SPEC}")
        return found[0]

    def _held(self) -> HeldLease:
        if self._live is None:
            raise NotCheckable("there is no lease (see granted)")
        return self._live

    # -- strangers and nonsense

    def token_once(self) -> str:
        """A registration token is good once."""
        first = expect(self._caller.ask("POST", "register", {"token": self._tokens[0]}), 200, "", "the first time")
        self._visitors.append(ScriptedRunner(self._caller, decode(first.body, wire.Registered)))
        again = self._caller.ask("POST", "register", {"token": self._tokens[0]})
        expect(again, 401, "bad_credential", "the same token again")
        expect(self._caller.ask("POST", "register", {"token": "no token"}), 401, "bad_credential", "an invented token")
        for token in self._tokens[1:]:
            other = expect(self._caller.ask("POST", "register", {"token": token}), 200, "", "another token")
            self._visitors.append(ScriptedRunner(self._caller, decode(other.body, wire.Registered)))
        return f"runner {self._me().runner_id!r} registered once; the same token again was answered with {again}"

    def credential_needed(self) -> str:
        """Nobody speaks without a credential, nor with a token that is for something else."""
        lease = {"type": "Lease", "runner_id": self._me().runner_id}
        for name in ("lease", "messages", "batch", "renew", "log"):
            for credential in ("", "invented", self._tokens[0]):
                reply = self._caller.ask("POST", name, lease, credential, Delta_Lease="x", Delta_Offset="0")
                kind = {"": "no credential", "invented": "an invented one"}.get(credential, "a registration token")
                expect(reply, 401, "bad_credential", f"{name} with {kind}")
        return "five addresses, each with none, an invented and a wrong kind of credential: always 401 bad_credential"

    def renewed(self) -> str:
        """A good credential is exchanged for a fresh one."""
        me = self._me()
        fresh = ScriptedRunner(self._caller, decode(expect(me.ask("POST", "renew"), 200, "").body, wire.Registered))
        if fresh.runner_id != me.runner_id:
            raise CheckFailed(f"expected the same runner_id {me.runner_id!r}, the answer was {fresh.runner_id!r}")
        expect(fresh.ask("POST", "renew"), 200, "", "a request with the fresh one")
        return f"a fresh one is good for {fresh.expires_at - time.monotonic():.0f} s"

    def own_name(self) -> str:
        """A runner speaks in its own name only."""
        reply = self._me().lease(runner_id="somebody-else")
        return f"a request in another's name: {expect(reply, 403, 'wrong_runner')}"

    def addresses(self) -> str:
        """What is not there, and what takes another method, is said so."""
        nothing = expect(self._me().ask("GET", "nothing-here"), 404, "not_found", "an address that is none")
        method = expect(self._me().ask("GET", "lease"), 405, "wrong_method", "GET on lease")
        return f"{nothing} and {method}"

    def strict(self) -> str:
        """A message that is none is refused with a stable code, and the place is named."""
        me = self._me()
        good = {"type": "Heartbeat", "lease_id": "x", "runner_id": me.runner_id, "ts": "2026-01-04T08:00:00Z"}
        wrong: list[tuple[str, Any, int, str]] = [
            ("an unknown field", {**good, "mood": "good"}, 422, "bad_message"),
            ("an unknown type", {**good, "type": "Hello"}, 422, "bad_message"),
            ("a missing field", {key: value for key, value in good.items() if key != "ts"}, 422, "bad_message"),
            ("a field of another type", {**good, "ts": 5}, 422, "bad_message"),
            ("a time without its zone", {**good, "ts": "2026-01-04T08:00:00"}, 422, "bad_message"),
            (
                "a status that is none",
                {"type": "Complete", "lease_id": "x", "runner_id": me.runner_id, "status": "GREAT"},
                422,
                "bad_message",
            ),
            ("no JSON", b"{", 400, "bad_json"),
        ]
        for what, body, status, code in wrong:
            expect(me.ask("POST", "messages", body), status, code, what)
        return f"{len(wrong)} messages that are none: 422 bad_message, or 400 bad_json"

    def too_large(self) -> str:
        """A message has a limit."""
        body = b'"' + b"x" * wire.MAX_MESSAGE_BYTES + b'"'
        return f"{len(body)} bytes: {expect(self._me().ask('POST', 'messages', body), 413, 'too_large')}"

    def unknown_lease(self) -> str:
        """A lease that nobody granted is stale, whatever is said under it."""
        me = self._me()
        granted = wire.LeaseGranted(
            lease_id="invented", job_id="invented", run_id="", lease_ttl_seconds=1,
            heartbeat_interval_seconds=1, max_runtime_seconds=1,
        )  # fmt: skip
        invented = HeldLease(granted, me)
        for type in ("AckLease", "Heartbeat", "Complete", "CancelAck"):
            self._stale(invented, type, "UNKNOWN_LEASE")
        expect(invented.log(0, b"x"), 409, "UNKNOWN_LEASE", "a part of a log")
        return "AckLease, Heartbeat, Complete, CancelAck and log: 409 StaleLease with UNKNOWN_LEASE"

    def long_poll(self) -> str:
        """Who asks for work may wait for it."""
        began = time.monotonic()
        found = self._me().held(self._me().lease(1.0))
        took = time.monotonic() - began
        if found:
            self._spare += found
            raise NotCheckable("there was work at once")
        if took < 0.9:
            raise CheckFailed(f"expected an empty answer after 1 s, it came after {took:.2f} s")
        return f"no work: an empty answer after {took:.2f} s"

    # -- under a lease

    def granted(self) -> str:
        """The grant is complete, and its lease id cannot be guessed."""
        self._live = held = self._take()
        told = held.granted
        if (told.job_spec is None) == (told.job_spec_ref is None):
            raise CheckFailed("expected either job_spec or job_spec_ref")
        if len(told.lease_id) < MIN_SECRET_CHARS:
            raise CheckFailed(f"expected an unguessable lease_id, it has {len(told.lease_id)} characters")
        if not 0 < told.heartbeat_interval_seconds < told.lease_ttl_seconds:
            beats, ttl = told.heartbeat_interval_seconds, told.lease_ttl_seconds
            raise CheckFailed(f"expected heartbeats more often than the lease lasts, found every {beats} s of {ttl} s")
        return (
            f"job {told.job_id!r} for {told.lease_ttl_seconds} s, heartbeats every {told.heartbeat_interval_seconds} s"
        )

    def ack_activates(self) -> str:
        """AckLease makes the lease active; saying it again is no error."""
        held = self._held()
        for what in ("AckLease", "AckLease again"):
            answer = decode(expect(held.say("AckLease"), 200, "HeartbeatAck", what).body, wire.HeartbeatAck)
            if not answer.extend_lease or answer.cancel_requested:
                raise CheckFailed(f"{what}: expected extend_lease=true and no cancel, the answer was {answer}")
        return "AckLease, and the same again: 200 HeartbeatAck with extend_lease=true"

    def heartbeat_renews(self) -> str:
        """Every heartbeat renews the lease: it outlives its first time."""
        held = self._held()
        ttl = held.granted.lease_ttl_seconds
        began = time.monotonic()
        until = began + (1.3 * ttl if 1.3 * ttl <= self._patience else SLACK_SECONDS)
        while True:
            answer = decode(expect(held.say("Heartbeat"), 200, "HeartbeatAck").body, wire.HeartbeatAck)
            if not answer.extend_lease or abs(answer.new_lease_ttl_seconds - ttl) > SLACK_SECONDS:
                raise CheckFailed(f"expected {ttl} s anew, the answer was {answer.new_lease_ttl_seconds} s")
            if time.monotonic() >= until:
                break
            time.sleep(min(held.granted.heartbeat_interval_seconds, max(0.0, until - time.monotonic())))
        return f"{time.monotonic() - began:.1f} s after it was granted for {ttl} s, a heartbeat gave {ttl} s anew"

    def not_yours(self) -> str:
        """A lease is of no use to another runner."""
        held = self._held()
        if len(self._visitors) < 2:
            raise NotCheckable("it needs a second runner: give a second --token")
        other = self._visitors[1]
        for type in ("Heartbeat", "Complete"):
            expect(held.say(type, other), 403, "wrong_runner", f"{type} with another's credential")
            expect(held.say(type, other, runner_id=other.runner_id), 409, "UNKNOWN_LEASE", f"{type} as another runner")
        expect(held.log(0, b"x", other), 409, "UNKNOWN_LEASE", "a part of the log from another runner")
        expect(held.say("Heartbeat"), 200, "HeartbeatAck", "its own heartbeat after that")
        return "another runner with this lease_id: 403 wrong_runner, or 409 UNKNOWN_LEASE in its own name"

    def batch(self) -> str:
        """Each message of a batch is answered in its place."""
        held = self._held()
        said = [
            held.message("Heartbeat"),
            {"type": "Hello"},
            held.message("Heartbeat", lease_id="invented"),
            held.message("Heartbeat"),
        ]
        reply = expect(self._me().ask("POST", "batch", said), 200, "")
        words = [Reply(200, each).word for each in reply.body] if isinstance(reply.body, list) else [reply.word]
        expected = ["HeartbeatAck", "bad_message", "UNKNOWN_LEASE", "HeartbeatAck"]
        if words != expected:
            raise CheckFailed(f"expected {expected}, the answers were {words}")
        return f"good, bad, unknown, good: {', '.join(words)}"

    def log_offsets(self) -> str:
        """A log has no hole and nothing twice."""
        held = self._held()
        for what, offset, data, size in (
            ("the first part", 0, b"0123456789", 10),
            ("the same part again", 0, b"0123456789", 10),
            ("a part that overlaps", 5, b"56789abcde", 15),
        ):
            reply = expect(held.log(offset, data), 200, "", what)
            if reply.body != {"size": size}:
                raise CheckFailed(f"{what}: expected a size of {size}, the answer was {reply.body}")
        gap = expect(held.log(20, b"x"), 409, "log_gap", "a part after a hole")
        expect(held.log("x", b"x"), 400, "bad_request", "an offset that is no number")
        now = expect(self._me().ask("GET", "log", Delta_Lease=held.granted.lease_id), 200, "")
        if now.body != {"size": 15}:
            raise CheckFailed(f"expected a size of 15 after all this, it is {now.body}")
        return f"a repeat and an overlap count once, a hole is {gap}"

    def cancel_unasked(self) -> str:
        """Who was not asked to stop cannot say that it did."""
        return f"CancelAck without a request: {expect(self._held().say('CancelAck'), 409, 'cancel_not_requested')}"

    def complete_once(self) -> str:
        """The first result stands; the same again is a repeat, another one changes nothing."""
        held = self._held()
        self._live = None
        for what in ("Complete", "the same again"):
            answer = decode(expect(held.say("Complete"), 200, "CompleteAck", what).body, wire.CompleteAck)
            if not answer.accepted:
                raise CheckFailed(f"{what}: expected accepted=true, the answer was {answer.reason!r}")
        self._over = held
        other = held.say("Complete", status="FAILED", exit_code=1)
        if other.status == 200 and other.body.get("accepted"):
            raise CheckFailed("another result after the accepted one: expected a refusal, it was accepted")
        return f"CompleteAck for the result and for its repeat; another result: {other}"

    def stale_after_end(self) -> str:
        """Nothing counts under a lease that is over."""
        if self._over is None:
            raise NotCheckable("no result was accepted (see complete-once)")
        self._stale(self._over, "Heartbeat", "LEASE_COMPLETED")
        self._stale(self._over, "CancelAck", "LEASE_COMPLETED")
        expect(self._over.log(15, b"late"), 409, "LEASE_COMPLETED", "a part of the log")
        return "Heartbeat, CancelAck and log: 409 StaleLease with LEASE_COMPLETED"

    def expires(self) -> str:
        """Who is silent for too long has lost its lease."""
        held = self._take()
        expect(held.say("AckLease"), 200, "HeartbeatAck", "AckLease")
        ttl = held.granted.lease_ttl_seconds
        if ttl + SLACK_SECONDS > self._patience:
            expect(held.say("Complete"), 200, "CompleteAck")  # It is left as done as it can be.
            raise NotCheckable(f"a lease lasts {ttl} s, longer than --patience {self._patience:.0f}")
        time.sleep(ttl + SLACK_SECONDS)
        self._lost = held
        for type in ("Heartbeat", "Complete"):
            reply = held.say(type)
            if reply.status != 409 or reply.word not in ("LEASE_EXPIRED", "LEASE_REPLACED"):
                raise CheckFailed(
                    f"{type} after {ttl} s of silence: expected 409 LEASE_EXPIRED, the answer was {reply}"
                )
        return f"Heartbeat and Complete after {ttl + SLACK_SECONDS:.0f} s of silence: 409 StaleLease"

    def leased_again(self) -> str:
        """A job whose lease was lost is granted anew, and the old lease is of no use."""
        lost = self._lost
        if lost is None:
            raise NotCheckable("no lease expired (see expires)")
        me = self._me()
        until = time.monotonic() + WAIT_SECONDS + lost.granted.lease_ttl_seconds
        found: list[HeldLease] = []
        while not found and time.monotonic() < until:
            found = [each for each in me.held(me.lease(WAIT_SECONDS)) if each.granted.job_id == lost.granted.job_id]
        if not found:
            raise CheckFailed(f"expected job {lost.granted.job_id!r} to be granted again, it was not")
        if found[0].granted.lease_id == lost.granted.lease_id:
            raise CheckFailed("expected a new lease_id, it is the old one")
        late = lost.say("Complete")
        expect(late, 409, late.word, "Complete under the lost lease")
        decode(late.body, wire.StaleLease)
        expect(found[0].say("AckLease"), 200, "HeartbeatAck", "AckLease of the new lease")
        expect(found[0].say("Complete"), 200, "CompleteAck", "Complete under the new lease")
        return f"the job came again under another lease_id; Complete under the old one: {late}"

    def cancel(self) -> str:
        """A cancel reaches the runner with the next heartbeat, and ends with its CancelAck."""
        if self._work is None:
            raise NotCheckable("somebody must ask for the cancel: give --store")
        held = self._take()
        expect(held.say("AckLease"), 200, "HeartbeatAck", "AckLease")
        self._work.cancel(held.granted.job_id)
        until = time.monotonic() + WAIT_SECONDS
        while True:
            answer = decode(expect(held.say("Heartbeat"), 200, "HeartbeatAck").body, wire.HeartbeatAck)
            if answer.cancel_requested or time.monotonic() >= until:
                break
            time.sleep(0.1)
        if not answer.cancel_requested or not answer.cancel_deadline_seconds:
            raise CheckFailed(f"expected cancel_requested with a deadline, the answer was {answer}")
        decode(expect(held.say("CancelAck"), 200, "CancelAcked", "CancelAck").body, wire.CancelAcked)
        if (late := held.say("Complete")).status == 200 and late.body.get("accepted") is not False:
            raise CheckFailed(f"Complete after CancelAck: expected that it does not count, the answer was {late}")
        return f"HeartbeatAck asked for a stop within {answer.cancel_deadline_seconds} s; CancelAck was accepted"

    def large_spec(self) -> str:
        """A large specification is not in the lease but where it says."""
        held = self._take(LARGE_SPEC)
        ref = held.granted.job_spec_ref
        if ref is None:
            raise NotCheckable("the server embeds specifications of this size")
        spec = held.visitor.spec(held.granted)
        if spec.steps != LARGE_SPEC["steps"]:
            raise CheckFailed("expected the specification that was enqueued, it is another one")
        expect(held.say("AckLease"), 200, "HeartbeatAck", "AckLease")
        expect(held.say("Complete"), 200, "CompleteAck", "Complete")
        return f"{len(str(spec.steps))} characters were read under the lease"

    def credential_ends(self) -> str:
        """An old credential is refused."""
        me = self._me()
        left = me.expires_at - time.monotonic()
        if left + SLACK_SECONDS > self._patience:
            raise NotCheckable(f"a credential lasts another {left:.0f} s, longer than --patience {self._patience:.0f}")
        time.sleep(max(0.0, left) + SLACK_SECONDS)
        return f"a request with an old credential: {expect(me.lease(), 401, 'expired_credential')}"

    def leave(self) -> None:
        """Nothing that was taken is left half done."""
        for held in (*self._spare, *([self._live] if self._live else [])):
            with suppress(ServerUnreachable):
                held.say("AckLease")
                held.say("Complete")

    @staticmethod
    def _stale(held: HeldLease, type: str, reason: str) -> None:
        body = expect(held.say(type), 409, reason, type).body
        decode(body, wire.StaleLease)
        if type == "Heartbeat" and (body.get("extend_lease") is not False or body.get("stale") is not True):
            raise CheckFailed(f"Heartbeat: expected extend_lease=false and stale=true beside {reason}")


class ServerCheck(msgspec.Struct, frozen=True):
    """A line of the server's checklist."""

    id: str
    title: str
    show: Callable[[ServerChecks], str]
    needs: tuple[str, ...] = ("token-once",)


# In this order: later ones need what earlier ones got.
SERVER_CHECKS: Final = (
    ServerCheck("token-once", "a registration token is good once (PRO-X3)", ServerChecks.token_once, ()),
    ServerCheck("credential-needed", "nobody speaks without a credential (PRO-X3)", ServerChecks.credential_needed),
    ServerCheck("renewed", "a good credential is exchanged for a fresh one", ServerChecks.renewed),
    ServerCheck("own-name", "a runner speaks in its own name only (PRO-N1)", ServerChecks.own_name),
    ServerCheck("addresses", "unknown addresses and methods are refused", ServerChecks.addresses),
    ServerCheck("strict", "what is no message is refused with a stable code (PRO-U3)", ServerChecks.strict),
    ServerCheck("too-large", "a message has a limit", ServerChecks.too_large),
    ServerCheck("unknown-lease", "an unknown lease is stale (PRO-H3)", ServerChecks.unknown_lease),
    ServerCheck("long-poll", "who asks for work may wait for it (PRO-B2)", ServerChecks.long_poll),
    ServerCheck("granted", "the grant is complete, its lease_id unguessable (PRO-M1, PRO-Q1)", ServerChecks.granted),
    ServerCheck("ack-activates", "AckLease activates the lease (PRO-Q3)", ServerChecks.ack_activates, ("granted",)),
    ServerCheck(
        "heartbeat-renews",
        "every heartbeat renews the lease (PRO-Q5)",
        ServerChecks.heartbeat_renews,
        ("ack-activates",),
    ),
    ServerCheck(
        "not-yours", "a lease is of no use to another runner (PRO-K2)", ServerChecks.not_yours, ("ack-activates",)
    ),
    ServerCheck("batch", "each message of a batch is answered in its place", ServerChecks.batch, ("ack-activates",)),
    ServerCheck("log-offsets", "a log has no hole and nothing twice", ServerChecks.log_offsets, ("ack-activates",)),
    ServerCheck(
        "cancel-unasked",
        "CancelAck counts only after a request (PRO-Q11)",
        ServerChecks.cancel_unasked,
        ("ack-activates",),
    ),
    ServerCheck(
        "complete-once",
        "the first result stands, its repeat is no error (PRO-Q7)",
        ServerChecks.complete_once,
        ("ack-activates",),
    ),
    ServerCheck(
        "stale-after-end",
        "nothing counts after the end (PRO-S4, PRO-Q12)",
        ServerChecks.stale_after_end,
        ("complete-once",),
    ),
    ServerCheck("expires", "silence costs the lease (PRO-S1, PRO-Q6)", ServerChecks.expires),
    ServerCheck("leased-again", "a lost job is granted anew (PRO-F1, PRO-S3)", ServerChecks.leased_again, ("expires",)),
    ServerCheck("cancel", "a cancel reaches the runner and ends with CancelAck (PRO-Q13)", ServerChecks.cancel),
    ServerCheck("large-spec", "a large specification is referred to (PRO-Q2)", ServerChecks.large_spec),
    ServerCheck("credential-ends", "an old credential is refused (PRO-X3)", ServerChecks.credential_ends),
)


def _needed(only: Collection[str]) -> set[str]:
    """These items, and those that they need."""
    found = set(only) or {promise.id for promise in SERVER_CHECKS}
    for promise in reversed(SERVER_CHECKS):
        if promise.id in found:
            found.update(promise.needs)
    return found


def check_server(
    caller: HttpClient,
    tokens: Sequence[str],
    work: JobSource | None,
    patience_seconds: float,
    only: Collection[str] = (),
) -> Iterator[CheckResult]:
    """Each item as soon as it is known."""
    here = ServerChecks(caller, tokens, work, patience_seconds)
    needed = _needed(only)
    try:
        for promise in SERVER_CHECKS:
            if promise.id in needed:
                item = _shown(promise, here)
                if not only or promise.id in only:
                    yield item
    finally:
        here.leave()


def _shown(promise: ServerCheck, here: ServerChecks) -> CheckResult:
    try:
        return CheckResult(promise.id, promise.title, PASS, promise.show(here))
    except NotCheckable as why:
        return CheckResult(promise.id, promise.title, NOT_SHOWN, str(why))
    except (CheckFailed, ServerUnreachable) as evidence:
        return CheckResult(promise.id, promise.title, FAIL, str(evidence))
