"""Containers, by the command line of podman or docker. One container for each job; its steps are executed in it.

The tool starts the container's processes elsewhere than below the runner, so three things find them: the mark in their
environment, the container's first pid and its cgroup, and the tool itself, which is always asked as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from deltaci.core.errors import InvariantBroken
from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.cell import SHELL, BindMount, CellFailed, Exit
from deltaci.runner.sandbox.environment import environment
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.runner.sandbox.supervised_cell import KILL_SECONDS, MAX_READ_BYTES

TOOLS: Final = ("podman", "docker")
PROBE_SECONDS: Final = 10.0
TOOL_SECONDS: Final = 600.0  # The longest that a call of the tool may take: it may have to fetch an image.
WAIT: Final = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
SIGNALED: Final = 128  # A tool tells a signal as an exit code above this.
# What the tool itself needs of the runner's environment. None of it reaches the container.
TOOL_NEEDS: Final = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINER_HOST", "DOCKER_CONFIG", "TMPDIR")


class ContainerExecutor:
    """For jobs that bring their own system."""

    name = "container"

    def unavailable_reason(self) -> str:
        """Whether one of the tools answers; tried out once."""
        tool, reasons = working_tool()
        return "" if tool else reasons

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> ContainerCell:
        """A cell in a container of this image."""
        tool, reasons = working_tool()
        if not tool:
            raise CellFailed(f"no container can be started: {reasons}")
        place = workspace.resolve()
        return ContainerCell(
            tool, workspace=place, limits=limits, has_network=network, image=image, bind_mounts=bind_mounts
        )


class ContainerCell:
    """One job in one container."""

    def __init__(
        self,
        tool: str,
        *,
        workspace: Path,
        limits: Limits,
        has_network: bool,
        image: str,
        bind_mounts: Sequence[BindMount] = (),
    ) -> None:
        self._tool = tool
        self._shown = tuple(bind_mounts)
        self._marker = secrets.token_hex(16)
        self._name = f"deltaci-{self._marker}"
        self._workspace = workspace
        self._limits = limits
        self._has_network = has_network
        self._image = image
        self._handle = JobHandle(marker=self._marker)
        self._is_started = False
        self._is_running = False
        self.network = ""  # One that it shares with others, if it has any.
        self._over = asyncio.Event()  # Nothing more is started.
        asked = [
            *([f"memory {limits.memory_bytes} bytes"] if limits.memory_bytes else []),
            *([f"{limits.processes} processes"] if limits.processes else []),
            *([f"{limits.cpus:g} CPUs"] if limits.cpus else []),
        ]
        self.description = (
            f"container executor: {Path(tool).name}, image {image}, {'with' if has_network else 'no'} network; "
            f"limits, enforced by {Path(tool).name}: {', '.join(asked) or 'none asked for'}"
        )

    @property
    def handle(self) -> JobHandle:
        """How to find the job's processes now."""
        return self._handle

    def start_command(self) -> list[str]:
        """The command that starts the container."""
        place = str(self._workspace)
        limits = self._limits
        return [
            *(self._tool, "run", "--detach", "--rm", "--init", "--name", self._name),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *(("--network", self.network) if self.network else () if self._has_network else ("--network", "none")),
            *(("--memory", str(limits.memory_bytes)) if limits.memory_bytes else ()),
            *(("--pids-limit", str(limits.processes)) if limits.processes else ()),
            *(("--cpus", f"{limits.cpus:g}") if limits.cpus else ()),
            *(
                "--volume",
                f"{place}:{place}",
                *self._volumes(),
                "--workdir",
                place,
                "--env",
                f"{process_tree.MARKER_VARIABLE}={self._marker}",
            ),
            *("--entrypoint", "sh", self._image, "-c", WAIT),
        ]

    def _volumes(self) -> Iterator[str]:
        for each in self._shown:
            yield from ("--volume", f"{each.path}:{each.path}{'' if each.is_writable else ':ro'}")

    def step_command(self, script: str, env: dict[str, str], workdir: Path, shell: tuple[str, ...]) -> list[str]:
        """The command that runs a step. Values are not in it, except those that the tool needs for itself."""
        arguments = []
        for name, value in env.items():
            arguments += ["--env", f"{name}={value}" if name in TOOL_NEEDS else name]
        start = [*shell, script]
        if shell == SHELL:
            choice = 'if command -v bash >/dev/null; then exec bash -eo pipefail -c "$1"; else exec sh -e -c "$1"; fi'
            start = ["sh", "-c", choice, "sh", script]
        return [self._tool, "exec", "--workdir", str(workdir), *arguments, self._name, *start]

    async def open(self) -> None:
        """Nothing in advance: a container is started by its first step."""

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
        """Run one step; see `Cell.run`. A step that takes too long ends the container, and the next gets a new one."""
        if self._is_running:
            raise InvariantBroken("a cell runs one step at a time, but a second one was started")
        if self._over.is_set():
            return Exit(None, int(signal.SIGKILL), 0.0)
        began = time.monotonic()
        self._is_running = True
        try:
            if not self._is_started:
                await self._start()
            inside = environment(self._workspace, self._marker, env)
            if "PATH" not in env:
                del inside["PATH"]  # The image knows better.
            code, is_timed_out = await self._step(
                self.step_command(script, inside, workdir, shell), inside, timeout_seconds, on_output
            )
        finally:
            self._is_running = False
        seconds = time.monotonic() - began
        if is_timed_out or self._over.is_set() or code < 0:
            return Exit(None, int(signal.SIGKILL), seconds, is_timed_out)
        if SIGNALED < code <= SIGNALED + 64:
            return Exit(None, code - SIGNALED, seconds)
        return Exit(code, None, seconds)

    async def stop(self, grace_seconds: float) -> bool:
        """Ask, wait, kill; see `Cell.stop`."""
        self._over.set()
        if self._is_started and grace_seconds > 0:
            await asyncio.to_thread(process_tree.terminate, self._handle, grace_seconds, self._handle.root_pids)
        return await self._remove()

    async def close(self) -> bool:
        """End of the job; see `Cell.close`."""
        self._over.set()
        return await self._remove()

    async def _step(
        self, command: list[str], env: dict[str, str], timeout_seconds: float, on_output: Callable[[bytes], None]
    ) -> tuple[int, bool]:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={name: value for name, value in env.items() if name not in TOOL_NEEDS} | tool_environment(),
        )
        is_timed_out = False
        reading = asyncio.create_task(_pump(process, on_output))
        waiting = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([waiting], timeout=timeout_seconds or None)
            if not waiting.done():
                is_timed_out = True
                await self._remove()
                await asyncio.wait([waiting], timeout=KILL_SECONDS)
            await asyncio.wait([reading], timeout=KILL_SECONDS)
        finally:
            reading.cancel()
            if not waiting.done():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await asyncio.gather(reading, waiting, return_exceptions=True)
        return process.returncode or 0, is_timed_out

    async def _start(self) -> None:
        self._is_started = True  # Before the call: a call that fails half-way may have started something.
        code, said = await self._call(*self.start_command()[1:])
        if code:
            await self._remove()
            raise CellFailed(f"the container did not start: {said}; look whether the image {self._image!r} can be had")
        _, text = await self._call("inspect", "--format", "{{.State.Pid}} {{.Id}}", self._name)
        pid, _, container_id = text.partition(" ")
        if pid.isdigit() and int(pid):
            cgroup = _own_cgroup(int(pid), container_id)
            self._handle = JobHandle(marker=self._marker, root_pids=(int(pid),), cgroup=cgroup)

    async def _remove(self) -> bool:
        """Take the container away, and prove that nobody of it is left."""
        if not self._is_started:
            return True
        await self._call("rm", "--force", self._name)
        left = await asyncio.to_thread(process_tree.kill_all, self._handle, KILL_SECONDS)
        code, said = await self._call("ps", "--all", "--quiet", "--filter", f"name={self._name}")
        is_gone = not left and not code and not said
        self._is_started = not is_gone
        return is_gone

    async def _call(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(self._tool, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=tool_environment(),
        )
        try:
            out, error = await asyncio.wait_for(process.communicate(), TOOL_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            return 1, f"{Path(self._tool).name} {arguments[0]} did not answer within {TOOL_SECONDS:.0f} s"
        code = process.returncode or 0
        return code, (error if code else out).decode(errors="replace").strip()[:2000]


async def _pump(process: asyncio.subprocess.Process, on_output: Callable[[bytes], None]) -> None:
    if process.stdout is not None:
        while data := await process.stdout.read(MAX_READ_BYTES):
            on_output(data)


def tool_environment() -> dict[str, str]:
    """What the tool gets of the runner's own environment."""
    return {name: os.environ[name] for name in TOOL_NEEDS if name in os.environ}


def _own_cgroup(pid: int, container_id: str) -> str:
    """The container's cgroup of version 2. Only one that is named after it: some set-ups leave it in the user's own."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", str(pid), "cgroup").read_text().splitlines():
            path = Path("/sys/fs/cgroup" + line.removeprefix("0::"))
            if line.startswith("0::/") and container_id and container_id in line and (path / "cgroup.kill").exists():
                return str(path)
    return ""


@lru_cache(maxsize=1)
def working_tool() -> tuple[str, str]:
    """The first tool that answers, or why none does."""
    reasons = []
    for name in TOOLS:
        path = shutil.which(name)
        if path is None:
            reasons.append(f"{name} is not installed")
            continue
        try:
            done = subprocess.run(
                [path, "info"], capture_output=True, timeout=PROBE_SECONDS, env=tool_environment(), check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{name} does not answer ({error})")
            continue
        if done.returncode == 0:
            return path, ""
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reasons.append(f"{name} does not work ({said[-1][:300] if said else f'exit code {done.returncode}'})")
    return "", "; ".join(reasons)
