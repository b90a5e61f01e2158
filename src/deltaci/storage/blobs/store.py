"""Blobs: bytes stored under a key, completely or not at all. The interface, and its implementation in a folder.

A blob is replaced in one step: a reader sees the old bytes or the new ones, also after a crash. Keys look like paths
but are plain texts: `a` and `a/b` may both exist, and a listing goes by prefix. So an object store fits as well.

In the folder, the names of a key become folders `+name` and a last file `=name`, so that the paths of two keys never
collide. A file ends with the SHA-256 of its content: one rename publishes content and checksum together.
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

from deltaci.core.errors import Refused, Unreachable
from deltaci.storage.blobs.disk_reserve import check_free_space

MAX_KEY_BYTES: Final = 900
MAX_NAME_BYTES: Final = 200
MAX_BLOB_BYTES: Final = 10 * 1024**3
MAX_READ_BYTES: Final = 16 * 1024**2
MAX_LISTED: Final = 1000
_CHUNK_BYTES: Final = 1024 * 1024
_DIGEST_BYTES: Final = 32
_PUBLISH_ATTEMPTS: Final = 10


class BlobStat(msgspec.Struct, frozen=True):
    """Size and checksum of a blob."""

    bytes: int
    sha256: str


class BlobEntry(msgspec.Struct, frozen=True):
    """Key and size of a blob in a listing."""

    key: str
    bytes: int


class BlobStoreUnavailable(Unreachable):
    """Raised if the store failed to answer. It is unknown whether the request was carried out: repeat it."""


class BlobStore(Protocol):
    """The interface of a blob store. Every method but `list` refuses a key that `parse_key` refuses."""

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Store all bytes of the source under the key, replacing an existing blob. Safe to repeat."""

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Store all bytes of the source unless the key exists: then return None.

        Of concurrent calls, exactly one succeeds.
        """

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Return up to `limit` bytes of a blob from an offset on, none beyond its end.

        Refuse with `not_found` if there is no such blob.
        """

    def stat(self, key: str) -> BlobStat | None:
        """Return the size and the checksum of a blob, or None if there is no such blob."""

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Return up to `limit` blobs with this key prefix and a key greater than `after`, in key order."""

    def delete(self, key: str) -> bool:
        """Delete the blob. Return whether there was one. Safe to repeat."""


def parse_key(key: str) -> list[str]:
    """Return the names in a key, which slashes separate. Raises `Refused` for an invalid key."""
    try:
        key_bytes = len(key.encode())
    except UnicodeEncodeError:
        raise Refused("bad_request", f"the key {key[:80]!r} is not Unicode; name blobs in UTF-8") from None
    key_parts = key.split("/")
    if not 0 < key_bytes <= MAX_KEY_BYTES:
        raise Refused("bad_request", f"the key {key[:80]!r} has {key_bytes} bytes; 1 to {MAX_KEY_BYTES} are possible")
    if not key.isprintable():
        raise Refused("bad_request", f"the key {key[:80]!r} has a character that cannot be printed; leave it out")
    if any(key_part in ("", ".", "..") for key_part in key_parts):
        raise Refused("bad_request", f"the key {key[:80]!r} has an empty name, '.' or '..'; write it like 'a/b/c'")
    if any(len(key_part.encode()) > MAX_NAME_BYTES for key_part in key_parts):
        raise Refused("bad_request", f"the key {key[:80]!r} has a name of more than {MAX_NAME_BYTES} bytes; shorten it")
    return key_parts


def read_chunks(source: BinaryIO | bytes, max_bytes: int) -> Iterator[bytes]:
    """Yield the content of the source in chunks. Raises `Refused` once it exceeds `max_bytes`."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    read_bytes = 0
    while chunk := file.read(_CHUNK_BYTES):
        read_bytes += len(chunk)
        if read_bytes > max_bytes:
            raise Refused("too_large", f"a blob has at most {max_bytes} bytes; split it")
        yield chunk


def clamp_range(offset: int, limit: int, max_limit: int) -> tuple[int, int]:
    """Return the offset and the limit, capped at `max_limit`. Raises `Refused` if one is negative."""
    if offset < 0 or limit < 0:
        raise Refused("bad_request", f"offset {offset}, limit {limit}: neither can be negative")
    return offset, min(limit, max_limit)


