"""Blobs: bytes under a key, whole or not at all. The port, and the folder that implements it.

A blob is replaced in one step: a reader sees the old bytes or the new ones, also after a crash. Keys look like paths
but are only texts: `a` and `a/b` may both exist, and a listing goes by prefix. So a store of objects fits the port too.

In the folder, a key's names become folders `+name` and a last file `=name`, so that no two keys ever meet. A file ends
with the SHA-256 of what is before it: one rename makes content and checksum true together.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from deltaci.core.errors import Refused
from deltaci.storage.blobs.disk_reserve import check_free_space

MAX_KEY_BYTES: Final = 900
MAX_NAME_BYTES: Final = 200
MAX_BLOB_BYTES: Final = 10 * 1024**3
MAX_READ_BYTES: Final = 16 * 1024**2
MAX_LISTED: Final = 1000
_CHUNK_BYTES: Final = 1024 * 1024
_DIGEST_BYTES: Final = 32
_PLACING_TRIES: Final = 10


class BlobStat(msgspec.Struct, frozen=True):
    """What is kept under a key."""

    bytes: int
    sha256: str


class BlobEntry(msgspec.Struct, frozen=True):
    """One line of a listing."""

    key: str
    bytes: int


class BlobStoreUnavailable(Exception):
    """The store does not answer, or not as it should. Whether it did what it was asked is unknown: ask again."""


class BlobStore(Protocol):
    """What every store of blobs does. A key that breaks the rules of `checked` is refused by each of these."""

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Keep all bytes of the source, in place of what was there. Safe to repeat."""

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Keep the bytes if nothing is there; None if something is. Of many at once, exactly one succeeds."""

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Some bytes from an offset on, none beyond the end. Refused `not_found` if there is no such blob."""

    def stat(self, key: str) -> BlobStat | None:
        """Size and checksum, or None."""

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Blobs whose key begins with the prefix and comes after `after`, in the order of their keys."""

    def delete(self, key: str) -> bool:
        """Forget it; whether there was something to forget. Safe to repeat."""


def parse_key(key: str) -> list[str]:
    """The names in a key, or a refusal."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise Refused("bad_request", f"the key {key[:80]!r} is not Unicode; name blobs in UTF-8") from None
    names = key.split("/")
    if not 0 < size <= MAX_KEY_BYTES:
        raise Refused("bad_request", f"the key {key[:80]!r} has {size} bytes; 1 to {MAX_KEY_BYTES} are possible")
    if not key.isprintable():
        raise Refused("bad_request", f"the key {key[:80]!r} has a character that cannot be printed; leave it out")
    if any(name in ("", ".", "..") for name in names):
        raise Refused("bad_request", f"the key {key[:80]!r} has an empty name, '.' or '..'; write it like 'a/b/c'")
    if any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise Refused("bad_request", f"the key {key[:80]!r} has a name of more than {MAX_NAME_BYTES} bytes; shorten it")
    return names


