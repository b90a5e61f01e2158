"""The server's own rules: what was changed beyond what was allowed, and what cannot be merged."""

from __future__ import annotations

import pytest

from deltaci.controllers.workstreams import checks
from deltaci.protocol.messages import RuleResult, ValidationRule
from deltaci.protocol.patterns.path_patterns import BadPattern
from deltaci.protocol.reports.rule_results import describe_failed


@pytest.mark.parametrize(
    ("paths", "patterns", "strays"),
    [
        ((), ("src/**",), []),
        (("src/a.py", "src/b/c.py"), ("src/**",), []),
        (("src/a.py", "lib/b.py", "a.py"), ("src",), ["a.py", "lib/b.py"]),
        (("src/a.py", "src/secret/b.py"), ("src/**", "!src/secret/**"), ["src/secret/b.py"]),
        (("b", "b", "a"), ("c",), ["a", "b"]),
        (("docs/ü.md", "docs/a b.md"), ("docs/*.md",), []),
        (("SRC/a.py",), ("src/**",), ["SRC/a.py"]),
        (("anything",), ("**",), []),
    ],
)
def test_paths_outside_of_patterns(paths: tuple[str, ...], patterns: tuple[str, ...], strays: list[str]) -> None:
    """The same patterns as everywhere: the last one that matches decides."""
    assert checks.outside(paths, patterns) == strays


def test_a_pattern_that_is_none_matches_nothing_by_accident() -> None:
    """Files are checked when they are read; what comes another way must not pass by a mistake."""
    with pytest.raises(BadPattern):
        checks.outside(["a"], ["a["])

    verdict = checks.within(ValidationRule(within=["a["]), ["a"])
    assert (verdict.is_passed, "a pattern with '['" in verdict.actual) == (False, True)


def test_a_change_outside_is_named_and_so_is_what_was_wanted() -> None:
    rule = ValidationRule(name="scope", within=["src/**", "docs/**"])

    good, bad = checks.within(rule, ["src/a"]), checks.within(rule, [*(f"lib/{n}" for n in range(9)), "src/a"])

    assert good.is_passed
    assert bad == RuleResult(
        rule="scope",
        is_passed=False,
        actual="lib/0, lib/1, lib/2, lib/3, lib/4 and 4 more",
        expected="only src/**, docs/**",
    )
    assert checks.within(ValidationRule(within=["src/**"]), ["a"]).rule == "src/**"


def test_a_conflict_is_named_and_so_is_what_to_do() -> None:
    rule = ValidationRule(mergeable=True)

    good, bad = checks.mergeable(rule, "main", []), checks.mergeable(rule, "main", ["a.py", "b" * 100])

    assert (good.is_passed, describe_failed([good])) == (True, "")
    wanted = "wanted no conflicts with the current main; merge it and resolve them"
    assert describe_failed([good, bad]) == f"rule mergeable: found conflicts in a.py, {'b' * 80}…, {wanted}"
