"""The loop that applies the commands of due deadlines. Any number of servers may run it: each takes different rows."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from deltaci.engine.engine import MAX_BATCH, Engine
from deltaci.storage.port import Conflict, Unavailable

POLL_SECONDS: Final = 0.25

LOGGER: Final = logging.getLogger(__name__)


class Timers:
    """Ends leases, accept windows, timeouts, retry delays and other deadlines that are due.

    They are due by the store's clock, and handled in batches.
    """

    def __init__(self, engine: Engine, poll_seconds: float = POLL_SECONDS) -> None:
        self._engine = engine
        self._poll_seconds = poll_seconds

    async def run(self) -> None:
        """Apply due deadlines forever. Pause only after a batch that was not full."""
        last_failure = ""
        while True:
            due_count, failure = 0, ""
            try:
                due_count = await self._engine.tick()
            except (Unavailable, Conflict) as error:
                failure = str(error)
                if failure != last_failure:
                    LOGGER.warning("timers: %s; retrying", error)
            except Exception as error:
                # Leases must go on expiring, whatever the error was.
                failure = repr(error)
                if failure != last_failure:
                    LOGGER.exception("timers: internal error; retrying")
            last_failure = failure
            if due_count < MAX_BATCH:
                # Jitter keeps several servers from querying at the same moment.
                await asyncio.sleep(self._poll_seconds * random.uniform(0.8, 1.2))
