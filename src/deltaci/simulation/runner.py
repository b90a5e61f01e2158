"""A simulated runner: the real agent on a simulated machine. It may die, hang, leave, and send forged messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import Complete, encode
from deltaci.runner.agent import Agent, KeeperDied
from deltaci.runner.registration import CredentialProvider
from deltaci.server.auth.credentials import Signer
from deltaci.simulation.machine import CALL_SECONDS, KILLED, URL, SimMachine, parse_lease_id
from deltaci.simulation.virtual_time import Node, VirtualLoop

TENANT: Final = "default"
RESTART_SECONDS: Final = 30.0  # A service manager would restart the runner after this time.
TOKEN_SECONDS: Final = 3600
MAX_FORGED_LEASES: Final = 10


class SimRunner:
    """One runner name, over all restarts of its process."""

    def __init__(
        self,
        machine: SimMachine,
        loop: VirtualLoop,
        random: Random,
        signer: Signer,
        folder: Path,
        slots: int,
        wait_seconds: float,
    ) -> None:
        self.machine = machine
        self.name = machine.name
        self._loop = loop
        self._random = random
        self._signer = signer
        self._folder = folder / machine.name
        self._folder.mkdir()
        self._slots = slots
        self._wait_seconds = wait_seconds
        self.node = Node(self.name)
        self.node.is_dead = True
        self._agent: Agent | None = None
        self._is_registered = False
        self._is_retired = False

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return not self.node.is_dead

    def start(self) -> None:
        """Start a new process, unless one runs or the machine is frozen or retired."""
        if not self.is_up and not self._is_retired and not self.machine.is_frozen:
            self.node = Node(self.name)
            self._loop.spawn(self.node, self._run(self.node), self.name)

    async def _run(self, node: Node) -> None:
        registration_token = self._signer.sign("register", self.name, TENANT, TOKEN_SECONDS, again=self._is_registered)
        credential_provider = CredentialProvider(
            URL, self._folder, slots=self._slots, token=registration_token, runtime=self.machine
        )
        try:
            registration = await asyncio.to_thread(credential_provider.obtain)
            self._is_registered = True
            self._agent = Agent(
                credential_provider,
                registration,
                labels=[],
                slots=self._slots,
                folder=self._folder,
                wait_seconds=self._wait_seconds,
            )
            await self._agent.run()
        except Refused as refused:
            # Registered, but the response was lost; or not registered, although this runner thought so.
            self._is_registered = (
                not self._is_registered if refused.code in ("bad_credential", "not_found") else self._is_registered
            )
        except (Unreachable, KeeperDied):
            pass
        self._agent = None
        self._loop.call_outside(RESTART_SECONDS, self.start)
        self._loop.kill(node)

    # -- forged messages

    def send_forged(self, other_machines: Sequence[SimMachine]) -> None:
        """Send a forged message: a copy of an earlier one of any machine, or a Complete that claims success."""
        random = self._random
        if random.random() < 0.5:
            self._forge_success(random)
            return
        requests = [request for machine in (self.machine, *other_machines) for request in machine.recent_requests]
        own_requests = [request for request in self.machine.recent_requests if request.headers]
        if not requests or not own_requests:
            return
        original_request = random.choice(requests)
        forged_body = original_request.body
        if random.random() < 0.5 and b'"Complete"' in forged_body:
            forged_message = msgspec.json.decode(forged_body)
            forged_message |= {"status": "SUCCEEDED", "exit_code": 0, "error_code": None}
            forged_body = msgspec.json.encode(forged_message)
            self.machine.executions.mark_forged(*parse_lease_id(forged_message["lease_id"]))
        self.machine.send_request(
            original_request._replace(runner=self.name, headers=own_requests[-1].headers, body=forged_body),
            CALL_SECONDS,
        )

    def _forge_success(self, random: Random) -> None:
        """Send Complete with SUCCEEDED under one of the machine's recent leases, as a hostile job can.

        The server accepts it if the lease is live.
        """
        own_requests = [request for request in self.machine.recent_requests if request.headers]
        if not own_requests or not self.machine.lease_ids:
            return
        lease_id = random.choice(list(self.machine.lease_ids)[-MAX_FORGED_LEASES:])
        complete = Complete(lease_id=lease_id, runner_id=self.name, status="SUCCEEDED", exit_code=0)
        self.machine.executions.mark_forged(*parse_lease_id(lease_id))
        self.machine.send_request(own_requests[-1]._replace(body=encode(complete)), CALL_SECONDS)

    # -- faults

    def kill(self) -> None:
        """Kill the runner, as by SIGKILL; its lease keeper notices and ends the jobs."""
        self._loop.kill(self.node)
        for keeper in self.machine.keepers[-1:]:
            keeper.hang_up()

    def crash(self) -> None:
        """Kill everything on the machine."""
        self._loop.kill(self.node)
        for keeper in self.machine.keepers:
            self._loop.kill(keeper.node)
        for cell in list(self.machine.running.values()):
            cell.kill(KILLED)

    def retire(self) -> None:
        """Crash the machine, and never start the runner again."""
        self.crash()
        self._is_retired = True

    def kill_keeper(self) -> None:
        """Kill only the lease keeper, as by SIGKILL."""
        for keeper in self.machine.keepers[-1:]:
            keeper.kill()

    def leave(self) -> None:
        """Ask the runner to finish its jobs and exit, as by SIGTERM."""
        if self._agent is not None and self.is_up:
            self._loop.spawn(self.node, self._stop(self._agent))

    @staticmethod
    async def _stop(agent: Agent) -> None:
        agent.stop()

    def hang(self) -> None:
        """Freeze the runner's process, as by SIGSTOP; its keeper and jobs continue."""
        self._loop.freeze(self.node)

    def freeze(self) -> None:
        """Freeze the whole machine."""
        self.hang()
        self.machine.freeze()

    def thaw(self) -> None:
        """Continue the keeper and the jobs, then the runner."""
        if self.machine.is_frozen:
            self.machine.thaw()
        self._loop.thaw(self.node)
        self.start()  # A restart may have come due while it was frozen.
