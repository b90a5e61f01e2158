"""What the write path takes, and what it answers."""

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

# Makes the secret part of a lease id from the attempt's id, the lease's number and a salt that is kept with it.
DeriveLeaseSecret = Callable[[str, int, str], str]
PoolKey = tuple[str, tuple[str, ...], tuple[str, ...]]  # Of those who may take the same: tenant, labels, which only.


class Overloaded(Exception):
    """Too many commands wait already. Try again later."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A worker asks for work: so many of its tenant's best attempts that fit its labels.

    One that is sure to begin at once may say so: then each is claimed and started in one go. One that was told of
    certain attempts gets these or none. With `tenant_limit`, nothing is handed out by which the tenant would have more
    live leases than that, whoever holds them; 0: there is no limit.

    `rivals` are the labels of other live workers of the tenant that could take work now, and `rival_ids` who they are,
    in the same order: what this worker lost before is left to them where one of them fits.
    """

    tenant: str
    worker_id: str
    labels: tuple[str, ...]
    limit: int
    ttl_seconds: int
    accept_seconds: int
    request_id: str = ""
    start_immediately: bool = False
    only_ids: tuple[str, ...] = ()
    tenant_limit: int = 0
    other_worker_labels: tuple[tuple[str, ...], ...] = ()
    other_worker_ids: tuple[str, ...] = ()

    @property
    def pool_key(self) -> PoolKey:
        """The same for all who may take the same."""
        return self.tenant, self.labels, self.only_ids


class ClaimedAttempt(msgspec.Struct, frozen=True):
    """What a worker got: the attempt, and the lease id that proves it. Shown once."""

    attempt: Attempt
    lease_id: str


class ClaimResult(msgspec.Struct, frozen=True):
    """What a claim found; and whether something was ready that this worker may not have: another one may.

    `keys` are the queues that this was in.
    """

    claimed: list[ClaimedAttempt]
    has_skipped: bool = False
    skipped_queue_keys: tuple[str, ...] = ()


class Tick(msgspec.Struct, frozen=True):
    """Look for what is due. Answered by how much was found."""

    limit: int = MAX_BATCH


Request = Command | Claim | Tick
Response = Decision | ClaimResult | int | Refused


class PendingRequests(msgspec.Struct):
    """Items that one caller waits for together. Each is applied or refused on its own."""

    items: Sequence[Request]
    answer: asyncio.Future[list[Response]]
