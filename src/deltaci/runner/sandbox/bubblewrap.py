"""Bubblewrap: a read-only system, a private /tmp, /proc and /dev, the workspace, and by default no network.

Everything runs in a pid namespace that ends with its first process, so nobody outlives the cell. The job has no
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

OVERHEAD_PROCESSES: Final = 3  # Bubblewrap outside, bubblewrap as the namespace's first process, the supervisor.
PROBE_SECONDS: Final = 10.0
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
# Secrets of the machine that its own user could read, as a user without capabilities is still the same user.
HIDDEN_FILES: Final = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers")
HIDDEN_FOLDERS: Final = ("/etc/deltaci", "/etc/ssh", "/etc/sudoers.d", "/etc/ssl/private")
SUPERVISOR_INSIDE: Final = "/run/deltaci/supervisor.py"
ALONE: Final = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox")


# Joins the groups first, so that nothing of the job ever runs outside of them; a group that is gone ends it here.
JOIN: Final = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
MAX_COMPLAINT_BYTES: Final = 4000


class Spawned:
    """Bubblewrap as the guard of its cell: with it everybody inside is gone, by the kernel's word."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        """Its exit code, once it is gone."""
        return await self._process.wait()

    async def complaint(self) -> str:
        """What it said when it did not start."""
        assert self._process.stderr is not None
        text = b""
        with contextlib.suppress(TimeoutError):
            text = await asyncio.wait_for(self._process.stderr.read(MAX_COMPLAINT_BYTES), 1.0)
        return text.decode(errors="replace").strip()


class SandboxExecutor:
    """For jobs that nobody has to trust with more than their workspace."""

    name = "sandbox"

    def unavailable_reason(self) -> str:
        """Whether bubblewrap is there and may do what it must; tried out once."""
        return probe()

    def cell(
        self, *, workspace: Path, limits: Limits, network: bool, image: str, bind_mounts: Sequence[BindMount] = ()
    ) -> SupervisedCell:
        """A cell with walls. The workspace is the only place that outlives it."""
        place = workspace.resolve()

        async def launch(marker: str, groups: cgroups.Groups, theirs: socket.socket) -> Spawned:
            command = (
                *bubblewrap(place, has_network=network, bind_mounts=bind_mounts),
                "--",
                str(interpreter()),
                "-I",
                "-S",
                "-B",
            )
            return Spawned(
                await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", JOIN, "sh", *groups.joins(), "--", *command, SUPERVISOR_INSIDE),
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env=environment(place, marker, {}),
                    cwd="/",
                    start_new_session=True,
                )
            )

        return SupervisedCell(
            title=f"sandbox executor: bubblewrap, {'with' if network else 'no'} network",
            workspace=place,
            groups=groups_for(limits, OVERHEAD_PROCESSES),
            launch=launch,
            rlimits=lambda groups: memory_rlimit(limits, groups) | process_rlimit(limits, groups),
            limits=limits,
            has_walls=True,
        )


def process_rlimit(limits: Limits, groups: cgroups.Groups) -> dict[str, int]:
    """In a user namespace of its own the kernel counts only the job's processes. It never counts root's."""
    if limits.processes and "pids" not in groups.in_force and os.getuid() != 0:
        return {"RLIMIT_NPROC": limits.processes + OVERHEAD_PROCESSES}
    return {}


def bubblewrap(workspace: Path | None, *, has_network: bool, bind_mounts: Sequence[BindMount] = ()) -> list[str]:
    """The command up to the `--`. The environment is not in it: arguments can be read by everybody."""
    arguments = [shutil.which("bwrap") or "bwrap", *ALONE, *(["--share-net"] if has_network else [])]
    for folder in SYSTEM:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    for path in HIDDEN_FILES:
        if os.path.exists(path):
            arguments += ["--ro-bind", os.devnull, path]
    for path in HIDDEN_FOLDERS:
        if os.path.isdir(path) and not os.path.islink(path):
            arguments += ["--tmpfs", path, "--remount-ro", path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/var/tmp"]
    names = os.path.realpath("/etc/resolv.conf")
    if has_network and not names.startswith("/etc/") and os.path.exists(names):
        arguments += ["--ro-bind", names, names]
    if not sys.base_prefix.startswith("/usr"):
        arguments += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    arguments += ["--ro-bind", str(SCRIPT), SUPERVISOR_INSIDE]
    if workspace is not None:
        arguments += ["--bind", str(workspace), str(workspace)]
    for each in bind_mounts:
        arguments += ["--bind" if each.is_writable else "--ro-bind", str(each.path), str(each.path)]
    # What bubblewrap made by itself on the way to these places is a file system in memory: close it as well.
    return [*arguments, "--remount-ro", "/", "--chdir", "/"]


@lru_cache(maxsize=1)
def probe() -> str:
    """Start one and see."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed: there is no `bwrap` on the runner's PATH; install the package bubblewrap"
    command = [*bubblewrap(None, has_network=False), "--", "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, env={}, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start here: {error}"
    said = done.stderr.decode(errors="replace").strip()[:500]
    return "" if done.returncode == 0 else f"bubblewrap does not work here: {said or f'exit code {done.returncode}'}"
