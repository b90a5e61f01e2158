"""The requests that the engine accepts and the responses that it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.decide import Decision
from deltaci.core.errors import Refused
from deltaci.core.machine import Command

MAX_BATCH: Final = 1000

# Derives the secret part of a lease id from the attempt's id, the lease's number and a salt that is stored with it.
DeriveLeaseSecret = Callable[[str, int, str], str]
# Tenant, labels and `only_ids`: claims with the same key may take the same attempts.
PoolKey = tuple[str, tuple[str, ...], tuple[str, ...]]


class Overloaded(Exception):
    """Raised if too many commands wait already. The caller should retry later."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's request for up to `limit` attempts of its tenant that match its labels, the most urgent first.

    `start_immediately` grants and starts each attempt in the same transaction. `only_ids`, if not empty, restricts the
    claim to these attempts. `tenant_limit` caps the tenant's live leases, including those of other workers; 0 means no
    limit.

    A claim with a `request_id` is remembered with its leases, unless it gets none. A repeat of the same worker gets
    the leases that are still live, or `StaleLease` if none is; their ids are computed with `derive_lease_secret`.

    `other_worker_labels` and `other_worker_ids` describe, in the same order, the tenant's other live workers with free
    capacity. An attempt that this worker lost before is left to them if one of them matches.
    """

    tenant: str
    worker_id: str
    labels: tuple[str, ...]
    limit: int
    ttl_seconds: int
    accept_seconds: int
    request_id: str = ""
    derive_lease_secret: DeriveLeaseSecret | None = None  # Instead of the engine's.
    start_immediately: bool = False
    only_ids: tuple[str, ...] = ()
    tenant_limit: int = 0
    other_worker_labels: tuple[tuple[str, ...], ...] = ()
    other_worker_ids: tuple[str, ...] = ()

    @property
    def pool_key(self) -> PoolKey:
        """A key that is equal for all claims that may take the same attempts."""
        return self.tenant, self.labels, self.only_ids

    @property
    def repeat_key(self) -> tuple[str, str, str]:
        """A key that is equal for all repeats of a claim with a request id."""
        return self.tenant, self.worker_id, self.request_id


class ClaimedAttempt(msgspec.Struct, frozen=True, gc=False):
    """A granted attempt and the lease id that proves the right to run it. The lease id is returned only here."""

    attempt: Attempt
    lease_id: str


class ClaimResult(msgspec.Struct, frozen=True):
    """The attempts that were granted for a claim.

    `has_skipped` says that ready attempts were skipped because this worker may not have them, although another may.
    `skipped_queue_keys` are the queues of those attempts.
    """

    claimed: list[ClaimedAttempt]
    has_skipped: bool = False
    skipped_queue_keys: tuple[str, ...] = ()


class Tick(msgspec.Struct, frozen=True):
    """A request to apply the commands of up to `limit` due deadlines. The response is the number of due records."""

    limit: int = MAX_BATCH


Request = Command | Claim | Tick
Response = Decision | ClaimResult | int | Refused


class PendingRequests(msgspec.Struct):
    """The requests of one caller, which waits for all of their responses. Each is applied or refused on its own."""

    requests: Sequence[Request]
    responses_future: asyncio.Future[list[Response]]
