"""Writes the tables of keys in docs/workstreams.md and the schema for editors, from the model.

python -m deltaci.pipeline.workstreams.draw docs/workstreams.md docs/workstream.schema.json   write both
with --check before them   fail if they differ
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deltaci.core.draw import write_or_compare
from deltaci.pipeline import model, schema
from deltaci.pipeline.draw import Homes, tables
from deltaci.pipeline.rule_keys import NumberRule
from deltaci.pipeline.shapes import reachable
from deltaci.pipeline.workstreams.model import Merge, Task, Workstream

BEGIN: Final = "<!-- Everything below is written by: python -m deltaci.pipeline.workstreams.draw -->"
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
    head, mark, _ = text.partition(BEGIN)
    if not mark:
        raise ValueError(f"the page has no line {BEGIN!r}")
    return head + BEGIN + "\n\n" + "\n".join(_lines()).rstrip("\n") + "\n"


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
    flags = [each for each in arguments if each.startswith("--")]
    files = [each for each in arguments if not each.startswith("--")]
    if len(files) != 2:
        print(f"usage: python -m {MODULE} [--check] PAGE SCHEMA", file=sys.stderr)
        return 2
    drawn = page(Path(files[0]).read_text("utf-8"))
    return max(
        write_or_compare([*flags, files[0]], MODULE, "types", drawn),
        write_or_compare([*flags, files[1]], MODULE, "types", schema.text(document())),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
