"""Lease ids that a server can compute again, so that it can name a lease in messages that it sends unasked.

The secret part is derived from the server's key and from the stored record of the lease. The store has only its hash: a
reader of the database learns no lease id; with the server's key as well, all of the ids can be computed.
"""

from __future__ import annotations

import hmac

from deltaci.core import ids, lease
from deltaci.core.attempt import Attempt


class LeaseIdMinter:
    """Creates lease ids and computes those again that were created with the same key."""

    def __init__(self, server_key: bytes) -> None:
        self._key = hmac.digest(server_key, b"lease ids", "sha256")

    def mint(self, attempt_id: str, number: int, salt: str) -> str:
        """Return the secret part of a lease id.

        Another salt gives another one: after a restored backup the number of a lease is used again.
        """
        return hmac.digest(self._key, f"{attempt_id}|{number}|{salt}".encode(), "sha256").hex()

    def live_lease_id(self, record: Attempt) -> str:
        """Return the id of the attempt's live lease, or an empty string if it has none that this key created."""
        live_lease = record.lease
        if live_lease is None:
            return ""
        lease_id = ids.lease_id(record.id, live_lease.number, self.mint(record.id, live_lease.number, live_lease.salt))
        return lease_id if lease.is_held_by(live_lease, ids.lease_ref(lease_id), live_lease.worker_id) else ""
