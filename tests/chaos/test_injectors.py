"""What `make chaos` injects is really injected: a fault that silently is none would let every promise look kept."""

from __future__ import annotations

import io
import os
import random
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import archives, clocks, jobs, liar, scenario_secrets
from chaos.cable import QUEUED_SECONDS, Cable, Direction, checksum
from chaos.clocks import Clock
from chaos.scenario_secrets import VARIANTS
from deltaci.app import KEY_FILE
from deltaci.conformance.http_client import HttpClient
from deltaci.conformance.scripted_runner import ScriptedRunner
from deltaci.core.errors import Refused
from deltaci.protocol.messages import Registered
from deltaci.runner.workspace.archive import ArchiveLimits, unpack
from deltaci.server.auth.credentials import Signer, load_server_key

SECONDS = 10.0
ADDRESSES = 0x10 | 0x100  # What the kernel tells of them: IPv4, IPv6.
BYTES = 20_000

# A thread for each connection: one that was cut off never ends at this end, and must not block the next.
ECHO = """
import socket, sys, threading

def echo(connection):
    with connection:
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except OSError:
            pass

server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=echo, args=server.accept()[:1], daemon=True).start()
"""
ASK = """
import socket, sys, time
address, port, size, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
began = time.monotonic()
try:
    with socket.create_connection((address, port), patience) as line:
        line.settimeout(4 + patience)
        line.sendall(b"x" * size)
        while size:
            size -= len(line.recv(65536)) or size
    print("heard", time.monotonic() - began)
except TimeoutError:
    print("silence", 0)
except OSError as error:
    print(type(error).__name__, 0)
"""


