"""Stores records, events and documents in memory, SQLite or PostgreSQL, and blobs in a folder or S3.

`port.py` defines the interface of a store; the tests in tests/contract run against every implementation. All SQL is
here. Imports only `core`. Other packages open stores with `open_store` and `open_blob_store`. Start reading at
`port.py`.
"""

from __future__ import annotations

from deltaci.storage.port import Store


def open_store(url: str) -> Store:
    """Return a store for a URL, not opened yet: `memory:`, `sqlite:PATH` or `postgresql://…`.

    ValueError for other URLs.
    """
    if url == "memory:":
        from deltaci.storage.memory import MemoryStore

        return MemoryStore()
    scheme, separator, location = url.partition(":")
    if scheme == "sqlite" and separator and location.strip("/"):
        from deltaci.storage.sqlite import SqliteStore

        return SqliteStore(location.removeprefix("//"))
    if scheme in ("postgresql", "postgres") and separator:
        from deltaci.storage.postgres import PostgresStore

        return PostgresStore(url)
    raise ValueError(f"{url!r} names no store; expected memory:, sqlite:PATH or postgresql://USER@HOST/DATABASE")
