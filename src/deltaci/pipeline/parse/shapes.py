"""What the model allows at a place, as few questions: which kinds of values, under which name, and which keys."""

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


# Of a type that has many keys and must have none: those that say what it is.
IDENTIFYING_KEYS: Final[dict[type, list[str]]] = {model.Job: ["steps", "approval"]}


class Option(NamedTuple):
    """One kind of value that is allowed, and what the model says of it beyond msgspec's limits."""

    type: Any
    extra: dict[str, Any]


class Shape(NamedTuple):
    """A type of a pipeline file with its keys."""

    cls: type[model.FileStruct]
    fields: dict[str, FieldInfo]  # by the key in the file
    rest: FieldInfo | None  # takes the keys that are not named

    @property
    def noun(self) -> str:
        """What a message calls it."""
        return self.cls.noun or NOUNS[self.cls]


@cache
def shape(cls: type[model.FileStruct]) -> Shape:
    """The keys of a type."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    rest = fields.pop(cls.extra_keys) if cls.extra_keys else None
    return Shape(cls, fields, rest)


def options(hint: Any, metas: tuple[Meta, ...] = ()) -> list[Option]:
    """Every kind of value that a type allows; that something may be absent is no kind of value."""
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        return options(inner, (*more, *metas))
    if get_origin(hint) in (UnionType, Union):
        # Limits are said of each kind; what is said of all of them is only extra.
        every = tuple(Meta(extra=meta.extra) for meta in metas)
        return [option for each in get_args(hint) for option in options(each, every)]
    if hint is None or hint is NoneType:
        return []
    extra = {name: value for meta in metas for name, value in (meta.extra or {}).items()}
    return [Option(_kind(hint, metas), extra)]


def _kind(hint: Any, metas: tuple[Meta, ...]) -> Any:
    # The kinds are msgspec's; they are not taken from `msgspec.inspect.type_info`, after which a process may crash
    # when it ends.
    def limits(*names: str) -> dict[str, Any]:
        said = ((name, getattr(meta, name)) for meta in metas for name in names)
        return {name: value for name, value in said if value is not None}

    arguments = get_args(hint)
    if hint is Any:
        return inspect.AnyType()
    if hint is str:
        return inspect.StrType(**limits("min_length", "max_length", "pattern"))
    if hint is bool:
        return inspect.BoolType()
    if hint in (int, float):
        return (inspect.IntType if hint is int else inspect.FloatType)(**limits("gt", "ge", "lt", "le"))
    if get_origin(hint) is Literal:
        return inspect.LiteralType(arguments)
    if get_origin(hint) is tuple:
        return inspect.VarTupleType(arguments[0], **limits("min_length", "max_length"))
    if get_origin(hint) is dict:
        return inspect.DictType(*arguments, **limits("min_length", "max_length"))
    return inspect.StructType(hint, ())


def field_description(field: FieldInfo) -> str:
    """What a key means."""
    return next((meta.description for meta in reversed(field.type.__metadata__) if meta.description), "")


def describe_options(found: list[Option]) -> str:
    """What is expected, in words."""
    kinds = {type(option.type) for option in found}
    words: list[str] = []
    if {inspect.StrType, inspect.IntType, inspect.FloatType, inspect.BoolType} <= kinds:
        return "a text, a number, true or false" + (", a list or an object" if inspect.AnyType in kinds else "")
    for option in found:
        word = describe_option(option)
        if not (isinstance(option.type, inspect.IntType) and inspect.FloatType in kinds):
            words += [word] if word not in words else []
    return ", or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def describe_option(option: Option) -> str:
    """One kind of value, in words."""
    match option.type:
        case inspect.StrType():
            return str(option.extra.get("what", "a text"))
        case inspect.AnyType():
            return str(option.extra["what"])
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _number(option.type)
        case inspect.LiteralType(values=(bool() as only,)):
            return str(only).lower()
        case inspect.LiteralType(values=values):
            return f"one of: {', '.join(map(str, values))}"
        case inspect.VarTupleType(item_type=item):
            one = describe_options(options(item))
            return f"{one}, or a list of them" if option.extra.get("one") else f"a list of: {one}"
        case inspect.StructType(cls=cls):
            return describe_shape(shape(cls))
        case _:
            return f"names, each with {describe_options(options(option.type.value_type))}"


def describe_shape(of: Shape) -> str:
    """A type with keys, in words."""
    required = [name for name, field in of.fields.items() if field.required]
    keys = join_words(required, "and") if required else join_words(IDENTIFYING_KEYS.get(of.cls) or list(of.fields))
    told = f"an object with {keys}"
    if of.rest is not None:
        return "an object with names and their values"
    if of.cls.accepts_key_names:
        return f"{join_words(list(of.fields))}, a list of them, or an object"
    if of.cls.shorthand:
        return f"{describe_options(options(of.fields[of.cls.shorthand].type))}, or {told}"
    return told


def _number(type: Any) -> str:
    word = "a whole number" if isinstance(type, inspect.IntType) else "a number"
    if type.le is None:
        return word
    return (
        f"{word} from {type.ge:,} to {type.le:,}"
        if type.ge is not None
        else f"{word} above {type.gt:,} and up to {type.le:,}"
    )


def reachable_types(root: type[model.FileStruct]) -> tuple[type[model.FileStruct], ...]:
    """A type and all that its keys lead to, in the order in which they are met."""
    found = [root]
    for cls in found:  # grows while it is read
        for field in msgspec.structs.fields(cls):
            found += [each for each in _parts(field.type) if each not in found]
    return tuple(dict.fromkeys(found))


def _parts(hint: Any) -> list[type[model.FileStruct]]:
    found: list[type[model.FileStruct]] = []
    for option in options(hint):
        match option.type:
            case inspect.StructType(cls=cls) if issubclass(cls, model.FileStruct):
                found.append(cls)
            case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner):
                found += _parts(inner)
    return found


class Vocabulary:
    """What messages about one kind of file call its parts, and what they say of keys of other files."""

    def __init__(self, nouns: Mapping[type, str], foreign: Mapping[str, str]) -> None:
        self._nouns = nouns
        self.foreign = foreign

    def noun(self, of: Shape) -> str:
        """What a message calls it."""
        return self._nouns.get(of.cls) or of.noun

    @cached_property
    def homes(self) -> dict[str, tuple[str, ...]]:
        """For every key of the file's model, where it belongs."""
        found: dict[str, list[str]] = {}
        for cls, noun in self._nouns.items():
            assert issubclass(cls, model.FileStruct)
            for key in shape(cls).fields:
                found.setdefault(key, []).append(noun)
        return {key: tuple(nouns) for key, nouns in found.items()}


PIPELINE_VOCABULARY: Final = Vocabulary(NOUNS, FOREIGN_KEYS)


def field_default(field: FieldInfo) -> Any:
    """What a key is when it is absent."""
    if callable(field.default_factory):
        return field.default_factory()
    return field.default
