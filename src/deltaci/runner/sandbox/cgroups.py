"""Control groups: limit what a job may use, list its processes, and kill them all at once.

Both versions are used, side by side where a machine has both. A job's groups are created below the runner's own, so the
runner's limits apply to its jobs, too. A limit that cannot be set is no error: the log says so.
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
RUNNER: Final = "deltaci-runner"  # The leaf that the runner moves to; v2 allows processes only in leaves.
PERIOD_MICROSECONDS: Final = 100_000
REMOVE_SECONDS: Final = 2.0


class Hierarchies(NamedTuple):
    """The runner's own group in every mounted hierarchy."""

    v2: Path | None
    v1: dict[str, Path]  # by controller


class Groups(NamedTuple):
    """The groups of one job. `tracker` is the path of the group that lists and kills its processes."""

    paths: tuple[Path, ...] = ()
    tracker: str = ""
    in_force: tuple[str, ...] = ()  # of memory, pids, cpu

    def procs_files(self) -> tuple[str, ...]:
        """Return the files to which a process writes 0 to join the groups."""
        return tuple(str(path / "cgroup.procs") for path in self.paths)

    def remove(self) -> bool:
        """Remove the groups; return False if one is still busy. Killed processes leave a group after a moment."""
        are_removed = [_remove_group(path) for path in self.paths]
        return all(are_removed)


def find_hierarchies(proc_folder: Path = Path("/proc/self")) -> Hierarchies:
    """Return the runner's own groups."""
    runner_paths: dict[str, str] = {}
    for cgroup_line in _read_text(proc_folder / "cgroup").splitlines():
        hierarchy_id, controllers, group_path = cgroup_line.split(":", 2)
        runner_paths.update(dict.fromkeys(controllers.split(",") if hierarchy_id != "0" else [""], group_path))
    unified_path, paths_by_controller = None, {}
    for cgroup_line in _read_text(proc_folder / "mountinfo").splitlines():
        mount_fields, _, mount_type_fields = cgroup_line.partition(" - ")
        mounted_root, mount_point = mount_fields.split()[3:5]
        filesystem_type, _, mount_options = mount_type_fields.split()[:3]
        if filesystem_type == "cgroup2" and "" in runner_paths:
            unified_path = _visible_path(mount_point, mounted_root, runner_paths[""])
        elif filesystem_type == "cgroup":
            paths_by_controller.update(
                {
                    controller: _visible_path(mount_point, mounted_root, runner_paths[controller])
                    for controller in mount_options.split(",")
                    if controller in runner_paths
                }
            )
    return Hierarchies(unified_path, paths_by_controller)


def create(
    group_name: str, limits: Limits, *, executor_process_count: int = 0, hierarchies: Hierarchies | None = None
) -> Groups:
    """Create as many groups and limits for one job as possible.

    `executor_process_count` is the number of processes that belong to the executor, not to the job.
    """
    hierarchies = find_hierarchies() if hierarchies is None else hierarchies
    setter_by_controller = {
        controller: set_limit
        for controller, limit, set_limit in (
            ("memory", limits.memory_bytes, lambda group_path: _set_memory(group_path, limits.memory_bytes)),
            (
                "pids",
                limits.processes,
                lambda group_path: _write_value(group_path / "pids.max", limits.processes + executor_process_count),
            ),
            ("cpu", limits.cpus, lambda group_path: _set_cpu(group_path, limits.cpus)),
        )
        if limit
    }
    group_paths: list[Path] = []
    controllers_in_force: list[str] = []
    unified_group = (
        _create_v2(hierarchies.v2, group_name, set(setter_by_controller)) if hierarchies.v2 is not None else None
    )
    if unified_group is not None:
        group_paths.append(unified_group)
        controllers_in_force += [
            controller
            for controller in setter_by_controller
            if _try_write(setter_by_controller[controller], unified_group)
        ]
    # In v1 every controller has its own group. The freezer is needed where v2 cannot kill a group.
    remaining_controllers = [
        controller for controller in setter_by_controller if controller not in controllers_in_force
    ]
    if unified_group is None or not _can_kill(unified_group):
        remaining_controllers.append("freezer")
    for controller in remaining_controllers:
        group_path = _create(hierarchies.v1[controller], group_name) if controller in hierarchies.v1 else None
        if group_path is not None:
            group_paths.append(group_path)
            if controller in setter_by_controller and _try_write(setter_by_controller[controller], group_path):
                controllers_in_force.append(controller)
    tracker_path = next(
        (group_path for group_path in group_paths if _can_kill(group_path)), group_paths[0] if group_paths else ""
    )
    return Groups(tuple(group_paths), str(tracker_path), tuple(controllers_in_force))


def name_for(marker: str) -> str:
    """Return the name of a job's groups; it contains the runner's PID namespace and its pid there."""
    return f"{PREFIX}{_pid_namespace()}.{os.getpid()}-{marker[:16]}"


