"""A real network for a runner: a namespace of its own, and a cable to ours that can be pulled out."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from functools import lru_cache
from typing import Self


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Link:
    """Two ends of a cable. `server` is the address on our side; what starts with `inside` is on the other."""

    def __init__(self) -> None:
        token = secrets.token_bytes(3)
        self.name = f"dci{token.hex()}"
        net = f"10.{200 + token[0] % 50}.{token[1]}.{token[2] & 0xFC}"
        head, _, last = net.rpartition(".")
        self.server = f"{head}.{int(last) + 1}"
        self._runner = f"{head}.{int(last) + 2}"
        self.inside = ("nsenter", f"--net=/run/netns/{self.name}")  # Not `ip netns exec`: that hides the cgroups.

    @staticmethod
    @lru_cache(maxsize=1)
    def why_not() -> str:
        """Empty when it can be had here, else why not; tried out once."""
        missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
        if missing:
            return f"no network namespace: {' and '.join(missing)} cannot be found"
        if os.geteuid() != 0:
            return "no network namespace: only root may make one"
        try:
            with Link() as link:
                subprocess.run([*link.inside, "true"], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            return f"no network namespace: {error.stderr.decode(errors='replace').strip()[:200]}"
        return ""

    def __enter__(self) -> Self:
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", f"{self.name}s", "type", "veth", "peer", "name", f"{self.name}r", "netns", self.name)
            _ip("addr", "add", f"{self.server}/30", "dev", f"{self.name}s")
            _ip("link", "set", f"{self.name}s", "up")
            for words in (
                ("addr", "add", f"{self._runner}/30", "dev", f"{self.name}r"),
                ("link", "set", f"{self.name}r", "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", self.name, *words)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "link", "del", f"{self.name}s"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def pull_out(self) -> None:
        """Nothing passes any more."""
        _ip("link", "set", f"{self.name}s", "down")

    def lose_answers(self) -> None:
        """What comes from the runner arrives; what is sent to it falls into a hole."""
        _ip("route", "add", "blackhole", f"{self._runner}/32")
