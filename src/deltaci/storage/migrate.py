"""Numbered, append-only migrations. What was applied is remembered with a checksum and never edited."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files

import msgspec

_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """What tells an edited migration from the one that was applied."""
        return sha256(self.text.encode()).hexdigest()


class SchemaError(Exception):
    """The database and this program do not fit together."""


def migrations(dialect: str) -> list[Migration]:
    """Every migration of this dialect, in order, without a gap."""
    found = []
    for entry in files("deltaci.storage.migrations").joinpath(dialect).iterdir():
        known = _NAME.fullmatch(entry.name)
        if known:
            found.append(Migration(int(known[1]), entry.name, entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaError(f"the {dialect} migrations are not numbered 1, 2, 3 …: {[m.name for m in found]}")
    return found


def pending_migrations(known: list[Migration], applied: Iterable[tuple[int, str]]) -> list[Migration]:
    """What is still to be applied. Refuses a database whose past differs; one that is ahead of us is fine.

    A newer server may have added steps while we run: they only ever add, so an older server goes on.
    """
    done = dict(applied)
    for migration in known:
        checksum = done.get(migration.number)
        if checksum is not None and checksum != migration.checksum:
            raise SchemaError(
                f"migration {migration.name} was applied with other content; this program is not the one that "
                "made this database: use the matching version, or restore the file"
            )
    return [migration for migration in known if migration.number not in done]
