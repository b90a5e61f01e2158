"""Stores data that is too large for a record: logs, artifacts, caches and secrets.

`store.py` defines the interface and the store in a folder; `keys.py` says which key holds what. Imports only `core`.
"""

from __future__ import annotations

from pathlib import Path

from deltaci.storage.blobs.store import BlobStore, FolderBlobStore

EXPECTED = "expected a folder, s3://BUCKET/PREFIX or memory:"


def open_blob_store(url: str) -> BlobStore:
    """Return a blob store for a URL: a folder (a path, or `file:PATH`), `s3://BUCKET/PREFIX` or `memory:`."""
    if url == "memory:":
        from deltaci.storage.blobs.memory import MemoryBlobStore

        return MemoryBlobStore()
    if url.startswith("s3://"):
        from deltaci.storage.blobs.s3 import open_s3

        return open_s3(url)
    path = url.removeprefix("file:")
    if not path or "://" in path:
        raise ValueError(f"{url!r} names no blob store; {EXPECTED}")
    return FolderBlobStore(Path(path))
