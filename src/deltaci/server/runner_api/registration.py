"""Registration of runners, renewal of their credentials, and authentication.

A runner authenticates with a token of this server, with a client certificate, or with both. The core decides by the
runner's worker record whether it is still admitted.
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


class RunnerTokenIssuer(Protocol):
    """Verifies the tokens of an external issuer that vouches for runners."""

    async def runner(self, token: str) -> Runner:
        """Return the runner that this token names. Raises `Refused` if the token is not valid."""


class RunnerRegistry:
    """Registers runners, renews their credentials, and authenticates their requests."""

    def __init__(
        self,
        engine: Engine,
        signer: Signer,
        credential_seconds: int = CREDENTIAL_SECONDS,
        issuer: RunnerTokenIssuer | None = None,
        incarnations: Incarnations | None = None,
    ) -> None:
        self._engine = engine
        self._signer = signer
        self._seconds = credential_seconds
        self._issuer = issuer
        self._incarnations = incarnations
        self._next_check_at: dict[Runner, float] = {}

    async def register(self, registration: Registration) -> Registered:
        """Exchange a registration token for a credential.

        A token of this server is valid once: the worker record refuses a second registration, and recognises a repeated
        request whose response was lost. An external issuer's token may be used any number of times.
        """
        if not registration.token.startswith(PREFIX) and self._is_from_issuer(registration.token):
            assert self._issuer is not None
            runner = await self._issuer.runner(registration.token)
            worker_id = await self._check_in(runner, registration, must_exist=False)
        else:
            claims = self._signer.read(registration.token, "register")
            runner = Runner(claims.runner_id, claims.tenant)
            worker_id = await self._redeem_token(runner, registration, claims)
        return self._credential(runner, worker_id)

    def _is_from_issuer(self, token: str) -> bool:
        """Return whether tokens are checked by an external issuer, i.e. whether one is configured.

        Raises `Refused` for a token of an external issuer if none is.
        """
        if self._issuer is None and token.startswith("eyJ") and token.count(".") == 2:
            raise Refused("bad_credential", "this server trusts no OIDC issuer; start it with --oidc-issuer")
        return self._issuer is not None

    async def renew(self, runner: Runner, request: Renewal | None, *, has_token: bool) -> Registered:
        """Update the capabilities of a registered runner and return a new credential.

        The credential is empty for a runner that used only its certificate.
        """
        worker_id = await self._check_in(runner, request)
        if has_token:
            return self._credential(runner, worker_id)
        return Registered(runner_id=worker_id, credential="", expires_in_seconds=self._seconds, tenant=runner.tenant)

    async def authenticate(self, token: str, peer: Peer | None = None) -> Runner:
        """Return the runner that the token proves or, without a token, the certificate.

        Raise `Refused` if there is neither, if the token is invalid, or if they name different runners.
        """
        certified_names = peer.runner(self._signer.now()) if peer is not None else None
        certified_runner = Runner(certified_names[1], certified_names[0]) if certified_names is not None else None
        if token:
            claims = self._signer.read(token, "run")
            runner = Runner(claims.runner_id, claims.tenant)
            if certified_runner is not None and certified_runner != runner:
                raise Refused(
                    "wrong_runner",
                    f"the token is for runner {runner.id}, the client certificate for {certified_runner.id}; use one",
                )
            return runner
        if certified_runner is None:
            raise Refused(
                "bad_credential",
                "no credential, and the client certificate names no runner; "
                "give it the URI deltaci:TENANT/RUNNER, or send 'Authorization: Bearer …'",
            )
        await self._check_certificate_runner(certified_runner)
        return certified_runner

    async def _check_certificate_runner(self, runner: Runner) -> None:
        """Register the runner of a certificate, and check its record again as often as a credential is renewed."""
        now = self._signer.now()
        if self._next_check_at.get(runner, 0.0) <= now:
            await self._check_in(runner, None, must_exist=False)
            if len(self._next_check_at) >= MAX_REMEMBERED:
                self._next_check_at.clear()
            self._next_check_at[runner] = now + self._seconds

    async def _check_in(
        self, runner: Runner, request: Registration | Renewal | None, *, must_exist: bool = True
    ) -> str:
        """Register a trusted runner or update its capabilities. Return the id of its incarnation.

        A runner that left by itself gets a new incarnation, which accepts the same registration tokens as the last one.
        """
        incarnation = await self._latest_incarnation(runner)
        if incarnation.is_over and incarnation.may_return:
            previous_worker = incarnation.worker
            assert previous_worker is not None
            registration = _initial_registration(request, previous_worker)
            await self._create_worker(
                runner,
                incarnation.next_id,
                registration,
                or_existing=True,
                token_at=previous_worker.token_at,
                previous_worker=previous_worker,
            )
            await self._count_incarnation(runner, incarnation)
            incarnation = await self._latest_incarnation(runner)
        elif not must_exist and incarnation.worker is None:
            await self._create_worker(runner, incarnation.id, _initial_registration(request, None), or_existing=True)
        await self._update_capabilities(runner, incarnation.id, request)
        return incarnation.id

    async def _redeem_token(self, runner: Runner, registration: Registration, claims: Claims) -> str:
        """Register a runner by a token of this server. Return the id of its incarnation."""
        request_text = f"{registration.token} {registration.request_id}"
        request_id = f"register-{sha256(request_text.encode()).hexdigest()[:32]}" if registration.request_id else ""
        issued_at = int(claims.issued_at * SECOND)
        incarnation = await self._latest_incarnation(runner)
        is_new_incarnation = incarnation.is_over and incarnation.accepts_token(issued_at, is_recovery=claims.again)
        worker_id = incarnation.next_id if is_new_incarnation else incarnation.id
        try:
            if claims.again and not is_new_incarnation:
                await self._update_capabilities(
                    runner, worker_id, registration, token_at=issued_at, request_id=request_id
                )
                is_new = False
            else:
                previous_worker = _without_quarantine(incarnation.worker) if is_new_incarnation else None
                is_new = await self._create_worker(
                    runner,
                    worker_id,
                    registration,
                    token_at=issued_at,
                    request_id=request_id,
                    previous_worker=previous_worker,
                )
        except Refused as refused:
            if refused.code == "bad_request":
                raise Refused(
                    "bad_credential",
                    f"runner {runner.id} has registered already; if it lost its credential, "
                    f"make a token with 'deltaci token {runner.id} --again'",
                ) from refused
            if refused.code != "request_id_reused":
                raise
            is_new = False  # The same runner with the same token, but other capabilities than the first time.
        if is_new_incarnation:
            await self._count_incarnation(runner, incarnation)
        if not is_new:
            # A repeated request is recognised even if the worker was shut down since.
            await self._update_capabilities(runner, worker_id, registration)
        return worker_id

    async def _latest_incarnation(self, runner: Runner) -> Incarnation:
        """Return the runner's latest incarnation. Without a counter, every runner has exactly one."""
        if self._incarnations is not None:
            return await self._incarnations.latest(runner.tenant, runner.id)
        return Incarnation(name=runner.id, number=1, worker=None)

    async def _count_incarnation(self, runner: Runner, incarnation: Incarnation) -> None:
        if self._incarnations is not None:
            await self._incarnations.count_next(runner.tenant, incarnation)

    async def _create_worker(
        self,
        runner: Runner,
        worker_id: str,
        registration: Registration,
        *,
        or_existing: bool = False,
        token_at: int = 0,
        request_id: str = "",
        previous_worker: Worker | None = None,
    ) -> bool:
        """Create the worker record of an incarnation. Return whether it was created now.

        A hold on the previous incarnation is carried over.
        """
        worker_record = Worker(
            id=worker_id,
            tenant=runner.tenant,
            labels=tuple(registration.capabilities),
            max_concurrent_tasks=registration.slots,
            token_at=token_at,
        )
        create_command = NewRecord(
            id=worker_record.id, record=worker_record, or_existing=or_existing, request_id=request_id
        )
        commands: list[Command] = [create_command]
        if previous_worker is not None and (hold := carry_over_hold(previous_worker, worker_id)) is not None:
            commands.append(hold)
        decision = (await self._engine.do_all(commands))[0]  # One batch is one transaction.
        if isinstance(decision, Refused):
            raise decision
        return bool(decision.events)

    async def _update_capabilities(
        self,
        runner: Runner,
        worker_id: str,
        request: Registration | Renewal | None,
        *,
        token_at: int = 0,
        request_id: str = "",
    ) -> None:
        """Update the capabilities in the worker record. With `request` None, keep its labels and slots.

        Raises `Refused` if the runner is not registered or was shut down.
        """
        labels = request.capabilities if request is not None else None
        update_command = UpdateCapabilities(
            id=worker_id,
            tenant=runner.tenant,
            labels=tuple(labels) if labels is not None else None,
            slots=request.slots if request is not None else None,
            token_at=token_at,
            request_id=request_id,
        )
        try:
            await self._engine.do(update_command)
        except Refused as refused:
            if refused.code not in ("not_found", "wrong_state"):
                raise
            # One message for both, so that it does not reveal whether another tenant has a runner of this name.
            raise Refused(
                "bad_credential",
                f"runner {runner.id} is not registered, or was shut down; to register it again, "
                f"make a token with 'deltaci token {runner.id} --again'",
            ) from refused

    def _credential(self, runner: Runner, worker_id: str) -> Registered:
        run_token = self._signer.sign("run", runner.id, runner.tenant, self._seconds)
        return Registered(
            runner_id=worker_id, credential=run_token, expires_in_seconds=self._seconds, tenant=runner.tenant
        )


def _without_quarantine(previous_worker: Worker | None) -> Worker | None:
    """Return the previous worker, or None if it is in quarantine.

    A new token shows that the runner was set up anew, so a quarantine is not carried over.
    """
    return previous_worker if previous_worker is not None and not is_quarantined(previous_worker) else None


def _initial_registration(request: Registration | Renewal | None, previous_worker: Worker | None) -> Registration:
    """Return a registration with the labels and slots of a new worker record.

    They are those of the request, or else those of the previous incarnation.
    """
    labels = request.capabilities if request is not None else None
    slots = request.slots if request is not None else None
    if previous_worker is not None:
        labels = list(previous_worker.labels) if labels is None else labels
        slots = previous_worker.max_concurrent_tasks if slots is None else slots
    return Registration(token="-", capabilities=labels or [], slots=slots or 1)
