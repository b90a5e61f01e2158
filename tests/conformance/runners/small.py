"""A small runner that keeps the protocol with the standard library only. Its argument breaks one rule on purpose.

One job at a time, on Linux. It is a subreaper, so every process of a job is its descendant, also one that hides.
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

MARGIN_SECONDS = 0.5  # It stops that much before its lease ends.
FAULT = ""
PAUSE, POOL = threading.Event(), ThreadPoolExecutor(1)


class Away(Exception):
    """The server did not answer, or not now."""


class Server:
    """Speaks to the server, and keeps its credential fresh."""

    def __init__(self, url: str, token: str) -> None:
        self.address = urlsplit(url)
        self.credential, self.renew_at = "", float("inf")
        self.learn("register", {"token": token})

    def learn(self, name: str, body: Any = None) -> None:
        self.renew_at = float("inf")
        told = self.call("POST", name, body)
        self.credential, self.runner_id = told["credential"], told["runner_id"]
        self.renew_at = time.monotonic() + told["expires_in_seconds"] / 2

    def keep(self) -> None:
        if time.monotonic() > self.renew_at and FAULT != "never-renews":
            self.learn("renew")

    def call(self, method: str, name: str, body: Any = None, **headers: str) -> Any:
        self.keep()
        told = {"Authorization": f"Bearer {self.credential}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        line = http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=10)
        try:
            line.request(method, f"/runner/v1/{name}", data, told)
            answer = line.getresponse()
            status, found = answer.status, answer.read()  # 409 with StaleLease is an answer like any other.
        except (OSError, http.client.HTTPException) as error:
            raise Away from error
        finally:
            line.close()
        if status >= 500:
            raise Away
        return json.loads(found)


def now() -> str:
    return datetime.now(UTC).isoformat()


def descendants() -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            parents[int(path.parent.name)] = int(parent) if state != "Z" else -1
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return sorted(found - {os.getpid()})


class Job:
    """One lease, from its grant to its end."""

    def __init__(self, server: Server, granted: Any, work: Path) -> None:
        self.server, self.granted, self.work = server, granted, work
        self.interval = granted["heartbeat_interval_seconds"]
        self.proved_until = time.monotonic() + granted["lease_ttl_seconds"] - MARGIN_SECONDS
        self.is_lost = self.is_canceled = False
        self.is_over = threading.Event()
        self.output = work / f"output-{time.monotonic_ns()}"

    def say(self, type: str, **fields: Any) -> Any:
        told = {"lease_id": self.granted["lease_id"], "runner_id": self.server.runner_id}
        extra = {"mood": "good"} if FAULT == "extra-field" else {}
        return self.server.call("POST", "messages", {"type": type, **told, **fields, **extra})

    def insist(self, call: Callable[..., Any], *words: Any, **fields: Any) -> Any:
        """The same words until they are heard, but not longer than the lease."""
        while (not self.is_lost and time.monotonic() < self.proved_until) or FAULT in ("late", "zombie"):
            try:
                return call(*words, **fields)
            except Away:
                if FAULT == "gives-up":
                    break
                PAUSE.wait(0.2)
        return {"type": "none"}

    def beat(self) -> None:
        """Heartbeats, until the job is over or may go on no longer."""
        usual = pause = self.interval * (3 if FAULT == "rare-heartbeats" else 1)
        while not self.is_over.wait(pause) and not self.is_lost:
            said_at, pause = time.monotonic(), usual
            if FAULT == "no-heartbeats":
                self.server.keep()
                continue
            try:
                answer = self.say("Heartbeat", ts=now())
            except Away:
                answer, pause = {}, 0.2
            if answer.get("extend_lease"):
                self.proved_until = said_at + answer["new_lease_ttl_seconds"] - MARGIN_SECONDS
            is_stale = answer.get("type") == "StaleLease" and FAULT != "zombie"
            if is_stale or (time.monotonic() > self.proved_until and FAULT not in ("late", "zombie")):
                self.is_lost = True
                self.stop()
            elif answer.get("cancel_requested") and FAULT != "deaf" and not self.is_canceled:
                self.is_canceled = True
                self.stop()

    def stop(self) -> None:
        """Only when nobody is left of the job is it over."""
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
            answer = self.insist(self.say, "AckLease", job_id=self.granted["job_id"], accepted_at=now())
            if answer["type"] != "HeartbeatAck" and FAULT != "unfenced":
                return
        if spec is None:
            ref = self.granted["job_spec_ref"].removeprefix("/runner/v1/")
            spec = self.server.call("GET", ref, Delta_Lease=self.granted["lease_id"])
        (beating := threading.Thread(target=self.beat)).start()
        code = (working or POOL.submit(self.steps, spec)).result()
        if FAULT != "hasty":
            self.stop()
        self.end(code)
        PAUSE.wait(self.interval * 1.5 if FAULT == "restless" else 0)
        self.is_over.set()
        beating.join()

    def steps(self, spec: Any) -> int:
        own = dict(os.environ) if FAULT == "careless" else {"PATH": os.environ["PATH"], "HOME": str(self.work)}
        options: Any = {"cwd": self.work, "env": {**own, **spec.get("env", {})}, "start_new_session": True}
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
            self.insist(self.server.call, "POST", "log", log, **where)
        kept = [] if FAULT == "no-reference" else [{"type": "log", "uri": f"log:{self.granted['job_id']}"}]
        if self.is_canceled:
            return self.insist(self.say, "CancelAck", final_status="CANCELED", ts=now(), artifacts=kept)
        code *= FAULT != "liar"
        result = {"status": "FAILED" if code else "SUCCEEDED", "exit_code": code, "artifacts": kept}
        answer = self.insist(self.say, "Complete", **result)
        return self.insist(self.say, "Complete", **result, summary="!") if FAULT == "two-results" else answer


def main() -> None:
    server = Server(os.environ["DELTACI_SERVER"], os.environ["DELTACI_TOKEN"])
    asked = {"type": "Lease", "runner_id": server.runner_id, "wait_seconds": 2}
    while True:
        with suppress(Away):
            for granted in server.call("POST", "lease", asked)["leases"]:
                Job(server, granted, Path(os.environ["DELTACI_WORK"])).run()
        PAUSE.wait(0.05)


if __name__ == "__main__":
    FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    main()
