"""Write every generated page of the documentation, or report those that differ from the code.

python -m scripts.docgen             write all pages (`make fix`)
python -m scripts.docgen --check     change nothing; the exit status is 1 if a page differs (`make check`)
python -m scripts.docgen --openapi FILE    write the OpenAPI document, which is not kept in the repository
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltaci.api import openapi
from deltaci.pipeline.parse import json_schema
from scripts.docgen import (
    api_contract,
    api_reference,
    cli,
    failures,
    formats,
    github_workflows,
    machines,
    pipelines,
    protocol,
    rules,
    workstreams,
)

ROOT: Final = Path(__file__).parents[2]
# The function that generates each page; its argument is the current text of the page.
PAGES: Final[dict[str, Callable[[str], str]]] = {
    "docs/machines.md": lambda _: machines.page(),
    "docs/failures.md": failures.page,
    "docs/protocol.md": lambda _: protocol.page(),
    "docs/formats.txt": lambda _: formats.page(),
    "docs/reference/api-contract.txt": lambda _: api_contract.page(),
    "docs/reference/rules.md": lambda _: rules.page(),
    "docs/api-reference.md": lambda _: api_reference.page(),
    "docs/cli.md": cli.page,
    "docs/pipelines.md": pipelines.page,
    "docs/pipeline.schema.json": lambda _: json_schema.format_schema(),
    "docs/github-workflows.md": github_workflows.page,
    "docs/workstreams.md": workstreams.page,
    "docs/workstream.schema.json": lambda _: json_schema.format_schema(workstreams.document()),
}


def main() -> int:
    """Write or compare all pages; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts.docgen", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--openapi", type=Path, metavar="FILE", help="only write the OpenAPI document to this file")
    options = parser.parse_args()
    if options.openapi is not None:
        options.openapi.write_text(f"{openapi.openapi_text()}\n", encoding="utf-8")
        return 0
    is_check = options.check
    different = 0
    for name, make in PAGES.items():
        path = ROOT / name
        before = path.read_text("utf-8") if path.exists() else ""
        try:
            after = make(before).rstrip("\n") + "\n"
        except ValueError as error:
            print(f"{name}: {error}; add the line, or restore the page with git", file=sys.stderr)
            return 1
        if after == before:
            continue
        if is_check:
            print(f"{name} is out of date; run 'make fix' and commit the result", file=sys.stderr)
            different += 1
        else:
            path.write_text(after, encoding="utf-8")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
