"""How users and queue clients send commands: to one server after the other, until one accepts or refuses.

A server may die, hang or lose its database meanwhile, so the same command is sent again with the same request id. Every
acknowledgement is compared with the event log at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from random import Random
from typing import Any, Final, TypeVar

from deltaci.core.errors import Refused, StaleLease
from deltaci.core.machine import Command
from deltaci.engine.engine import ClaimedAttempt, Engine
from deltaci.protocol.routes import LEASE_HEADER, ROOT
from deltaci.server.auth.credentials import Signer
from deltaci.simulation.checker.acknowledgements import AcknowledgementChecker
from deltaci.simulation.checker.history_checker import Violation
from deltaci.simulation.checker.transitions import SECOND
from deltaci.simulation.runner import TENANT
from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import Node, VirtualLoop
from deltaci.storage.port import Conflict, Unavailable

RESPONSE_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 2.0
MAX_HAND_BACKS: Final = 10

T = TypeVar("T")
ReportViolation = Callable[[Violation], None]


class CommandClient:
    """Sends the commands of users and queue clients to the servers. Runners use the runner protocol instead."""

    def __init__(
        self,
        loop: VirtualLoop,
        servers: list[SimServer],
        acknowledgements: AcknowledgementChecker,
        probabilities: dict[str, float],
        signer: Signer,
        report: ReportViolation,
    ) -> None:
        self._loop = loop
        self._servers = servers
        self._acknowledgements = acknowledgements
        self._probabilities = probabilities
        self._signer = signer
        self._report = report
        self.node = Node("people")

    def spawn(self, coroutine: Any) -> None:
        """Start a coroutine in the users' node."""
        self._loop.spawn(self.node, coroutine)

    def spawn_later(self, seconds: float, create_coroutine: Callable[[], Any]) -> None:
        """Call `create_coroutine` after some seconds and start its result in the users' node."""
        # In a new context: the current node may be a server that is dead by then.
        self._loop.call_later(seconds, lambda: self.spawn(create_coroutine()), context=Context())

    def happens(self, behaviour: str, random: Random) -> bool:
        """Draw whether this behaviour happens, with the probability that the scenario gives it."""
        return random.random() < self._probabilities.get(behaviour, 0.0)

    async def submit(
        self, action: str, command: Command, random: Random, command_with_reused_id: Command | None = None
    ) -> bool:
        """Send a command and check the response. Return whether it was accepted.

        Sometimes the command is sent once more, and sometimes `command_with_reused_id`, which has the same request id;
        these responses are checked too.
        """
        response, was_applied = await self._send_command(command, random, is_first_call=True)
        is_accepted = not isinstance(response, Refused)
        if is_accepted:
            self._run_check(
                self._acknowledgements.check_accepted, action, command.id, command.request_id, command.expected_rev
            )
        elif was_applied:
            self._run_check(self._acknowledgements.reject_refused_repetition, action, command.id, command.request_id)
        if self.happens("repeat", random):
            await asyncio.sleep(random.choice((0.0, 30.0)) * random.random())
            response, was_applied = await self._send_command(command, random)
            if isinstance(response, Refused) and was_applied:
                self._run_check(
                    self._acknowledgements.reject_refused_repetition, action, command.id, command.request_id
                )
        if command_with_reused_id is not None and self.happens("reuse", random):
            response, was_applied = await self._send_command(command_with_reused_id, random)
            if not isinstance(response, Refused) and was_applied:
                self._run_check(self._acknowledgements.reject_reused_id, action, command.id, command.request_id)
        if is_accepted and command.request_id:
            self._repeat_late(action, command)
        return is_accepted

    def _repeat_late(self, action: str, command: Command) -> None:
        """Schedule a repeat of an accepted command, sometimes, after many others may have changed its record."""
        random = Random(f"{command.request_id} late")
        if self.happens("repeat", random):

            async def repeat() -> None:
                response, was_applied = await self._send_command(command, random)
                if isinstance(response, Refused) and was_applied:
                    self._run_check(
                        self._acknowledgements.reject_refused_repetition, action, command.id, command.request_id
                    )

            self.spawn_later(random.choice((60.0, 600.0, 3600.0)) * random.random(), repeat)

    async def _send_command(self, command: Command, random: Random, *, is_first_call: bool = False) -> tuple[Any, bool]:
        """Send a command. Return the response, and whether an earlier send had already changed the entity.

        The latter is read before the last send, because an earlier send may still be carried out meanwhile. With
        `is_first_call`, the command was not sent before this call: if it is sent once, the change is read afterwards.
        """
        was_applied, send_count = False, 0

        async def send_once(engine: Engine) -> Any:
            nonlocal was_applied, send_count
            was_applied, send_count = self._acknowledgements.has_changed(command.id, command.request_id), send_count + 1
            return await engine.do(command)

        command_response = await self.send_until_answered(send_once, random)
        if send_count == 1 and is_first_call:
            was_applied = self._acknowledgements.has_changed(command.id, command.request_id)
        return command_response, was_applied

    async def send_until_answered(
        self, call: Callable[[Engine], Awaitable[T]], random: Random, deadline: float = float("inf")
    ) -> T | Refused | None:
        """Call `call` with the engine of one random running server after the other, until one responds.

        Return the response or refusal; None at the time `deadline`, even if a server is still working on the call.
        """
        while self._loop.now < deadline:
            server = random.choice(self._servers)
            if server.is_up and server.engine is not None:
                call_task = self._loop.spawn(server.node, _call_engine(call, server.engine))
                done_tasks, _ = await asyncio.wait(
                    {call_task}, timeout=min(RESPONSE_SECONDS, deadline - self._loop.now)
                )
                if done_tasks and (response := call_task.result()) is not None:
                    return response
            await asyncio.sleep(RETRY_SECONDS)
        return None

    async def register(self, worker_name: str, slots: int, random: Random) -> bool:
        """Register a worker with a new token. Return whether a server accepted it.

        Report a violation if a request with another id can then use the same token.
        """
        token = self._signer.sign("register", worker_name, TENANT, 3600)
        is_registered = False
        for request_id in ("first", "first", "another"):
            request_body = json.dumps({"token": token, "slots": slots, "request_id": request_id}).encode()
            server = random.choice(self._servers)
            if not server.is_up:
                continue
            request_task = server.handle_request("POST", f"{ROOT}register", {}, request_body)
            done_tasks, _ = await asyncio.wait({request_task}, timeout=RESPONSE_SECONDS)
            status = request_task.result()[0] if done_tasks else 0
            if status == 200 and is_registered and request_id == "another":
                self._report(Violation("credential", f"the token of {worker_name} registers a second time"))
            is_registered = is_registered or status == 200
        return is_registered

    async def hand_back(self, worker_id: str, lease_id: str, random: Random) -> None:
        """Send a runner's request to hand back a lease, and repeat it until a server responds."""
        request_headers = {
            "Authorization": f"Bearer {self._signer.sign('run', worker_id, TENANT, 3600)}",
            LEASE_HEADER: lease_id,
        }
        for _ in range(MAX_HAND_BACKS):
            server = random.choice(self._servers)
            if server.is_up:
                request_task = server.handle_request("POST", f"{ROOT}hand-back", request_headers, b"")
                done_tasks, _ = await asyncio.wait({request_task}, timeout=RESPONSE_SECONDS)
                if done_tasks and request_task.result()[0] < 500:
                    return
            await asyncio.sleep(RETRY_SECONDS)

    def check_claim(self, attempt_id: str, worker_id: str, labels_by_worker: Mapping[str, frozenset[str]]) -> None:
        """Report a violation if the worker got an attempt that it had lost, while one of the others could take it."""
        self._run_check(self._acknowledgements.check_claim, attempt_id, worker_id, labels_by_worker)

    def check_repeated_claim(self, lease_id: str, claim_response: Sequence[ClaimedAttempt] | Refused | None) -> None:
        """Report a violation if a repeated claim did not get the lease of the first one, nor was stale."""
        if isinstance(claim_response, Refused):
            refusal_reason = claim_response.reason if isinstance(claim_response, StaleLease) else claim_response.code
            self._run_check(self._acknowledgements.check_stale_claim, lease_id, refusal_reason)
        elif claim_response is not None:
            lease_ids = [claimed.lease_id for claimed in claim_response]
            self._run_check(self._acknowledgements.check_repeated_claim, lease_id, lease_ids)

    def check_denied_claim(
        self, attempt_id: str, worker_id: str, labels_by_worker: Mapping[str, frozenset[str]], now: int
    ) -> None:
        """Report a violation if a free worker was refused an attempt that no other worker could take.

        `labels_by_worker` has the labels of the others by worker id.
        """
        self._run_check(self._acknowledgements.check_denied_claim, attempt_id, worker_id, labels_by_worker, now)

    def wall_time(self) -> int:
        """Return the simulated wall-clock time in microseconds since the epoch."""
        return int(self._signer.now() * SECOND)

    def _run_check(self, check: Callable[..., None], *args: Any) -> None:
        """Run a check, and report the violation that it raises."""
        try:
            check(*args)
        except Violation as violation:
            self._report(violation)


async def _call_engine(call: Callable[[Engine], Awaitable[T]], engine: Engine) -> T | Refused | None:
    """Return the engine's response or refusal; None if it is unknown whether the command was carried out."""
    try:
        return await call(engine)
    except Refused as refused:
        return refused
    except (Unavailable, Conflict, asyncio.CancelledError):
        return None
