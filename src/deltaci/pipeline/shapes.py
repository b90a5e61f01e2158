"""What the model allows at a place, as few questions: which kinds of values, under which name, and which keys."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from deltaci.pipeline import model
from deltaci.pipeline.problems import listed

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
    model.Limits: "'limits'",
    model.Job: "a job",
}


class Option(NamedTuple):
    """One kind of value that is allowed, and what the model says of it beyond msgspec's limits."""

    type: Any
    extra: dict[str, Any]


class Shape(NamedTuple):
    """A type of a pipeline file with its keys."""

    cls: type[model.Part]
    fields: dict[str, inspect.Field]  # by the key in the file
    rest: inspect.Field | None  # takes the keys that are not named

    @property
    def noun(self) -> str:
        """What a message calls it."""
        return NOUNS[self.cls]


@cache
def shape(cls: type[model.Part]) -> Shape:
    """The keys of a type."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    fields = {field.encode_name: field for field in info.fields}
    rest = fields.pop(cls.rest) if cls.rest else None
    return Shape(cls, fields, rest)


def options(type: Any, extra: dict[str, Any] | None = None) -> list[Option]:
    """Every kind of value that a type allows; that something may be absent is no kind of value."""
    extra = extra or {}
    if isinstance(type, inspect.Metadata):
        return options(type.type, {**(type.extra or {}), **extra})
    if isinstance(type, inspect.UnionType):
        return [option for each in type.types for option in options(each, extra)]
    return [] if isinstance(type, inspect.NoneType) else [Option(type, extra)]


def meaning(type: Any) -> str:
    """What a key means."""
    if isinstance(type, inspect.Metadata):
        return (type.extra_json_schema or {}).get("description", "") or meaning(type.type)
    return ""


def expected(found: list[Option]) -> str:
    """What is expected, in words."""
    kinds = {type(option.type) for option in found}
    words: list[str] = []
    if {inspect.StrType, inspect.IntType, inspect.FloatType, inspect.BoolType} <= kinds:
        return "a text, a number, true or false"
    for option in found:
        word = named(option)
        if not (isinstance(option.type, inspect.FloatType) and inspect.IntType in kinds):
            words += [word] if word not in words else []
    return listed(words) if len(words) < 3 else ", ".join(words[:-1]) + ", or " + words[-1]


def named(option: Option) -> str:
    """One kind of value, in words."""
    match option.type:
        case inspect.StrType():
            return str(option.extra.get("what", "a text"))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _number(option.type)
        case inspect.LiteralType(values=values):
            return f"one of: {', '.join(map(str, values))}"
        case inspect.VarTupleType(item_type=item):
            one = expected(options(item))
            return f"{one}, or a list of them" if option.extra.get("one") else f"a list ({one} each)"
        case inspect.StructType(cls=cls):
            return structured(shape(cls))
        case _:
            return "an object with keys and values"


def structured(of: Shape) -> str:
    """A type with keys, in words."""
    required = [name for name, field in of.fields.items() if field.required]
    keys = listed(required or list(of.fields), "and" if required else "or")
    told = f"an object with {keys}"
    if of.cls.by_name:
        return f"{listed(list(of.fields))}, a list of them, or an object"
    if of.cls.short:
        return f"{expected(options(of.fields[of.cls.short].type))}, or {told}"
    return told


def _number(type: Any) -> str:
    word = "a whole number" if isinstance(type, inspect.IntType) else "a number"
    low = type.ge if type.ge is not None else type.gt
    if low is None or type.le is None:
        return word
    return f"{word} {'from' if type.ge is not None else 'above'} {low:,} {'to' if type.ge is not None else 'up to'} {type.le:,}"


@cache
def homes() -> dict[str, tuple[str, ...]]:
    """For every key of the model, where it belongs."""
    found: dict[str, list[str]] = {}
    for cls, noun in NOUNS.items():
        assert issubclass(cls, model.Part)
        for key in shape(cls).fields:
            found.setdefault(key, []).append(noun)
    return {key: tuple(nouns) for key, nouns in found.items()}


def default_of(field: inspect.Field) -> Any:
    """What a key is when it is absent."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
