"""The page about explanations says what is really said."""

from __future__ import annotations

import re

from tests.audit.explain_page import EXAMPLES, PAGE, TABLES, drawn


def test_the_examples_of_the_page_are_what_is_really_said() -> None:
    """An example that is not true is worse than none. `python -m tests.audit.explain_page` writes them anew."""
    page = PAGE.read_text(encoding="utf-8")

    assert re.findall(r"<!-- example: (\w+) -->", page) == list(EXAMPLES)
    assert re.findall(r"<!-- codes: (\w+) -->", page) == list(TABLES)
    assert drawn(page) == page
