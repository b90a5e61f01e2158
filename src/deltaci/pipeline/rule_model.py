"""The rules of `validate` in pipeline files, and of `post_execution` and `validation` in workstream files, as types."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta, field

from deltaci.pipeline.model_types import MAX_ITEMS, Command, Part, Path, Patterns, Title
from deltaci.pipeline.parse.field_types import says, text

KINDS: Final = ("run", "files", "junit", "number", "result", "within", "mergeable")

Bound = Annotated[float, Meta(ge=-(10**15), le=10**15)]
LinePattern = Annotated[str, text("a regular expression for one line", r"[^\x00-\x1f\x7f]+")]
ReportPath = Annotated[
    str, text("a path in a report, e.g. 'totals.percent_covered' or './@line-rate'", r"[^\x00-\x1f\x7f]+", 1000)
]


class NumberRule(Part, frozen=True, kw_only=True):
    """A number of a report, and what it may be: `min`, `max` or both."""

    report: Annotated[Path, says("the file, JSON or XML")]
    at: Annotated[ReportPath, says("where in it: keys with dots in JSON, elements with slashes and `@` in XML")]
    min: Annotated[Bound | None, says("not less than this")] = None
    max: Annotated[Bound | None, says("not more than this")] = None


class Rule(Part, frozen=True, kw_only=True):
    """Something that must hold after the steps, or the job fails. Exactly one thing. A text stands for the command."""

    short: ClassVar[str] = "run"
    one_of: ClassVar[tuple[str, ...]] = KINDS

    name: Annotated[Title, says("what people call it")] = ""
    run: Annotated[Command | None, says("a command that must exit with 0")] = None
    files: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        says("files that must exist"),
    ] = None
    contains: Annotated[LinePattern | None, says("with `files`: what a line in each of them must have in it")] = None
    junit: Annotated[Path | None, says("test reports in which no test may have failed")] = None
    min_tests: Annotated[
        Annotated[int, Meta(ge=1, le=10_000_000)] | None, says("with `junit`: how many tests there must be at least")
    ] = field(name="min-tests", default=None)
    number: Annotated[NumberRule | None, says("a number of a report, e.g. the coverage")] = None
    result: Annotated[
        Command | None, says("a command that prints a JSON object: `passed`, and what it `found` and `wanted`")
    ] = None
    within: Annotated[
        Patterns | None, says("only of a workstream: nothing else than these paths is changed since its base")
    ] = None
    mergeable: Annotated[
        bool | None, says("only of a workstream, `true`: its base, as it is then, can be merged without a conflict")
    ] = None
