"""Random pipelines, generated from the model: the same shapes drive the generator and the reader."""

from __future__ import annotations

import re
from typing import Any, Final

from hypothesis import strategies as st
from msgspec import inspect

from deltaci.pipeline import model
from deltaci.pipeline.parse.action_inputs import ACTION_INPUTS, REQUIRED_INPUTS
from deltaci.pipeline.parse.shapes import Option, get_shape, list_options

ANY_TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=30).filter(lambda text: "${{" not in text)
A_LINE: Final = ANY_TEXT.filter(lambda text: not re.search(r"[\x00-\x1f\x7f]", text))
FILLED: Final = st.sampled_from(["${{ github.ref }}", "${{ vars.a || 'b' }}", "${{ inputs[vars.a] }}"])
PATTERNS: Final = st.sampled_from(["src/**", "**/*.py", "a", "docs/", "[a-z]*.md", "release/*", "v1.+"])
FOLDERS: Final = st.sampled_from(["web", "libs/ui", "./a b", "é/ü"])
A_NAME: Final = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
NUMBERS: Final = st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False, width=32).filter(
    lambda number: not number.is_integer()
)
TRAPS: Final = st.sampled_from(
    ["3.10", "010", "true", "null", "~", "", "0x1f", "1e3", ".5", "- a", "a: b", "a #b", "!x"]
)
SCALARS: Final = ANY_TEXT.filter(lambda text: text.lower() not in ("yes", "no")) | TRAPS | NUMBERS | st.booleans()
NESTED: Final = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(A_NAME, inner, max_size=2),
    max_leaves=4,
)
VALUES: Final = SCALARS | st.lists(NESTED, max_size=2) | st.dictionaries(A_NAME, NESTED, max_size=2)
TEXTS: Final[dict[str, st.SearchStrategy[str]]] = {
    "a text": A_LINE,
    "a text on one line": A_LINE | FILLED,
    "a text that is not empty": ANY_TEXT.filter(bool),
    "a command for the shell": (ANY_TEXT | st.just("a\n  b\n\nc\n")).filter(lambda text: bool(text.strip())),
    "an expression": st.sampled_from(["true", "github.ref == 'x'", "!cancelled()", "${{ github.actor }}"]),
    "an expression ${{ … }}": FILLED,
    "the name of a time zone, e.g. 'Europe/Berlin'": st.sampled_from(["UTC", "America/Argentina/Ushuaia", "Etc/GMT+5"]),
    "a folder of the repository, e.g. 'libs/ui'": FOLDERS,
    "a pattern of paths, e.g. 'src/**'": PATTERNS,
    "a pattern of names, e.g. 'release/*'": PATTERNS.filter(lambda text: not text.endswith("/")),
    "a label without commas": st.from_regex(r"[!-+\--~]([ -+\--~]{0,8}[!-+\--~])?", fullmatch=True),
    "a role's name": st.from_regex(r"[!-~]{1,9}", fullmatch=True),
    "five fields: minute hour day month weekday, e.g. '0 3 * * 1-5'": st.sampled_from(["0 3 * * 1-5", "*/5 * 1 jan *"]),
    "a port, e.g. 5432 or '5432:5432'": st.just("80:8080"),
    "a duration, e.g. '30m', '12h' or '7d'": st.just("7d"),
    "bytes, e.g. '512M' or '4G'": st.just("4G"),
    "a path in the workspace": A_LINE.filter(bool),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for all values that a type allows."""
    allowed = list_options(hint)
    if {inspect.StrType, inspect.FloatType, inspect.BoolType} <= {type(option.type) for option in allowed}:
        return VALUES if any(isinstance(option.type, inspect.AnyType) for option in allowed) else SCALARS
    return st.one_of([_one(option) for option in allowed])


def _one(option: Option) -> st.SearchStrategy[Any]:
    kind = option.type
    match kind:
        case inspect.StrType():
            what = option.extra["what"]
            return TEXTS.get(what, A_NAME).filter(_is_not_an_expression(option))
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.FloatType():
            return st.floats(kind.ge or 0.001, kind.le)
        case inspect.LiteralType(values=words):
            return st.sampled_from(words)
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type), min_size=kind.min_length or 0, max_size=3).map(tuple)
        case inspect.DictType():
            return st.dictionaries(A_NAME, values(kind.value_type), min_size=kind.min_length or 0, max_size=2)
        case _:
            return parts(kind.cls)


def _is_not_an_expression(option: Option) -> Any:
    is_free = (
        option.extra.get("expressions") or option.extra.get("condition") or option.type.pattern == model.EXPRESSION
    )
    return lambda text: bool(is_free) or "${{" not in text


def parts(cls: type[model.FileStruct], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any part of this type that makes sense by itself."""
    of, left_out = get_shape(cls), LEFT_OUT.get(cls, frozenset())
    required, optional = dict(given), dict[str, st.SearchStrategy[Any]]()
    for name, field in of.fields.items():
        if name not in left_out and field.name not in given:
            (required if field.required else optional)[field.name] = values(field.type)
    chosen = st.fixed_dictionaries(required, optional=optional)
    return chosen.map(lambda fields: cls(**fields))


# What only makes sense together with something else is given by hand, or not at all.
LEFT_OUT: Final[dict[type[model.FileStruct], frozenset[str]]] = {
    model.Push: frozenset({"branches", "tags", "paths-ignore"}),
    model.PullRequest: frozenset({"branches-ignore", "paths"}),
    model.Input: frozenset({"type", "options"}),
    model.Retry: frozenset({"max-delay-seconds", "delay-seconds"}),
    model.Step: frozenset({"id", "run", "uses", "with", "shell", "working-directory"}),
    model.Rule: frozenset(
        {"junit", "files", "contains", "min-tests", "run", "number", "result", "within", "mergeable"}
    ),
    model.NumberRule: frozenset({"at", "min", "max"}),
    model.Matrix: frozenset({"exclude"}),
    model.Pipeline: frozenset({"jobs", "on"}),
    model.Job: frozenset({"project"}),
    model.On: frozenset({"push"}),
}
IN_REPORTS: Final = parts(
    model.NumberRule,
    at=st.sampled_from(("totals.percent_covered", "./@line-rate", 'a["b.c"][0]')),
    min=st.none() | st.floats(-(10**15), 10**14),
    max=st.floats(10**14, 10**15),
)
RULES: Final = (
    parts(model.Rule, run=TEXTS["a command for the shell"])
    | parts(model.Rule, result=TEXTS["a command for the shell"])
    | parts(model.Rule, junit=TEXTS["a path in the workspace"], min_tests=st.integers(1, 9))
    | parts(model.Rule, files=st.tuples(TEXTS["a path in the workspace"]), contains=st.just("^a.{0,9}b"))
    | parts(model.Rule, number=IN_REPORTS)
)
STEPS: Final = parts(
    model.Step,
    run=TEXTS["a command for the shell"],
    shell=st.none() | TEXTS["a text that is not empty"],
    working_directory=st.none() | TEXTS["a path in the workspace"],
) | st.sampled_from(
    [(name, key) for name, keys in ACTION_INPUTS.items() if name not in REQUIRED_INPUTS for key in keys]
).flatmap(lambda each: parts(model.Step, uses=st.just(each[0]), with_=st.dictionaries(st.just(each[1]), SCALARS)))
AXES: Final = st.dictionaries(
    A_NAME.filter(lambda name: name not in ("include", "exclude")),
    st.lists(VALUES, min_size=1, max_size=3, unique_by=lambda value: str(value).lower()).map(tuple) | FILLED,
    min_size=1, max_size=3,
)  # fmt: skip
STRATEGIES: Final = parts(model.Strategy, matrix=parts(model.Matrix, axes=AXES) | TEXTS["an expression ${{ … }}"])
WORK: Final = parts(
    model.Job,
    needs=st.just(()),
    approval=st.none(),
    strategy=st.none() | STRATEGIES,
    steps=st.lists(STEPS, min_size=1, max_size=3).map(tuple),
    validate=st.lists(RULES, max_size=2).map(tuple),
)
GATES: Final = st.builds(lambda gate: model.Job(approval=gate), parts(model.Approval))


@st.composite
def pipelines(draw: st.DrawFn) -> model.Pipeline:
    """A whole pipeline; every job may need those before it."""
    jobs: dict[str, model.Job] = {}
    for name in draw(st.lists(A_NAME, min_size=1, max_size=3, unique=True)):
        needs = tuple(model.Need(job=other, optional=draw(st.booleans())) for other in jobs if draw(st.booleans()))
        made = draw(WORK | GATES)
        jobs[name] = type(made)(**{field: getattr(made, field) for field in made.__struct_fields__} | {"needs": needs})
    whole: model.Pipeline = draw(parts(model.Pipeline, jobs=st.just(jobs), on=parts(model.On, push=parts(model.Push))))
    return whole
