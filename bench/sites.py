"""A real deployment for benchmarks that work on a repository: a bare repository, a server and a runner."""

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
from tests.support.upstream import Upstream

PROJECT: Final = "shop"
CORES: Final = os.cpu_count() or 1
POLL_SECONDS: Final = 1.0  # Polls are work for the server, too.
PATIENCE_SECONDS: Final = 1800.0
_MAIN: Final = ("-m", "deltaci")


class Site:
    """The server, the runner and the repository, with requests to the API."""

    def __init__(self, server: Server, runner: Process, upstream: Upstream) -> None:
        self.server = server
        self.runner = runner
        self.upstream = upstream
        self._token = server.token()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request to the API."""
        return self.server.ask(method, path, self._token, body)

    def wait(self, path: str, name: str, field: str, end_states: Sequence[str], count: int) -> list[Any]:
        """Poll a list until so many of its entries have ended. Returns the whole list."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            entries = self.all(path, name)
            if sum(entry[field] in end_states for entry in entries) >= count:
                return entries
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{path}: not {count} are over after {PATIENCE_SECONDS:.0f} s")

    def all(self, path: str, name: str) -> list[Any]:
        """Return all entries of a list."""
        entries: list[Any] = []
        after = ""
        while True:
            page = self.ask("GET", f"{path}?limit=200{after}")
            entries += page[name]
            if not page.get("next"):
                return entries
            after = f"&cursor={page['next']}"

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the server and of the runner so far, each with all child processes."""
        return self.server.process.whole_cpu(), self.runner.whole_cpu()


@contextmanager
def site(folder: Path, slots: int, files: dict[str, str] | None = None) -> Iterator[Site]:
    """Run a server with one project and a runner with so many slots until the block ends."""
    upstream, data = Upstream(folder / "upstream", files), folder / "data"
    storage = ("--store", f"sqlite:{folder / 'bench.db'}", "--data", str(data), "--port", "0")
    with started(*_MAIN, "server", *storage, "--allow-repositories", "file", log=folder / "server.log") as process:
        server = Server(process, data)
        env = {
            "DELTACI_TOKEN": registration_token(data, "bench", "default"),
            "DELTACI_GIT_PROTOCOLS": "file",
        }
        connection = ("--server", f"http://127.0.0.1:{server.port}", "--work", str(folder / "runner"))
        with started(
            *_MAIN, "runner", *connection, "--slots", str(slots), env=env, log=folder / "runner.log"
        ) as runner:
            site = Site(server, runner, upstream)
            site.ask("PUT", f"/projects/{PROJECT}", {"url": upstream.url, "default_branch": "main"})
            yield site
