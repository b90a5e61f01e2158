"""Revalidation of long responses: a stream may last longer than the key that opened it."""

from __future__ import annotations

import asyncio
from typing import Final

from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.server.rest.http.request import Call

CHECK_SECONDS: Final = 15.0


class Revalidation:
    """Authenticates the caller of a long response again, every `CHECK_SECONDS` and when its credential expires."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._clock = asyncio.get_running_loop().time
        self.next_check_at = self._clock() + self._seconds_to_next_check()  # By the loop's clock.

    async def is_revoked(self) -> bool:
        """Return whether the caller may no longer use the route, or now belongs to another tenant.

        Return False without authenticating unless a check is due. A successful check sets `next_check_at` again.
        """
        if self._clock() < self.next_check_at:
            return False
        call = self._call
        try:
            caller = await call.reauthenticate()
            caller.check(call.route.required_scope)
        except Refused:
            return True
        self.next_check_at = self._clock() + self._seconds_to_next_check()
        return caller.tenant != call.caller.tenant

    def _seconds_to_next_check(self) -> float:
        caller = self._call.caller
        if not caller.expires_at:
            return CHECK_SECONDS
        return max(0.0, min(CHECK_SECONDS, (caller.expires_at - self._call.app.keys.now()) / SECOND))
