"""Upload the rest of a job's log after its runner has died.

The runner stores masked output on disk before it is sent; the keeper outlives the runner and sends what the server has
not received. Output that was still in the job's pipe is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from deltaci.core.errors import Refused, Unreachable
from deltaci.runner.client import RunnerClient
from deltaci.runner.sandbox.supervisor import boottime

CHUNK_BYTES: Final = 1024 * 1024
RETRY_SECONDS: Final = 0.1
MIN_TIMEOUT_SECONDS: Final = 0.2
NO_FILE: Final = -1


class UnsentLog(NamedTuple):
    """The log file of one job, and the time at which its lease ends."""

    lease_id: str
    fd: int
    deadline: float


def open_log(log_path: str) -> int:
    """Return a descriptor of the log, or `NO_FILE`."""
    try:
        return os.open(log_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) if log_path else NO_FILE
    except OSError:
        return NO_FILE


def send_unsent_logs(
    client: RunnerClient, unsent_logs: Sequence[UnsentLog], clock: Callable[[], float] = boottime
) -> None:
    """Send all logs in a thread, and return when they are sent or their leases have ended."""
    readable_logs = [unsent_log for unsent_log in unsent_logs if unsent_log.fd != NO_FILE]
    if not readable_logs:
        return
    # A daemon thread: the keeper may exit while a call hangs.
    thread = threading.Thread(target=send_logs, args=(client, readable_logs, clock), name="log recovery", daemon=True)
    thread.start()
    thread.join(max(0.0, max(unsent_log.deadline for unsent_log in readable_logs) - clock()))


def send_logs(
    client: RunnerClient,
    unsent_logs: Sequence[UnsentLog],
    clock: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Send the logs one after the other, and close their files.

    A log is given up when its lease ends or the server refuses it.
    """
    for unsent_log in unsent_logs:
        try:
            _send_log(client, unsent_log, clock, sleep)
        except (Refused, msgspec.MsgspecError):  # The lease has ended, or the log is full.
            continue
        finally:
            os.close(unsent_log.fd)


def _send_log(
    client: RunnerClient, unsent_log: UnsentLog, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Send the rest of a log, until it is sent completely or its deadline has passed."""
    offset: int | None = None  # Not known: the server may still be receiving what the runner sent last.
    while (seconds_left := unsent_log.deadline - clock()) > 0:
        timeout = max(MIN_TIMEOUT_SECONDS, seconds_left)
        try:
            if offset is None:
                offset = client.log_size(unsent_log.lease_id, timeout)
            chunk = os.pread(unsent_log.fd, CHUNK_BYTES, offset)
            if not chunk:
                return
            offset = client.append_log(unsent_log.lease_id, offset, chunk, timeout)
        except Unreachable:
            sleep(min(RETRY_SECONDS, seconds_left))
        except Refused as refused:
            if refused.code != "log_gap":
                raise
            offset = None
