"""Writes the tables of keys in docs/workstreams.md and the schema for editors, from the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from deltaci.pipeline import model
from deltaci.pipeline.parse import json_schema
from deltaci.pipeline.parse.shapes import reachable_types
from deltaci.pipeline.rule_model import NumberRule
from deltaci.pipeline.workstream.model import Merge, Task, Workstream
from scripts.docgen.pages import replace_below_mark
from scripts.docgen.pipelines import Homes, tables

HOMES: Final[Homes] = {
    Workstream: "The file",
    Task: "`tasks[]`",
    model.Rule: "`tasks[].post_execution[]` and `validation[]`",
    NumberRule: "`number` of a rule",
    Merge: "`merge`",
    model.Retry: "`tasks[].retry`",
    model.Limits: "`tasks[].limits`",
    model.Artifact: "`tasks[].artifacts[]`",
}


def page(text: str) -> str:
    """The page with its tables as they should be; what stands before the mark is written by hand."""
    return replace_below_mark(text, _lines())


def _lines() -> Iterator[str]:
    yield "## All keys\n"
    yield "In **bold**: keys that must be there.\n"
    assert set(HOMES) == set(reachable_types(Workstream))
    yield from tables(HOMES, are_evaluated=False)


def document() -> dict[str, Any]:
    """The schema for editors."""
    return json_schema.schema(Workstream, "Delta CI workstream")
