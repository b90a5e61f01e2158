"""A runner in the simulated world: the real one, on a machine that is simulated. It may die, hang, leave and lie."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Complete, encode
from deltaci.runner.agent import Agent, KeeperDied
from deltaci.runner.client import Unreachable
from deltaci.runner.registration import CredentialProvider
from deltaci.server.auth.credentials import Signer
from deltaci.simulation.machine import CALL_SECONDS, KILLED, URL, SimMachine, named
from deltaci.simulation.virtual_time import Node, VirtualLoop

TENANT: Final = "default"
RESTART_SECONDS: Final = 30.0  # What starts runners starts one again that ended.
TOKEN_SECONDS: Final = 3600
MAX_GIVEN: Final = 10


class SimRunner:
    """One runner under its name, in all its lives."""

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
        self._is_known = False
        self._is_retired = False

    @property
    def is_up(self) -> bool:
        """Whether its process is there."""
        return not self.node.is_dead

    def start(self) -> None:
        """A new process."""
        if not self.is_up and not self._is_retired and not self.machine.is_frozen:
            self.node = Node(self.name)
            self._loop.spawn(self.node, self._live(self.node), self.name)

    async def _live(self, node: Node) -> None:
        token = self._signer.sign("register", self.name, TENANT, TOKEN_SECONDS, again=self._is_known)
        entrance = CredentialProvider(URL, self._folder, slots=self._slots, token=token, runtime=self.machine)
        try:
            credential = await asyncio.to_thread(entrance.obtain)
            self._is_known = True
            self._agent = Agent(
                entrance,
                credential,
                labels=[],
                slots=self._slots,
                folder=self._folder,
                wait_seconds=self._wait_seconds,
            )
            await self._agent.run()
        except Refused as refused:
            # It was here before, and the answer was lost; or was not, and nobody knows it.
            self._is_known = not self._is_known if refused.code in ("bad_credential", "not_found") else self._is_known
        except (Unreachable, KeeperDied):
            pass
        self._agent = None
        self._loop.outside(RESTART_SECONDS, self.start)
        self._loop.kill(node)

    # -- what it does that it should not

    def lie(self, others: Sequence[SimMachine]) -> None:
        """Say once more what was said before, here or by others; as if it had gone well; or after the time for it."""
        random = self._random
        if random.random() < 0.5:
            self._claim_success(random)
            return
        said = [each for machine in (self.machine, *others) for each in machine.heard]
        mine = [each for each in self.machine.heard if each.headers]
        if not said or not mine:
            return
        chosen = random.choice(said)
        body = chosen.body
        if random.random() < 0.5 and b'"Complete"' in body:
            found = msgspec.json.decode(body)
            found |= {"status": "SUCCEEDED", "exit_code": 0, "error_code": None}
            body = msgspec.json.encode(found)
            self.machine.truth.lied(*named(found["lease_id"]))
        self.machine.ask(chosen._replace(who=self.name, headers=mine[-1].headers, body=body), CALL_SECONDS)

    def _claim_success(self, random: Random) -> None:
        """Say of something that it was given at some time that it went well."""
        mine = [each for each in self.machine.heard if each.headers]
        if not mine or not self.machine.given:
            return
        lease_id = random.choice(list(self.machine.given)[-MAX_GIVEN:])
        said = Complete(lease_id=lease_id, runner_id=self.name, status="SUCCEEDED", exit_code=0)
        self.machine.truth.lied(*named(lease_id))
        self.machine.ask(mine[-1]._replace(body=encode(said)), CALL_SECONDS)

    # -- what happens to it

    def kill(self) -> None:
        """SIGKILL: its keeper sees it, and ends its jobs."""
        self._loop.kill(self.node)
        for keeper in self.machine.keepers[-1:]:
            keeper.hang_up()

    def crash(self) -> None:
        """The whole machine is gone, with everything on it."""
        self._loop.kill(self.node)
        for keeper in self.machine.keepers:
            self._loop.kill(keeper.node)
        for cell in list(self.machine.running.values()):
            cell.strike(KILLED)

    def retire(self) -> None:
        """Its machine is taken away for good."""
        self.crash()
        self._is_retired = True

    def kill_keeper(self) -> None:
        """SIGKILL of the keeper alone."""
        for keeper in self.machine.keepers[-1:]:
            keeper.kill()

    def leave(self) -> None:
        """SIGTERM: it finishes what runs, and leaves."""
        if self._agent is not None and self.is_up:
            self._loop.spawn(self.node, self._stop(self._agent))

    @staticmethod
    async def _stop(agent: Agent) -> None:
        agent.stop()

    def hang(self) -> None:
        """SIGSTOP of its process alone; its keeper and its jobs go on."""
        self._loop.freeze(self.node)

    def freeze(self) -> None:
        """The whole machine stands still."""
        self.hang()
        self.machine.freeze()

    def thaw(self) -> None:
        """It goes on. The keeper is first: that is what it is for."""
        if self.machine.is_frozen:
            self.machine.thaw()
        self._loop.thaw(self.node)
        self.start()  # One that was to be started meanwhile.
