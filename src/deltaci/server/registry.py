"""Runners come in here: registration, renewal, and who it is that speaks.

A runner is known by a token of this server, by a client certificate, or by both together. Whether it may still come in
the core decides, by the runner's record.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Protocol

from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.reactions import Birth
from deltaci.core.worker import Offer, Worker
from deltaci.engine.applier import Applier
from deltaci.server.credentials import CREDENTIAL_SECONDS, PREFIX, Claims, Signer
from deltaci.server.protocol import Runner
from deltaci.server.tls import Peer
from deltaci.wire.messages import Registered, Registration, Renewal

MAX_REMEMBERED: Final = 100_000


class Issuer(Protocol):
    """Somebody else who knows runners."""

    async def runner(self, token: str) -> Runner:
        """Whom this token of the issuer names; `Refused` if it is not good."""


class Registry:
    """Knows runners by what they show."""

    def __init__(
        self, applier: Applier, signer: Signer, seconds: int = CREDENTIAL_SECONDS, issuer: Issuer | None = None
    ) -> None:
        self._applier = applier
        self._signer = signer
        self._seconds = seconds
        self._issuer = issuer
        self._seen: dict[Runner, float] = {}

    async def register(self, asked: Registration) -> Registered:
        """Exchange a token for a credential.

        One of ours is good once: the record of the runner sees to that, and also knows the request again of which the
        answer was lost. An issuer vouches for its runner as often as it likes.
        """
        if not asked.token.startswith(PREFIX) and self._is_issuers(asked.token):
            assert self._issuer is not None
            who = await self._issuer.runner(asked.token)
            await self._bear(who, asked, or_existing=True)
            await self._offer(who, asked)
        else:
            claims = self._signer.read(asked.token, "register")
            who = Runner(claims.runner_id, claims.tenant)
            await self._admit(who, asked, claims)
        return self._credential(who)

    def _is_issuers(self, token: str) -> bool:
        if self._issuer is None and token.startswith("eyJ") and token.count(".") == 2:
            raise Refused("bad_credential", "this server trusts no OIDC issuer; start it with --oidc-issuer")
        return self._issuer is not None

    async def renew(self, who: Runner, asked: Renewal | None, *, has_token: bool) -> Registered:
        """A fresh credential for a runner that is known and not gone. Who came by its certificate needs none."""
        await self._offer(who, asked)
        if has_token:
            return self._credential(who)
        return Registered(runner_id=who.id, credential="", expires_in_seconds=self._seconds, tenant=who.tenant)

    async def who(self, token: str, peer: Peer | None = None) -> Runner:
        """Who shows this credential, this certificate, or both; at least one of them must be there."""
        certified = peer.runner(self._signer.now()) if peer is not None else None
        named = Runner(certified[1], certified[0]) if certified is not None else None
        if token:
            claims = self._signer.read(token, "run")
            who = Runner(claims.runner_id, claims.tenant)
            if named is not None and named != who:
                raise Refused(
                    "wrong_runner", f"the token is for runner {who.id}, the client certificate for {named.id}; use one"
                )
            return who
        if named is None:
            raise Refused(
                "bad_credential",
                "no credential, and the client certificate names no runner; "
                "give it the URI deltaci:TENANT/RUNNER, or send 'Authorization: Bearer …'",
            )
        await self._see(named)
        return named

    async def _see(self, who: Runner) -> None:
        """A certificate makes its runner known, and is looked at again as often as a credential is renewed."""
        now = self._signer.now()
        if self._seen.get(who, 0.0) <= now:
            await self._bear(who, None, or_existing=True)
            await self._offer(who, None)
            if len(self._seen) >= MAX_REMEMBERED:
                self._seen.clear()
            self._seen[who] = now + self._seconds

    async def _admit(self, who: Runner, asked: Registration, claims: Claims) -> None:
        shown = f"{asked.token} {asked.request_id}"
        request_id = f"register-{sha256(shown.encode()).hexdigest()[:32]}" if asked.request_id else ""
        made_at = int(claims.issued_at * SECOND)
        try:
            if claims.again:
                await self._offer(who, asked, token_at=made_at, request_id=request_id)
                is_new = False
            else:
                is_new = await self._bear(who, asked, token_at=made_at, request_id=request_id)
        except Refused as refused:
            if refused.code == "bad_request":
                raise Refused(
                    "bad_credential",
                    f"runner {who.id} has registered already; if it lost its credential, "
                    f"make a token with 'deltaci token {who.id} --again'",
                ) from refused
            if refused.code != "request_id_reused":
                raise
            is_new = False  # The same runner with the same token, and with another offer than the first time.
        if not is_new:
            await self._offer(who, asked)  # A repeat is known without a look at the state: it may be gone since.

    async def _bear(
        self,
        who: Runner,
        asked: Registration | None,
        *,
        or_existing: bool = False,
        token_at: int = 0,
        request_id: str = "",
    ) -> bool:
        """Make its record; whether it was made just now."""
        offered = asked or Registration(token="-")
        record = Worker(
            id=who.id,
            tenant=who.tenant,
            labels=tuple(offered.capabilities),
            max_concurrent_tasks=offered.slots,
            token_at=token_at,
        )
        birth = Birth(id=record.id, record=record, or_existing=or_existing, request_id=request_id)
        return bool((await self._applier.do(birth)).events)

    async def _offer(
        self, who: Runner, asked: Registration | Renewal | None, *, token_at: int = 0, request_id: str = ""
    ) -> None:
        """Let its record know what it offers. This is also how the core says that it may not come in any more."""
        labels = asked.capabilities if asked is not None else None
        offer = Offer(
            id=who.id,
            tenant=who.tenant,
            labels=tuple(labels) if labels is not None else None,
            places=asked.slots if asked is not None else None,
            token_at=token_at,
            request_id=request_id,
        )
        try:
            await self._applier.do(offer)
        except Refused as refused:
            if refused.code not in ("not_found", "wrong_state"):
                raise
            # The same words for both: whether another tenant has a runner of this name is nobody's business.
            raise Refused(
                "bad_credential",
                f"runner {who.id} is not registered, or was shut down; register one under a name that was never used",
            ) from refused

    def _credential(self, who: Runner) -> Registered:
        token = self._signer.sign("run", who.id, who.tenant, self._seconds)
        return Registered(runner_id=who.id, credential=token, expires_in_seconds=self._seconds, tenant=who.tenant)
