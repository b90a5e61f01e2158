"""Stored and sent names do not depend on the names of Python classes; a change of one is seen."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from deltaci.core.machine import Command, stored_name
from deltaci.protocol.schema_names import schema, schema_components
from scripts.docgen import formats


class Before(msgspec.Struct, tag_field="type", tag="Begin"):
    """A format."""

    told: str = ""


class After(msgspec.Struct, tag_field="type", tag="Begin"):
    """The same with other names in Python."""

    message: str = msgspec.field(default="", name="told")


class Careless(msgspec.Struct, tag_field="type", tag="Begin"):
    """The same with a field that was only renamed in Python."""

    message: str = ""


class Renamed(msgspec.Struct):
    """A type whose class was called Old when it was first sent."""

    schema_name: ClassVar[str] = "Old"

    children: list[Renamed] = []
    named: dict[str, Before | None] = {}


class NewCommand(Command, frozen=True):
    """A command that was stored as OldCommand."""

    stored_name: ClassVar[str] = "OldCommand"


class Child(NewCommand, frozen=True):
    """A command derived from it."""


def test_a_renamed_class_is_the_same_format_and_a_renamed_field_is_another() -> None:
    """msgspec ignores unknown keys, so a renamed field with a default would lose its value without an error."""
    assert formats.line(Before) == formats.line(After) == "object type='Begin' (told: str = '')"
    assert formats.line(Careless) != formats.line(Before)


def test_a_renamed_class_keeps_its_schema_name() -> None:
    """In references, titles and the list of components."""
    _, components = schema_components([list[Renamed]], "#/components/schemas/{name}")

    assert set(components) == {"Old", "Before"}
    assert components["Old"]["title"] == "Old"
    assert components["Old"]["properties"]["children"]["items"] == {"$ref": "#/components/schemas/Old"}
    assert schema(Renamed)["$ref"] == "#/$defs/Old"


def test_two_structs_with_one_schema_name_are_refused() -> None:
    """A name that a renamed class still has in schemas must not be given to another one."""
    taken = type("Old", (msgspec.Struct,), {"__annotations__": {"other": int}})

    with pytest.raises(ValueError, match="two structs have the schema name Old"):
        schema_components([Renamed, taken], "#/components/schemas/{name}")


def test_a_renamed_command_keeps_its_stored_name() -> None:
    """A request id is remembered with a digest of its command: a repeat after an update must be known again."""
    assert stored_name(NewCommand) == "OldCommand"
    assert stored_name(Child) == "Child"


def test_what_is_decoded_is_listed() -> None:
    """The list is made from the calls that decode, so that no format is forgotten."""
    lines = formats.page().splitlines()

    assert any(line.startswith("object type='Heartbeat' strict (lease_id: str") for line in lines)
    assert any(line.startswith("array (str, str = '', str = '', str = '', int = 0") for line in lines)
    assert any(line.startswith("command Grant object (id: str") for line in lines)
    assert any("leases: list[struct]" in line for line in lines)  # `Granted`, which a runner decodes.
    assert any(
        "template: none | str = None, version: int | none = None" in line for line in lines
    )  # `RunInput`, of the API.
