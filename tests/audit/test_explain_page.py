"""The examples of docs/explain.md are generated."""

from __future__ import annotations

import re

from tests.audit.explain_page import EXAMPLES, PAGE, TABLES, generate


def test_the_examples_and_tables_of_the_page_are_current() -> None:
    """`python -m tests.audit.explain_page` writes them again."""
    page = PAGE.read_text(encoding="utf-8")

    assert re.findall(r"<!-- example: (\w+) -->", page) == list(EXAMPLES)
    assert re.findall(r"<!-- codes: (\w+) -->", page) == list(TABLES)
    assert generate(page) == page
