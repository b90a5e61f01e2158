"""Two servers and many runners want the same work at the same moment: one grant for each attempt, no token twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from chaos.deployment import deployed
from chaos.rows import Row, measured
from chaos.speaker import Speakers
from chaos.stage import Stage, wait_until
from deltaci.core.attempt import LEASED
from deltaci.core.events import ATTEMPT
from tests.support.postgres_server import PostgresServer

FAULT: Final = "two servers racing"
TTL_SECONDS: Final = 60  # Nothing expires: whatever is granted twice was granted twice at once.


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Many who only speak, led to either server in turn, and one queue."""
    count, jobs = stage.size(24, 4), stage.size(600, 20)
    with PostgresServer() as database:
        store = database.create_database()
        async with deployed(stage, "race", store=store, servers=2, ttl_seconds=TTL_SECONDS) as deployment:
            speakers = Speakers(deployment, count, slots=3)
            async with speakers.speaking():
                began = time.monotonic()
                for batch in range(0, jobs, 50):
                    await Speakers.enqueue_recorded(deployment.work, min(50, jobs - batch), f"race{batch}")
                    stage.log(f"{batch + 50} of {jobs} asked for, {len(speakers.completed())} done")
                await wait_until(lambda: len(speakers.completed()) >= jobs, "all is done", 120)
                seconds = time.monotonic() - began
            found = await deployment.verdict(all_succeed=True)
    injected = f"{count} runners, 2 servers, {jobs} jobs, one PostgreSQL"
    grants = Counter(event.entity_id for event in found.log if event.entity == ATTEMPT and event.to == LEASED)
    twice = sum(number - 1 for number in grants.values())
    wrong = speakers.broken(found.records)
    note = f"{sum(grants.values())} grants, {jobs / seconds:.0f} jobs/s; {'; '.join(wrong[:2])}"
    yield measured(FAULT, injected, "one grant for each attempt", twice + len(wrong), "double grants", 0, note)
    reused = len(speakers.granted_twice())
    note = f"{len(speakers.granted)} tokens were shown to runners"
    yield measured(FAULT, injected, "no token is used again", reused, "tokens given twice", 0, note)
    yield found.row(FAULT, injected)
