"""Run jobs in containers, by the command line of podman or docker: one container per job, which executes its steps.

The tool starts the container's processes outside of the runner's process tree. They are found by the marker in their
environment, by the container's first pid and by its cgroup; the tool is also asked to remove the container.

A supervisor outside of the container runs the commands of the tool and ends them with the lease. It also holds the
writing end of a FIFO that the container's first process reads. When the supervisor ends, the kernel closes the FIFO,
the first process exits, and with it the kernel ends all processes of the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.cell import SHELL, BindMount, CellFailed, Exit
from deltaci.runner.sandbox.environment import environment
from deltaci.runner.sandbox.process import ProcessExecutor
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.runner.sandbox.supervised_cell import KILL_SECONDS
from deltaci.runner.sandbox.zygote import Zygote

TOOLS: Final = ("podman", "docker")
PROBE_SECONDS: Final = 10.0
TOOL_SECONDS: Final = 600.0  # A call of the tool may have to download an image.
SUPERVISOR_FIFO: Final = "/run/deltaci-supervisor"  # In the container.
KEEP_ALIVE_SCRIPT: Final = f"trap '' TERM; read _ <{SUPERVISOR_FIFO}"  # Spared by the SIGTERM to all steps.
SIGNALED: Final = 128  # The tool reports a signal as an exit code above this.
_NO_IMAGE: Final = re.compile(
    "manifest unknown|manifest for .* not found|no matching manifest|pull access denied|the resource is denied"
    "|(repository|image) .{0,200}not (found|known|exist)|name (unknown|invalid)|no such image|invalid reference format"
    "|did not resolve to an alias|unauthorized|authentication required|denied: ",
    re.IGNORECASE,
)
_PULL: Final = re.compile(
    "pull|manifest|registry|initializing source|toomanyrequests|unable to find image", re.IGNORECASE
)
# Variables of the runner that the tool itself needs. They are not passed to the container.
TOOL_VARIABLES: Final = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINER_HOST", "DOCKER_CONFIG", "TMPDIR")


class ContainerExecutor:
    """For jobs that name an image."""

    name = "container"

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote

    def unavailable_reason(self) -> str:
        """Return why no container tool works here; tested once per process."""
        tool, unavailable_reason = working_tool()
        return "" if tool else unavailable_reason

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> ContainerCell:
        tool, unavailable_reason = working_tool()
        if not tool:
            raise CellFailed(f"no container can be started: {unavailable_reason}")
        workspace = workspace.resolve()
        return ContainerCell(
            tool,
            self._zygote,
            workspace=workspace,
            limits=limits,
            has_network=network,
            image=image,
            bind_mounts=bind_mounts,
        )


class ContainerCell:
    """One job in one container, and outside of it a cell in which the commands of the tool run."""

    def __init__(
        self,
        tool_name: str,
        zygote: Zygote,
        *,
        workspace: Path,
        limits: Limits,
        has_network: bool,
        image: str,
        bind_mounts: Sequence[BindMount] = (),
    ) -> None:
        self._tool = tool_name
        self._bind_mounts = tuple(bind_mounts)
        executor = ProcessExecutor(zygote, use_cgroups=False)
        self._tool_cell = executor.cell(workspace=workspace, limits=Limits(), network=True, image="")
        self._marker = secrets.token_hex(16)  # Not that of `_tool_cell`, which outlives a container that is replaced.
        self._fifo = workspace.parent / f"{self._marker}.supervisor"
        self._name = f"deltaci-{self._marker}"
        self._workspace = workspace
        self._limits = limits
        self._has_network = has_network
        self._image = image
        self._handle = JobHandle(marker=self._marker)
        self._is_started = False
        self.network = ""  # The network that it shares with service containers, if any.
        self._is_stopping = asyncio.Event()  # Then nothing more is started.
        limit_texts = [
            *([f"memory {limits.memory_bytes} bytes"] if limits.memory_bytes else []),
            *([f"{limits.processes} processes"] if limits.processes else []),
            *([f"{limits.cpus:g} CPUs"] if limits.cpus else []),
        ]
        self.description = (
            f"container executor: {Path(tool_name).name}, image {image}, {'with' if has_network else 'no'} network; "
            f"limits, enforced by {Path(tool_name).name}: {', '.join(limit_texts) or 'none requested'}"
        )

    @property
    def handle(self) -> JobHandle:
        """Return the data that finds the job's processes now."""
        return self._handle

    @property
    def is_lease_over(self) -> bool:
        """Return whether the supervisor has ended because the lease was over."""
        return self._tool_cell.is_lease_over

    def start_command(self) -> list[str]:
        workspace = str(self._workspace)
        limits = self._limits
        return [
            *(self._tool, "run", "--detach", "--rm", "--init", "--stop-signal", "KILL", "--name", self._name),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *(("--network", self.network) if self.network else () if self._has_network else ("--network", "none")),
            *(("--memory", str(limits.memory_bytes)) if limits.memory_bytes else ()),
            *(("--pids-limit", str(limits.processes)) if limits.processes else ()),
            *(("--cpus", f"{limits.cpus:g}") if limits.cpus else ()),
            *(
                "--volume",
                f"{workspace}:{workspace}",
                "--volume",
                f"{self._fifo}:{SUPERVISOR_FIFO}:ro",
                *self._volumes(),
                "--workdir",
                workspace,
                "--env",
                f"{process_tree.MARKER_VARIABLE}={self._marker}",
            ),
            *("--entrypoint", "sh", self._image, "-c", KEEP_ALIVE_SCRIPT),
        ]

    def _volumes(self) -> Iterator[str]:
        for mount in self._bind_mounts:
            yield from ("--volume", f"{mount.path}:{mount.path}{'' if mount.is_writable else ':ro'}")

    def step_command(self, script: str, env: dict[str, str], workdir: Path, shell: tuple[str, ...]) -> list[str]:
        """Return the command that runs a step.

        Only the variables that the tool itself reads and the marker have their values in it.
        """
        arguments = []
        for variable, value in env.items():
            is_public = variable in TOOL_VARIABLES or variable == process_tree.MARKER_VARIABLE
            arguments += ["--env", f"{variable}={value}" if is_public else variable]
        command = [*shell, script]
        if shell == SHELL:
            choose_shell = (
                'if command -v bash >/dev/null; then exec bash -eo pipefail -c "$1"; else exec sh -e -c "$1"; fi'
            )
            command = ["sh", "-c", choose_shell, "sh", script]
        return [self._tool, "exec", "--workdir", str(workdir), *arguments, self._name, *command]

    async def open(self) -> None:
        """Start the supervisor. The first step starts the container."""
        await self._tool_cell.open()

    async def bind_lease(self, deadline: float, renewals_path: Path) -> None:
        """Make the supervisor end the job with its lease; see `Cell.bind_lease`."""
        await self._tool_cell.bind_lease(deadline, renewals_path)

    async def run(
        self,
        script: str,
        *,
        env: dict[str, str],
        workdir: Path,
        timeout_seconds: float,
        on_output: Callable[[bytes], None],
        shell: tuple[str, ...] = SHELL,
    ) -> Exit:
        """Run one step; see `Cell.run`. A timeout removes the container, and the next step starts a new one."""
        if self._is_stopping.is_set():
            return Exit(None, int(signal.SIGKILL), 0.0)
        if not self._is_started:
            await self._start_container()
        step_env = environment(self._workspace, self._marker, env)
        if "PATH" not in env:
            del step_env["PATH"]  # The image sets its own.
        *command, script = self.step_command(script, step_env, workdir, shell)
        step_exit = await self._tool_cell.run(
            script,
            env={variable: value for variable, value in step_env.items() if variable not in TOOL_VARIABLES}
            | tool_environment(),
            workdir=self._workspace,
            timeout_seconds=timeout_seconds,
            on_output=on_output,
            shell=tuple(command),
        )
        if step_exit.is_timed_out:
            await self._remove_container()
        exit_code = step_exit.exit_code
        if step_exit.is_timed_out or self._is_stopping.is_set() or exit_code is None:
            return Exit(None, int(signal.SIGKILL), step_exit.seconds, step_exit.is_timed_out)
        if SIGNALED < exit_code <= SIGNALED + 64:
            return Exit(None, exit_code - SIGNALED, step_exit.seconds)
        return Exit(exit_code, None, step_exit.seconds)

    async def stop(self, grace_seconds: float) -> bool:
        """Terminate, wait and kill; return True if no process is left. See `Cell.stop`."""
        self._is_stopping.set()
        if self._is_started and grace_seconds > 0:
            await asyncio.to_thread(process_tree.terminate, self._handle, grace_seconds, self._handle.root_pids)
        is_removed = await self._remove_container()
        return await self._tool_cell.stop(0.0) and is_removed

    async def close(self) -> bool:
        """Remove the container; see `Cell.close`."""
        self._is_stopping.set()
        is_removed = await self._remove_container()
        self._fifo.unlink(missing_ok=True)
        return await self._tool_cell.close() and is_removed

    async def _start_container(self) -> None:
        """Start the container, and find its first process and cgroup. Raise `CellFailed` if it does not start."""
        self._is_started = True  # Set before the call: a call that fails may have started a container.
        if not self._fifo.exists():
            os.mkfifo(self._fifo, 0o644)
            # For reading, too: opening it only for writing would wait for a reader.
            await self._tool_cell.keep_open(os.open(self._fifo, os.O_RDWR | os.O_CLOEXEC))
        exit_code, tool_output = await self._call_tool(*self.start_command()[1:])
        if exit_code:
            await self._remove_container()
            raise start_failure("the container", self._image, tool_output)
        _, pid_and_id = await self._call_tool("inspect", "--format", "{{.State.Pid}} {{.Id}}", self._name)
        pid, _, container_id = pid_and_id.partition(" ")
        if pid.isdigit() and int(pid):
            cgroup = _dedicated_cgroup(int(pid), container_id)
            self._handle = JobHandle(marker=self._marker, root_pids=(int(pid),), cgroup=cgroup)

    async def _remove_container(self) -> bool:
        """Remove the container, and return whether no process of it is left."""
        if not self._is_started:
            return True
        await self._call_tool("rm", "--force", self._name)
        remaining_pids = await asyncio.to_thread(process_tree.kill_all, self._handle, KILL_SECONDS)
        exit_code, tool_output = await self._call_tool("ps", "--all", "--quiet", "--filter", f"name={self._name}")
        is_removed = not remaining_pids and not exit_code and not tool_output
        self._is_started = not is_removed
        return is_removed

    async def _call_tool(self, *arguments: str) -> tuple[int, str]:
        """Run podman or docker. Return its exit code and its output."""
        process = await asyncio.create_subprocess_exec(
            *(self._tool, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=tool_environment(),
        )
        try:
            output, error_output = await asyncio.wait_for(process.communicate(), TOOL_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            return 1, f"{Path(self._tool).name} {arguments[0]} did not answer within {TOOL_SECONDS:.0f} s"
        exit_code = process.returncode or 0
        return exit_code, (error_output if exit_code else output).decode(errors="replace").strip()[:2000]


def start_failure(subject: str, image: str, output: str) -> CellFailed | Refused:
    """Return the error for a container that did not start. `output` is the message of podman or docker.

    That is `Refused` if there is no such image for the job. Otherwise it is `CellFailed`: with the code `IMAGE_PULL` if
    the registry did not deliver the image, else with `RUNNER_STARTUP`.
    """
    message = f"{subject} did not start: {output[:500]}"
    if _NO_IMAGE.search(output):
        return Refused("bad_spec", f"{message}; check the name {image!r} and the right to pull it")
    return CellFailed(message, "IMAGE_PULL" if _PULL.search(output) else "RUNNER_STARTUP")


def tool_environment() -> dict[str, str]:
    """Return the variables of the runner's environment that the tool receives."""
    return {variable: os.environ[variable] for variable in TOOL_VARIABLES if variable in os.environ}


def _dedicated_cgroup(pid: int, container_id: str) -> str:
    """Return the container's cgroup v2, or "" if its name is not the container's: it may contain other processes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", str(pid), "cgroup").read_text().splitlines():
            path = Path("/sys/fs/cgroup" + line.removeprefix("0::"))
            if line.startswith("0::/") and container_id and container_id in line and (path / "cgroup.kill").exists():
                return str(path)
    return ""


@lru_cache(maxsize=1)
def working_tool() -> tuple[str, str]:
    """Return the first tool that works and "", or "" and why none does."""
    reasons = []
    for tool_name in TOOLS:
        tool_path = shutil.which(tool_name)
        if tool_path is None:
            reasons.append(f"{tool_name} is not installed")
            continue
        try:
            probe_run = subprocess.run(
                [tool_path, "info"], capture_output=True, timeout=PROBE_SECONDS, env=tool_environment(), check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{tool_name} does not answer ({error})")
            continue
        if probe_run.returncode == 0:
            return tool_path, ""
        errors = probe_run.stderr.decode(errors="replace").strip().splitlines()
        reasons.append(
            f"{tool_name} does not work ({errors[-1][:300] if errors else f'exit code {probe_run.returncode}'})"
        )
    return "", "; ".join(reasons)
