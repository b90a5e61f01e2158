"""Runners come in here: registration, renewal, and who it is that speaks."""

from __future__ import annotations

from deltaci.core.errors import Refused
from deltaci.core.reactions import Birth
from deltaci.core.worker import Worker
from deltaci.engine.applier import Applier
from deltaci.server.credentials import CREDENTIAL_SECONDS, Signer
from deltaci.server.protocol import Runner
from deltaci.wire.messages import Registered, Registration


class Registry:
    """Knows runners by their tokens."""

    def __init__(self, applier: Applier, signer: Signer, seconds: int = CREDENTIAL_SECONDS) -> None:
        self._applier = applier
        self._signer = signer
        self._seconds = seconds

    async def register(self, asked: Registration) -> Registered:
        """Exchange a registration token for a credential. The record of the runner makes it good only once."""
        claims = self._signer.read(asked.token, "register")
        record = Worker(
            id=claims.runner_id,
            tenant=claims.tenant,
            labels=tuple(asked.capabilities),
            max_concurrent_tasks=asked.slots,
        )
        try:
            await self._applier.do(Birth(id=record.id, record=record))
        except Refused as refused:
            if refused.code != "bad_request":
                raise
            raise Refused("bad_credential", "the registration token was used already; ask for a new one") from refused
        return self.renew(Runner(claims.runner_id, claims.tenant))

    def renew(self, who: Runner) -> Registered:
        """A fresh credential for a runner that is known."""
        token = self._signer.sign("run", who.id, who.tenant, self._seconds)
        return Registered(runner_id=who.id, credential=token, expires_in_seconds=self._seconds, tenant=who.tenant)

    def who(self, token: str) -> Runner:
        """Who shows this credential."""
        claims = self._signer.read(token, "run")
        return Runner(claims.runner_id, claims.tenant)
