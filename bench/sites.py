"""A whole deployment for benchmarks of work on a repository: a bare one, a server and a runner, all of them real."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.bench_api import Server
from bench.processes import Process, started
from deltaci.app import registration_token
from tests.repositories.upstream import Upstream

PROJECT: Final = "shop"
CORES: Final = os.cpu_count() or 1
POLL_SECONDS: Final = 1.0  # Seldom: whoever asks is work for the server, too.
PATIENCE_SECONDS: Final = 1800.0
_MAIN: Final = ("-m", "deltaci")


class Site:
    """What a benchmark does with it."""

    def __init__(self, server: Server, runner: Process, upstream: Upstream) -> None:
        self.server = server
        self.runner = runner
        self.upstream = upstream
        self._token = server.token()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the API."""
        return self.server.ask(method, path, self._token, body)

    def wait(self, path: str, name: str, field: str, over: Sequence[str], count: int) -> list[Any]:
        """Ask for a list until so many of it are over; all that it has then."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            found = self.all(path, name)
            if sum(each[field] in over for each in found) >= count:
                return found
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{path}: not {count} are over after {PATIENCE_SECONDS:.0f} s")

    def all(self, path: str, name: str) -> list[Any]:
        """All that a list has."""
        found: list[Any] = []
        after = ""
        while True:
            page = self.ask("GET", f"{path}?limit=200{after}")
            found += page[name]
            if not page.get("next"):
                return found
            after = f"&cursor={page['next']}"

    def cpu(self) -> tuple[float, float]:
        """Seconds of the processor so far: of the server, and of the runner, each with all that they started."""
        return self.server.process.whole_cpu(), self.runner.whole_cpu()


@contextmanager
def site(folder: Path, slots: int, files: dict[str, str] | None = None) -> Iterator[Site]:
    """A server with one project, and one runner with so many slots."""
    upstream, data = Upstream(folder / "upstream", files), folder / "data"
    place = ("--store", f"sqlite:{folder / 'bench.db'}", "--data", str(data), "--port", "0")
    with started(*_MAIN, "server", *place, "--allow-repositories", "file", log=folder / "server.log") as process:
        server = Server(process, data)
        env = {
            "DELTACI_TOKEN": registration_token(data, "bench", "default"),
            "DELTACI_GIT_PROTOCOLS": "file",
        }
        where = ("--server", f"http://127.0.0.1:{server.port}", "--work", str(folder / "runner"))
        with started(*_MAIN, "runner", *where, "--slots", str(slots), env=env, log=folder / "runner.log") as runner:
            found = Site(server, runner, upstream)
            found.ask("PUT", f"/projects/{PROJECT}", {"url": upstream.url, "default_branch": "main"})
            yield found
