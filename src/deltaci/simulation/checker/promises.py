"""What was acknowledged must be in the log, at that moment: whoever was answered may rely on it.

Like the checker, it knows only the log and the words of the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from deltaci.simulation.checker.facts import AttemptFacts, JobFacts, RunFacts, WorkerFacts
from deltaci.simulation.checker.history_checker import Checker
from deltaci.simulation.checker.law import JOB_ENDS, Violation

ENDED_BY: Final = {"SUCCEEDED": "COMPLETED", "FAILED": "COMPLETED", "CANCELED": "CANCELED"}


class Promises:
    """Told of every acknowledgement, by people and by the servers' answers to runners."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.acknowledged = 0

    def knows(self, id: str, request_id: str) -> bool:
        """Whether this request has changed this entity."""
        return (request_id, id) in self._checker.requests

    # -- what people were told

    def accepted(self, what: str, id: str, request_id: str = "", expected_rev: int | None = None) -> None:
        """Somebody was told that this was done."""
        self.acknowledged += 1
        it = self._checker.known.get(id)
        is_so = it is not None
        if isinstance(it, RunFacts):
            is_so = {
                "cancel": it.is_canceled,
                "plan": it.state not in ("CREATED", "PLANNING"),
                "start": it.state not in ("CREATED", "PLANNING"),
                "begin": it.state != "CREATED",
                "validate": it.state not in ("VALIDATING", "RUNNING"),
                "report": it.state == "REPORTED",
            }.get(what, True)
        elif isinstance(it, JobFacts):
            last = self._checker.known.get(f"{id}.{it.index}")
            is_stopping = last is not None and last.state in ("CANCEL_REQUESTED", "CANCELED")
            is_so = {
                "approve": any(who.startswith("user:") for who in it.approved_by),
                "reject": it.state == "FAILED",
                "cancel": it.state in JOB_ENDS or is_stopping,
                "validate": it.state in JOB_ENDS,
            }.get(what, True)
        elif isinstance(it, WorkerFacts):
            is_so = it.is_leaving if what == "shutdown" else True
        if not is_so:
            raise Violation("acknowledged", f"{what} of {id} was acknowledged, but it is {it and it.state}")
        first = self._checker.requests.get((request_id, id))
        if expected_rev is not None and first is not None and first[1] != expected_rev + 1:
            raise Violation("stale-rev", f"{what} of {id} was decided by rev {expected_rev}, and made rev {first[1]}")

    def refused(self, what: str, id: str, request_id: str) -> None:
        """A request was refused that was done before, and sent again as it was."""
        raise Violation("idempotent", f"{what} of {id} was done by request {request_id}, and its repetition is refused")

    def accepted_other(self, what: str, id: str, request_id: str) -> None:
        """A request was accepted under the id of another one that was done before."""
        raise Violation("reused", f"request {request_id} was {what} of {id}; now it counts for something else")

    def given(self, attempt_id: str, worker_id: str, rivals: Mapping[str, frozenset[str]]) -> None:
        """A worker was given this attempt, although it had said that these others could take it, with their labels."""
        it = self._checker.known.get(attempt_id)
        if not isinstance(it, AttemptFacts) or worker_id not in it.shunned:
            return
        able = [id for id, labels in rivals.items() if it.labels <= labels and id not in it.shunned]
        if able:
            raise Violation("avoided", f"{attempt_id} goes to {worker_id}, which lost it, although {able[0]} could")

    def withheld(self, attempt_id: str, worker_id: str, rivals: Mapping[str, frozenset[str]], now: int) -> None:
        """A worker asked for this attempt, is free, and did not get it; nothing changed meanwhile."""
        it, worker = self._checker.known.get(attempt_id), self._checker.workers.get(worker_id)
        job = self._checker.known.get(it.job_id) if isinstance(it, AttemptFacts) else None
        if not isinstance(it, AttemptFacts) or not isinstance(job, JobFacts) or worker is None or job.group:
            return
        able = [id for id, labels in rivals.items() if it.labels <= labels and id not in job.lost_by]
        is_left = worker_id in job.lost_by and able
        is_ready = it.state == "QUEUED" and it.ready_at < now
        if is_ready and worker.is_free and it.labels <= worker.labels and not is_left:
            raise Violation("avoided", f"{attempt_id} is kept from {worker_id}, and nobody else could take it")

    # -- what runners were told

    def answered(self, path: str, body: bytes, status: int, answer: bytes) -> None:
        """A server answered a runner."""
        if status != 200:
            return
        if path.endswith("/lease"):
            for granted in json.loads(answer).get("leases", ()):
                self._check_granted(granted["lease_id"])
        elif path.endswith("/messages") and (b'"Complete"' in body or b'"CancelAck"' in body):
            said, told = json.loads(body), json.loads(answer)
            pairs = zip(said, told, strict=False) if isinstance(said, list) else ((said, told),)
            for message, answered in pairs:
                self._check_ended(message, answered)

    def _attempt(self, lease_id: str) -> tuple[AttemptFacts | None, int]:
        id, number, _ = lease_id.rsplit(".", 2)
        it = self._checker.known.get(id)
        return (it if isinstance(it, AttemptFacts) else None), int(number)

    def _check_granted(self, lease_id: str) -> None:
        self.acknowledged += 1
        it, number = self._attempt(lease_id)
        if it is None or it.claims < number:
            raise Violation("acknowledged", f"lease {number} of {it and it.id} was given away, but it is not granted")

    def _check_ended(self, message: dict[str, Any], answered: dict[str, Any]) -> None:
        """An accepted end is the end of this very lease; one that came too late is not."""
        it, number = self._attempt(message["lease_id"])
        if answered.get("type") not in ("CompleteAck", "CancelAcked") or it is None:
            return
        self.acknowledged += 1
        end = "CANCELED"
        if answered["type"] == "CompleteAck" and answered["accepted"]:
            end = str(message["status"])
        held = it.lease
        if it.state != end or held is None or (held.number, held.state) != (number, ENDED_BY[end]):
            of = f"{message['type']} under lease {number} of {it.id}"
            raise Violation("acknowledged", f"{of} was accepted as {end}, but it is {it.state} under {held}")