class Net:
    """A cable with somebody at its far end who repeats what it hears."""

    def __init__(self, cable: Cable, port: int) -> None:
        self.cable = cable
        self._port = port

    def ask(self, size: int = BYTES, patience: float = 10) -> tuple[str, float]:
        """Say so many bytes from one end to the other and back: what came of it, and how long it took."""
        command = [sys.executable, "-c", ASK, self.cable.server.address, str(self._port), str(size), str(patience)]
        told = subprocess.run(
            [*self.cable.runner.inside, *command],
            capture_output=True,
            text=True,
            timeout=SECONDS + 2 * patience,
            check=True,
        )
        word, seconds = told.stdout.split()
        return word, float(seconds)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    """One for all tests; each mends it."""
    if reason := Cable.unavailable_reason():
        pytest.skip(reason)
    with Cable() as cable:
        command = [*cable.server.inside, sys.executable, "-c", ECHO, cable.server.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as echo:
            assert echo.stdout is not None
            yield Net(cable, int(echo.stdout.readline()))
            echo.kill()


# -- the cable


def test_a_good_cable_carries_everything(net: Net) -> None:
    """So that the others fail for their fault."""
    net.cable.repair()

    assert net.ask(200_000)[0] == "heard"


@pytest.mark.parametrize("way", ["to_server", "to_runner"])
def test_a_way_that_is_cut_is_silent(net: Net, way: str) -> None:
    """Not refused: nobody is told that nothing arrives. The other way goes on."""
    net.cable.repair()
    cut: Direction = getattr(net.cable, way)
    other = net.cable.to_runner if way == "to_server" else net.cable.to_server
    cut.is_cut = True
    before = cut.lost, other.lost

    assert net.ask(patience=0.7)[0] == "silence"

    assert cut.lost > before[0]
    assert other.lost == before[1]
    net.cable.repair()
    assert net.ask()[0] == "heard"


def test_a_thin_line_takes_its_time(net: Net) -> None:
    """Twenty thousand bytes at forty thousand a second."""
    net.cable.repair()
    net.cable.to_server.bytes_per_second = 40_000

    word, seconds = net.ask()

    assert word == "heard"
    assert seconds > 0.4


def test_a_connection_is_reset(net: Net) -> None:
    """The sender hears it at once."""
    net.cable.repair()
    net.cable.reset()

    assert net.ask()[0] in ("ConnectionRefusedError", "ConnectionResetError")


def test_disorder_is_survived_by_tcp(net: Net) -> None:
    """Lost, late, doubled and in another order, and yet all of it arrives."""
    net.cable.repair()
    for way in (net.cable.to_server, net.cable.to_runner):
        way.loss, way.duplication, way.jitter_seconds = 0.05, 0.3, 0.02

    # A lost packet is sent again after a second, then after two, four, …; on a busy machine the cable is slow, too.
    assert net.ask(patience=60)[0] == "heard"


def test_nothing_is_left_of_a_cable() -> None:
    """A network that stays spoils the machine."""
    if reason := Cable.unavailable_reason():
        pytest.skip(reason)
    with Cable() as cable:
        holders = [int(end.inside[1].split("/")[2]) for end in (cable.server, cable.runner)]
        assert all(Path(f"/proc/{pid}").exists() for pid in holders)

    assert not any(Path(f"/proc/{pid}").exists() for pid in holders)


def test_nobody_else_notices_a_cable() -> None:
    """No address comes or goes on the machine's own network: a browser would break off whatever it is loading."""
    if reason := Cable.unavailable_reason():
        pytest.skip(reason)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as told:
        told.bind((0, ADDRESSES))
        told.setblocking(False)
        with Cable() as cable:
            ours = [socket.inet_aton(end.address) for end in (cable.server, cable.runner)]

        # The kernel tells before it does.
        assert [each for each in _waiting(told) if any(address in each for address in ours)] == []


def _waiting(told: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield told.recv(65536)
        except BlockingIOError:
            return


def test_a_way_does_what_it_says() -> None:
    """Without any network: when a packet arrives, how often, and that a full queue loses it."""
    draw, way = random.Random(1), Direction()
    assert way.due(1000, 5.0, draw) == [5.0]

    way.delay_seconds, way.duplication = 0.5, 1.0
    assert way.due(1000, 5.0, draw) == [5.5, 5.5]

    way.delay_seconds, way.duplication, way.bytes_per_second = 0.0, 0.0, 1000
    arrivals = [way.due(1000, 5.0, draw) for _ in range(6)]
    assert arrivals[:3] == [[6.0], [7.0], [8.0]]
    assert [bool(arrival) for arrival in arrivals].count(False) == 6 - int(QUEUED_SECONDS) - 1
    way.loss = 1.0
    assert way.due(1, 100.0, draw) == []
    assert checksum(bytes([0x45, 0, 0, 0x1C])) == 0xBAE3


# -- the clock


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shim is, compiled once."""
    folder = tmp_path_factory.mktemp("clock")
    if reason := clocks.unavailable_reason(folder):
        pytest.skip(reason)
    return folder


def test_the_time_of_day_jumps_and_nothing_else(library: Path) -> None:
    """In a process that runs already, there and back."""
    clock = Clock.made(library, "one")
    script = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = []
        for jump in (0, 3600, -90_000, 86_400):
            clock.jump(jump)
            process.stdin.write("\n")
            process.stdin.flush()
            day, steady = map(float, process.stdout.readline().split())
            found.append((round((day - time.time()) / 60), round((steady - time.monotonic()) / 60)))
        process.stdin.close()

    assert found == [(0, 0), (60, 0), (60 - 1500, 0), (0, 0)]
    assert clock.seconds == 0


def test_what_is_started_meanwhile_inherits_the_clock(library: Path) -> None:
    """A database starts its own processes."""
    clock = Clock.made(library, "other")
    clock.jump(86_400)

    with clock.inherited():
        shown = subprocess.run(["date", "+%s"], capture_output=True, check=True, timeout=SECONDS).stdout

    assert round((float(shown) - time.time()) / 3600) == 24
    assert clocks.VARIABLE not in os.environ


# -- liars, archives, disks and secrets


def test_no_forged_credential_is_one(tmp_path: Path) -> None:
    """Each would be accepted only by a server that does not look; an honest one is."""
    signer = Signer(load_server_key(tmp_path / KEY_FILE), time.time)
    token = signer.sign("run", "honest", "default", 60)
    honest = ScriptedRunner(
        HttpClient("http://127.0.0.1:1"), Registered(runner_id="honest", credential=token, expires_in_seconds=60)
    )

    assert signer.read(token, "run").runner_id == "honest"
    for name, credential in liar.forged_credentials(tmp_path, honest).items():
        with pytest.raises(Refused):
            pytest.fail(f"{name}: {signer.read(credential, 'run')}")


def test_forged_archives_lead_elsewhere_or_are_none(tmp_path: Path) -> None:
    """Most of them must be refused, or the corpus is too kind; and none gets out."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_text("untouched")
    root.mkdir()
    malicious_archives = {
        name: data for name, data in archives.malicious_archives("cached", outside).items() if "bomb" not in name
    }
    refused = []
    for number, (name, data) in enumerate(malicious_archives.items()):
        inside = root / str(number)
        inside.mkdir()
        try:
            unpack(inside, io.BytesIO(data), ArchiveLimits(entries=100, bytes=10_000, depth=64))
        except Refused:
            refused.append(name)

    assert len(refused) >= 40
    assert [path.name for path in tmp_path.rglob("*escaped*") if not path.is_relative_to(root)] == []
    assert os.listdir(outside) == ["secret"]
    with tarfile.open(fileobj=io.BytesIO(malicious_archives["absolute"])) as tar:
        assert tar.getnames() == [str(outside / "escaped")[1:]] or tar.getnames() == [str(outside / "escaped")]


def test_a_small_disk_is_full_soon_and_gone_with_its_process(tmp_path: Path) -> None:
    """Only whoever was started on it sees it."""
    if reason := jobs.small_disk_unavailable_reason():
        pytest.skip(reason)
    folder = tmp_path / "disk"
    under = jobs.small_disk(folder, 1 << 20)

    filled = subprocess.run(
        [*under, "sh", "-c", f"head -c 5000000 /dev/zero > {folder}/large"], capture_output=True, check=False
    )

    assert b"No space left" in filled.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if ".json" not in variant.step])
def test_a_secret_that_is_not_hidden_is_found(name: str, tmp_path: Path) -> None:
    """What the same step prints without a runner around it is a leak."""
    variant = VARIANTS[name]
    value = scenario_secrets._value(variant)
    told = subprocess.run(
        ["bash", "-c", variant.step],
        cwd=tmp_path,
        env={"S": value, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
    ).stdout
    left = b"".join(str(path).encode() + path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    assert scenario_secrets._leaked(variant, value, {"log": told + left})
