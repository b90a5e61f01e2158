"""A small conforming runner that uses only the standard library. Its argument names a rule to break on purpose.

It runs one job at a time, on Linux. It is a child subreaper, so that every process of a job stays its descendant.
"""

import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MARGIN_SECONDS = 0.5  # It stops this long before its lease ends.
FAULT = ""
PAUSE, POOL = threading.Event(), ThreadPoolExecutor(1)


class Unreachable(Exception):
    """The server did not answer, or with a 5xx status."""


class Server:
    """Sends requests to the server and renews the credential in time."""

    def __init__(self, url: str, token: str) -> None:
        self.address = urlsplit(url)
        self.credential, self.renew_at = "", float("inf")
        self.update_credential("register", {"token": token})

    def update_credential(self, name: str, body: Any = None) -> None:
        self.renew_at = float("inf")
        registered = self.call("POST", name, body)
        self.credential, self.runner_id = registered["credential"], registered["runner_id"]
        self.renew_at = time.monotonic() + registered["expires_in_seconds"] / 2

    def renew_if_due(self) -> None:
        if time.monotonic() > self.renew_at and FAULT != "never-renews":
            self.update_credential("renew")

    def call(self, method: str, name: str, body: Any = None, **headers: str) -> Any:
        self.renew_if_due()
        sent_headers = {
            "Authorization": f"Bearer {self.credential}",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=10)
        try:
            connection.request(method, f"/runner/v1/{name}", data, sent_headers)
            answer = connection.getresponse()
            status, content = answer.status, answer.read()  # 409 with StaleLease is a normal answer.
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable from error
        finally:
            connection.close()
        if status >= 500:
            raise Unreachable
        return json.loads(content)


def now() -> str:
    return datetime.now(UTC).isoformat()


def descendants() -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            parents[int(path.parent.name)] = int(parent) if state != "Z" else -1
    family = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= children
    return sorted(family - {os.getpid()})


class Job:
    """One job from its grant to its result."""

    def __init__(self, server: Server, granted: Any, work: Path) -> None:
        self.server, self.granted, self.work = server, granted, work
        self.interval = granted["heartbeat_interval_seconds"]
        self.valid_until = time.monotonic() + granted["lease_ttl_seconds"] - MARGIN_SECONDS
        self.is_lost = self.is_canceled = False
        self.has_ended = threading.Event()
        self.output = work / f"output-{time.monotonic_ns()}"

    def send(self, type: str, **fields: Any) -> Any:
        common = {"lease_id": self.granted["lease_id"], "runner_id": self.server.runner_id}
        extra = {"mood": "good"} if FAULT == "extra-field" else {}
        return self.server.call("POST", "messages", {"type": type, **common, **fields, **extra})

    def repeat_until_answered(self, call: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
        """Repeat a request until it is answered, but not beyond the end of the lease."""
        while (not self.is_lost and time.monotonic() < self.valid_until) or FAULT in ("late", "zombie"):
            try:
                return call(*arguments, **fields)
            except Unreachable:
                if FAULT == "gives-up":
                    break
                PAUSE.wait(0.2)
        return {"type": "none"}

    def send_heartbeats(self) -> None:
        """Send heartbeats until the job has ended or must stop."""
        usual = pause = self.interval * (3 if FAULT == "rare-heartbeats" else 1)
        while not self.has_ended.wait(pause) and not self.is_lost:
            sent_at, pause = time.monotonic(), usual
            if FAULT == "no-heartbeats":
                self.server.renew_if_due()
                continue
            try:
                answer = self.send("Heartbeat", ts=now())
            except Unreachable:
                answer, pause = {}, 0.2
            if answer.get("extend_lease"):
                self.valid_until = sent_at + answer["new_lease_ttl_seconds"] - MARGIN_SECONDS
            is_stale = answer.get("type") == "StaleLease" and FAULT != "zombie"
            if is_stale or (time.monotonic() > self.valid_until and FAULT not in ("late", "zombie")):
                self.is_lost = True
                self.stop()
            elif answer.get("cancel_requested") and FAULT != "deaf" and not self.is_canceled:
                self.is_canceled = True
                self.stop()

    def stop(self) -> None:
        """Kill all processes of the job and wait until none is left."""
        while left := descendants():
            for pid in left[:1] if FAULT == "hasty" else left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if FAULT == "hasty":
                break
            PAUSE.wait(0.01)

    def run(self) -> None:
        spec = self.granted.get("job_spec")
        working = POOL.submit(self.steps, spec) if FAULT == "eager" else None
        if FAULT != "no-ack":
            answer = self.repeat_until_answered(self.send, "AckLease", job_id=self.granted["job_id"], accepted_at=now())
            if answer["type"] != "HeartbeatAck" and FAULT != "unfenced":
                return
        if spec is None:
            ref = self.granted["job_spec_ref"].removeprefix("/runner/v1/")
            spec = self.server.call("GET", ref, Delta_Lease=self.granted["lease_id"])
        (beating := threading.Thread(target=self.send_heartbeats)).start()
        code = (working or POOL.submit(self.steps, spec)).result()
        if FAULT != "hasty":
            self.stop()
        self.end(code)
        PAUSE.wait(self.interval * 1.5 if FAULT == "restless" else 0)
        self.has_ended.set()
        beating.join()

    def steps(self, spec: Any) -> int:
        environment = dict(os.environ) if FAULT == "careless" else {"PATH": os.environ["PATH"], "HOME": str(self.work)}
        options: Any = {"cwd": self.work, "env": {**environment, **spec.get("env", {})}, "start_new_session": True}
        with self.output.open("ab") as output:
            for step in spec["steps"]:
                code = subprocess.call(["sh", "-c", step], stdout=output, stderr=output, **options)
                if code or self.is_lost or self.is_canceled:
                    return code
        return 0

    def end(self, code: int) -> Any:
        log = self.output.read_bytes() + (self.granted["lease_id"].encode() if FAULT == "chatty" else b"")
        if FAULT != "no-log":
            where = {"Delta_Lease": self.granted["lease_id"], "Delta_Offset": "0"}
            self.repeat_until_answered(self.server.call, "POST", "log", log, **where)
        artifacts = [] if FAULT == "no-reference" else [{"type": "log", "uri": f"log:{self.granted['job_id']}"}]
        if self.is_canceled:
            return self.repeat_until_answered(
                self.send, "CancelAck", final_status="CANCELED", ts=now(), artifacts=artifacts
            )
        code *= FAULT != "liar"
        result = {"status": "FAILED" if code else "SUCCEEDED", "exit_code": code, "artifacts": artifacts}
        answer = self.repeat_until_answered(self.send, "Complete", **result)
        return (
            self.repeat_until_answered(self.send, "Complete", **result, summary="!")
            if FAULT == "two-results"
            else answer
        )


def main() -> None:
    server = Server(os.environ["DELTACI_SERVER"], os.environ["DELTACI_TOKEN"])
    lease_request = {"type": "Lease", "runner_id": server.runner_id, "wait_seconds": 2}
    while True:
        with suppress(Unreachable):
            for granted in server.call("POST", "lease", lease_request)["leases"]:
                Job(server, granted, Path(os.environ["DELTACI_WORK"])).run()
        PAUSE.wait(0.05)


if __name__ == "__main__":
    FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    main()
