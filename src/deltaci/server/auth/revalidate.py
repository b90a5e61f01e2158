"""Whether whoever was let in may still be answered: a stream may last longer than the key that opened it."""

from __future__ import annotations

import asyncio
from typing import Final

from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.server.rest.http.request import Call

LOOK_SECONDS: Final = 15.0


class Stay:
    """One caller who stays. Its key is looked at again from time to time, and at once when it expires."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._clock = asyncio.get_running_loop().time
        self.look_at = self._clock() + self._seconds()  # By the loop's clock.

    async def is_over(self) -> bool:
        """Whether it would not be let in again now; looks only when it is time to."""
        if self._clock() < self.look_at:
            return False
        call = self._call
        try:
            who = await call.reauthenticate()
            who.check(call.route.required_scope)
        except Refused:
            return True
        self.look_at = self._clock() + self._seconds()
        return who.tenant != call.caller.tenant

    def _seconds(self) -> float:
        who = self._call.caller
        if not who.expires_at:
            return LOOK_SECONDS
        return max(0.0, min(LOOK_SECONDS, (who.expires_at - self._call.app.keys.now()) / SECOND))
