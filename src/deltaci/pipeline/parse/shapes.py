"""Describe the types of the model: the kinds of values that a type allows, and the keys of a struct.

The reader, the JSON schema, the printer and the reference tables are all driven by these descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, inspect
from msgspec.structs import FieldInfo

from deltaci.pipeline import model
from deltaci.pipeline.parse.aliases import FOREIGN_KEYS
from deltaci.pipeline.parse.problems import join_words

NOUNS: Final[dict[type, str]] = {
    model.Pipeline: "a pipeline",
    model.On: "'on'",
    model.Push: "'push'",
    model.PullRequest: "'pull_request'",
    model.Schedule: "a schedule",
    model.Input: "an input",
    model.Manual: "'manual'",
    model.RunDefaults: "'defaults.run'",
    model.Defaults: "'defaults'",
    model.Concurrency: "'concurrency'",
    model.Project: "a project",
    model.Need: "a need",
    model.Matrix: "a matrix",
    model.Strategy: "'strategy'",
    model.Step: "a step",
    model.Service: "a service",
    model.Retry: "'retry'",
    model.Artifact: "an artifact",
    model.Cache: "a cache",
    model.Approval: "an approval",
    model.Rule: "a rule of 'validate'",
    model.NumberRule: "'number'",
    model.Limits: "'limits'",
    model.Job: "a job",
}


# The keys that messages name for a type with many keys, none of which is required.
IDENTIFYING_KEYS: Final[dict[type, list[str]]] = {model.Job: ["steps", "approval"]}


class Option(NamedTuple):
    """One kind of value that a type allows: an `msgspec.inspect` type with limits, and the `extra` of its `Meta`."""

    type: Any
    extra: dict[str, Any]


class Shape(NamedTuple):
    """A struct type of the model, with its fields by their keys in the file."""

    cls: type[model.FileStruct]
    fields: dict[str, FieldInfo]  # by the key in the file
    extra_keys: FieldInfo | None  # the field for all other keys

    @property
    def noun(self) -> str:
        """The name of the struct in messages, e.g. `a job`."""
        return self.cls.noun or NOUNS[self.cls]


@cache
def get_shape(cls: type[model.FileStruct]) -> Shape:
    """Return the shape of a struct type."""
    field_by_key = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    extra_keys = field_by_key.pop(cls.extra_keys) if cls.extra_keys else None
    return Shape(cls, field_by_key, extra_keys)


def list_options(type_hint: Any, outer_metas: tuple[Meta, ...] = ()) -> list[Option]:
    """Return the kinds of values that a type annotation allows, except None, which stands for an absent key.

    `outer_metas` are the annotations around the type.
    """
    if get_origin(type_hint) is Annotated:
        annotated_type, *inner_metas = get_args(type_hint)
        return list_options(annotated_type, (*inner_metas, *outer_metas))
    if get_origin(type_hint) in (UnionType, Union):
        # Limits are given for each member of a union; only `extra` may be given for the union.
        extra_metas = tuple(Meta(extra=meta.extra) for meta in outer_metas)
        return [option for union_member in get_args(type_hint) for option in list_options(union_member, extra_metas)]
    if type_hint is None or type_hint is NoneType:
        return []
    extra = {extra_name: extra_value for meta in outer_metas for extra_name, extra_value in (meta.extra or {}).items()}
    return [Option(_inspect_type(type_hint, outer_metas), extra)]


def _inspect_type(type_hint: Any, metas: tuple[Meta, ...]) -> Any:
    """Return the `msgspec.inspect` type of a type annotation that is no union, with the limits of `metas`."""

    # `msgspec.inspect.type_info` would return these types, but a process that used it may crash at exit.
    def collect_limits(*limit_names: str) -> dict[str, Any]:
        name_values = ((limit_name, getattr(meta, limit_name)) for meta in metas for limit_name in limit_names)
        return {limit_name: value for limit_name, value in name_values if value is not None}

    arguments = get_args(type_hint)
    if type_hint is Any:
        return inspect.AnyType()
    if type_hint is str:
        return inspect.StrType(**collect_limits("min_length", "max_length", "pattern"))
    if type_hint is bool:
        return inspect.BoolType()
    if type_hint in (int, float):
        return (inspect.IntType if type_hint is int else inspect.FloatType)(**collect_limits("gt", "ge", "lt", "le"))
    if get_origin(type_hint) is Literal:
        return inspect.LiteralType(arguments)
    if get_origin(type_hint) is tuple:
        return inspect.VarTupleType(arguments[0], **collect_limits("min_length", "max_length"))
    if get_origin(type_hint) is dict:
        return inspect.DictType(*arguments, **collect_limits("min_length", "max_length"))
    return inspect.StructType(type_hint, ())


def field_description(field: FieldInfo) -> str:
    """Return the description of a field, which its annotation has; "" if there is none."""
    return next((meta.description for meta in reversed(field.type.__metadata__) if meta.description), "")


def describe_options(allowed: list[Option]) -> str:
    """Return a description of the allowed kinds of values for a message, e.g. `a text, or a list of them`."""
    option_types = {type(option.type) for option in allowed}
    descriptions: list[str] = []
    if {inspect.StrType, inspect.IntType, inspect.FloatType, inspect.BoolType} <= option_types:
        return "a text, a number, true or false" + (", a list or an object" if inspect.AnyType in option_types else "")
    for option in allowed:
        description = describe_option(option)
        if not (isinstance(option.type, inspect.IntType) and inspect.FloatType in option_types):
            descriptions += [description] if description not in descriptions else []
    other_descriptions, last_description = descriptions[:-1], descriptions[-1:]
    return ", or ".join([", ".join(other_descriptions), *last_description] if other_descriptions else last_description)


def describe_option(option: Option) -> str:
    """Return a description of one kind of value for a message."""
    match option.type:
        case inspect.StrType():
            return str(option.extra.get("what", "a text"))
        case inspect.AnyType():
            return str(option.extra["what"])
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _describe_number(option.type)
        case inspect.LiteralType(values=(bool() as constant,)):
            return str(constant).lower()
        case inspect.LiteralType(values=values):
            return f"one of: {', '.join(map(str, values))}"
        case inspect.VarTupleType(item_type=item):
            item_description = describe_options(list_options(item))
            if option.extra.get("one"):
                return f"{item_description}, or a list of them"
            return f"a list of: {item_description}"
        case inspect.StructType(cls=cls):
            return describe_shape(get_shape(cls))
        case _:
            return f"names, each with {describe_options(list_options(option.type.value_type))}"


def describe_shape(struct_shape: Shape) -> str:
    """Return a description of the notations of a struct for a message, e.g. `an object with run or uses`."""
    required_keys = [key for key, field in struct_shape.fields.items() if field.required]
    listed_keys = IDENTIFYING_KEYS.get(struct_shape.cls) or list(struct_shape.fields)
    keys_text = join_words(required_keys, "and") if required_keys else join_words(listed_keys)
    object_description = f"an object with {keys_text}"
    if struct_shape.extra_keys is not None:
        return "an object with names and their values"
    if struct_shape.cls.accepts_key_names:
        return f"{join_words(list(struct_shape.fields))}, a list of them, or an object"
    if struct_shape.cls.shorthand:
        shorthand_options = list_options(struct_shape.fields[struct_shape.cls.shorthand].type)
        return f"{describe_options(shorthand_options)}, or {object_description}"
    return object_description


def _describe_number(type: Any) -> str:
    noun = "a whole number" if isinstance(type, inspect.IntType) else "a number"
    if type.le is None:
        return noun
    return (
        f"{noun} from {type.ge:,} to {type.le:,}"
        if type.ge is not None
        else f"{noun} above {type.gt:,} and up to {type.le:,}"
    )


def reachable_types(root_type: type[model.FileStruct]) -> tuple[type[model.FileStruct], ...]:
    """Return a struct type and the struct types of its fields, recursively, breadth first."""
    struct_types = [root_type]
    for cls in struct_types:  # grows during the loop
        for field in msgspec.structs.fields(cls):
            struct_types += [inner_type for inner_type in _struct_types(field.type) if inner_type not in struct_types]
    return tuple(dict.fromkeys(struct_types))


def _struct_types(type_hint: Any) -> list[type[model.FileStruct]]:
    """Return the struct types that a type annotation contains, directly or in lists and dicts."""
    struct_types: list[type[model.FileStruct]] = []
    for option in list_options(type_hint):
        match option.type:
            case inspect.StructType(cls=cls) if issubclass(cls, model.FileStruct):
                struct_types.append(cls)
            case inspect.VarTupleType(item_type=inner_type) | inspect.DictType(value_type=inner_type):
                struct_types += _struct_types(inner_type)
    return struct_types


class Vocabulary:
    """The words in messages about one kind of file: nouns for its structs, and hints for keys of other systems."""

    def __init__(self, nouns: Mapping[type, str], foreign_keys: Mapping[str, str]) -> None:
        self._nouns = nouns
        self.foreign_keys = foreign_keys

    def noun(self, struct_shape: Shape) -> str:
        """Return the name of a struct in messages about this kind of file."""
        return self._nouns.get(struct_shape.cls) or struct_shape.noun

    @cached_property
    def owners(self) -> dict[str, tuple[str, ...]]:
        """By key: the nouns of all structs that have this key."""
        nouns_by_key: dict[str, list[str]] = {}
        for cls, noun in self._nouns.items():
            assert issubclass(cls, model.FileStruct)
            for key in get_shape(cls).fields:
                nouns_by_key.setdefault(key, []).append(noun)
        return {key: tuple(nouns) for key, nouns in nouns_by_key.items()}


PIPELINE_VOCABULARY: Final = Vocabulary(NOUNS, FOREIGN_KEYS)


def field_default(field: FieldInfo) -> Any:
    """Return the default of a field: its value if the key is absent."""
    if callable(field.default_factory):
        return field.default_factory()
    return field.default
