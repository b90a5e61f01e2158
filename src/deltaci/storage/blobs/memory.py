"""Blobs in memory, for tests and trials. They are lost when the process ends."""

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
    """Blobs in a dictionary. Safe to use from several threads."""

    def __init__(self, max_bytes: int = MAX_BLOB_BYTES) -> None:
        self._blobs: dict[str, bytes] = {}
        self._lock = Lock()
        self._max_bytes = max_bytes

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Store all bytes of the source under the key, replacing an existing blob."""
        parse_key(key)
        content = b"".join(read_chunks(source, self._max_bytes))
        with self._lock:
            self._blobs[key] = content
        return _stat(content)

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Store all bytes of the source unless the key exists. Return None if it does."""
        parse_key(key)
        content = b"".join(read_chunks(source, self._max_bytes))
        with self._lock:
            if key in self._blobs:
                return None
            self._blobs[key] = content
        return _stat(content)

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Return up to `limit` bytes of a blob from an offset on. Refuse with `not_found` if there is no such blob."""
        parse_key(key)
        offset, limit = clamp_range(offset, limit, MAX_READ_BYTES)
        content = self._blobs.get(key)
        if content is None:
            raise Refused("not_found", f"there is no blob {key[:80]!r}")
        return content[offset : offset + limit]

    def stat(self, key: str) -> BlobStat | None:
        """Return the size and the checksum of a blob, or None if there is no such blob."""
        parse_key(key)
        content = self._blobs.get(key)
        return None if content is None else _stat(content)

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Return up to `limit` blobs with this key prefix and a key greater than `after`, in key order."""
        _, limit = clamp_range(0, limit, MAX_LISTED)
        with self._lock:
            keys_and_sizes = sorted(
                (key, len(content)) for key, content in self._blobs.items() if key.startswith(prefix) and key > after
            )
        return [BlobEntry(key, size) for key, size in keys_and_sizes[:limit]]

    def delete(self, key: str) -> bool:
        """Delete the blob. Return whether there was one."""
        parse_key(key)
        with self._lock:
            return self._blobs.pop(key, None) is not None


def _stat(content: bytes) -> BlobStat:
    return BlobStat(len(content), hashlib.sha256(content).hexdigest())
