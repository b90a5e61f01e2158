"""Run jobs in bubblewrap: a read-only system, private /tmp, /proc and /dev, the workspace, by default no network.

Everything runs in a PID namespace that ends with its first process, so no process outlives the cell. The job has no
capabilities and cannot see the runner's files, processes or cgroups.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import cgroups
from deltaci.runner.sandbox.cell import BindMount
from deltaci.runner.sandbox.environment import environment, interpreter
from deltaci.runner.sandbox.process import groups_for, memory_rlimit
from deltaci.runner.sandbox.supervised_cell import SupervisedCell
from deltaci.runner.sandbox.zygote import SCRIPT

OVERHEAD_PROCESSES: Final = 3  # Bubblewrap outside, bubblewrap as the namespace's init, the supervisor.
PROBE_SECONDS: Final = 10.0
SYSTEM_FOLDERS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
# Secrets of the machine that the runner's user may read: without capabilities the job is still that user.
HIDDEN_FILES: Final = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers")
HIDDEN_FOLDERS: Final = ("/etc/deltaci", "/etc/ssh", "/etc/sudoers.d", "/etc/ssl/private")
SUPERVISOR_INSIDE: Final = "/run/deltaci/supervisor.py"
ISOLATION_FLAGS: Final = (
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--cap-drop",
    "ALL",
    "--hostname",
    "sandbox",
)


# Joins the cgroups first, so that no process of the job runs outside of them. Fails if a cgroup does not exist.
JOIN_SCRIPT: Final = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
MAX_ERROR_BYTES: Final = 4000


class BubblewrapGuard:
    """The bubblewrap process of a cell. When it ends, the kernel has ended all processes of its namespace."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        """Return its exit code once it has ended."""
        return await self._process.wait()

    async def startup_error(self) -> str:
        """Return its stderr, which explains why it did not start."""
        assert self._process.stderr is not None
        error_bytes = b""
        with contextlib.suppress(TimeoutError):
            error_bytes = await asyncio.wait_for(self._process.stderr.read(MAX_ERROR_BYTES), 1.0)
        return error_bytes.decode(errors="replace").strip()


class SandboxExecutor:
    """For jobs that are trusted with nothing but their workspace."""

    name = "sandbox"

    def unavailable_reason(self) -> str:
        """Return why bubblewrap does not work here; tested once per process."""
        return probe()

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> SupervisedCell:
        """Return an isolated cell. Only the workspace and writable bind mounts keep what the job writes."""
        workspace = workspace.resolve()

        async def launch(marker: str, groups: cgroups.Groups, supervisor_socket: socket.socket) -> BubblewrapGuard:
            command = (
                *bubblewrap_command(workspace, has_network=network, bind_mounts=bind_mounts),
                "--",
                str(interpreter()),
                "-I",
                "-S",
                "-B",
            )
            return BubblewrapGuard(
                await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", JOIN_SCRIPT, "sh", *groups.procs_files(), "--", *command, SUPERVISOR_INSIDE),
                    stdin=supervisor_socket.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env=environment(workspace, marker, {}),
                    cwd="/",
                    start_new_session=True,
                )
            )

        return SupervisedCell(
            title=f"sandbox executor: bubblewrap, {'with' if network else 'no'} network",
            workspace=workspace,
            groups=groups_for(limits, OVERHEAD_PROCESSES),
            launch=launch,
            rlimits=lambda groups: memory_rlimit(limits, groups) | process_rlimit(limits, groups),
            limits=limits,
            is_isolated=True,
        )


def process_rlimit(limits: Limits, groups: cgroups.Groups) -> dict[str, int]:
    """Return an RLIMIT_NPROC if no cgroup limits processes; none for root, which the kernel does not count.

    In its own user namespace, the kernel counts only the job's processes.
    """
    if limits.processes and "pids" not in groups.in_force and os.getuid() != 0:
        return {"RLIMIT_NPROC": limits.processes + OVERHEAD_PROCESSES}
    return {}


def bubblewrap_command(
    workspace: Path | None, *, has_network: bool, bind_mounts: Sequence[BindMount] = ()
) -> list[str]:
    """Return the command up to the `--`, without the environment, as all users can read arguments."""
    arguments = [shutil.which("bwrap") or "bwrap", *ISOLATION_FLAGS, *(["--share-net"] if has_network else [])]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    for hidden_path in HIDDEN_FILES:
        if os.path.exists(hidden_path):
            arguments += ["--ro-bind", os.devnull, hidden_path]
    for hidden_path in HIDDEN_FOLDERS:
        if os.path.isdir(hidden_path) and not os.path.islink(hidden_path):
            arguments += ["--tmpfs", hidden_path, "--remount-ro", hidden_path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/var/tmp"]
    resolv_conf = os.path.realpath("/etc/resolv.conf")
    if has_network and not resolv_conf.startswith("/etc/") and os.path.exists(resolv_conf):
        arguments += ["--ro-bind", resolv_conf, resolv_conf]
    if not sys.base_prefix.startswith("/usr"):
        arguments += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    arguments += ["--ro-bind", str(SCRIPT), SUPERVISOR_INSIDE]
    if workspace is not None:
        arguments += ["--bind", str(workspace), str(workspace)]
    for mount in bind_mounts:
        arguments += ["--bind" if mount.is_writable else "--ro-bind", str(mount.path), str(mount.path)]
    # Parent folders that bubblewrap created for mounts are on a tmpfs: make them read-only, too.
    return [*arguments, "--remount-ro", "/", "--chdir", "/"]


@lru_cache(maxsize=1)
def probe() -> str:
    """Start bubblewrap once and return why it does not work; an empty string if it does."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed: there is no `bwrap` on the runner's PATH; install the package bubblewrap"
    command = [*bubblewrap_command(None, has_network=False), "--", "/bin/sh", "-c", "exit 0"]
    try:
        probe_result = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, env={}, check=False)
    except (OSError, subprocess.TimeoutExpired) as start_error:
        return f"bubblewrap does not start here: {start_error}"
    error_text = probe_result.stderr.decode(errors="replace").strip()[:500]
    return (
        ""
        if probe_result.returncode == 0
        else f"bubblewrap does not work here: {error_text or f'exit code {probe_result.returncode}'}"
    )