def remove_stale(hierarchies: Hierarchies | None = None) -> int:
    """Remove the empty groups that killed runners of this PID namespace left behind; return their number.

    Namespaces may share a hierarchy, and this process cannot know which runners of other namespaces are alive.
    """
    hierarchies = find_hierarchies() if hierarchies is None else hierarchies
    namespace_prefix = f"{PREFIX}{_pid_namespace()}."
    removed_count = 0
    for hierarchy in {path for path in (hierarchies.v2, *hierarchies.v1.values()) if path is not None}:
        for path in _job_parent(hierarchy).glob(f"{namespace_prefix}*-*"):
            pid = path.name.removeprefix(namespace_prefix).partition("-")[0]
            if pid.isdecimal() and not _is_alive(int(pid)):
                with contextlib.suppress(OSError):  # Not empty: its processes are not ours to kill.
                    path.rmdir()
                    removed_count += 1
    return removed_count


def _pid_namespace() -> int:
    """Return the number of this process's PID namespace; 0 if the kernel has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_alive(pid: int) -> bool:
    """Return whether this process exists. /proc is not used: it may show another PID namespace."""
    try:
        with contextlib.suppress(PermissionError):  # It is another user's process.
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


# -- creation


def _create_v2(runner_group: Path, group_name: str, controllers: set[str]) -> Path | None:
    parent_group = _job_parent(runner_group)
    available_controllers = controllers & set(_read_text(parent_group / "cgroup.controllers").split())
    missing_controllers = available_controllers - set(_read_text(parent_group / "cgroup.subtree_control").split())
    if missing_controllers and not _enable(parent_group, missing_controllers):
        _move_runner(parent_group)
        _enable(parent_group, missing_controllers)
    return _create(parent_group, group_name)


def _enable(parent_group: Path, controllers: set[str]) -> bool:
    return _try_write(
        lambda control_path: _write_value(
            control_path, " ".join(f"+{controller}" for controller in sorted(controllers))
        ),
        parent_group / "cgroup.subtree_control",
    )


def _move_runner(parent: Path) -> None:
    """Move the runner into a leaf group if it is alone in its group; else the group is not ours to change."""
    if _read_text(parent / "cgroup.procs").split() != [str(os.getpid())]:
        return
    leaf_group = parent / RUNNER
    with contextlib.suppress(OSError):
        leaf_group.mkdir(exist_ok=True)
        _write_value(leaf_group / "cgroup.procs", os.getpid())


def _job_parent(runner_group: Path) -> Path:
    return runner_group.parent if runner_group.name == RUNNER else runner_group


def _create(parent_group: Path, group_name: str) -> Path | None:
    group_path = parent_group / group_name
    try:
        group_path.mkdir(exist_ok=True)
        # Joining may be forbidden where creation is not.
        with open(group_path / "cgroup.procs", "wb"):
            return group_path
    except OSError:
        with contextlib.suppress(OSError):
            group_path.rmdir()
        return None


def _set_memory(group_path: Path, limit_bytes: int) -> None:
    if (group_path / "memory.max").exists():
        _write_value(group_path / "memory.max", limit_bytes)
        swap_path, swap_limit = group_path / "memory.swap.max", 0
    else:
        _write_value(group_path / "memory.limit_in_bytes", limit_bytes)
        swap_path, swap_limit = group_path / "memory.memsw.limit_in_bytes", limit_bytes
    with contextlib.suppress(
        OSError
    ):  # Without swap accounting the file does not exist; memory is limited all the same.
        _write_value(swap_path, swap_limit)


def _set_cpu(group_path: Path, cpus: float) -> None:
    quota_microseconds = max(1000, int(cpus * PERIOD_MICROSECONDS))
    if (group_path / "cpu.max").exists():
        _write_value(group_path / "cpu.max", f"{quota_microseconds} {PERIOD_MICROSECONDS}")
    else:
        _write_value(group_path / "cpu.cfs_period_us", PERIOD_MICROSECONDS)
        _write_value(group_path / "cpu.cfs_quota_us", quota_microseconds)


def _remove_group(group_path: Path) -> bool:
    deadline = time.monotonic() + REMOVE_SECONDS
    while group_path.exists():
        for folder, _, _ in os.walk(group_path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if group_path.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
    return True


def _can_kill(group_path: Path) -> bool:
    return any((group_path / file_name).exists() for file_name in ("cgroup.kill", "freezer.state"))


def _try_write(write_setting: Callable[[Path], None], path: Path) -> bool:
    try:
        write_setting(path)
    except OSError:
        return False
    return True


def _write_value(setting_path: Path, value: int | str) -> None:
    descriptor = os.open(
        setting_path, os.O_WRONLY | os.O_CLOEXEC
    )  # Without O_CREAT: a missing file means an unsupported limit.
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _visible_path(mount_point: str, mounted_root: str, group_path: str) -> Path:
    """Return the path at which a group is visible: a mount may show only a part of the hierarchy."""
    relative_path = group_path.removeprefix(mounted_root) if mounted_root != "/" else group_path
    return Path(mount_point + "/" + relative_path.strip("/")) if relative_path.strip("/") else Path(mount_point)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
