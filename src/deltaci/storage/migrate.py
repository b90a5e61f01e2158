"""Numbered migrations of the database schema.

The database records each applied migration with a checksum, so it is never edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files

import msgspec

_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One migration of the schema: its number, the name of its file and its SQL."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the SQL, by which an edited migration is detected."""
        return sha256(self.text.encode()).hexdigest()


class SchemaError(Exception):
    """A migration was applied with other content, or this program's migrations are not numbered 1, 2, 3 …"""


def migrations(dialect: str) -> list[Migration]:
    """Return the migrations for a database, `sqlite` or `postgres`, in order.

    SchemaError if their numbers have a gap.
    """
    migrations_in_order = []
    for migration_file in files("deltaci.storage.migrations").joinpath(dialect).iterdir():
        name_match = _NAME.fullmatch(migration_file.name)
        if name_match:
            migrations_in_order.append(
                Migration(int(name_match[1]), migration_file.name, migration_file.read_text(encoding="utf-8"))
            )
    migrations_in_order.sort(key=lambda migration: migration.number)
    if [migration.number for migration in migrations_in_order] != list(range(1, len(migrations_in_order) + 1)):
        file_names = [migration.name for migration in migrations_in_order]
        raise SchemaError(f"the {dialect} migrations are not numbered 1, 2, 3 …: {file_names}")
    return migrations_in_order


def pending_migrations(
    migrations_of_program: list[Migration], applied_migrations: Iterable[tuple[int, str]]
) -> list[Migration]:
    """Return the migrations that were not applied yet. Raises `SchemaError` if an applied one had other content.

    Applied migrations that this program does not know are fine: migrations only ever add to the schema, so that an
    older server can run beside a newer one.
    """
    checksum_by_number = dict(applied_migrations)
    for migration in migrations_of_program:
        checksum = checksum_by_number.get(migration.number)
        if checksum is not None and checksum != migration.checksum:
            raise SchemaError(
                f"migration {migration.name} was applied with other content; this program is not the one that "
                "made this database: use the matching version, or restore the file"
            )
    return [migration for migration in migrations_of_program if migration.number not in checksum_by_number]
