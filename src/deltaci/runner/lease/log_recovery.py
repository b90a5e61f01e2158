"""What a job had said when its runner died: kept on disk, not sent yet. Whoever is left sends it.

The bytes are those that the runner had read, masked and kept. What was still in the job's pipe is gone with the runner.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.client import RunnerClient, Unreachable

CHUNK_BYTES: Final = 1024 * 1024
PAUSE_SECONDS: Final = 0.1
MIN_CALL_SECONDS: Final = 0.2
NO_FILE: Final = -1


class UnsentLog(NamedTuple):
    """One job's log, and until when its lease stands."""

    lease_id: str
    file: int
    until: float


def open_log(path: str) -> int:
    """The log to read from, or `NOTHING`."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) if path else NO_FILE
    except OSError:
        return NO_FILE


def send_unsent_logs(
    client: RunnerClient, rests: Sequence[UnsentLog], clock: Callable[[], float] = time.monotonic
) -> None:
    """Send all of them, as far as there is time. Never longer: a call that hangs is left alone."""
    there = [rest for rest in rests if rest.file != NO_FILE]
    if not there:
        return
    # A daemon: whoever waits for it may leave in the middle of a call.
    sending = threading.Thread(target=send_logs, args=(client, there, clock), name="last words", daemon=True)
    sending.start()
    sending.join(max(0.0, max(rest.until for rest in there) - clock()))


def send_logs(
    client: RunnerClient,
    rests: Sequence[UnsentLog],
    clock: Callable[[], float],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Send one after the other, each until nobody wants it any more."""
    for rest in rests:
        try:
            _send(client, rest, clock, pause)
        except (Refused, msgspec.MsgspecError):  # The lease is over, or the log is full: nobody wants the rest.
            continue
        finally:
            os.close(rest.file)


def _send(client: RunnerClient, rest: UnsentLog, clock: Callable[[], float], pause: Callable[[float], None]) -> None:
    at: int | None = None  # Not known: a part may be on its way that the runner sent last.
    while (left := rest.until - clock()) > 0:
        timeout = max(MIN_CALL_SECONDS, left)
        try:
            if at is None:
                at = client.log_size(rest.lease_id, timeout)
            data = os.pread(rest.file, CHUNK_BYTES, at)
            if not data:
                return
            at = client.append_log(rest.lease_id, at, data, timeout)
        except Unreachable:
            pause(min(PAUSE_SECONDS, left))
        except Refused as refused:
            if refused.code != "log_gap":
                raise
            at = None
