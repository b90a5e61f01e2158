"""Service containers of a job: started before its steps, which wait until they are ready, and always removed.

They are run with the command line of podman or docker. Their ports are published on the loopback interface only. A job
in a container shares a network with them and reaches them by their names.
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
from deltaci.runner.sandbox.cell import Cell, CellFailed
from deltaci.runner.sandbox.container import (
    TOOL_VARIABLES,
    ContainerCell,
    start_failure,
    tool_environment,
    working_tool,
)
from deltaci.runner.steps.expressions import JobExpressions

CODE: Final = "RUNNER_STARTUP"
NOT_READY: Final = "SERVICE"
TOOL_SECONDS: Final = 600.0  # Enough to pull an image.
READY_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.5
MAX_LOG_LINES: Final = 50


class ServiceContainers:
    """Starts and removes the service containers of one job."""

    def __init__(self, spec: JobSpec, cell: Cell, log: JobLog) -> None:
        self._spec = spec
        self._cell = cell
        self._log = log
        self._id = secrets.token_hex(8)
        self._tool = ""
        self._started_containers: list[tuple[str, str]] = []  # Names of services and of their containers.
        self._network = ""

    async def start(self, expressions: JobExpressions, seconds_left: float) -> dict[str, Any]:
        """Start all services and wait until each is ready. Return the context `job.services`."""
        self._tool, reasons = await asyncio.to_thread(working_tool)
        if not self._tool:
            raise StepFailed(f"services need podman or docker on the runner: {reasons}", CODE)
        with self._log.section(START_SERVICES, "start services"):
            try:
                async with asyncio.timeout(max(0.1, seconds_left)):
                    return await self._start(expressions)
            except TimeoutError:
                raise StepFailed("the services did not start within the job's time", "TIMED_OUT") from None
            except (StepFailed, CellFailed, Refused):
                await self._log_output()
                raise

    async def _start(self, expressions: JobExpressions) -> dict[str, Any]:
        """Start each service, then wait until all are ready, and return the context `job.services`."""
        if isinstance(self._cell, ContainerCell):
            self._network = f"deltaci-{self._id}"
            await self._run_checked(["network", "create", self._network], "the network of the services")
            self._cell.network = self._network
        for service in self._spec.services:
            env = {variable: expressions.interpolate(value) for variable, value in service.env.items()}
            command = self.command(service, expressions.interpolate(service.image), env)
            self._log.write_line(f"service {service.name}: {expressions.interpolate(service.image)}")
            # Before the call, so that a container whose start fails half-way is removed.
            self._started_containers.append((service.name, self._container_name(service)))
            exit_code, output = await self._run_tool(command, env)
            if exit_code:
                raise start_failure(f"service {service.name}", expressions.interpolate(service.image), output)
        context_by_service: dict[str, Any] = {}
        for service in self._spec.services:
            await self._wait_until_ready(service)
            ports = await self._ports(service)
            context_by_service[service.name] = {
                "id": self._container_name(service),
                "network": self._network,
                "ports": ports,
            }
            self._log.write_line(f"service {service.name}: ready")
        return context_by_service

    def _container_name(self, service: Service) -> str:
        """Return the name of the service's container."""
        return f"deltaci-{self._id}-{self._spec.services.index(service)}"

    def command(self, service: Service, image: str, env: dict[str, str]) -> list[str]:
        """Return the arguments of podman or docker that start a service.

        They contain only the names of variables, because others can read a command line. The exceptions are variables
        that the tool itself uses, which cannot be passed through its environment.
        """
        if not image or image.startswith("-") or service.name.startswith("-"):
            raise Refused("bad_spec", f"service {service.name!r}: {image[:80]!r} is not an image")
        arguments = ["run", "--detach", "--rm", "--name", self._container_name(service)]
        if self._network:
            arguments += ["--network", self._network, "--network-alias", service.name]
        for port in service.ports:
            arguments += ["--publish", _published(service.name, port)]
        for variable, value in env.items():
            if not variable or "=" in variable or "\0" in value:
                raise Refused(
                    "bad_spec", f"service {service.name!r}: {variable[:80]!r} is not a valid name of a variable"
                )
            arguments += ["--env", f"{variable}={value}" if variable in TOOL_VARIABLES else variable]
        # By the job's marker the keeper finds and removes the container if this runner dies.
        arguments += ["--env", f"{process_tree.MARKER_VARIABLE}={self._cell.handle.marker}", image]
        return [*arguments, *(("sh", "-c", service.command) if service.command else ())]

    async def _wait_until_ready(self, service: Service) -> None:
        """Wait until the service's health check succeeds or, without one, until its container runs.

        Raise `StepFailed` if the container ends or takes too long.
        """
        container_name, deadline = self._container_name(service), asyncio.get_running_loop().time() + READY_SECONDS
        while True:
            exit_code, tool_output = await self._run_tool(["inspect", "--format", "{{.State.Running}}", container_name])
            if exit_code or tool_output != "true":
                raise StepFailed(f"service {service.name}: it ended before it was ready; see its log", NOT_READY)
            if not service.health:
                return
            exit_code, tool_output = await self._run_tool(["exec", container_name, "sh", "-c", service.health])
            if not exit_code:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise StepFailed(
                    f"service {service.name}: not ready after {READY_SECONDS:.0f} s; "
                    f"its health check: {tool_output[-300:]}",
                    NOT_READY,
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _ports(self, service: Service) -> dict[str, str]:
        """Return, for each port of the service, the port of this machine at which it is published."""
        host_ports: dict[str, str] = {}
        for port in service.ports:
            container_port = port.rpartition(":")[2]
            port_and_protocol = container_port if "/" in container_port else f"{container_port}/tcp"
            exit_code, tool_output = await self._run_tool(["port", self._container_name(service), port_and_protocol])
            if not exit_code and tool_output:
                host_ports[container_port.partition("/")[0]] = tool_output.splitlines()[0].rpartition(":")[2]
        return host_ports

    async def _log_output(self) -> None:
        """Write the last lines that each service printed to the job's log."""
        for service_name, container_name in self._started_containers:
            _, tool_output = await self._run_tool(
                ["logs", "--tail", str(MAX_LOG_LINES), container_name], with_errors=True
            )
            for output_line in tool_output.splitlines()[-MAX_LOG_LINES:]:
                self._log.write_line(f"service {service_name}: {output_line}")

    async def close(self, *, is_failed: bool = False) -> None:
        """Remove all containers and their network. If the job failed, log the last output of the services first."""
        if is_failed and self._started_containers:
            await self._log_output()
        for _, container_name in self._started_containers:
            await self._run_tool(["rm", "--force", "--volumes", container_name])
        if self._network:
            await self._run_tool(["network", "rm", self._network])
        self._started_containers, self._network = [], ""

    async def _run_checked(self, arguments: list[str], subject: str) -> None:
        """Run podman or docker. Raise `StepFailed`, which names `subject`, if it fails."""
        exit_code, tool_output = await self._run_tool(arguments)
        if exit_code:
            raise StepFailed(f"{subject} did not start: {tool_output[-500:]}", CODE)

    async def _run_tool(
        self, arguments: list[str], env: dict[str, str] | None = None, *, with_errors: bool = False
    ) -> tuple[int, str]:
        """Run podman or docker. Return its exit code and its output, or its error messages if it failed.

        With `with_errors`, the output contains the error messages in any case.
        """
        service_env = {variable: value for variable, value in (env or {}).items() if variable not in TOOL_VARIABLES}
        process = await asyncio.create_subprocess_exec(
            *(self._tool, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if with_errors else asyncio.subprocess.PIPE,
            env=service_env | tool_environment(),
        )
        try:
            tool_output, error_output = await asyncio.wait_for(process.communicate(), TOOL_SECONDS)
        except TimeoutError:
            return 1, f"{Path(self._tool).name} {arguments[0]} did not end within {TOOL_SECONDS:.0f} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        exit_code = process.returncode or 0
        return exit_code, ((error_output or tool_output) if exit_code else tool_output).decode(errors="replace").strip()


def _published(service_name: str, port_mapping: str) -> str:
    """Return the argument of `--publish` that publishes a port of a service on the loopback interface."""
    host_port, _, container_port = port_mapping.rpartition(":")
    port_number, _, protocol = container_port.partition("/")
    if not all(
        port_part.isascii() and port_part.isdecimal()
        for port_part in (port_number, *([host_port] if host_port else []))
    ):
        raise Refused(
            "bad_spec",
            f"service {service_name!r}: {port_mapping[:80]!r} is not a port; expected e.g. 5432 or 5432:5432",
        )
    if protocol not in ("", "tcp", "udp"):
        raise Refused(
            "bad_spec", f"service {service_name!r}: {port_mapping[:80]!r} is not a port; expected tcp or udp after '/'"
        )
    return f"127.0.0.1:{host_port}:{container_port}"
