"""Blobs in memory, for tests and trials: the same promises as any store, except to be there tomorrow."""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import BinaryIO

from deltaci.core.errors import Refused
from deltaci.storage.blobs.store import (
    MAX_BLOB_BYTES,
    MAX_LISTED,
    MAX_READ_BYTES,
    BlobEntry,
    BlobStat,
    clamp_range,
    parse_key,
    read_chunks,
)


class MemoryBlobStore:
    """A dictionary with manners."""

    def __init__(self, max_bytes: int = MAX_BLOB_BYTES) -> None:
        self._blobs: dict[str, bytes] = {}
        self._lock = Lock()
        self._max_bytes = max_bytes

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Keep all bytes of the source, in place of what was there."""
        parse_key(key)
        content = b"".join(read_chunks(source, self._max_bytes))
        with self._lock:
            self._blobs[key] = content
        return _stored(content)

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Keep the bytes if nothing is there; None if something is."""
        parse_key(key)
        content = b"".join(read_chunks(source, self._max_bytes))
        with self._lock:
            if key in self._blobs:
                return None
            self._blobs[key] = content
        return _stored(content)

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Some bytes from an offset on."""
        parse_key(key)
        offset, limit = clamp_range(offset, limit, MAX_READ_BYTES)
        content = self._blobs.get(key)
        if content is None:
            raise Refused("not_found", f"there is no blob {key[:80]!r}")
        return content[offset : offset + limit]

    def stat(self, key: str) -> BlobStat | None:
        """Size and checksum, or None."""
        parse_key(key)
        content = self._blobs.get(key)
        return None if content is None else _stored(content)

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Blobs whose key begins with the prefix and comes after `after`, in the order of their keys."""
        _, limit = clamp_range(0, limit, MAX_LISTED)
        with self._lock:
            found = sorted((k, len(v)) for k, v in self._blobs.items() if k.startswith(prefix) and k > after)
        return [BlobEntry(key, size) for key, size in found[:limit]]

    def delete(self, key: str) -> bool:
        """Forget it."""
        parse_key(key)
        with self._lock:
            return self._blobs.pop(key, None) is not None


def _stored(content: bytes) -> BlobStat:
    return BlobStat(len(content), hashlib.sha256(content).hexdigest())
