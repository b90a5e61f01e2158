"""Who belongs to a job, and how to end all of them. Needs nothing but a handle, so any process can do it.

A process is found in four ways: it is in the job's cgroup, it carries the job's mark in its environment, it descends
from one that was found, or it shares a session with one. Nobody is killed on the word of a number alone: a root pid
counts only while the process behind it still carries the mark, because pids are used again.
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
MAX_WAIT_SECONDS: Final = 0.05  # Between two looks, when nobody whom we wait for ends.
EMPTY_LOOKS: Final = 2  # A look at /proc is not atomic: who forks and ends during one may be missed by it.


class JobHandle(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to find and end a job's processes; may be sent to another process of the same machine."""

    marker: str
    root_pids: tuple[int, ...] = ()
    cgroup: str = ""


class ProcessEntry(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    start: int  # In ticks since boot: with the pid it names a process for good.


def members(handle: JobHandle) -> list[int]:
    """Every live process of the job. A zombie is not alive: it runs nothing and only waits to be counted."""
    return sorted(_find(handle))


def in_cgroup(handle: JobHandle) -> set[int]:
    """Who is in the job's own group; nobody when it has none. Much cheaper than to look at everybody."""
    return {pid for pid in _in_cgroup(handle.cgroup) if _look(pid) is not None}


def kill_all(handle: JobHandle, seconds: float = 5.0) -> list[int]:
    """Kill until nobody is left; returns who is left after all. Empty is the proof that the job is over.

    Roots come last: they adopt the orphans of the job, and who has no parent is harder to find.
    """
    deadline = time.monotonic() + seconds
    empty = alone = 0
    while True:
        found = _find(handle)
        roots = {pid for pid in found if pid in handle.root_pids}
        others = {pid: seen for pid, seen in found.items() if pid not in roots}
        empty = 0 if found else empty + 1
        alone = 0 if others else alone + 1
        if empty >= EMPTY_LOOKS or (found and time.monotonic() >= deadline):
            return sorted(found)
        if others:
            _strike(handle, others)
            _wait(others, deadline)
        elif roots and alone >= EMPTY_LOOKS:
            _strike(handle, found)
            _wait(found, deadline)


def terminate(handle: JobHandle, seconds: float, spare: Collection[int] = ()) -> list[int]:
    """Ask everybody but the spared to end, and wait so long; returns who did not. They may be many: see `kill_all`."""
    deadline = time.monotonic() + seconds
    known: set[ProcessEntry] = set()
    while True:
        found = {pid: seen for pid, seen in _find(handle).items() if pid not in spare}
        # Each is asked once: a second TERM makes many programs give up their clean-up. Whoever is started by one that
        # was asked is its clean-up, and is left alone.
        helpers = {seen.pid for seen in known & set(found.values())}
        for seen in sorted(set(found.values()) - known):
            if seen.parent in helpers:
                helpers.add(seen.pid)
            else:
                _send(seen, signal.SIGTERM)
                _send(seen, signal.SIGCONT)  # One that is stopped would never hear it.
        known |= set(found.values())
        if not found or time.monotonic() >= deadline:
            return sorted(found)
        _wait(found, deadline)


# -- how they are found


def _find(handle: JobHandle) -> dict[int, ProcessEntry]:
    table = _table()
    seeds = {pid for pid in _in_cgroup(handle.cgroup) if pid in table}
    needle = f"{MARKER_VARIABLE}={handle.marker}".encode()
    for pid in table:
        is_marked = _is_marked(pid, needle)
        if is_marked or (is_marked is None and pid in handle.root_pids):
            seeds.add(pid)
    found = _closure(table, seeds)
    # We may stand in a session or cgroup of the job by mistake of a caller; to kill ourselves would prove nothing.
    found.discard(os.getpid())
    return {pid: table[pid] for pid in found}


def _closure(table: dict[int, ProcessEntry], seeds: set[int]) -> set[int]:
    """The seeds, all who descend from them, and all who share a session with one of these."""
    children: dict[int, list[int]] = {}
    sessions: dict[int, list[int]] = {}
    for seen in table.values():
        children.setdefault(seen.parent, []).append(seen.pid)
        sessions.setdefault(seen.session, []).append(seen.pid)
    not_ours = {0, os.getsid(0)}
    found: set[int] = set()
    waiting = list(seeds)
    while waiting:
        pid = waiting.pop()
        if pid in found or pid == os.getpid():
            continue
        found.add(pid)
        waiting.extend(children.get(pid, ()))
        if table[pid].session not in not_ours:
            waiting.extend(sessions[table[pid].session])
    return found


def _table() -> dict[int, ProcessEntry]:
    table = {}
    for name in os.listdir(PROC):
        if name.isdigit() and (seen := _look(int(name))):
            table[seen.pid] = seen
    return table


def _look(pid: int) -> ProcessEntry | None:
    """The process, if it is alive."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets and spaces too.
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X", b"x"):
        return None
    return ProcessEntry(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def _is_marked(pid: int, needle: bytes) -> bool | None:
    """None: we may not know, because the process is another user's."""
    try:
        return needle in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except PermissionError:
        return None
    except OSError:
        return False


def _in_cgroup(cgroup: str) -> set[int]:
    if not cgroup:
        return set()
    pids: set[int] = set()
    for folder, _, _ in os.walk(cgroup):
        with contextlib.suppress(OSError):
            pids.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
    return pids - {0}  # 0 is a process of a pid namespace that we cannot see into.


# -- how they are ended


def _strike(handle: JobHandle, found: dict[int, ProcessEntry]) -> None:
    """Kill these, and with them, where the kernel can do it at once, the whole cgroup."""
    is_frozen = _write(handle.cgroup, "freezer.state", "FROZEN")  # v1: nobody forks while we count.
    for seen in found.values():
        _send(seen, signal.SIGSTOP)  # So that nobody forks between the first kill and the last.
    for seen in found.values():
        _send(seen, signal.SIGKILL)
    if is_frozen:
        for pid in _in_cgroup(handle.cgroup) - {os.getpid(), *handle.root_pids}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _write(handle.cgroup, "freezer.state", "THAWED")
    _write(handle.cgroup, "cgroup.kill", "1")  # v2: the kernel also kills who is being forked right now.


def _write(cgroup: str, name: str, text: str) -> bool:
    """Whether there is such a file and it took the text."""
    if not cgroup:
        return False
    try:
        # Without O_CREAT: a cgroup that is gone must stay gone.
        file = os.open(f"{cgroup}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(file, text.encode()) > 0
    except OSError:
        return False
    finally:
        os.close(file)


def _open(seen: ProcessEntry) -> int | None:
    """A descriptor of exactly this process, or None when it is gone or its pid is another's by now."""
    try:
        file = os.pidfd_open(seen.pid)
    except OSError:
        return None
    now = _look(seen.pid)
    if now is None or now.start != seen.start:
        os.close(file)
        return None
    return file


def _send(seen: ProcessEntry, number: signal.Signals) -> None:
    file = _open(seen)
    if file is not None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(file, number)
        os.close(file)


def _wait(found: dict[int, ProcessEntry], deadline: float) -> None:
    """Until one of them ends, but never long: others may appear."""
    poll = select.poll()
    files = [file for seen in list(found.values())[:100] if (file := _open(seen)) is not None]
    for file in files:
        poll.register(file, select.POLLIN)
    if files:
        poll.poll(max(0.0, min(MAX_WAIT_SECONDS, deadline - time.monotonic())) * 1000)
    for file in files:
        os.close(file)
