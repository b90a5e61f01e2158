"""The checklist for servers: a scripted runner sends requests one by one and checks every answer.

Some items only need a registration; the others need a lease, and so a job of the kit's own. The kit creates these jobs
through a `JobSource`, or finds them in the queue; it never touches any other job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from deltaci.conformance.http_client import HttpClient, Reply
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
from deltaci.core.errors import Unreachable
from deltaci.protocol import messages as wire

MIN_SECRET_CHARS: Final = 22  # 128 bits in base64.
SLACK_SECONDS: Final = 1.0


class ServerChecks:
    """The checks and the state that they share. Each public method checks one item and returns its evidence as text.

    A method raises `CheckFailed` if the server broke the rule, and `NotCheckable` if the rule cannot be checked.
    """

    def __init__(
        self, client: HttpClient, tokens: Sequence[str], job_source: JobSource | None, patience_seconds: float
    ) -> None:
        self._client = client
        self._tokens = tokens
        self._job_source = job_source
        self._patience = patience_seconds
        self._runners: list[ScriptedRunner] = []
        self._unused_leases: list[HeldLease] = []  # Granted to a check that did not need them.
        self._shared_lease: HeldLease | None = None  # The lease that several checks use in turn.
        self._completed_lease: HeldLease | None = None  # The same lease after its completion.
        self._expired_lease: HeldLease | None = None

    # -- preconditions

    def _runner(self) -> ScriptedRunner:
        """Return the first registered runner. Raise `NotCheckable` if there is none."""
        if not self._runners:
            raise NotCheckable("no runner could register (see token-once)")
        return self._runners[0]

    def _take(self, spec_fields: dict[str, Any] | None = None) -> HeldLease:
        """Return a granted lease for a job of the kit, which has this specification if it is given.

        Raise `NotCheckable` if there is none.
        """
        runner = self._runner()
        if self._unused_leases and spec_fields is None:
            return self._unused_leases.pop()
        if self._job_source is not None:
            self._job_source.enqueue(spec_fields or SPEC)
        elif spec_fields is not None:
            raise NotCheckable("it needs a job of its own: give --store")
        # A job that was just enqueued may not be visible at once.
        granted_leases = runner.granted_leases(runner.lease(WAIT_SECONDS if self._job_source is not None else 0.0))
        if not granted_leases:
            raise NotCheckable(f"there is no work: give --store, or enqueue two jobs with the payload {SPEC}")
        return granted_leases[0]

    def _require_shared_lease(self) -> HeldLease:
        """Return the lease that several checks use in turn.

        Raise `NotCheckable` if it was not granted, or has ended.
        """
        if self._shared_lease is None:
            raise NotCheckable("there is no lease (see granted)")
        return self._shared_lease

    # -- without a lease

    def token_once(self) -> str:
        """Check that a registration token can be used once only."""
        first_reply = expect(
            self._client.request("POST", "register", {"token": self._tokens[0]}), 200, "", "the first time"
        )
        self._runners.append(ScriptedRunner(self._client, decode(first_reply.body, wire.Registered)))
        repeat = self._client.request("POST", "register", {"token": self._tokens[0]})
        expect(repeat, 401, "bad_credential", "the same token again")
        invented_reply = self._client.request("POST", "register", {"token": "no token"})
        expect(invented_reply, 401, "bad_credential", "an invented token")
        for token in self._tokens[1:]:
            registered_reply = expect(
                self._client.request("POST", "register", {"token": token}), 200, "", "another token"
            )
            self._runners.append(ScriptedRunner(self._client, decode(registered_reply.body, wire.Registered)))
        return f"runner {self._runner().runner_id!r} registered once; the same token again was answered with {repeat}"

    def credential_needed(self) -> str:
        """Check that requests without a credential, or with a token for another use, are refused."""
        lease_request = {"type": "Lease", "runner_id": self._runner().runner_id}
        for route_name in ("lease", "messages", "batch", "renew", "log"):
            for credential in ("", "invented", self._tokens[0]):
                reply = self._client.request(
                    "POST", route_name, lease_request, credential, Delta_Lease="x", Delta_Offset="0"
                )
                credential_kind = {"": "no credential", "invented": "an invented one"}.get(
                    credential, "a registration token"
                )
                expect(reply, 401, "bad_credential", f"{route_name} with {credential_kind}")
        return "five addresses, each with none, an invented and a wrong kind of credential: always 401 bad_credential"

    def renew_credential(self) -> str:
        """Check that a valid credential can be renewed."""
        runner = self._runner()
        reply = expect(runner.request("POST", "renew"), 200, "")
        renewed_runner = ScriptedRunner(self._client, decode(reply.body, wire.Registered))
        if renewed_runner.runner_id != runner.runner_id:
            raise CheckFailed(
                f"expected the same runner_id {runner.runner_id!r}, the answer was {renewed_runner.runner_id!r}"
            )
        expect(renewed_runner.request("POST", "renew"), 200, "", "a request with the new one")
        return f"a new one is valid for {renewed_runner.expires_at - time.monotonic():.0f} s"

    def own_runner_id(self) -> str:
        """Check that a runner cannot send another runner's id."""
        reply = self._runner().lease(runner_id="somebody-else")
        return f"a request in another's name: {expect(reply, 403, 'wrong_runner')}"

    def unknown_paths(self) -> str:
        """Check that an unknown path and an unsupported method are refused with their error codes."""
        unknown_path_reply = expect(self._runner().request("GET", "nothing-here"), 404, "not_found", "an unknown path")
        wrong_method_reply = expect(self._runner().request("GET", "lease"), 405, "wrong_method", "GET on lease")
        return f"{unknown_path_reply} and {wrong_method_reply}"

    def invalid_messages(self) -> str:
        """Check that invalid messages are refused with a stable error code."""
        runner = self._runner()
        valid_message = {
            "type": "Heartbeat",
            "lease_id": "x",
            "runner_id": runner.runner_id,
            "ts": "2026-01-04T08:00:00Z",
        }
        cases: list[tuple[str, Any, int, str]] = [
            ("an unknown field", {**valid_message, "mood": "good"}, 422, "bad_message"),
            ("an unknown type", {**valid_message, "type": "Hello"}, 422, "bad_message"),
            (
                "a missing field",
                {field_name: field_value for field_name, field_value in valid_message.items() if field_name != "ts"},
                422,
                "bad_message",
            ),
            ("a field of another type", {**valid_message, "ts": 5}, 422, "bad_message"),
            ("a time without its zone", {**valid_message, "ts": "2026-01-04T08:00:00"}, 422, "bad_message"),
            (
                "an unknown status",
                {"type": "Complete", "lease_id": "x", "runner_id": runner.runner_id, "status": "GREAT"},
                422,
                "bad_message",
            ),
            ("no JSON", b"{", 400, "bad_json"),
        ]
        for request_name, request_body, expected_status, expected_code in cases:
            expect(runner.request("POST", "messages", request_body), expected_status, expected_code, request_name)
        return f"{len(cases)} invalid messages: 422 bad_message, or 400 bad_json"

    def too_large(self) -> str:
        """Check that a message above the size limit is refused."""
        request_body = b'"' + b"x" * wire.MAX_MESSAGE_BYTES + b'"'
        reply = expect(self._runner().request("POST", "messages", request_body), 413, "too_large")
        return f"{len(request_body)} bytes: {reply}"

    def unknown_lease(self) -> str:
        """Check that every message under a lease that was never granted is answered with StaleLease."""
        runner = self._runner()
        granted = wire.LeaseGranted(
            lease_id="invented", job_id="invented", run_id="", lease_ttl_seconds=1,
            heartbeat_interval_seconds=1, max_runtime_seconds=1,
        )  # fmt: skip
        invented_lease = HeldLease(granted, runner)
        for message_type in ("AckLease", "Heartbeat", "Complete", "CancelAck"):
            self._expect_stale(invented_lease, message_type, "UNKNOWN_LEASE")
        expect(invented_lease.log(0, b"x"), 409, "UNKNOWN_LEASE", "a part of a log")
        return "AckLease, Heartbeat, Complete, CancelAck and log: 409 StaleLease with UNKNOWN_LEASE"

    def long_poll(self) -> str:
        """Check that a request for work waits up to `wait_seconds` when there is no work."""
        started_at = time.monotonic()
        granted_leases = self._runner().granted_leases(self._runner().lease(1.0))
        elapsed_seconds = time.monotonic() - started_at
        if granted_leases:
            self._unused_leases += granted_leases
            raise NotCheckable("there was work at once")
        if elapsed_seconds < 0.9:
            raise CheckFailed(f"expected an empty answer after 1 s, it came after {elapsed_seconds:.2f} s")
        return f"no work: an empty answer after {elapsed_seconds:.2f} s"

    # -- under a lease

    def granted(self) -> str:
        """Check that a grant has a job, a usable heartbeat interval, and a lease id that cannot be guessed."""
        self._shared_lease = granted_lease = self._take()
        granted = granted_lease.granted
        if (granted.job_spec is None) == (granted.job_spec_ref is None):
            raise CheckFailed("expected either job_spec or job_spec_ref")
        if len(granted.lease_id) < MIN_SECRET_CHARS:
            raise CheckFailed(f"expected an unguessable lease_id, it has {len(granted.lease_id)} characters")
        ttl, interval = granted.lease_ttl_seconds, granted.heartbeat_interval_seconds
        if not 0 < interval < ttl:
            raise CheckFailed(
                f"expected heartbeats more often than the lease lasts, found every {interval} s of {ttl} s"
            )
        return f"job {granted.job_id!r} for {ttl} s, heartbeats every {interval} s"

    def ack_activates(self) -> str:
        """Check that AckLease renews the lease, and that repeating it is no error."""
        granted_lease = self._require_shared_lease()
        for request_name in ("AckLease", "AckLease again"):
            answer = decode(
                expect(granted_lease.send("AckLease"), 200, "HeartbeatAck", request_name).body, wire.HeartbeatAck
            )
            if not answer.extend_lease or answer.cancel_requested:
                raise CheckFailed(f"{request_name}: expected extend_lease=true and no cancel, the answer was {answer}")
        return "AckLease, and the same again: 200 HeartbeatAck with extend_lease=true"

    def heartbeat_renews(self) -> str:
        """Check that every heartbeat renews the lease, also beyond its first TTL if the patience allows."""
        granted_lease = self._require_shared_lease()
        ttl = granted_lease.granted.lease_ttl_seconds
        started_at = time.monotonic()
        deadline = started_at + (1.3 * ttl if 1.3 * ttl <= self._patience else SLACK_SECONDS)
        while True:
            answer = decode(expect(granted_lease.send("Heartbeat"), 200, "HeartbeatAck").body, wire.HeartbeatAck)
            if not answer.extend_lease or abs(answer.new_lease_ttl_seconds - ttl) > SLACK_SECONDS:
                raise CheckFailed(f"expected a renewal for {ttl} s, the answer was {answer.new_lease_ttl_seconds} s")
            if time.monotonic() >= deadline:
                break
            time.sleep(min(granted_lease.granted.heartbeat_interval_seconds, max(0.0, deadline - time.monotonic())))
        return (
            f"{time.monotonic() - started_at:.1f} s after it was granted for {ttl} s, "
            f"a heartbeat renewed it for {ttl} s"
        )

    def other_runner(self) -> str:
        """Check that another runner cannot send messages under a lease."""
        granted_lease = self._require_shared_lease()
        if len(self._runners) < 2:
            raise NotCheckable("it needs a second runner: give a second --token")
        other_runner = self._runners[1]
        for message_type in ("Heartbeat", "Complete"):
            expect(
                granted_lease.send(message_type, other_runner),
                403,
                "wrong_runner",
                f"{message_type} with another's credential",
            )
            expect(
                granted_lease.send(message_type, other_runner, runner_id=other_runner.runner_id),
                409,
                "UNKNOWN_LEASE",
                f"{message_type} as another runner",
            )
        expect(granted_lease.log(0, b"x", other_runner), 409, "UNKNOWN_LEASE", "a part of the log from another runner")
        expect(granted_lease.send("Heartbeat"), 200, "HeartbeatAck", "its own heartbeat after that")
        return "another runner with this lease_id: 403 wrong_runner, or 409 UNKNOWN_LEASE in its own name"

    def batch(self) -> str:
        """Check that every message of a batch gets its own answer, in the same order."""
        granted_lease = self._require_shared_lease()
        messages = [
            granted_lease.message("Heartbeat"),
            {"type": "Hello"},
            granted_lease.message("Heartbeat", lease_id="invented"),
            granted_lease.message("Heartbeat"),
        ]
        reply = expect(self._runner().request("POST", "batch", messages), 200, "")
        codes = [Reply(200, answer).code for answer in reply.body] if isinstance(reply.body, list) else [reply.code]
        expected_codes = ["HeartbeatAck", "bad_message", "UNKNOWN_LEASE", "HeartbeatAck"]
        if codes != expected_codes:
            raise CheckFailed(f"expected {expected_codes}, the answers were {codes}")
        return f"good, bad, unknown, good: {', '.join(codes)}"

    def log_offsets(self) -> str:
        """Check that repeated bytes of a log are stored once and that a gap is refused."""
        granted_lease = self._require_shared_lease()
        for request_name, sent_offset, chunk, expected_size in (
            ("the first part", 0, b"0123456789", 10),
            ("the same part again", 0, b"0123456789", 10),
            ("a part that overlaps", 5, b"56789abcde", 15),
        ):
            reply = expect(granted_lease.log(sent_offset, chunk), 200, "", request_name)
            if reply.body != {"size": expected_size}:
                raise CheckFailed(f"{request_name}: expected a size of {expected_size}, the answer was {reply.body}")
        gap_reply = expect(granted_lease.log(20, b"x"), 409, "log_gap", "a part after a gap")
        expect(granted_lease.log("x", b"x"), 400, "bad_request", "an offset that is not a number")
        size_reply = expect(self._runner().request("GET", "log", Delta_Lease=granted_lease.granted.lease_id), 200, "")
        if size_reply.body != {"size": 15}:
            raise CheckFailed(f"expected a size of 15 after all this, it is {size_reply.body}")
        return f"a repeat and an overlap count once, a gap is refused with {gap_reply}"

    def unrequested_cancel_ack(self) -> str:
        """Check that CancelAck without a cancel request is refused."""
        reply = self._require_shared_lease().send("CancelAck")
        return f"CancelAck without a request: {expect(reply, 409, 'cancel_not_requested')}"

    def complete_once(self) -> str:
        """Check that the first result is final: an equal repeat is accepted, a different result is refused."""
        granted_lease = self._require_shared_lease()
        self._shared_lease = None
        for request_name in ("Complete", "the same again"):
            answer = decode(
                expect(granted_lease.send("Complete"), 200, "CompleteAck", request_name).body, wire.CompleteAck
            )
            if not answer.accepted:
                raise CheckFailed(f"{request_name}: expected accepted=true, the answer was {answer.reason!r}")
        self._completed_lease = granted_lease
        second_reply = granted_lease.send("Complete", status="FAILED", exit_code=1)
        if second_reply.status == 200 and second_reply.body.get("accepted"):
            raise CheckFailed("another result after the accepted one: expected a refusal, it was accepted")
        return f"CompleteAck for the result and for its repeat; another result: {second_reply}"

    def stale_after_end(self) -> str:
        """Check that messages under a completed lease are answered with StaleLease."""
        if self._completed_lease is None:
            raise NotCheckable("no result was accepted (see complete-once)")
        self._expect_stale(self._completed_lease, "Heartbeat", "LEASE_COMPLETED")
        self._expect_stale(self._completed_lease, "CancelAck", "LEASE_COMPLETED")
        expect(self._completed_lease.log(15, b"late"), 409, "LEASE_COMPLETED", "a part of the log")
        return "Heartbeat, CancelAck and log: 409 StaleLease with LEASE_COMPLETED"

    def expires(self) -> str:
        """Check that a lease expires without heartbeats."""
        granted_lease = self._take()
        expect(granted_lease.send("AckLease"), 200, "HeartbeatAck", "AckLease")
        ttl = granted_lease.granted.lease_ttl_seconds
        if ttl + SLACK_SECONDS > self._patience:
            expect(granted_lease.send("Complete"), 200, "CompleteAck")
            raise NotCheckable(f"a lease lasts {ttl} s, longer than --patience {self._patience:.0f}")
        time.sleep(ttl + SLACK_SECONDS)
        self._expired_lease = granted_lease
        for message_type in ("Heartbeat", "Complete"):
            reply = granted_lease.send(message_type)
            if reply.status != 409 or reply.code not in ("LEASE_EXPIRED", "LEASE_REPLACED"):
                raise CheckFailed(
                    f"{message_type} after {ttl} s of silence: expected 409 LEASE_EXPIRED, the answer was {reply}"
                )
        return f"Heartbeat and Complete after {ttl + SLACK_SECONDS:.0f} s of silence: 409 StaleLease"

    def leased_again(self) -> str:
        """Check that a job whose lease expired is granted again with a new lease, and the old one is stale."""
        expired_lease = self._expired_lease
        if expired_lease is None:
            raise NotCheckable("no lease expired (see expires)")
        runner = self._runner()
        deadline = time.monotonic() + WAIT_SECONDS + expired_lease.granted.lease_ttl_seconds
        matching_leases: list[HeldLease] = []
        while not matching_leases and time.monotonic() < deadline:
            new_leases = runner.granted_leases(runner.lease(WAIT_SECONDS))
            matching_leases = [
                new_lease for new_lease in new_leases if new_lease.granted.job_id == expired_lease.granted.job_id
            ]
        if not matching_leases:
            raise CheckFailed(f"expected job {expired_lease.granted.job_id!r} to be granted again, it was not")
        if matching_leases[0].granted.lease_id == expired_lease.granted.lease_id:
            raise CheckFailed("expected a new lease_id, it is the old one")
        late_reply = expired_lease.send("Complete")
        expect(late_reply, 409, late_reply.code, "Complete under the expired lease")
        decode(late_reply.body, wire.StaleLease)
        expect(matching_leases[0].send("AckLease"), 200, "HeartbeatAck", "AckLease of the new lease")
        expect(matching_leases[0].send("Complete"), 200, "CompleteAck", "Complete under the new lease")
        return f"the job came again under another lease_id; Complete under the old one: {late_reply}"

    def cancel(self) -> str:
        """Check that the answer to a heartbeat has the cancel request, and that CancelAck ends the attempt."""
        if self._job_source is None:
            raise NotCheckable("the kit cannot request a cancel: give --store")
        granted_lease = self._take()
        expect(granted_lease.send("AckLease"), 200, "HeartbeatAck", "AckLease")
        self._job_source.cancel(granted_lease.granted.job_id)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = decode(expect(granted_lease.send("Heartbeat"), 200, "HeartbeatAck").body, wire.HeartbeatAck)
            if answer.cancel_requested or time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        if not answer.cancel_requested or not answer.cancel_deadline_seconds:
            raise CheckFailed(f"expected cancel_requested with a deadline, the answer was {answer}")
        decode(expect(granted_lease.send("CancelAck"), 200, "CancelAcked", "CancelAck").body, wire.CancelAcked)
        if (late_reply := granted_lease.send("Complete")).status == 200 and late_reply.body.get(
            "accepted"
        ) is not False:
            raise CheckFailed(
                f"Complete after CancelAck: expected that it is not accepted, the answer was {late_reply}"
            )
        return f"HeartbeatAck asked for a stop within {answer.cancel_deadline_seconds} s; CancelAck was accepted"

    def large_spec(self) -> str:
        """Check that a large job specification can be read from `job_spec_ref`."""
        granted_lease = self._take(LARGE_SPEC)
        spec_path = granted_lease.granted.job_spec_ref
        if spec_path is None:
            raise NotCheckable("the server embeds specifications of this size")
        spec = granted_lease.runner.spec(granted_lease.granted)
        if spec.steps != LARGE_SPEC["steps"]:
            raise CheckFailed("expected the specification that was enqueued, it is another one")
        expect(granted_lease.send("AckLease"), 200, "HeartbeatAck", "AckLease")
        expect(granted_lease.send("Complete"), 200, "CompleteAck", "Complete")
        return f"{len(str(spec.steps))} characters were read under the lease"

    def credential_expires(self) -> str:
        """Check that an expired credential is refused."""
        runner = self._runner()
        remaining_seconds = runner.expires_at - time.monotonic()
        if remaining_seconds + SLACK_SECONDS > self._patience:
            raise NotCheckable(
                f"a credential lasts another {remaining_seconds:.0f} s, longer than --patience {self._patience:.0f}"
            )
        time.sleep(max(0.0, remaining_seconds) + SLACK_SECONDS)
        return f"a request with an expired credential: {expect(runner.lease(), 401, 'expired_credential')}"

    def finish(self) -> None:
        """Accept and complete every job whose lease the kit still holds."""
        for granted_lease in (*self._unused_leases, *([self._shared_lease] if self._shared_lease else [])):
            with suppress(Unreachable):
                granted_lease.send("AckLease")
                granted_lease.send("Complete")

    @staticmethod
    def _expect_stale(granted_lease: HeldLease, message_type: str, reason: str) -> None:
        """Send a message under this lease. Raise `CheckFailed` if the answer is not StaleLease with this reason."""
        response_body = expect(granted_lease.send(message_type), 409, reason, message_type).body
        decode(response_body, wire.StaleLease)
        if message_type == "Heartbeat" and (
            response_body.get("extend_lease") is not False or response_body.get("stale") is not True
        ):
            raise CheckFailed(f"Heartbeat: expected extend_lease=false and stale=true beside {reason}")


