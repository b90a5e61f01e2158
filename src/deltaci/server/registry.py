"""Runners come in here: registration, renewal, and who it is that speaks."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.reactions import Birth
from deltaci.core.worker import Worker
from deltaci.engine.applier import Applier
from deltaci.server.credentials import CREDENTIAL_SECONDS, Signer
from deltaci.server.protocol import Runner
from deltaci.wire.messages import Registered, Registration

REPEAT_SECONDS: Final = 600.0


def _used() -> Refused:
    return Refused("bad_credential", "the registration token was used already; ask for a new one")


def _hidden(request_id: str | None) -> str:
    """The log of events is read by many, and must not tell the word by which a runner is known again."""
    return sha256(request_id.encode()).hexdigest()[:32] if request_id else ""


class Registry:
    """Knows runners by their tokens."""

    def __init__(self, applier: Applier, signer: Signer, seconds: int = CREDENTIAL_SECONDS) -> None:
        self._applier = applier
        self._signer = signer
        self._seconds = seconds

    async def register(self, asked: Registration) -> Registered:
        """Exchange a registration token for a credential. The record of the runner makes it good only once.

        A runner whose answer was lost may say the very same again, with a word that only it knows, for a while.
        """
        claims = self._signer.read(asked.token, "register")
        record = Worker(
            id=claims.runner_id,
            tenant=claims.tenant,
            labels=tuple(asked.capabilities),
            max_concurrent_tasks=asked.slots,
        )
        try:
            decision = await self._applier.do(Birth(id=record.id, record=record, request_id=_hidden(asked.request_id)))
        except Refused as refused:
            if refused.code not in ("bad_request", "request_id_reused"):
                raise
            raise _used() from refused
        if not decision.events and self._signer.now() > decision.record.created_at / SECOND + REPEAT_SECONDS:
            raise _used()
        return self.renew(Runner(claims.runner_id, claims.tenant))

    def renew(self, who: Runner) -> Registered:
        """A fresh credential for a runner that is known."""
        token = self._signer.sign("run", who.id, who.tenant, self._seconds)
        return Registered(runner_id=who.id, credential=token, expires_in_seconds=self._seconds)

    def who(self, token: str) -> Runner:
        """Who shows this credential."""
        claims = self._signer.read(token, "run")
        return Runner(claims.runner_id, claims.tenant)