class FolderBlobStore:
    """Stores blobs as files in a folder of one file system. Several processes may use it."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BLOB_BYTES) -> None:
        self._folder = folder
        self._unfinished = folder / "unfinished"
        self._max_bytes = max_bytes

    def _path(self, key: str) -> Path:
        *folder_names, file_name = parse_key(key)
        return self._folder.joinpath(*(f"+{folder}" for folder in folder_names), f"={file_name}")

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Store all bytes of the source under the key, replacing an existing blob."""
        path = self._path(key)
        unfinished_path, blob_stat = self._write(source)
        with _deleted_on_exit(unfinished_path):
            self._publish(path, lambda: os.replace(unfinished_path, path))
        return blob_stat

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Store all bytes of the source unless the key exists. Return None if it does."""
        path = self._path(key)
        if path.exists():
            return None
        unfinished_path, blob_stat = self._write(source)
        with _deleted_on_exit(unfinished_path):
            try:
                self._publish(path, lambda: os.link(unfinished_path, path))
            except FileExistsError:
                return None
        return blob_stat

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Return up to `limit` bytes of a blob from an offset on. Refuse with `not_found` if there is no such blob."""
        offset, limit = clamp_range(offset, limit, MAX_READ_BYTES)
        try:
            with self._path(key).open("rb") as file:
                blob_bytes = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
                file.seek(min(offset, blob_bytes))
                return file.read(min(limit, max(0, blob_bytes - offset)))
        except FileNotFoundError:
            raise Refused("not_found", f"there is no blob {key[:80]!r}") from None

    def stat(self, key: str) -> BlobStat | None:
        """Return the size and the checksum of a blob, or None if there is no such blob."""
        try:
            with self._path(key).open("rb") as file:
                blob_bytes = file.seek(-_DIGEST_BYTES, os.SEEK_END)
                return BlobStat(blob_bytes, file.read().hex())
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Return up to `limit` blobs with this key prefix and a key greater than `after`, in key order."""
        _, limit = clamp_range(0, limit, MAX_LISTED)
        entries: list[BlobEntry] = []
        # Start in the folder that the prefix names: there may be many others beside it.
        *folder_names, _ = prefix.split("/")
        if any(name in ("", ".", "..") for name in folder_names):
            return []
        start_folder = self._folder.joinpath(*(f"+{name}" for name in folder_names))
        walk = self._walk(start_folder, "".join(f"{name}/" for name in folder_names), prefix, after)
        while len(entries) < limit and (entry := next(walk, None)) is not None:
            entries.append(entry)
        return entries

    def delete(self, key: str) -> bool:
        """Delete the blob and folders that become empty. Return whether there was a blob."""
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        _sync(path.parent)
        for folder in path.parents:
            if folder == self._folder:
                break
            with suppress(OSError):  # Not empty, or removed by another process.
                folder.rmdir()
        return True

    def sweep(self, before: float) -> int:
        """Delete unfinished uploads that were last written before `before`, in Unix seconds. Return how many."""
        removed_count = 0
        for path in self._unfinished.glob("*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    removed_count += 1
        return removed_count

    def _write(self, source: BinaryIO | bytes) -> tuple[Path, BlobStat]:
        """Write the source and its SHA-256 to a new file among the unfinished ones, durably.

        Return its path and stat.
        """
        self._unfinished.mkdir(parents=True, exist_ok=True)
        path = self._unfinished / secrets.token_hex(16)
        blob_hash, content_bytes = hashlib.sha256(), 0
        try:
            with path.open("xb") as file:
                for chunk in read_chunks(source, self._max_bytes):
                    check_free_space(self._unfinished, len(chunk))
                    blob_hash.update(chunk)
                    content_bytes += len(chunk)
                    file.write(chunk)
                file.write(blob_hash.digest())
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path, BlobStat(content_bytes, blob_hash.hexdigest())

    def _publish(self, path: Path, publish: Callable[[], None]) -> None:
        """Call `publish`, which gives a file its final path, and sync the folder.

        Retry if a concurrent `delete` removes the folder because it is empty.
        """
        for remaining_attempts in reversed(range(_PUBLISH_ATTEMPTS)):
            try:
                _make_folders(path.parent)
                publish()
                _sync(path.parent)
                return
            except FileNotFoundError:
                if not remaining_attempts:
                    raise

    def _walk(self, folder: Path, folder_key: str, prefix: str, after: str) -> Iterator[BlobEntry]:
        """Yield the blobs below a folder that match `prefix` and `after`, in key order.

        Their keys begin with `folder_key`.
        """
        try:
            with os.scandir(folder) as entries:
                # A folder sorts by the prefix of its keys, with the slash: `a-b` is before `a/b`.
                sorted_names = sorted(
                    entry.name[1:] + ("/" if entry.name[0] == "+" else "")
                    for entry in entries
                    if entry.name.startswith(("+", "="))
                )
        except FileNotFoundError:
            return
        for entry_name in sorted_names:
            entry_key = folder_key + entry_name
            if entry_name.endswith("/"):
                may_match = entry_key.startswith(prefix) or prefix.startswith(entry_key)
                if may_match and (entry_key > after or after.startswith(entry_key)):
                    yield from self._walk(folder / f"+{entry_name[:-1]}", entry_key, prefix, after)
            elif entry_key.startswith(prefix) and entry_key > after:
                with suppress(FileNotFoundError):
                    yield BlobEntry(entry_key, (folder / f"={entry_name}").stat().st_size - _DIGEST_BYTES)


@contextmanager
def _deleted_on_exit(path: Path) -> Iterator[None]:
    """Delete the file at the end of the context, if it exists."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _make_folders(folder: Path) -> None:
    """Create a folder and its parents, and sync them to disk."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Sync a folder to disk, so that added and removed entries survive a crash."""
    with suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
