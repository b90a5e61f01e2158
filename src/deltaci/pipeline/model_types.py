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
    """Base class of the objects of a file. Unknown keys are problems. The class variables describe other notations."""

    noun: ClassVar[str] = ""  # the name in messages, if `shapes.NOUNS` has none
    shorthand: ClassVar[str] = ""  # the key that a value without keys stands for
    accepts_key_names: ClassVar[bool] = False  # whether a text or a list of its keys is allowed
    accepts_null: ClassVar[bool] = False  # whether an empty value is allowed
    extra_keys: ClassVar[str] = ""  # the field that collects all other keys
    exactly_one_of: ClassVar[tuple[str, ...]] = ()  # keys of which exactly one is required
