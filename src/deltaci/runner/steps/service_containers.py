"""Containers that run beside a job: started before its steps, waited for until they are ready, always taken away.

By the command line of podman or docker, as for jobs in containers. Their ports are open on this machine only. A job in
a container shares a network with them and calls them by their names.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec, Service
from deltaci.runner.actions.context import StepFailed
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.log.sections import START_SERVICES
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.cell import Cell
from deltaci.runner.sandbox.container import TOOL_VARIABLES, ContainerCell, tool_environment, working_tool
from deltaci.runner.steps.expressions import JobExpressions

CODE: Final = "RUNNER_STARTUP"
TOOL_SECONDS: Final = 600.0  # It may have to fetch an image.
READY_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.5
MAX_LOG_LINES: Final = 50


class ServiceContainers:
    """Those of one job."""

    def __init__(self, spec: JobSpec, cell: Cell, log: JobLog) -> None:
        self._spec = spec
        self._cell = cell
        self._log = log
        self._id = secrets.token_hex(8)
        self._tool = ""
        self._started: list[tuple[str, str]] = []  # What people call each, and its container.
        self._network = ""

    async def start(self, expressions: JobExpressions, left: float) -> dict[str, Any]:
        """Start all, wait until each is ready; what the context `job.services` says of them."""
        self._tool, reasons = await asyncio.to_thread(working_tool)
        if not self._tool:
            raise StepFailed(f"services need podman or docker on the runner: {reasons}", CODE)
        with self._log.section(START_SERVICES, "start services"):
            try:
                async with asyncio.timeout(max(0.1, left)):
                    return await self._start(expressions)
            except TimeoutError:
                raise StepFailed("the services did not start within the job's time", "TIMED_OUT") from None
            except (StepFailed, Refused):
                await self._tell_logs()
                raise

    async def _start(self, expressions: JobExpressions) -> dict[str, Any]:
        if isinstance(self._cell, ContainerCell):
            self._network = f"deltaci-{self._id}"
            await self._must(["network", "create", self._network], "the network of the services")
            self._cell.network = self._network
        for each in self._spec.services:
            env = {name: expressions.text(value) for name, value in each.env.items()}
            command = self.command(each, expressions.text(each.image), env)
            self._log.write_line(f"service {each.name}: {expressions.text(each.image)}")
            self._started.append((each.name, self._name(each)))  # Before the call: it may fail half-way.
            await self._must(command, f"service {each.name}", env)
        told: dict[str, Any] = {}
        for each in self._spec.services:
            await self._ready(each)
            told[each.name] = {"id": self._name(each), "network": self._network, "ports": await self._ports(each)}
            self._log.write_line(f"service {each.name}: ready")
        return told

    def _name(self, service: Service) -> str:
        return f"deltaci-{self._id}-{self._spec.services.index(service)}"

    def command(self, service: Service, image: str, env: dict[str, str]) -> list[str]:
        """The command that starts one. Values are not in it, except those that the tool needs for itself."""
        if not image or image.startswith("-") or service.name.startswith("-"):
            raise Refused("bad_spec", f"service {service.name!r}: {image[:80]!r} is no image")
        words = ["run", "--detach", "--rm", "--name", self._name(service)]
        if self._network:
            words += ["--network", self._network, "--network-alias", service.name]
        for port in service.ports:
            words += ["--publish", _published(service.name, port)]
        for name, value in env.items():
            if not name or "=" in name or "\0" in value:
                raise Refused("bad_spec", f"service {service.name!r}: {name[:80]!r} is no name for a variable")
            words += ["--env", f"{name}={value}" if name in TOOL_VARIABLES else name]
        # With the job's mark the keeper finds it, should this runner die.
        words += ["--env", f"{process_tree.MARKER_VARIABLE}={self._cell.handle.marker}", image]
        return [*words, *(("sh", "-c", service.command) if service.command else ())]

    async def _ready(self, service: Service) -> None:
        name, deadline = self._name(service), asyncio.get_running_loop().time() + READY_SECONDS
        while True:
            code, said = await self._call(["inspect", "--format", "{{.State.Running}}", name])
            if code or said != "true":
                raise StepFailed(f"service {service.name}: it ended before it was ready; its log says why", CODE)
            if not service.health:
                return
            code, said = await self._call(["exec", name, "sh", "-c", service.health])
            if not code:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise StepFailed(
                    f"service {service.name}: not ready after {READY_SECONDS:.0f} s; its check: {said[-300:]}",
                    CODE,
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _ports(self, service: Service) -> dict[str, str]:
        """Where each port of it is on this machine."""
        found: dict[str, str] = {}
        for port in service.ports:
            inner = port.rpartition(":")[2]
            code, said = await self._call(["port", self._name(service), inner if "/" in inner else f"{inner}/tcp"])
            if not code and said:
                found[inner.partition("/")[0]] = said.splitlines()[0].rpartition(":")[2]
        return found

    async def _tell_logs(self) -> None:
        for name, container in self._started:
            _, said = await self._call(["logs", "--tail", str(MAX_LOG_LINES), container], with_errors=True)
            for line in said.splitlines()[-MAX_LOG_LINES:]:
                self._log.write_line(f"service {name}: {line}")

    async def close(self, *, is_failed: bool = False) -> None:
        """Take them away; if the job failed, with the last of what they said."""
        if is_failed and self._started:
            await self._tell_logs()
        for _, container in self._started:
            await self._call(["rm", "--force", "--volumes", container])
        if self._network:
            await self._call(["network", "rm", self._network])
        self._started, self._network = [], ""

    async def _must(self, words: list[str], what: str, env: dict[str, str] | None = None) -> None:
        code, said = await self._call(words, env)
        if code:
            raise StepFailed(f"{what} did not start: {said[-500:]}", CODE)

    async def _call(
        self, words: list[str], env: dict[str, str] | None = None, *, with_errors: bool = False
    ) -> tuple[int, str]:
        given = {name: value for name, value in (env or {}).items() if name not in TOOL_VARIABLES}
        process = await asyncio.create_subprocess_exec(
            *(self._tool, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if with_errors else asyncio.subprocess.PIPE,
            env=given | tool_environment(),
        )
        try:
            out, error = await asyncio.wait_for(process.communicate(), TOOL_SECONDS)
        except TimeoutError:
            return 1, f"{Path(self._tool).name} {words[0]} did not answer within {TOOL_SECONDS:.0f} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        code = process.returncode or 0
        return code, ((error or out) if code else out).decode(errors="replace").strip()


def _published(name: str, port: str) -> str:
    """A port of a service on this machine only: the one that was asked for, or any."""
    outer, _, inner = port.rpartition(":")
    number, _, kind = inner.partition("/")
    if not all(part.isascii() and part.isdecimal() for part in (number, *([outer] if outer else []))):
        raise Refused("bad_spec", f"service {name!r}: {port[:80]!r} is no port; say 5432 or 5432:5432")
    if kind not in ("", "tcp", "udp"):
        raise Refused("bad_spec", f"service {name!r}: {port[:80]!r} is no port; after '/' comes tcp or udp")
    return f"127.0.0.1:{outer}:{inner}"
