"""Recognises repeats in one batch: of requests that were moved out of their records, and of claims."""

from __future__ import annotations

from collections.abc import Iterable

from deltaci.core import ids, lease
from deltaci.core.attempt import Attempt
from deltaci.core.machine import Command, Record, may_have_moved, move_requests, recall_requests
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.engine.requests import Claim, ClaimedAttempt, DeriveLeaseSecret
from deltaci.storage.port import ClaimGrant, FindClaim, FindRequests, MovedRequest, Transaction


class Repeats:
    """The moved requests and claims that one batch has read from the store, and the new ones, which it must store."""

    def __init__(self) -> None:
        self._recalled: dict[tuple[str, str], list[str]] = {}
        self._grants: dict[tuple[str, str, str], list[ClaimGrant]] = {}
        self.moved_requests: list[MovedRequest] = []
        self.claim_grants: list[ClaimGrant] = []

    def recall(self, commands: Iterable[Command], unit: UnitOfWork) -> Transaction[None]:
        """Add the requests of these commands to their records in the unit if they were moved out of them before."""
        repeat_keys = [
            (command.id, command.request_id)
            for command in commands
            if (record := unit.records.get(command.id)) is not None and may_have_moved(record, command.request_id)
        ]
        if new_keys := tuple(dict.fromkeys(key for key in repeat_keys if key not in self._recalled)):
            self._recalled.update((key, []) for key in new_keys)
            moved_requests: list[MovedRequest] = yield FindRequests(new_keys)
            for moved in moved_requests:
                self._recalled[moved.key].append(moved.request)
        for key in repeat_keys:
            record = unit.records[key[0]]
            if record is not None and self._recalled[key]:
                unit.records[key[0]] = recall_requests(record, self._recalled[key])

    def move(self, record: Record) -> Record:
        """Return the record without most of its requests, which are stored with the batch."""
        record, requests = move_requests(record)
        self.moved_requests += [MovedRequest(record.id, request) for request in requests]
        return record

    def find_grants(self, claim: Claim) -> Transaction[list[ClaimGrant]]:
        """Return the grants of an earlier claim of which this one is a repeat, or none."""
        if claim.repeat_key not in self._grants:
            self._grants[claim.repeat_key] = yield FindClaim(*claim.repeat_key)
        return self._grants[claim.repeat_key]

    def add_grants(self, claim: Claim, claimed: Iterable[ClaimedAttempt]) -> None:
        """Remember what a claim was granted, to be stored with the batch."""
        grants = [
            ClaimGrant(*claim.repeat_key, position, granted.attempt.id, granted.attempt.claims)
            for position, granted in enumerate(claimed)
        ]
        self._grants[claim.repeat_key] = grants
        self.claim_grants += grants


def granted_again(
    record: Record | None, grant: ClaimGrant, derive_lease_secret: DeriveLeaseSecret, now: int
) -> ClaimedAttempt:
    """Return the attempt with the id of the lease that was granted before. Raises `StaleLease` if it has ended."""
    if not isinstance(record, Attempt):
        raise lease.unknown_attempt(grant.attempt_id)
    latest = record.lease or record.ended_lease
    salt = latest.salt if latest is not None and latest.number == grant.lease_number else ""
    lease_id = ids.lease_id(record.id, grant.lease_number, derive_lease_secret(record.id, grant.lease_number, salt))
    ref = ids.lease_ref(lease_id)
    lease.check_fence(record.lease, record.ended_lease, ref, grant.worker_id, max(now, record.updated_at))
    return ClaimedAttempt(record, lease_id)
