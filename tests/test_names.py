"""The counts of private and vague words in names and docstrings may only fall.

`scripts/rename-progress` prints them; `scripts/rename-progress PACKAGE` lists the places.
"""

from __future__ import annotations

import ast

from scripts import names


def test_private_loose_and_vague_words_are_found() -> None:
    planted = ast.parse('def told(each, rows):\n    """What is left."""\n    found_rows = rows\n')

    assert [names.classify(name) for _, name in names.bound_names(planted)] == ["private", "loose", "", "loose"]
    assert [bool(names.VAGUE.search(text)) for _, text in names.docstrings(planted)] == [True]


def test_a_word_counts_only_as_a_whole_word_of_an_identifier() -> None:
    assert names.classify("NotFoundError") == "loose"
    assert names.classify("foundation") == ""
    assert names.classify("profile_of") == ""
    assert names.classify("of") == "loose"


def test_no_package_has_more_of_these_words_than_before() -> None:
    """A name that only its author understands makes each reader ask again."""
    limits, counts = names.limits(), names.counts()
    worse = [
        f"{package}: {count} {kind}, at most {limits.get((package, kind), 0)}; see scripts/rename-progress {package}"
        for (package, kind), count in sorted(counts.items())
        if count > limits.get((package, kind), 0)
    ]

    assert not worse, "\n".join(worse)


def test_the_limits_are_not_above_the_counts() -> None:
    """What was improved stays so. `scripts/rename-progress --write` lowers the limits."""
    counts = names.counts()
    above = [" ".join(entry) for entry, limit in sorted(names.limits().items()) if limit > counts[entry]]

    assert not above, f"run scripts/rename-progress --write and commit the result: {', '.join(above)}"
