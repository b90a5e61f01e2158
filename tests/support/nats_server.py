"""A real NATS server with JetStream for tests, in a directory of its own, on a port that the kernel chooses.

The binary comes from a wheel in requirements/dev.lock, which puts it beside the interpreter, or else from the system.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Self

from tests.support.ports import ReservedPort
from tests.support.postgres_server import Postmaster, ServerFailed

READY = "Server is ready"


def find_binary() -> Path:
    """Where `nats-server` is."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ServerFailed("found no nats-server: run 'make test', which installs one into .venv, or put it on PATH")
    return Path(found)


class NatsServer:
    """A server that can be killed and restarted on the same port; its stored data can be removed."""

    def __init__(self, configuration: str = "") -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="deltaci-nats-"))
        file = self._directory / "nats.conf"
        file.write_text(configuration)
        self._options = ("-c", str(file)) if configuration else ()
        self._process: Postmaster | None = None
        self._port = ReservedPort()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.url_of("")

    def url_of(self, user: str) -> str:
        """Return the URL with these credentials: `name:password`."""
        return f"nats://{user}{'@' if user else ''}127.0.0.1:{self._port.number}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [str(find_binary()), "-a", "127.0.0.1", "-p", str(self._port.number), *self._options]
        command += ["-js", "-sd", str(self._directory)]
        self._process = Postmaster(command, None, self._directory, "NATS", READY)
        self._process.wait_until_ready()

    def kill(self) -> None:
        """Crash: SIGKILL."""
        assert self._process is not None
        self._process.kill()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open without responses."""
        assert self._process is not None
        self._process.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.signal_all(signal.SIGCONT)

    def lose_everything(self) -> None:
        """Take all that it keeps from it; only while it does not run."""
        shutil.rmtree(self._directory / "jetstream", ignore_errors=True)

    def close(self) -> None:
        """Stop for good and remove the directory."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM)
        self._port.close()
        shutil.rmtree(self._directory, ignore_errors=True)
