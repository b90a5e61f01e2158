"""Checks that the event log already contains the change that a server acknowledges.

Like the rest of the checker, this knows only the log and the messages of the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltaci.simulation.checker.history_checker import HistoryChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedJob, TrackedRun, TrackedWorker
from deltaci.simulation.checker.transitions import CLAIMABLE_ATTEMPT_STATES, JOB_TERMINAL_STATES, Violation

LEASE_END_STATES: Final = {"SUCCEEDED": "COMPLETED", "FAILED": "COMPLETED", "CANCELED": "CANCELED"}


class AcknowledgementChecker:
    """Checks every acknowledgement that users, queue clients and runners receive against the event log."""

    def __init__(self, checker: HistoryChecker) -> None:
        self._history = checker
        self.acknowledged = 0

    def has_changed(self, entity_id: str, request_id: str) -> bool:
        """Return whether the log has a change of this entity that this request made."""
        return (request_id, entity_id) in self._history.requests

    # -- acknowledgements to users and queue clients

    def check_accepted(
        self, action: str, entity_id: str, request_id: str = "", expected_rev: int | None = None
    ) -> None:
        """Check that an acknowledged action changed its entity as it should; raise `Violation` otherwise.

        With `expected_rev`, also check that the entity had this rev before the change.
        """
        self.acknowledged += 1
        entity = self._history.entities.get(entity_id)
        has_effect = entity is not None
        if isinstance(entity, TrackedRun):
            has_effect = {
                "cancel": entity.is_cancel_requested,
                "plan": entity.state not in ("CREATED", "PLANNING"),
                "start": entity.state not in ("CREATED", "PLANNING"),
                "begin": entity.state != "CREATED",
                "await": entity.state != "PLANNING" or not entity.plan_by,
                "validate": entity.state not in ("VALIDATING", "RUNNING"),
                "report": entity.state == "REPORTED",
            }.get(action, True)
        elif isinstance(entity, TrackedJob):
            last_attempt = self._history.entities.get(f"{entity_id}.{entity.index}")
            is_stopping = last_attempt is not None and last_attempt.state in ("CANCEL_REQUESTED", "CANCELED")
            has_effect = {
                "approve": any(approver.startswith("user:") for approver in entity.approved_by),
                "reject": entity.state == "FAILED",
                "cancel": entity.state in JOB_TERMINAL_STATES or is_stopping,
                "validate": entity.state in JOB_TERMINAL_STATES,
            }.get(action, True)
        elif isinstance(entity, TrackedWorker):
            has_effect = entity.is_leaving if action == "shutdown" else True
        if not has_effect:
            raise Violation(
                "acknowledged", f"{action} of {entity_id} was acknowledged, but it is {entity and entity.state}"
            )
        first_change = self._history.requests.get((request_id, entity_id))
        if expected_rev is not None and first_change is not None and first_change[1] != expected_rev + 1:
            raise Violation(
                "stale-rev", f"{action} of {entity_id} expected rev {expected_rev}, but made rev {first_change[1]}"
            )

    def reject_refused_repetition(self, action: str, entity_id: str, request_id: str) -> None:
        """Raise `Violation`, because a request that had succeeded was refused when it was sent again unchanged."""
        raise Violation(
            "idempotent", f"{action} of {entity_id} succeeded as request {request_id}, but its repetition was refused"
        )

    def reject_reused_id(self, action: str, entity_id: str, reused_request_id: str) -> None:
        """Raise `Violation`, because another command was accepted under the id of a request that had succeeded."""
        raise Violation(
            "reused", f"request {reused_request_id} was {action} of {entity_id}, but was accepted for another command"
        )

    def check_claim(self, attempt_id: str, worker_id: str, labels_by_worker: Mapping[str, frozenset[str]]) -> None:
        """Check that a worker did not get a job that it lost while one of `labels_by_worker` could have taken it.

        `labels_by_worker` are the ids and labels of free workers that the claim named.
        """
        attempt = self._history.entities.get(attempt_id)
        if not isinstance(attempt, TrackedAttempt) or worker_id not in attempt.avoided_workers:
            return
        able_workers = [
            id
            for id, labels in labels_by_worker.items()
            if attempt.labels <= labels and id not in attempt.avoided_workers
        ]
        if able_workers:
            raise Violation(
                "avoided", f"{attempt_id} goes to {worker_id}, which lost it, although {able_workers[0]} could take it"
            )

    def check_repeated_claim(self, lease_id: str, lease_ids: Sequence[str]) -> None:
        """Check that a repeated claim got the lease of the first one."""
        if list(lease_ids) != [lease_id]:
            attempt_id, lease_number, _ = lease_id.rsplit(".", 2)
            subject = f"a claim that was granted lease {lease_number} of {attempt_id}"
            raise Violation("idempotent", f"{subject} was repeated and got {len(lease_ids)} other leases")

    def check_stale_claim(self, lease_id: str, reason: str) -> None:
        """Check that a repeated claim was refused only because the lease of the first one has ended."""
        attempt, lease_number = self._attempt_and_lease_number(lease_id)
        lease = attempt.lease if attempt is not None else None
        is_live = lease is not None and lease.number == lease_number and lease.state in ("GRANTED", "ACTIVE")
        if is_live and reason != "LEASE_EXPIRED":
            subject = f"a claim that was granted lease {lease_number} of {attempt and attempt.id}"
            raise Violation("idempotent", f"{subject}, which is live, was repeated and refused as {reason}")

    def check_denied_claim(
        self, attempt_id: str, worker_id: str, labels_by_worker: Mapping[str, frozenset[str]], now: int
    ) -> None:
        """Check that a free worker was not refused an attempt that no other worker could take.

        The caller makes sure that the attempt and the worker did not change during the claim.
        """
        attempt, worker = self._history.entities.get(attempt_id), self._history.workers.get(worker_id)
        job = self._history.entities.get(attempt.job_id) if isinstance(attempt, TrackedAttempt) else None
        if not isinstance(attempt, TrackedAttempt) or not isinstance(job, TrackedJob) or worker is None or job.group:
            return
        able_workers = [
            id for id, labels in labels_by_worker.items() if attempt.labels <= labels and id not in job.lost_by_workers
        ]
        is_left_to_others = worker_id in job.lost_by_workers and able_workers
        is_ready = attempt.state in CLAIMABLE_ATTEMPT_STATES and attempt.ready_at < now
        if is_ready and worker.is_free and attempt.labels <= worker.labels and not is_left_to_others:
            raise Violation("avoided", f"{attempt_id} is refused to {worker_id}, but no other worker could take it")

    # -- acknowledgements to runners

    def check_response(self, request_path: str, request_body: bytes, status: int, response_body: bytes) -> None:
        """Check that the log has the leases and results that a response acknowledges to a runner."""
        if status != 200:
            return
        if request_path.endswith("/lease"):
            for granted in json.loads(response_body).get("leases", ()):
                self._check_granted(granted["lease_id"])
        elif request_path.endswith("/messages") and (b'"Complete"' in request_body or b'"CancelAck"' in request_body):
            messages, responses = json.loads(request_body), json.loads(response_body)
            message_and_response_pairs = (
                zip(messages, responses, strict=False) if isinstance(messages, list) else ((messages, responses),)
            )
            for message, response in message_and_response_pairs:
                self._check_ended(message, response)

    def _attempt_and_lease_number(self, lease_id: str) -> tuple[TrackedAttempt | None, int]:
        """Return the attempt of a lease, None if it is unknown, and the number of the lease."""
        attempt_id, lease_number, _ = lease_id.rsplit(".", 2)
        attempt = self._history.entities.get(attempt_id)
        return (attempt if isinstance(attempt, TrackedAttempt) else None), int(lease_number)

    def _check_granted(self, lease_id: str) -> None:
        """Raise `Violation` if a lease that was sent to a runner is not in the log."""
        self.acknowledged += 1
        attempt, lease_number = self._attempt_and_lease_number(lease_id)
        if attempt is None or attempt.claims < lease_number:
            raise Violation(
                "acknowledged",
                f"lease {lease_number} of {attempt and attempt.id} was sent to a runner, but is not in the log",
            )

    def _check_ended(self, message: dict[str, Any], response: dict[str, Any]) -> None:
        """Check that an accepted Complete or CancelAck ended exactly this lease, with the reported outcome."""
        attempt, lease_number = self._attempt_and_lease_number(message["lease_id"])
        if response.get("type") not in ("CompleteAck", "CancelAcked") or attempt is None:
            return
        self.acknowledged += 1
        outcome = "CANCELED"
        if response["type"] == "CompleteAck" and response["accepted"]:
            outcome = str(message["status"])
        lease = attempt.lease
        if (
            attempt.state != outcome
            or lease is None
            or (lease.number, lease.state) != (lease_number, LEASE_END_STATES[outcome])
        ):
            subject = f"{message['type']} under lease {lease_number} of {attempt.id}"
            raise Violation(
                "acknowledged", f"{subject} was accepted as {outcome}, but it is {attempt.state} under {lease}"
            )
