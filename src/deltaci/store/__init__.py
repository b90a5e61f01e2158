"""Stores: one port, three places to keep records and events."""

from __future__ import annotations

from deltaci.store.port import Store


def open_store(url: str) -> Store:
    """The store that a URL names: `memory:`, `sqlite:PATH` or `postgresql://…`."""
    if url == "memory:":
        from deltaci.store.memory import MemoryStore

        return MemoryStore()
    scheme, separator, rest = url.partition(":")
    if scheme == "sqlite" and separator and rest.strip("/"):
        from deltaci.store.sqlite import SqliteStore

        return SqliteStore(rest.removeprefix("//"))
    if scheme in ("postgresql", "postgres") and separator:
        from deltaci.store.postgres import PostgresStore

        return PostgresStore(url)
    raise ValueError(f"{url!r} names no store; expected memory:, sqlite:PATH or postgresql://USER@HOST/DATABASE")
