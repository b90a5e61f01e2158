"""Lease ids that a server can make again: to name a lease in what it says of its own accord.

The secret part follows from the server's key and from what the record of the lease keeps. Only its fingerprint is
stored, as ever: who reads the database learns no lease id, who has the key as well may name all of them.
"""

from __future__ import annotations

import hmac

from deltaci.core import ids, lease
from deltaci.core.attempt import Attempt


class LeaseIds:
    """Makes the ids of leases, and knows those that were made with the same key."""

    def __init__(self, server_key: bytes) -> None:
        self._key = hmac.digest(server_key, b"lease ids", "sha256")

    def mint(self, attempt_id: str, number: int, salt: str) -> str:
        """The secret part. A number that is used again, after a backup was restored, comes with another salt."""
        return hmac.digest(self._key, f"{attempt_id}|{number}|{salt}".encode(), "sha256").hex()

    def of(self, record: Attempt) -> str:
        """The id of the attempt's live lease; empty when it has none, or when it was not made with this key."""
        held = record.lease
        if held is None:
            return ""
        made = ids.lease_id(record.id, held.number, self.mint(record.id, held.number, held.salt))
        return made if lease.is_held_by(held, ids.lease_ref(made), held.worker_id) else ""
