"""A simulated network link between two network namespaces: every packet passes through this process.

with Cable() as cable:
        [*cable.server.inside, "deltaci", "server", "--host", cable.server.address, …]
        [*cable.runner.inside, "deltaci", "runner", …]
        cable.to_server.is_cut = True  # requests are lost, responses are not

The two ends are TUN devices, and a thread copies the packets as their `Direction` says. So one-way cuts, loss, delay,
reordering, duplication, slow links and resets need no kernel modules and no firewall rules. Nothing is left behind,
even after SIGKILL: a namespace lives as long as the small process that holds it, which ends when its input from us
ends.
"""

from __future__ import annotations

import fcntl
import heapq
import ipaddress
import os
import random
import secrets
import selectors
import shutil
import struct
import subprocess
import threading
import time
from functools import lru_cache
from typing import Final, Self

TUN: Final = "/dev/net/tun"
TUNSETIFF: Final = 0x400454CA
IFF_TUN_NO_PI: Final = 0x1001
PACKET_BYTES: Final = 65536
QUEUED_SECONDS: Final = 3.0  # The queue before a slow link; further packets are lost, as in any router.
TOOLS: Final = ("ip", "nsenter", "unshare")
TCP: Final = 6
RST_ACK: Final = 0x14


class Direction:
    """One direction of the link. All attributes may be changed at any time; packets on their way are not affected."""

    def __init__(self) -> None:
        self.is_cut = False
        self.loss = 0.0  # The probability that a packet is lost.
        self.duplication = 0.0
        self.delay_seconds = 0.0
        self.jitter_seconds = 0.0  # If longer than the time between two packets, it reorders them.
        self.bytes_per_second = 0.0  # 0: unlimited.
        self.lost = 0
        self._free_at = 0.0

    def due(self, size: int, now: float, draw: random.Random) -> list[float]:
        """Return the arrival time of each copy of a packet of this size; empty if it is lost."""
        if self.is_cut or draw.random() < self.loss:
            self.lost += 1
            return []
        leaves = now
        if self.bytes_per_second:
            if self._free_at - now > QUEUED_SECONDS:
                self.lost += 1
                return []
            leaves = self._free_at = max(now, self._free_at) + size / self.bytes_per_second
        copies = 2 if draw.random() < self.duplication else 1
        return [leaves + self.delay_seconds + draw.random() * self.jitter_seconds for _ in range(copies)]


class End:
    """One end of the link: an address, and a command prefix that runs a command there."""

    def __init__(self, address: str, peer: str) -> None:
        self.address = address
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        self._file = -1
        try:
            if not self._holder.stdout.readline():
                raise OSError("a network of its own cannot be made")
            self.inside = ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net")
            self._file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            name = f"dci{secrets.token_hex(4)}"
            fcntl.ioctl(self._file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN_NO_PI))
            _run("ip", "link", "set", name, "netns", str(self._holder.pid))
            for words in (f"addr add {address} peer {peer} dev {name}", f"link set {name} up", "link set lo up"):
                _run(*self.inside, "ip", *words.split())
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the file descriptor of the TUN device."""
        return self._file

    def close(self) -> None:
        """Remove the namespace. Processes that still run in it have no network any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._holder.communicate()


class Cable:
    """Two ends, and the two directions between them."""

    def __init__(self, seed: int = 1) -> None:
        self.to_server, self.to_runner = Direction(), Direction()
        self._draw = random.Random(seed)
        self._has_resets = False
        self._waiting: list[tuple[float, int, End, bytes]] = []
        self._count = 0
        self._wake, self._woken = -1, -1
        self._thread = threading.Thread(target=self._carry, name="cable", daemon=True)

    @staticmethod
    @lru_cache(maxsize=1)
    def unavailable_reason() -> str:
        """Return why no link can be created here, or an empty string; tested once."""
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            return f"no network of its own: {' and '.join(missing)} cannot be found"
        if os.geteuid() != 0:
            return "no network of its own: only root may make one"
        try:
            with Cable() as cable:
                _run(*cable.runner.inside, "true")
        except subprocess.CalledProcessError as error:
            return f"no network of its own: {error.stderr.decode(errors='replace').strip()[:200]}"
        except OSError as error:
            return f"no network of its own: {error}"
        return ""

    def __enter__(self) -> Self:
        number = ipaddress.ip_address("10.200.0.0") + (secrets.randbelow(1 << 18) << 2)
        addresses = str(number + 1), str(number + 2)
        self.server = End(*addresses)
        try:
            self.runner = End(*reversed(addresses))
        except BaseException:
            self.server.close()
            raise
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._wake)
        self._thread.join()
        os.close(self._woken)
        self.server.close()
        self.runner.close()

    def cut(self) -> None:
        """Let nothing pass in either direction."""
        self.to_server.is_cut = self.to_runner.is_cut = True

    def repair(self) -> None:
        """Remove all faults."""
        for way in (self.to_server, self.to_runner):
            way.is_cut = False
            way.loss = way.duplication = way.delay_seconds = way.jitter_seconds = way.bytes_per_second = 0.0
        self._has_resets = False

    def reset(self) -> None:
        """Answer every TCP packet with a reset until `repair` is called."""
        self._has_resets = True

    # -- the thread

    def _carry(self) -> None:
        over = {self.runner: (self.to_server, self.server), self.server: (self.to_runner, self.runner)}
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for end in over:
                selector.register(end, selectors.EVENT_READ)
            while True:
                wait = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
                for key, _ in selector.select(wait):
                    if not isinstance(key.fileobj, End):
                        return
                    self._take(key.fileobj, *over[key.fileobj])
                while self._waiting and self._waiting[0][0] <= time.monotonic():
                    _, _, end, packet = heapq.heappop(self._waiting)
                    _write(end, packet)

    def _take(self, source: End, way: Direction, target: End) -> None:
        try:
            packet = os.read(source.fileno(), PACKET_BYTES)
        except OSError:
            return
        if packet[0] >> 4 != 4:  # IPv6 neighbour discovery.
            return
        if self._has_resets and packet[9] == TCP:
            _write(source, reset_packet(packet))
            return
        for at in way.due(len(packet), time.monotonic(), self._draw):
            self._count += 1
            heapq.heappush(self._waiting, (at, self._count, target, packet))


def reset_packet(packet: bytes) -> bytes:
    """Return the TCP reset that answers this packet."""
    head = (packet[0] & 15) * 4
    source, target = packet[12:16], packet[16:20]
    ports = packet[head : head + 4]
    sequence, acknowledged = struct.unpack_from("!II", packet, head + 4)
    flags = packet[head + 13]
    size = struct.unpack_from("!H", packet, 2)[0] - head - (packet[head + 12] >> 4) * 4 + bool(flags & 3)
    answered = (sequence + size) % (1 << 32)
    tcp = ports[2:] + ports[:2] + struct.pack("!IIBBHHH", acknowledged, answered, 5 << 4, RST_ACK, 0, 0, 0)
    check = checksum(target + source + struct.pack("!HH", TCP, len(tcp)) + tcp)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, TCP, 0) + target + source
    return ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp[:16] + struct.pack("!H", check) + tcp[18:]


def checksum(data: bytes) -> int:
    """Return the internet checksum."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _write(end: End, packet: bytes) -> None:
    try:
        os.write(end.fileno(), packet)
    except OSError:
        return  # The device is down or its queue is full: the packet is lost.


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
