"""Types of validation rules: `validate` in pipelines, `post_execution` and `validation` in workstream files."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta, field

from deltaci.pipeline.model_types import MAX_ITEMS, Command, FileStruct, Path, Patterns, Title
from deltaci.pipeline.parse.field_types import doc, text_format

RULE_KINDS: Final = ("run", "files", "junit", "number", "result", "within", "mergeable")

Bound = Annotated[float, Meta(ge=-(10**15), le=10**15)]
LinePattern = Annotated[str, text_format("a regular expression for one line", r"[^\x00-\x1f\x7f]+")]
ReportPath = Annotated[
    str, text_format("a path in a report, e.g. 'totals.percent_covered' or './@line-rate'", r"[^\x00-\x1f\x7f]+", 1000)
]


class NumberRule(FileStruct, frozen=True, kw_only=True):
    """A number of a report and its bounds: `min`, `max` or both."""

    report: Annotated[Path, doc("the file, JSON or XML")]
    at: Annotated[ReportPath, doc("the path in the file: keys with dots in JSON, elements with slashes and `@` in XML")]
    min: Annotated[Bound | None, doc("the minimum")] = None
    max: Annotated[Bound | None, doc("the maximum")] = None


class Rule(FileStruct, frozen=True, kw_only=True):
    """A condition that must hold after the steps, or the job fails. Of exactly one kind. A text stands for `run`."""

    shorthand: ClassVar[str] = "run"
    exactly_one_of: ClassVar[tuple[str, ...]] = RULE_KINDS

    name: Annotated[Title, doc("the name to display")] = ""
    run: Annotated[Command | None, doc("a command that must exit with 0")] = None
    files: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        doc("files that must exist"),
    ] = None
    contains: Annotated[LinePattern | None, doc("with `files`: a pattern that must match a line of each file")] = None
    junit: Annotated[Path | None, doc("test reports without failed tests")] = None
    min_tests: Annotated[
        Annotated[int, Meta(ge=1, le=10_000_000)] | None, doc("with `junit`: the minimum number of tests")
    ] = field(name="min-tests", default=None)
    number: Annotated[NumberRule | None, doc("a number of a report, e.g. the coverage")] = None
    result: Annotated[
        Command | None, doc("a command that prints a JSON object with `passed`, `found` and `wanted`")
    ] = None
    within: Annotated[Patterns | None, doc("only for workstreams: only these paths have changed since the base")] = None
    mergeable: Annotated[
        bool | None, doc("only for workstreams, `true`: the current base can be merged without conflicts")
    ] = None