class ServerCheck(msgspec.Struct, frozen=True):
    """An item of the server's checklist. `needs` are the items that must be checked before it."""

    id: str
    title: str
    run: Callable[[ServerChecks], str]
    needs: tuple[str, ...] = ("token-once",)


# In order of execution: later ones use leases of earlier ones.
SERVER_CHECKS: Final = (
    ServerCheck("token-once", "a registration token is valid once (PRO-X3)", ServerChecks.token_once, ()),
    ServerCheck("credential-needed", "every request needs a credential (PRO-X3)", ServerChecks.credential_needed),
    ServerCheck("renewed", "a valid credential can be renewed", ServerChecks.renew_credential),
    ServerCheck("own-name", "a runner cannot use another runner's id (PRO-N1)", ServerChecks.own_runner_id),
    ServerCheck("addresses", "unknown paths and methods are refused", ServerChecks.unknown_paths),
    ServerCheck("strict", "an invalid message is refused with a stable code (PRO-U3)", ServerChecks.invalid_messages),
    ServerCheck("too-large", "a message has a size limit", ServerChecks.too_large),
    ServerCheck("unknown-lease", "an unknown lease is stale (PRO-H3)", ServerChecks.unknown_lease),
    ServerCheck("long-poll", "a request for work can wait (PRO-B2)", ServerChecks.long_poll),
    ServerCheck("granted", "the grant is complete, its lease_id unguessable (PRO-M1, PRO-Q1)", ServerChecks.granted),
    ServerCheck("ack-activates", "AckLease activates the lease (PRO-Q3)", ServerChecks.ack_activates, ("granted",)),
    ServerCheck(
        "heartbeat-renews",
        "every heartbeat renews the lease (PRO-Q5)",
        ServerChecks.heartbeat_renews,
        ("ack-activates",),
    ),
    ServerCheck(
        "not-yours", "another runner cannot use a lease (PRO-K2)", ServerChecks.other_runner, ("ack-activates",)
    ),
    ServerCheck("batch", "each message of a batch gets its own answer", ServerChecks.batch, ("ack-activates",)),
    ServerCheck("log-offsets", "a log has no gaps and no repeats", ServerChecks.log_offsets, ("ack-activates",)),
    ServerCheck(
        "cancel-unasked",
        "CancelAck counts only after a request (PRO-Q11)",
        ServerChecks.unrequested_cancel_ack,
        ("ack-activates",),
    ),
    ServerCheck(
        "complete-once",
        "the first result is final, its repeat is no error (PRO-Q7)",
        ServerChecks.complete_once,
        ("ack-activates",),
    ),
    ServerCheck(
        "stale-after-end",
        "a completed lease is stale (PRO-S4, PRO-Q12)",
        ServerChecks.stale_after_end,
        ("complete-once",),
    ),
    ServerCheck("expires", "a lease expires without heartbeats (PRO-S1, PRO-Q6)", ServerChecks.expires),
    ServerCheck(
        "leased-again",
        "a job whose lease expired is granted again (PRO-F1, PRO-S3)",
        ServerChecks.leased_again,
        ("expires",),
    ),
    ServerCheck("cancel", "a cancel reaches the runner and ends with CancelAck (PRO-Q13)", ServerChecks.cancel),
    ServerCheck("large-spec", "a large specification is sent as a reference (PRO-Q2)", ServerChecks.large_spec),
    ServerCheck("credential-ends", "an expired credential is refused (PRO-X3)", ServerChecks.credential_expires),
)


