"""Lease ids that can be computed again, to name a lease in an unasked message or to answer a repeated claim.

The secret part is derived from a key and from the stored record of the lease, which has only a hash of the lease id. A
server has its own key: a reader of the database learns no lease id. The library's key is in the database.
"""

from __future__ import annotations

import hmac

from deltaci.core import ids, lease
from deltaci.core.attempt import Attempt


class LeaseIdMinter:
    """Creates lease ids and computes those again that were created with the same key."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"lease ids", "sha256")

    def mint(self, attempt_id: str, lease_number: int, salt: str) -> str:
        """Return the secret part of a lease id.

        Another salt gives another one: after a restored backup the number of a lease is used again.
        """
        return hmac.digest(self._key, f"{attempt_id}|{lease_number}|{salt}".encode(), "sha256").hex()

    def live_lease_id(self, attempt: Attempt) -> str:
        """Return the id of the attempt's live lease, or an empty string if it has none that this key created."""
        live_lease = attempt.lease
        if live_lease is None:
            return ""
        lease_id = ids.lease_id(
            attempt.id, live_lease.number, self.mint(attempt.id, live_lease.number, live_lease.salt)
        )
        return lease_id if lease.is_held_by(live_lease, ids.lease_ref(lease_id), live_lease.worker_id) else ""
