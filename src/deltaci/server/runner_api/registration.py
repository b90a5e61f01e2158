"""Runners come in here: registration, renewal, and who it is that speaks.

A runner is known by a token of this server, by a client certificate, or by both together. Whether it may still come in
the core decides, by the runner's record.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Protocol

from deltaci.core.cascade import NewRecord
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.worker import UpdateCapabilities, Worker, carry_over_hold, is_quarantined
from deltaci.engine.engine import Engine
from deltaci.fleet.incarnations import Incarnation, Incarnations
from deltaci.protocol.messages import Registered, Registration, Renewal
from deltaci.server.auth.credentials import CREDENTIAL_SECONDS, PREFIX, Claims, Signer
from deltaci.server.runner_api.message_handlers import Runner
from deltaci.server.tls import Peer

MAX_REMEMBERED: Final = 100_000


class Issuer(Protocol):
    """Somebody else who knows runners."""

    async def runner(self, token: str) -> Runner:
        """Whom this token of the issuer names; `Refused` if it is not good."""


class Registry:
    """Knows runners by what they show."""

    def __init__(
        self,
        engine: Engine,
        signer: Signer,
        seconds: int = CREDENTIAL_SECONDS,
        issuer: Issuer | None = None,
        lives: Incarnations | None = None,
    ) -> None:
        self._engine = engine
        self._signer = signer
        self._seconds = seconds
        self._issuer = issuer
        self._lives = lives
        self._seen: dict[Runner, float] = {}

    async def register(self, asked: Registration) -> Registered:
        """Exchange a token for a credential.

        One of ours is good once: the record of the runner sees to that, and also knows the request again of which the
        answer was lost. An issuer vouches for its runner as often as it likes.
        """
        if not asked.token.startswith(PREFIX) and self._is_issuers(asked.token):
            assert self._issuer is not None
            who = await self._issuer.runner(asked.token)
            id = await self._come(who, asked, is_known=False)
        else:
            claims = self._signer.read(asked.token, "register")
            who = Runner(claims.runner_id, claims.tenant)
            id = await self._admit(who, asked, claims)
        return self._credential(who, id)

    def _is_issuers(self, token: str) -> bool:
        if self._issuer is None and token.startswith("eyJ") and token.count(".") == 2:
            raise Refused("bad_credential", "this server trusts no OIDC issuer; start it with --oidc-issuer")
        return self._issuer is not None

    async def renew(self, who: Runner, asked: Renewal | None, *, has_token: bool) -> Registered:
        """A fresh credential for a runner that is known and not gone. Who came by its certificate needs none."""
        id = await self._come(who, asked)
        if has_token:
            return self._credential(who, id)
        return Registered(runner_id=id, credential="", expires_in_seconds=self._seconds, tenant=who.tenant)

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
            await self._come(who, None, is_known=False)
            if len(self._seen) >= MAX_REMEMBERED:
                self._seen.clear()
            self._seen[who] = now + self._seconds

    async def _come(self, who: Runner, asked: Registration | Renewal | None, *, is_known: bool = True) -> str:
        """Somebody whom we trust already is here, again or for the first time; the id of its life.

        One that went by itself comes back in a new life, which knows all tokens that the last one knew.
        """
        life = await self._life(who)
        if life.is_over and life.may_return:
            before = life.worker
            assert before is not None
            offered = _offered(asked, before)
            await self._bear(who, life.next_id, offered, or_existing=True, token_at=before.token_at, before=before)
            await self._began(who, life)
            life = await self._life(who)
        elif not is_known and life.worker is None:
            await self._bear(who, life.id, _offered(asked, None), or_existing=True)
        await self._offer(who, life.id, asked)
        return life.id

    async def _admit(self, who: Runner, asked: Registration, claims: Claims) -> str:
        """Let somebody in by a token of ours; the id of its life."""
        shown = f"{asked.token} {asked.request_id}"
        request_id = f"register-{sha256(shown.encode()).hexdigest()[:32]}" if asked.request_id else ""
        made_at = int(claims.issued_at * SECOND)
        life = await self._life(who)
        is_back = life.is_over and life.accepts_token(made_at, is_recovery=claims.again)
        id = life.next_id if is_back else life.id
        try:
            if claims.again and not is_back:
                await self._offer(who, id, asked, token_at=made_at, request_id=request_id)
                is_new = False
            else:
                before = _forgiven(life.worker) if is_back else None
                is_new = await self._bear(who, id, asked, token_at=made_at, request_id=request_id, before=before)
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
        if is_back:
            await self._began(who, life)
        if not is_new:
            await self._offer(who, id, asked)  # A repeat is known without a look at the state: it may be gone since.
        return id

    async def _life(self, who: Runner) -> Incarnation:
        """The latest life of the runner; where nobody counts them, each has one."""
        if self._lives is not None:
            return await self._lives.latest(who.tenant, who.id)
        return Incarnation(name=who.id, number=1, worker=None)

    async def _began(self, who: Runner, life: Incarnation) -> None:
        if self._lives is not None:
            await self._lives.count_next(who.tenant, life)

    async def _bear(
        self,
        who: Runner,
        id: str,
        offered: Registration,
        *,
        or_existing: bool = False,
        token_at: int = 0,
        request_id: str = "",
        before: Worker | None = None,
    ) -> bool:
        """Make its record; whether it was made just now. What holds its last life back holds back this one, too."""
        record = Worker(
            id=id,
            tenant=who.tenant,
            labels=tuple(offered.capabilities),
            max_concurrent_tasks=offered.slots,
            token_at=token_at,
        )
        birth = NewRecord(id=record.id, record=record, or_existing=or_existing, request_id=request_id)
        orders: list[Command] = [birth]
        if before is not None and (held := carry_over_hold(before, id)) is not None:
            orders.append(held)
        born = (await self._engine.do_all(orders))[0]  # One batch, and so one transaction.
        if isinstance(born, Refused):
            raise born
        return bool(born.events)

    async def _offer(
        self, who: Runner, id: str, asked: Registration | Renewal | None, *, token_at: int = 0, request_id: str = ""
    ) -> None:
        """Let its record know what it offers. This is also how the core says that it may not come in any more."""
        labels = asked.capabilities if asked is not None else None
        offer = UpdateCapabilities(
            id=id,
            tenant=who.tenant,
            labels=tuple(labels) if labels is not None else None,
            slots=asked.slots if asked is not None else None,
            token_at=token_at,
            request_id=request_id,
        )
        try:
            await self._engine.do(offer)
        except Refused as refused:
            if refused.code not in ("not_found", "wrong_state"):
                raise
            # The same words for both: whether another tenant has a runner of this name is nobody's business.
            raise Refused(
                "bad_credential",
                f"runner {who.id} is not registered, or was shut down; if it shall come back, "
                f"make a token with 'deltaci token {who.id} --again'",
            ) from refused

    def _credential(self, who: Runner, id: str) -> Registered:
        token = self._signer.sign("run", who.id, who.tenant, self._seconds)
        return Registered(runner_id=id, credential=token, expires_in_seconds=self._seconds, tenant=who.tenant)


def _forgiven(before: Worker | None) -> Worker | None:
    """Who comes with a new token was set up anew, and is trusted anew. What somebody decided stays decided."""
    return before if before is not None and not is_quarantined(before) else None


def _offered(asked: Registration | Renewal | None, before: Worker | None) -> Registration:
    """What a record begins with: what its runner says now; or else what it said in its last life."""
    labels = asked.capabilities if asked is not None else None
    slots = asked.slots if asked is not None else None
    if before is not None:
        labels = list(before.labels) if labels is None else labels
        slots = before.max_concurrent_tasks if slots is None else slots
    return Registration(token="-", capabilities=labels or [], slots=slots or 1)
