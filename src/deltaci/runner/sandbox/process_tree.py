"""Find and end all processes of a job. A `JobHandle` is enough, so any process of the machine can do it.

A process belongs to the job if it is in the job's cgroup, has the job's marker in its environment, descends from such a
process, or shares a session with one. A pid alone is never enough, as pids are reused: a root pid counts only while its
process has the marker.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

MARKER_VARIABLE: Final = "DELTACI_JOB_MARK"
PROC: Final = Path("/proc")
MAX_WAIT_SECONDS: Final = 0.05  # Between two scans while no process ends.
EMPTY_SCANS: Final = 2  # Scanning /proc is not atomic: a process that forks and ends meanwhile may be missed.


class JobHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The data that finds a job's processes; may be sent to another process of the same machine."""

    marker: str
    root_pids: tuple[int, ...] = ()
    cgroup: str = ""


class ProcessEntry(NamedTuple):
    """One live process of the process table."""

    pid: int
    parent: int
    session: int
    start: int  # In ticks since boot: together with the pid it identifies a process.


def members(handle: JobHandle) -> list[int]:
    """Return the pids of all live processes of the job. Zombies do not count."""
    return sorted(_find_processes(handle))


def in_cgroup(handle: JobHandle) -> set[int]:
    """Return the live processes in the job's cgroup, or none if it has no cgroup. Cheaper than `members`."""
    return {pid for pid in _in_cgroup(handle.cgroup) if _read_process(pid) is not None}


def kill_all(handle: JobHandle, seconds: float = 5.0) -> list[int]:
    """Kill the job's processes until none is found. Return the remaining ones: an empty list proves that none is left.

    Roots are killed last: they adopt the job's orphans, which would be harder to find without a parent.
    """
    deadline = time.monotonic() + seconds
    empty_scan_count = scan_count_without_others = 0
    while True:
        processes = _find_processes(handle)
        root_pids = {pid for pid in processes if pid in handle.root_pids}
        other_processes = {pid: process for pid, process in processes.items() if pid not in root_pids}
        empty_scan_count = 0 if processes else empty_scan_count + 1
        scan_count_without_others = 0 if other_processes else scan_count_without_others + 1
        if empty_scan_count >= EMPTY_SCANS or (processes and time.monotonic() >= deadline):
            return sorted(processes)
        if other_processes:
            _kill_once(handle, other_processes)
            _wait_for_exit(other_processes, deadline)
        elif root_pids and scan_count_without_others >= EMPTY_SCANS:
            _kill_once(handle, processes)
            _wait_for_exit(processes, deadline)


def terminate(handle: JobHandle, seconds: float, spared_pids: Collection[int] = ()) -> list[int]:
    """Send SIGTERM to all but the spared processes and wait; return the remaining ones.

    New processes may appear at any time: see `kill_all`.
    """
    deadline = time.monotonic() + seconds
    signaled_processes: set[ProcessEntry] = set()
    while True:
        processes = {pid: process for pid, process in _find_processes(handle).items() if pid not in spared_pids}
        # Each process is signaled once: a second SIGTERM makes many programs give up their clean-up. Children that a
        # signaled process starts are part of its clean-up and are not signaled.
        cleanup_pids = {process.pid for process in signaled_processes & set(processes.values())}
        for process in sorted(set(processes.values()) - signaled_processes):
            if process.parent in cleanup_pids:
                cleanup_pids.add(process.pid)
            else:
                _send_signal(process, signal.SIGTERM)
                _send_signal(process, signal.SIGCONT)  # A stopped process would not receive the SIGTERM.
        signaled_processes |= set(processes.values())
        if not processes or time.monotonic() >= deadline:
            return sorted(processes)
        _wait_for_exit(processes, deadline)


# -- finding


def _find_processes(handle: JobHandle) -> dict[int, ProcessEntry]:
    """Return the job's processes by pid: those in its cgroup or with its marker, and their descendants."""
    process_by_pid = _process_table()
    seed_pids = {pid for pid in _in_cgroup(handle.cgroup) if pid in process_by_pid}
    marker_assignment = f"{MARKER_VARIABLE}={handle.marker}".encode()
    for pid in process_by_pid:
        is_marked = _is_marked(pid, marker_assignment)
        if is_marked or (is_marked is None and pid in handle.root_pids):
            seed_pids.add(pid)
    member_pids = _closure(process_by_pid, seed_pids)
    # A caller's mistake may have put this process into the job's session or cgroup; it must not kill itself.
    member_pids.discard(os.getpid())
    return {pid: process_by_pid[pid] for pid in member_pids}


