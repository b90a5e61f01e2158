"""Static files of the pages. Their URLs contain a digest of the content, so that they can be cached for ever.

They are compressed once. Pages are compressed when sent, but never for a cross-site request: a page contains a form
token and parts of its URL, and the compressed length would reveal the token byte by byte to a site that can make a
browser request pages and can see the length of the responses (BREACH).
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
_LINES: Final = (FOLDER / "recovery.js").read_text("utf-8").splitlines(keepends=True)
FIRST: Final = "".join(each for each in _LINES if not each.lstrip().startswith("//"))
FIRST_SOURCE: Final = f"'sha256-{b64encode(sha256(FIRST.encode()).digest()).decode()}'"


class Asset(msgspec.Struct, frozen=True):
    """One static file."""

    body: bytes
    kind: str
    packed: bytes = b""  # The same, smaller; empty when it would not be.


class Assets:
    """All static files, read once. One digest covers all of them, so that a script can import another by name."""

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