def read_chunks(source: BinaryIO | bytes, max_bytes: int) -> Iterator[bytes]:
    """The source, part by part; refused as soon as it is too much."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    size = 0
    while part := file.read(_CHUNK_BYTES):
        size += len(part)
        if size > max_bytes:
            raise Refused("too_large", f"a blob has at most {max_bytes} bytes; split it")
        yield part


def clamp_range(offset: int, limit: int, max_limit: int) -> tuple[int, int]:
    """What a reader asked for, as far as it makes sense."""
    if offset < 0 or limit < 0:
        raise Refused("bad_request", f"offset {offset}, limit {limit}: neither can be negative")
    return offset, min(limit, max_limit)


class FolderBlobStore:
    """Blobs in a folder of one file system. Processes may share it."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BLOB_BYTES) -> None:
        self._folder = folder
        self._unfinished = folder / "unfinished"
        self._max_bytes = max_bytes

    def _path(self, key: str) -> Path:
        *folders, name = parse_key(key)
        return self._folder.joinpath(*(f"+{folder}" for folder in folders), f"={name}")

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Keep all bytes of the source, in place of what was there."""
        path = self._path(key)
        unfinished, stored = self._write(source)
        with _removed_at_last(unfinished):
            self._place(path, lambda: os.replace(unfinished, path))
        return stored

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Keep the bytes if nothing is there; None if something is."""
        path = self._path(key)
        if path.exists():
            return None
        unfinished, stored = self._write(source)
        with _removed_at_last(unfinished):
            try:
                self._place(path, lambda: os.link(unfinished, path))
            except FileExistsError:
                return None
        return stored

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Some bytes from an offset on."""
        offset, limit = clamp_range(offset, limit, MAX_READ_BYTES)
        try:
            with self._path(key).open("rb") as file:
                size = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
                file.seek(min(offset, size))
                return file.read(min(limit, max(0, size - offset)))
        except FileNotFoundError:
            raise Refused("not_found", f"there is no blob {key[:80]!r}") from None

    def stat(self, key: str) -> BlobStat | None:
        """Size and checksum, or None."""
        try:
            with self._path(key).open("rb") as file:
                size = file.seek(-_DIGEST_BYTES, os.SEEK_END)
                return BlobStat(size, file.read().hex())
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Blobs whose key begins with the prefix and comes after `after`, in the order of their keys."""
        _, limit = clamp_range(0, limit, MAX_LISTED)
        found: list[BlobEntry] = []
        # What the prefix names whole is gone straight to: its neighbours may be many.
        *names, _ = prefix.split("/")
        if any(name in ("", ".", "..") for name in names):
            return []
        start = self._folder.joinpath(*(f"+{name}" for name in names))
        walk = self._walk(start, "".join(f"{name}/" for name in names), prefix, after)
        while len(found) < limit and (listed := next(walk, None)) is not None:
            found.append(listed)
        return found

    def delete(self, key: str) -> bool:
        """Forget it, and the folders that are empty then."""
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        _sync(path.parent)
        for folder in path.parents:
            if folder == self._folder:
                break
            with suppress(OSError):  # Not empty, or another process was faster.
                folder.rmdir()
        return True

    def sweep(self, before: float) -> int:
        """Remove what a crash left unfinished and nobody wrote to since `before` (seconds since 1970); how many."""
        removed = 0
        for path in self._unfinished.glob("*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    removed += 1
        return removed

    def _write(self, source: BinaryIO | bytes) -> tuple[Path, BlobStat]:
        """All of it in a file of its own, on the disk."""
        self._unfinished.mkdir(parents=True, exist_ok=True)
        path = self._unfinished / secrets.token_hex(16)
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("xb") as file:
                for part in read_chunks(source, self._max_bytes):
                    check_free_space(self._unfinished, len(part))
                    digest.update(part)
                    size += len(part)
                    file.write(part)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path, BlobStat(size, digest.hexdigest())

    def _place(self, path: Path, place: Callable[[], None]) -> None:
        """Give the file its name, for good. Its folder may be removed as empty in the same moment: then again."""
        for left in reversed(range(_PLACING_TRIES)):
            try:
                _make_folders(path.parent)
                place()
                _sync(path.parent)
                return
            except FileNotFoundError:
                if not left:
                    raise

    def _walk(self, folder: Path, key: str, prefix: str, after: str) -> Iterator[BlobEntry]:
        try:
            with os.scandir(folder) as entries:
                # A folder is ordered as what all keys in it begin with: `a-b` is before `a/b`.
                names = sorted(
                    e.name[1:] + ("/" if e.name[0] == "+" else "") for e in entries if e.name.startswith(("+", "="))
                )
        except FileNotFoundError:
            return
        for name in names:
            here = key + name
            if name.endswith("/"):
                may_match = here.startswith(prefix) or prefix.startswith(here)
                if may_match and (here > after or after.startswith(here)):
                    yield from self._walk(folder / f"+{name[:-1]}", here, prefix, after)
            elif here.startswith(prefix) and here > after:
                with suppress(FileNotFoundError):
                    yield BlobEntry(here, (folder / f"={name}").stat().st_size - _DIGEST_BYTES)


@contextmanager
def _removed_at_last(path: Path) -> Iterator[None]:
    """Remove a file in the end, if it is still there."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _make_folders(folder: Path) -> None:
    """Make a folder and those above it, each entered in the one above for good."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    """What was entered in a folder or removed from it is on the disk."""
    with suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