def _closure(process_by_pid: dict[int, ProcessEntry], seed_pids: set[int]) -> set[int]:
    """Return the seeds, their descendants, and all processes that share a session with one of these."""
    child_pids_by_pid: dict[int, list[int]] = {}
    pids_by_session: dict[int, list[int]] = {}
    for process in process_by_pid.values():
        child_pids_by_pid.setdefault(process.parent, []).append(process.pid)
        pids_by_session.setdefault(process.session, []).append(process.pid)
    excluded_sessions = {0, os.getsid(0)}
    member_pids: set[int] = set()
    pending_pids = list(seed_pids)
    while pending_pids:
        pid = pending_pids.pop()
        if pid in member_pids or pid == os.getpid():
            continue
        member_pids.add(pid)
        pending_pids.extend(child_pids_by_pid.get(pid, ()))
        if process_by_pid[pid].session not in excluded_sessions:
            pending_pids.extend(pids_by_session[process_by_pid[pid].session])
    return member_pids


def _process_table() -> dict[int, ProcessEntry]:
    process_by_pid = {}
    for file_name in os.listdir(PROC):
        if file_name.isdigit() and (process := _read_process(int(file_name))):
            process_by_pid[process.pid] = process
    return process_by_pid


def _read_process(pid: int) -> ProcessEntry | None:
    """Return the process if it is alive."""
    try:
        stat_bytes = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name is in brackets and may contain anything, including brackets and spaces.
    stat_fields = stat_bytes[stat_bytes.rindex(b")") + 2 :].split()
    if stat_fields[0] in (b"Z", b"X", b"x"):
        return None
    return ProcessEntry(pid, int(stat_fields[1]), int(stat_fields[3]), int(stat_fields[19]))


def _is_marked(pid: int, marker_assignment: bytes) -> bool | None:
    """Return None if the process is another user's, so that its environment cannot be read."""
    try:
        return marker_assignment in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except PermissionError:
        return None
    except OSError:
        return False


def _in_cgroup(cgroup_path: str) -> set[int]:
    """Return the pids of the visible processes in a cgroup and its subgroups; none for an empty path."""
    if not cgroup_path:
        return set()
    pids: set[int] = set()
    for folder, _, _ in os.walk(cgroup_path):
        with contextlib.suppress(OSError):
            pids.update(int(pid_text) for pid_text in Path(folder, "cgroup.procs").read_text().split())
    return pids - {0}  # 0 stands for a process of a PID namespace that is not visible here.


# -- ending


def _kill_once(handle: JobHandle, process_by_pid: dict[int, ProcessEntry]) -> None:
    """Stop, then kill these processes and, where the kernel supports it, the whole cgroup at once."""
    is_frozen = _write_cgroup_file(handle.cgroup, "freezer.state", "FROZEN")  # v1: no process forks meanwhile.
    for process in process_by_pid.values():
        _send_signal(process, signal.SIGSTOP)  # So that no process forks between the first kill and the last.
    for process in process_by_pid.values():
        _send_signal(process, signal.SIGKILL)
    if is_frozen:
        for pid in _in_cgroup(handle.cgroup) - {os.getpid(), *handle.root_pids}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _write_cgroup_file(handle.cgroup, "freezer.state", "THAWED")
    _write_cgroup_file(handle.cgroup, "cgroup.kill", "1")  # v2: also kills processes that are being forked.


def _write_cgroup_file(cgroup_path: str, file_name: str, text: str) -> bool:
    """Return whether the file exists and accepted the text."""
    if not cgroup_path:
        return False
    try:
        # Without O_CREAT: a removed cgroup must stay removed.
        descriptor = os.open(f"{cgroup_path}/{file_name}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, text.encode()) > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_pidfd(process: ProcessEntry) -> int | None:
    """Return a descriptor of exactly this process, or None if it has ended, even if its pid is in use again."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    current_process = _read_process(process.pid)
    if current_process is None or current_process.start != process.start:
        os.close(pidfd)
        return None
    return pidfd


def _send_signal(process: ProcessEntry, signal_number: signal.Signals) -> None:
    pidfd = _open_pidfd(process)
    if pidfd is not None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal_number)
        os.close(pidfd)


def _wait_for_exit(process_by_pid: dict[int, ProcessEntry], deadline: float) -> None:
    """Wait until one of the processes ends, but not for long, as new ones may appear."""
    poll = select.poll()
    pidfds = [pidfd for process in list(process_by_pid.values())[:100] if (pidfd := _open_pidfd(process)) is not None]
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    if pidfds:
        poll.poll(max(0.0, min(MAX_WAIT_SECONDS, deadline - time.monotonic())) * 1000)
    for pidfd in pidfds:
        os.close(pidfd)
