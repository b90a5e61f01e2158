"""Writes the tables of keys in docs/workstreams.md and the schema for editors, from the model.

python -m deltaci.pipeline.workstreams.draw docs/workstreams.md docs/workstream.schema.json   write both
with --check before them   fail if they differ
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from deltaci.core.draw import redrawn
from deltaci.pipeline import model, schema
from deltaci.pipeline.draw import Homes, tables, write_both
from deltaci.pipeline.rule_keys import NumberRule
from deltaci.pipeline.shapes import reachable
from deltaci.pipeline.workstreams.model import Merge, Task, Workstream

MODULE: Final = "deltaci.pipeline.workstreams.draw"
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
    return redrawn(text, MODULE, _lines())


def _lines() -> Iterator[str]:
    yield "## All keys\n"
    yield "In **bold**: keys that must be there.\n"
    assert set(HOMES) == set(reachable(Workstream))
    yield from tables(HOMES, are_evaluated=False)


def document() -> dict[str, Any]:
    """The schema for editors."""
    return schema.document(Workstream, "Delta CI workstream")


def main(arguments: list[str]) -> int:
    """Write both, or compare them."""
    return write_both(arguments, MODULE, page, schema.text(document()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
