"""Malicious archives: each tries to write outside its root, or to be larger than it looks.

Everything that they write contains `MARK`, so that it can be found wherever it is.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

MARK: Final = b"this should be nowhere"
BOMB_BYTES: Final = 1 << 30
LEVELS: Final = 8

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", mode: int = 0o777) -> Entry:
    """Return one entry; a plain file contains the mark."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info, data or (MARK if kind == tarfile.REGTYPE else b"")


def pack(*entries: Entry, format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a gzipped archive of these entries, in this order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for info, data in entries:
            info.size = len(data) or info.size
            tar.addfile(info, io.BytesIO(data) if data else None)
    return gzip.compress(out.getvalue(), 1)


def malicious_archives(root: str, outside: Path) -> dict[str, bytes]:
    """Return the archives by name.

    Entries inside `root` would be accepted; `outside` is the folder that each tries to reach.
    """
    link, hard, folder = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
    secret, goal = str(outside / "secret"), str(outside / "escaped")
    inside = entry(root, folder)
    up = "/".join([".."] * LEVELS)
    cases = {f"{n} up": [entry("../" * n + "escaped")] for n in range(1, LEVELS)}
    cases |= {
        "up from inside": [inside, entry(f"{root}/../../escaped")],
        "up late": [inside, entry(f"{root}/a/../../../../escaped")],
        "absolute": [entry(goal)],
        "absolute, two slashes": [entry(f"/{goal}")],
        "absolute, to the root": [entry("/escaped")],
        "backslashes": [inside, entry("..\\..\\escaped")],
        "empty name": [entry(f"{root}//escaped")],
        "a dot": [entry(f"./{root}/escaped")],
        "link to a file": [inside, entry(f"{root}/l", link, secret)],
        "link to a folder, and through it": [entry(root, link, str(outside)), entry(f"{root}/escaped")],
        "link up, and through it": [inside, entry(f"{root}/l", link, up), entry(f"{root}/l{outside}/escaped")],
        "a chain of links": [
            inside, entry(f"{root}/a", link, "b"), entry(f"{root}/b", link, "../.."), entry(f"{root}/a/escaped")
        ],
        "link that climbs late": [inside, entry(f"{root}/l", link, f"x/../../../..{outside}")],
        "link, then a file over it": [inside, entry(f"{root}/l", link, goal), entry(f"{root}/l")],
        "hard link": [inside, entry(f"{root}/l", hard, secret)],
        "hard link up": [inside, entry(f"{root}/l", hard, f"{up}{secret}")],
        "hard link, then a file over it": [inside, entry(f"{root}/l", hard, secret), entry(f"{root}/l")],
        "device": [inside, _device(f"{root}/d", tarfile.CHRTYPE)],
        "block device": [inside, _device(f"{root}/d", tarfile.BLKTYPE)],
        "fifo": [inside, entry(f"{root}/f", tarfile.FIFOTYPE)],
        "another user's powers": [inside, entry(f"{root}/s", mode=0o6777)],
        "twice": [inside, entry(f"{root}/a"), entry(f"{root}/a")],
        "a file for a folder": [inside, entry(f"{root}/a", folder), entry(f"{root}/a")],
        "a folder of no rights": [inside, entry(f"{root}/a", folder, mode=0), entry(f"{root}/a/b")],
        "a very long name": [inside, entry(f"{root}/{'x' * 300}")],
        "a very long path": [inside, entry("/".join([root, *["x" * 100] * 50]))],
        "very deep": [inside, entry("/".join([root, *"x" * 3000]))],
        "another path in the header": [inside, _pax(f"{root}/a", path=f"../../{root}-escaped")],
        "another link in the header": [inside, _pax(f"{root}/a", linkpath=secret, kind=link)],
        "another size in the header": [inside, _pax(f"{root}/a", size=str(1 << 40))],
        "what was not asked for": [inside, entry("other/escaped")],
    }  # fmt: skip
    made = {name: pack(*entries) for name, entries in cases.items()}
    made |= {f"{name}, GNU": pack(*cases[name], format=tarfile.GNU_FORMAT) for name in ("7 up", "a very long path")
             }  # fmt: skip
    return made | _damaged(root)


def _damaged(root: str) -> dict[str, bytes]:
    good = pack(entry(root, tarfile.DIRTYPE), entry(f"{root}/a"))
    plain = gzip.decompress(good)
    zeros = gzip.compress(bytes(1 << 20), 9) * (BOMB_BYTES >> 20)
    large, _ = entry(f"{root}/zeros")
    large.size = BOMB_BYTES
    huge, _ = entry(f"{root}/huge")
    huge.size = 1 << 44
    mutants: dict[str, Callable[[], bytes]] = {
        "a bomb": lambda: gzip.compress(large.tobuf()) + zeros,
        "a bomb that says so": lambda: gzip.compress(huge.tobuf()) + zeros,
        "no archive": lambda: b"PK\3\4" + os.urandom(1000),
        "nothing": lambda: b"",
        "half": lambda: good[: len(good) // 2],
        "not compressed": lambda: plain,
        "garbage in it": lambda: gzip.compress(plain[:300] + os.urandom(500) + plain[800:]),
        "garbage behind it": lambda: good + os.urandom(1000),
        "compressed twice": lambda: gzip.compress(good),
    }
    return {name: make() for name, make in mutants.items()}


def _device(name: str, kind: bytes) -> Entry:
    info, data = entry(name, kind)
    info.devmajor, info.devminor = 1, 3
    return info, data


def _pax(name: str, kind: bytes = tarfile.REGTYPE, **headers: str) -> Entry:
    info, data = entry(name, kind)
    info.pax_headers = headers
    return info, data
