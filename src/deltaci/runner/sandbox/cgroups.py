"""Control groups: what may be used at most, who belongs to a job, and a kill that nobody escapes.

Both versions are used, side by side where a machine has both. A job's groups are made below the runner's own, so what
binds the runner binds its jobs. What cannot be had is not an error: it is listed, and the log says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from deltaci.protocol.messages import Limits

PREFIX: Final = "deltaci-"
RUNNER: Final = "deltaci-runner"  # The leaf that the runner moves to; v2 wants processes in leaves only.
PERIOD_MICROSECONDS: Final = 100_000
REMOVE_SECONDS: Final = 2.0


class Mounts(NamedTuple):
    """The runner's own group in every hierarchy that is mounted."""

    v2: Path | None
    v1: dict[str, Path]  # by controller


class Groups(NamedTuple):
    """One job's groups. `tracker` is the one that finds and kills its processes."""

    paths: tuple[Path, ...] = ()
    tracker: str = ""
    in_force: tuple[str, ...] = ()  # of memory, pids, cpu

    def joins(self) -> tuple[str, ...]:
        """Where a process writes 0 to become a member."""
        return tuple(str(path / "cgroup.procs") for path in self.paths)

    def remove(self) -> bool:
        """False when a group is still busy. Those who were just killed leave it a moment later."""
        removed = [_remove(path) for path in self.paths]
        return all(removed)


