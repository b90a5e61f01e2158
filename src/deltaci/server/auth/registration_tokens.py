"""Registration tokens that people issue. Each is an event with the runner's name and the token's end, not the token."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.core.instants import SECOND
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.server.auth.credentials import Signer
from deltaci.storage.port import Store

KIND: Final = "registration-token"


class IssuedToken(msgspec.Struct, frozen=True, kw_only=True):
    """The latest registration token of a runner. Times are in microseconds."""

    issued_at: int
    expires_at: int
    again: bool


class RegistrationTokens:
    """Issues registration tokens."""

    def __init__(self, engine: Engine, store: Store, signer: Signer) -> None:
        self._resources = Resources(engine, store, KIND, IssuedToken)
        self._signer = signer

    async def issue(self, tenant: str, runner: str, seconds: int, *, again: bool, actor: str) -> tuple[str, int]:
        """Return a token with which a runner of this name can register, and when it expires, in microseconds.

        With `again`, it may replace the credential of a registered runner.
        """
        now = int(self._signer.now() * SECOND)
        issued_token = IssuedToken(issued_at=now, expires_at=now + seconds * SECOND, again=again)
        await self._resources.put(tenant, runner, issued_token, actor=actor)
        return self._signer.sign("register", runner, tenant, seconds, again=again), issued_token.expires_at
