"""Writes the tables of keys in docs/pipelines.md and the schema for editors, from the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import inspect
from msgspec.structs import FieldInfo

from deltaci.pipeline import model
from deltaci.pipeline.parse.shapes import (
    NOUNS,
    Option,
    describe_options,
    field_default,
    field_description,
    get_shape,
    list_options,
)
from scripts.docgen.pages import replace_below_mark, table

Homes = Mapping[type[model.FileStruct], str]
HOMES: Final[Homes] = {
    model.Pipeline: "The file",
    model.On: "`on`",
    model.Push: "`on.push`",
    model.PullRequest: "`on.pull_request`",
    model.Schedule: "`on.schedule[]`",
    model.Manual: "`on.manual`",
    model.Input: "`on.manual.inputs.<name>`",
    model.Defaults: "`defaults`",
    model.RunDefaults: "`defaults.run`",
    model.Concurrency: "`concurrency`",
    model.Project: "`projects.<name>`",
    model.Job: "`jobs.<id>`",
    model.Need: "`jobs.<id>.needs[]`",
    model.Strategy: "`jobs.<id>.strategy`",
    model.Matrix: "`jobs.<id>.strategy.matrix`",
    model.Step: "`jobs.<id>.steps[]`",
    model.Service: "`jobs.<id>.services.<name>`",
    model.Retry: "`jobs.<id>.retry`",
    model.Artifact: "`jobs.<id>.artifacts[]`",
    model.Cache: "`jobs.<id>.caches[]`",
    model.Rule: "`jobs.<id>.validate[]`",
    model.NumberRule: "`jobs.<id>.validate[].number`",
    model.Approval: "`jobs.<id>.approval`",
    model.Limits: "`jobs.<id>.limits`",
}


def page(text: str) -> str:
    """The page with its tables as they should be; what stands before the mark is written by hand."""
    return replace_below_mark(text, _lines())


def _lines() -> Iterator[str]:
    assert set(HOMES) == set(NOUNS)
    yield "## All keys\n"
    yield "In **bold**: keys that must be there. `${{ }}`: expressions are evaluated there.\n"
    yield from tables(HOMES)


def tables(homes: Homes, *, are_evaluated: bool = True) -> Iterator[str]:
    """A table of keys for each of these types; without the last column where no expression is evaluated."""
    columns = ("key", "what it may be", "default", "meaning", "")[: None if are_evaluated else -1]
    for cls, home in homes.items():
        yield f"### {home}\n"
        yield f"{' '.join((cls.__doc__ or '').split())}\n"
        of = get_shape(cls)
        named = [(f"**`{name}`**" if field.required else f"`{name}`", field) for name, field in of.fields.items()]
        if of.extra_keys is not None:
            named.append(("any other", of.extra_keys))
        yield from table(columns, [_row(name, field, homes)[: len(columns)] for name, field in named])


def _row(name: str, field: FieldInfo, homes: Homes) -> tuple[str, ...]:
    default = None if field.required else field_default(field)
    is_shown = isinstance(default, bool | int | float) or (isinstance(default, str | tuple) and default)
    told = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    shown = f"`{told.lower() if isinstance(default, bool) else told}`" if is_shown else ""
    evaluated = "`${{ }}`" if _has_expressions(field.type) else ""
    return name, _what(field, homes), shown, field_description(field), evaluated


def _what(field: FieldInfo, homes: Homes) -> str:
    allowed = list_options(field.type)
    for option in allowed:
        match option.type:
            case inspect.StructType() if home := _home(option, homes):
                return f"see {home}"
            case inspect.VarTupleType(item_type=item) if home := _home(list_options(item)[0], homes):
                return f"see {home}" + (", or a list of them" if option.extra.get("one") else ": a list of them")
            case inspect.DictType(value_type=value):
                home = _home(list_options(value)[0], homes)
                return (
                    f"names, each with its own: see {home}"
                    if home
                    else f"names, each with {describe_options(list_options(value))}"
                )
    return describe_options(allowed)


def _home(option: Option, homes: Homes) -> str:
    cls = getattr(option.type, "cls", None)
    return homes[cls] if isinstance(cls, type) and issubclass(cls, model.FileStruct) else ""


def _has_expressions(hint: object) -> bool:
    for option in list_options(hint):
        inner = getattr(option.type, "item_type", None) or getattr(option.type, "value_type", None)
        pattern = getattr(option.type, "pattern", None)
        if option.extra.get("expressions") or option.extra.get("condition") or pattern == model.EXPRESSION:
            return True
        if inner is not None and _has_expressions(inner):
            return True
    return False