def mounts(proc: Path = Path("/proc/self")) -> Mounts:
    """Where the runner's own groups are."""
    own: dict[str, str] = {}
    for line in _read(proc / "cgroup").splitlines():
        number, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(",") if number != "0" else [""], path))
    v2, v1 = None, {}
    for line in _read(proc / "mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        root, point = fields.split()[3:5]
        kind, _, options = rest.split()[:3]
        if kind == "cgroup2" and "" in own:
            v2 = _below(point, root, own[""])
        elif kind == "cgroup":
            v1.update({name: _below(point, root, own[name]) for name in options.split(",") if name in own})
    return Mounts(v2, v1)


def make(name: str, limits: Limits, *, overhead: int = 0, mounted: Mounts | None = None) -> Groups:
    """The groups of one job, as many as can be had. `overhead` is how many processes are ours and not the job's."""
    mounted = mounts() if mounted is None else mounted
    wanted = {
        controller: settings
        for controller, is_wanted, settings in (
            ("memory", limits.memory_bytes, lambda path: _set_memory(path, limits.memory_bytes)),
            ("pids", limits.processes, lambda path: _set(path / "pids.max", limits.processes + overhead)),
            ("cpu", limits.cpus, lambda path: _set_cpu(path, limits.cpus)),
        )
        if is_wanted
    }
    paths: list[Path] = []
    in_force: list[str] = []
    v2 = _make_v2(mounted.v2, name, set(wanted)) if mounted.v2 is not None else None
    if v2 is not None:
        paths.append(v2)
        in_force += [controller for controller in wanted if _try(wanted[controller], v2)]
    # In v1 every controller has a group of its own; the freezer is for machines whose v2 cannot kill.
    needed = [controller for controller in wanted if controller not in in_force]
    if v2 is None or not _can_end(v2):
        needed.append("freezer")
    for controller in needed:
        path = _make(mounted.v1[controller], name) if controller in mounted.v1 else None
        if path is not None:
            paths.append(path)
            if controller in wanted and _try(wanted[controller], path):
                in_force.append(controller)
    tracker = next((path for path in paths if _can_end(path)), paths[0] if paths else "")
    return Groups(tuple(paths), str(tracker), tuple(in_force))


def name_for(marker: str) -> str:
    """Return the name of a job's groups, which says whose they are: a PID namespace and a runner's pid in it."""
    return f"{PREFIX}{_pid_namespace()}.{os.getpid()}-{marker[:16]}"


def sweep(mounted: Mounts | None = None) -> int:
    """Remove the empty groups that killed runners of this PID namespace left behind; return how many.

    Namespaces may share a hierarchy, and whether a runner of another one is alive cannot be known here.
    """
    mounted = mounts() if mounted is None else mounted
    own = f"{PREFIX}{_pid_namespace()}."
    removed = 0
    for parent in {path for path in (mounted.v2, *mounted.v1.values()) if path is not None}:
        for path in _home(parent).glob(f"{own}*-*"):
            pid = path.name.removeprefix(own).partition("-")[0]
            if pid.isdecimal() and not _is_alive(int(pid)):
                with contextlib.suppress(OSError):  # Not empty: whoever is in it is somebody's to kill, not ours.
                    path.rmdir()
                    removed += 1
    return removed


def _pid_namespace() -> int:
    """Return the number of this process's PID namespace; 0 if the kernel has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_alive(pid: int) -> bool:
    """Return whether there is such a process in this PID namespace. /proc may be that of another one."""
    try:
        with contextlib.suppress(PermissionError):  # Another user's.
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


# -- how they are made


def _make_v2(own: Path, name: str, controllers: set[str]) -> Path | None:
    home = _home(own)
    available = controllers & set(_read(home / "cgroup.controllers").split())
    missing = available - set(_read(home / "cgroup.subtree_control").split())
    if missing and not _enable(home, missing):
        _move_runner(home)
        _enable(home, missing)
    return _make(home, name)


def _enable(home: Path, controllers: set[str]) -> bool:
    return _try(
        lambda path: _set(path, " ".join(f"+{name}" for name in sorted(controllers))), home / "cgroup.subtree_control"
    )


def _move_runner(home: Path) -> None:
    """Into a leaf, if the runner is alone in its group: with others in it the group is not ours to arrange."""
    if _read(home / "cgroup.procs").split() != [str(os.getpid())]:
        return
    leaf = home / RUNNER
    with contextlib.suppress(OSError):
        leaf.mkdir(exist_ok=True)
        _set(leaf / "cgroup.procs", os.getpid())


def _home(own: Path) -> Path:
    return own.parent if own.name == RUNNER else own


def _make(parent: Path, name: str) -> Path | None:
    path = parent / name
    try:
        path.mkdir(exist_ok=True)
        # Joining is what matters, and may be forbidden where making is not.
        with open(path / "cgroup.procs", "wb"):
            return path
    except OSError:
        with contextlib.suppress(OSError):
            path.rmdir()
        return None


def _set_memory(path: Path, limit_bytes: int) -> None:
    if (path / "memory.max").exists():
        _set(path / "memory.max", limit_bytes)
        swap, text = path / "memory.swap.max", 0
    else:
        _set(path / "memory.limit_in_bytes", limit_bytes)
        swap, text = path / "memory.memsw.limit_in_bytes", limit_bytes
    with contextlib.suppress(OSError):  # Without swap accounting there is no such file; the limit holds for memory.
        _set(swap, text)


def _set_cpu(path: Path, cpus: float) -> None:
    quota = max(1000, int(cpus * PERIOD_MICROSECONDS))
    if (path / "cpu.max").exists():
        _set(path / "cpu.max", f"{quota} {PERIOD_MICROSECONDS}")
    else:
        _set(path / "cpu.cfs_period_us", PERIOD_MICROSECONDS)
        _set(path / "cpu.cfs_quota_us", quota)


def _remove(path: Path) -> bool:
    deadline = time.monotonic() + REMOVE_SECONDS
    while path.exists():
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if path.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
    return True


def _can_end(path: Path) -> bool:
    return any((path / name).exists() for name in ("cgroup.kill", "freezer.state"))


def _try(settings: Callable[[Path], None], path: Path) -> bool:
    try:
        settings(path)
    except OSError:
        return False
    return True


def _set(path: Path, value: int | str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # Never O_CREAT: a file that is not there is a limit that is not.
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)


def _below(point: str, root: str, own: str) -> Path:
    """Where a group is seen: a mount may show only a part of the hierarchy."""
    inside = own.removeprefix(root) if root != "/" else own
    return Path(point + "/" + inside.strip("/")) if inside.strip("/") else Path(point)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