def _with_dependencies(only_ids: Collection[str]) -> set[str]:
    """Return these ids and the ids of all items that must be checked before them; all ids if none is given."""
    required_ids = set(only_ids) or {check.id for check in SERVER_CHECKS}
    for check in reversed(SERVER_CHECKS):
        if check.id in required_ids:
            required_ids.update(check.needs)
    return required_ids


def check_server(
    client: HttpClient,
    tokens: Sequence[str],
    job_source: JobSource | None,
    patience_seconds: float,
    only_ids: Collection[str] = (),
) -> Iterator[CheckResult]:
    """Check a server, and yield the result of each item as soon as it is known.

    `only_ids` limits the items, if not empty.
    """
    checks = ServerChecks(client, tokens, job_source, patience_seconds)
    required_ids = _with_dependencies(only_ids)
    try:
        for check in SERVER_CHECKS:
            if check.id in required_ids:
                result = _run(check, checks)
                if not only_ids or check.id in only_ids:
                    yield result
    finally:
        checks.finish()


def _run(check: ServerCheck, checks: ServerChecks) -> CheckResult:
    """Run one check and return its result: PASS with its evidence, or NOT SHOWN or FAIL if it raises."""
    try:
        return CheckResult(check.id, check.title, PASS, check.run(checks))
    except NotCheckable as reason:
        return CheckResult(check.id, check.title, NOT_SHOWN, str(reason))
    except (CheckFailed, Unreachable) as evidence:
        return CheckResult(check.id, check.title, FAIL, str(evidence))
