"""Building blocks for the types of files: limited texts, and the base class of structs with named keys."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from deltaci.pipeline.parse.field_types import MAX_LINE, Pattern, text_format

MAX_ITEMS: Final = 100
MAX_TEXT: Final = 100_000

Line = Annotated[str, text_format("a text", r"[^\x00-\x1f\x7f]*", min_length=0)]
Title = Annotated[str, text_format("a text on one line", r"[^\x00-\x1f\x7f]*", min_length=0, expressions=True)]
Text = Annotated[str, text_format("a text", max_length=MAX_TEXT, min_length=0, expressions=True)]
Value = Annotated[str, text_format("a text that is not empty", max_length=MAX_LINE, expressions=True)]
Command = Annotated[
    str, text_format("a command for the shell", r"[\s\S]*\S[\s\S]*", max_length=MAX_TEXT, expressions=True)
]
Path = Annotated[str, text_format("a path in the workspace", r"[^\x00-\x1f\x7f]+", expressions=True)]
Patterns = Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})]


class FileStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of the objects of a file. Unknown keys are problems.

    The class variables describe further notations that the file may use for the object.
    """

    noun: ClassVar[str] = ""  # the name of the object in messages, if it is not in `shapes.NOUNS`
    shorthand: ClassVar[str] = ""  # a value that is no object stands for an object with this key
    accepts_key_names: ClassVar[bool] = False  # whether one key or a list of keys may stand for it
    accepts_null: ClassVar[bool] = False  # whether null stands for an object without keys
    extra_keys: ClassVar[str] = ""  # the field with the values of all keys that have no field
    exactly_one_of: ClassVar[tuple[str, ...]] = ()  # keys of which exactly one is required
