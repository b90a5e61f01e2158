"""The files that pages need besides themselves. Their names carry what is in them, so that they never go stale.

They are packed once. Pages are packed as they are sent, but never for a request that another site caused: they carry
what a form needs and what an address may say, and the length of both packed together would tell whoever makes a browser
ask again and again, and can see how much comes, byte by byte what the one is.
"""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = "/assets/"
MIN_PACKED_BYTES: Final = 2000
PAGE_LEVEL: Final = 1  # A tenth of the size in a tenth of the time that it takes to write the page.
FOLDER: Final = Path(__file__).parent / "static"
_GZIP: Final = re.compile(r"(?:^|,)\s*(?:x-)?gzip\s*(?:,|$|;\s*q=(?!0(?:\.0*)?\s*(?:,|$)))")
KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The script that stands in every page itself, without what only people read; and how the content security policy names
# it, by what it is to the letter, so that no other one can take its place.
_LINES: Final = (FOLDER / "first.js").read_text("utf-8").splitlines(keepends=True)
FIRST: Final = "".join(each for each in _LINES if not each.lstrip().startswith("//"))
FIRST_SOURCE: Final = f"'sha256-{b64encode(sha256(FIRST.encode()).digest()).decode()}'"


class Asset(msgspec.Struct, frozen=True):
    """One file."""

    body: bytes
    kind: str
    packed: bytes = b""  # The same, smaller; empty when it would not be.


class Assets:
    """All of them, read once. One digest names them together: a script may then import its neighbours by name."""

    def __init__(self, folder: Path = FOLDER) -> None:
        files = sorted(each for each in folder.iterdir() if each.suffix in KINDS)
        self._all = {each.name: _asset(each) for each in files}
        digest = blake2b(digest_size=8)
        for name, asset in self._all.items():
            digest.update(b"%s %d " % (name.encode(), len(asset.body)))
            digest.update(asset.body)
        self.build = digest.hexdigest()

    def address(self, name: str) -> str:
        """Where a page finds it. KeyError for one that is not there: a page must not name it."""
        self._all[name]
        return f"{ROOT}{self.build}/{name}"

    def find(self, path: str) -> tuple[Asset, bool] | None:
        """The file at this address, and whether it is the one of this build, which never changes."""
        build, _, name = path.removeprefix(ROOT).partition("/")
        asset = self._all.get(name)
        return (asset, build == self.build) if asset is not None else None


def takes_gzip(accepts: str) -> bool:
    """Whether an Accept-Encoding header allows it."""
    return _GZIP.search(accepts.lower()) is not None


def packed(page: bytes, accepts: str, site: str) -> bytes | None:
    """A page, smaller, for a browser that takes it so and was not sent by another site (`Sec-Fetch-Site`)."""
    if len(page) < MIN_PACKED_BYTES or site not in ("same-origin", "none") or not takes_gzip(accepts):
        return None
    return gzip.compress(page, PAGE_LEVEL, mtime=0)


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    packed = gzip.compress(body, 9, mtime=0)
    return Asset(body, KINDS[path.suffix], packed if len(packed) < len(body) else b"")
