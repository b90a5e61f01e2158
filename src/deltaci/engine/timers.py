"""The loop that carries out what is due. Any number of servers may run it: each takes different rows."""

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
    """Leases, windows, timeouts, backoffs and deadlines, in batches, by the store's clock."""

    def __init__(self, engine: Engine, poll_seconds: float = POLL_SECONDS) -> None:
        self._engine = engine
        self._poll_seconds = poll_seconds

    async def run(self) -> None:
        """Look again and again; at once while there is more than one batch of it."""
        trouble = ""
        while True:
            count, found = 0, ""
            try:
                count = await self._engine.tick()
            except (Unavailable, Conflict) as error:
                found = str(error)
                if found != trouble:
                    LOGGER.warning("timers: %s; trying again until it goes", error)
            except Exception as error:
                # Whatever it was, leases must go on expiring.
                found = repr(error)
                if found != trouble:
                    LOGGER.exception("timers: an error of ours; trying again")
            trouble = found
            if count < MAX_BATCH:
                # A little disorder keeps many servers from asking all at once.
                await asyncio.sleep(self._poll_seconds * random.uniform(0.8, 1.2))
