"""A process that works as hard as it can and says, after every answer, what it was promised. Made to be killed."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from deltaci.core.errors import Refused
from deltaci.engine.queue import AsyncQueue, JobOutcome, NewJob, QueueJob
from deltaci.storage import open_store

BATCH = 20
WORKER = "busy"


def promise(connection: Connection, jobs: list[QueueJob]) -> None:
    """Tell the parent which rev of which job was acknowledged."""
    connection.send([(job.id, job.rev, job.status) for job in jobs])


async def work(url: str, connection: Connection) -> None:
    """Enqueue, claim, start, heartbeat and finish for ever, in batches."""
    async with AsyncQueue(open_store(url)) as queue:
        connection.send("ready")
        while True:
            promise(connection, await queue.enqueue_all([NewJob(payload=number) for number in range(BATCH)]))
            claimed = await queue.claim_next(WORKER, limit=BATCH)
            promise(connection, list(claimed))
            leases = [job.lease_id for job in claimed]
            for say in (queue.start_all, queue.heartbeat_all):
                answers = await say(leases, WORKER)
                promise(connection, [answer for answer in answers if not isinstance(answer, Refused)])
            ends = [JobOutcome(lease_id=lease_id, result={}) for lease_id in leases]
            answers = await queue.finish_all(ends, WORKER)
            promise(connection, [answer for answer in answers if not isinstance(answer, Refused)])


def main(url: str, connection: Connection) -> None:
    """Where the child begins."""
    asyncio.run(work(url, connection))
