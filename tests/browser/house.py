"""A server, a runner and people, as processes and keys: what a browser is pointed at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx

from deltaci.api.routes import ROOT
from deltaci.app import KEY_FILE, registration_token
from deltaci.server.auth.credentials import Signer, load_server_key
from tests.support.fork_server import Deltaci
from tests.support.plain_http import NO_TLS
from tests.support.ports import ReservedPort

PATIENCE_SECONDS: Final = 60.0
TENANT: Final = "default"


class House:
    """Stops only what it started."""

    def __init__(self, folder: Path, *words: str, is_forked: bool = True) -> None:
        self.folder = folder
        self._is_forked = is_forked  # Else each process imports the program anew, by its own PYTHONPATH.
        self._words = words
        self._port = ReservedPort()
        self._server: subprocess.Popen[bytes] | None = None
        self._runners: list[subprocess.Popen[bytes]] = []
        self.url = ""
        self._http = httpx.Client(verify=NO_TLS, trust_env=False, timeout=PATIENCE_SECONDS)
        self.keys: dict[tuple[str, ...], str] = {}

    def open(self, *, slots: int = 4) -> House:
        """A server, and a runner with these slots; 0 for none."""
        self.start_server()
        if slots:
            self.start_runner("r1", "--slots", str(slots))
        return self

    def close(self) -> None:
        """End all of it."""
        self._http.close()
        for runner in self._runners:  # Asked twice, it lets its jobs be instead of waiting for them.
            runner.send_signal(signal.SIGINT)
            runner.send_signal(signal.SIGTERM)
        for runner in self._runners:
            _ended(runner)
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            _ended(self._server)
        self._port.close()

    def start_server(self) -> None:
        """Start it, on the port that it had before, and wait until it listens."""
        words = ("--data", str(self.folder), "--host", "127.0.0.1", "--port", str(self._port.number))
        self._server = self._start("server", *words, *self._words, name="server")
        assert self._server.stdout is not None
        line = self._server.stdout.readline().decode()
        assert "listening on" in line, (self.folder / "server.log").read_text()
        self.url = line.split()[-1]

    def kill_server(self) -> None:
        """SIGKILL, as a crash."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()

    def start_runner(self, name: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a runner of this name, with these variables."""
        return self.begin(
            *("runner", "--server", self.url, "--work", str(self.folder / name), *words),
            name=name,
            DELTACI_TOKEN=registration_token(self.folder, name, TENANT),
            **environment,
        )

    def begin(self, *words: str, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a runner by the words of its command line."""
        runner = self._start(*words, name=name, **environment)
        self._runners.append(runner)
        return runner

    def _start(self, *words: str, name: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            options: dict[str, Any] = {
                "cwd": self.folder,
                "env": {**os.environ, **environment},
                "stdout": subprocess.PIPE if name == "server" else log,
                "stderr": log,
                "start_new_session": True,
            }
            if not self._is_forked:
                return subprocess.Popen([sys.executable, "-m", "deltaci", *words], **options)
            return Deltaci(words, **options)

    # -- people

    def operator_token(self, tenant: str = TENANT) -> str:
        """What whoever operates the server shows."""
        signer = Signer(load_server_key(self.folder / KEY_FILE), time.time)
        return signer.sign("operate", "root", tenant, 3600)

    def key(self, person: str = "ada", *scopes: str, tenant: str = TENANT, roles: tuple[str, ...] = ()) -> str:
        """An API key of this person; without scopes one that may do everything. The same again for the same person."""
        wanted = (tenant, person, *(scopes or ("admin",)), *roles)
        if wanted not in self.keys:
            body = {"person": person, "scopes": list(scopes or ("admin",)), "roles": list(roles)}
            self.keys[wanted] = self.ask("POST", "/keys", body, token=self.operator_token(tenant))["token"]
        return self.keys[wanted]

    def sign_in(self, key: str) -> dict[str, str]:
        """The cookies of a session with this API key, without a browser."""
        with httpx.Client(verify=NO_TLS, trust_env=False, timeout=PATIENCE_SECONDS) as client:
            answer = client.post(f"{self.url}/sign-in", data={"key": key}, headers={"Origin": self.url})
            assert answer.status_code == 303, answer.text
            return dict(client.cookies)

    def ask(self, method: str, path: str, body: Any = None, *, token: str = "") -> Any:
        """One request to the API, which must go well."""
        answer = self._http.request(
            method,
            f"{self.url}{ROOT}{path}",
            json=body,
            headers={"Authorization": f"Bearer {token or self.operator_token()}"},
        )
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.content

    def start(self, *jobs: dict[str, Any], person: str = "ada", **fields: Any) -> str:
        """Start a run of these jobs; its id. Fields of the plan are given as `plan={…}`."""
        plan = {"jobs": list(jobs), **fields.pop("plan", {})}
        return str(self.ask("POST", "/runs", {"plan": plan, **fields}, token=self.key(person))["id"])

    def until(self, run: str, *statuses: str) -> Any:
        """Wait until a run has one of these statuses; the run. It is asked each time its events say something new."""
        wanted = statuses or ("SUCCEEDED", "FAILED", "CANCELED")
        headers = {"Authorization": f"Bearer {self.operator_token()}", "Accept": "text/event-stream"}
        with self._http.stream("GET", f"{self.url}{ROOT}/runs/{run}/events", headers=headers) as events:
            for line in events.iter_lines():
                if line.startswith("event: run"):
                    found = self.ask("GET", f"/runs/{run}")
                    if found["status"] in wanted:
                        return found
        found = self.ask("GET", f"/runs/{run}")
        assert found["status"] in wanted, found["status"]
        return found


def _ended(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def task(name: str, *steps: str, **fields: Any) -> dict[str, Any]:
    """A job of a plan."""
    return {"name": name, "work": {"steps": list(steps or ("true",)), "executor": "process"}, **fields}


def gate(name: str, needs: list[str], **fields: Any) -> dict[str, Any]:
    """A job that waits for people."""
    return {"name": name, "kind": "approval", "needs": needs, "approval": fields}
