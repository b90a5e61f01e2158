"""The write path: `Engine` routes each command to a shard, which decides and writes it, and returns the decision."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from deltaci.core.decide import Decision
from deltaci.core.errors import Refused
from deltaci.core.machine import Command
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.requests import (
    MAX_BATCH,
    Claim,
    ClaimedAttempt,
    ClaimResult,
    DeriveLeaseSecret,
    Overloaded,
    PendingRequests,
    Request,
    Response,
    Tick,
)
from deltaci.engine.shard import Shard
from deltaci.engine.unreadable_records import UnreadableRecordHandler
from deltaci.storage.port import Store, Unavailable

__all__ = ["MAX_BATCH", "Claim", "ClaimResult", "ClaimedAttempt", "DeriveLeaseSecret", "Engine", "Overloaded", "Tick"]


class Engine:
    """Applies commands, claims and ticks. Each method returns when its result is durable.

    Call `start` before the first request and `stop` after the last. Lease secrets are random unless
    `derive_lease_secret` is given, with which a lease id can be computed again.
    """

    def __init__(
        self,
        store: Store,
        derive_lease_secret: DeriveLeaseSecret | None = None,
        clock: MonotonicClock | None = None,
    ) -> None:
        self.clock = clock or MonotonicClock()  # Shared, so that no shard decides by an earlier time than another.
        unreadable_handler, limited_tenants = UnreadableRecordHandler(), set[str]()
        self._shards = [
            Shard(store, self.clock, unreadable_handler, derive_lease_secret, limited_tenants)
            for _ in range(store.max_concurrent_transactions)
        ]
        self._shard_tasks: list[asyncio.Task[None]] = []
        self._next_shard = 0

    async def start(self) -> None:
        """Start the tasks of the shards, so that requests are accepted."""
        self._shard_tasks = [asyncio.create_task(shard.run(), name="engine") for shard in self._shards]

    async def stop(self) -> None:
        """Stop all shards and cancel the requests that still wait."""
        for shard in self._shards:
            shard.stop()
        for shard_task in self._shard_tasks:
            shard_task.cancel()
        await asyncio.gather(*self._shard_tasks, return_exceptions=True)
        for shard in self._shards:
            shard.cancel_pending()
        self._shard_tasks = []

    async def do(self, command: Command) -> Decision:
        """Apply one command and return the decision. Raises `Refused`."""
        response = (await self._submit([command], self._shard_of(command.id)))[0]
        if isinstance(response, Refused):
            raise response
        assert isinstance(response, Decision)
        return response

    async def do_all(self, commands: Iterable[Command]) -> list[Decision | Refused]:
        """Apply commands independently of each other. Return a decision or a refusal for each, in the same order."""
        command_list = list(commands)
        response_by_index: list[Any] = [None] * len(command_list)
        indexes_by_shard: dict[Shard, list[int]] = {}
        for command_index, command in enumerate(command_list):
            indexes_by_shard.setdefault(self._shard_of(command.id), []).append(command_index)
        submitted_parts = []
        for shard, indexes in indexes_by_shard.items():
            for part_start in range(0, len(indexes), MAX_BATCH):
                part_indexes = indexes[part_start : part_start + MAX_BATCH]
                submitted_parts.append(
                    (part_indexes, self._submit([command_list[command_index] for command_index in part_indexes], shard))
                )
        for part_indexes, part_future in submitted_parts:
            for command_index, response in zip(part_indexes, await part_future, strict=True):
                response_by_index[command_index] = response
        return response_by_index

    async def claim(self, claim: Claim) -> list[ClaimedAttempt]:
        """Grant ready attempts to a worker; return them with their lease ids."""
        return (await self.try_claim(claim)).claimed

    async def try_claim(self, claim: Claim) -> ClaimResult:
        """Grant ready attempts to a worker; return them, and which ready attempts were skipped.

        Raises `StaleLease` for a repeated claim whose leases have ended.
        """
        response = (await self._submit([claim], self._any_shard()))[0]
        if isinstance(response, Refused):
            raise response
        assert isinstance(response, ClaimResult)
        return response

    async def tick(self, limit: int = MAX_BATCH) -> int:
        """Apply the commands of up to `limit` due deadlines. Return how many records were due."""
        response = (await self._submit([Tick(limit)], self._shards[0]))[0]
        assert isinstance(response, int)
        return response

    def _submit(self, requests: Sequence[Request], shard: Shard) -> asyncio.Future[list[Response]]:
        if not self._shard_tasks:
            raise Unavailable("the engine does not run; start it first")
        responses_future: asyncio.Future[list[Response]] = asyncio.get_running_loop().create_future()
        shard.submit(PendingRequests(requests, responses_future))
        return responses_future

    def _shard_of(self, record_id: str) -> Shard:
        """Return the shard that decides commands for the record: the shard that caches it, if there is one.

        Otherwise the run id is hashed, so that one shard gets all commands for a run.
        """
        for shard in self._shards:
            if shard.caches(record_id):
                return shard
        return self._shards[hash(record_id.partition("/")[0]) % len(self._shards)]

    def _any_shard(self) -> Shard:
        self._next_shard += 1
        return self._shards[self._next_shard % len(self._shards)]
