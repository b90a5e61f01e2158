"""`failure-rules.yml`: what it may say, what is wrong with it and where, and that no pattern in it can take long."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.failures import MAX_LINE_CHARS, RULES, Facts, FailureRule, classify
from deltaci.pipeline.parse import failure_rules
from deltaci.pipeline.parse.failure_rules import parse_failure_rules
from deltaci.protocol.patterns import log_patterns
from deltaci.protocol.patterns.path_patterns import BadPattern

ROOT = Path(__file__).parents[3]
GOOD = """
rules:
  - name: gpu-lost
    class: INFRA
    log: 'CUDA error: .*(lost|gone)'
  - name: licence
    class: TOOLING
    exit_codes: [42, 43]
    error_codes: UPLOAD
    signals: [11]
  - {name: fetch, class: TOOLING, retryable: true, exit_codes: 44}
  - {name: never, class: INFRA, retryable: false, exit_codes: 45}
  - {name: own, class: USER, failed_tests: any}
  - {name: quarantine, class: FLAKY, failed_tests: flaky}
"""


def problems(text: str) -> list[str]:
    """What is wrong with a file, without its name."""
    return [str(problem).removeprefix("failure-rules.yml:") for problem in parse_failure_rules(text).problems]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("{name: a, class: INFRA}", "every failure matches; expected at least one of: error_codes"),
        ("{class: INFRA, signals: 9}", "a rule without 'name'"),
        ("{name: a, signals: 9}", "a rule without 'class'"),
        ("{name: a, class: BROKEN, signals: 9}", "expected one of: INFRA, TOOLING, FLAKY, USER"),
        ("{name: a, class: infra, signals: 9}", "did you mean 'INFRA'?"),
        ("{name: a, class: USER, retryable: true, signals: 9}", "remove 'retryable'"),
        ("{name: a, class: INFRA, retryable: yes, signals: 9}", "did you mean 'true'?"),
        ("{name: a, class: INFRA, signal: 9}", "did you mean 'signals'?"),
        ("{name: a, class: INFRA, signals: 99}", "a whole number from 1 to 64"),
        ("{name: a, class: INFRA, exit_codes: [0]}", "a whole number from 1 to 255"),
        ("{name: a, class: INFRA, exit_codes: []}", "an empty list"),
        ("{name: a, class: INFRA, failed_tests: all}", "expected one of: any, flaky"),
        ("{name: a b, class: INFRA, signals: 9}", "expected a name"),
        ("{name: failed, class: INFRA, signals: 9}", "which a built-in rule has"),
        ("{name: a, class: INFRA, log: '(a+)+b'}", "a group that is repeated by '+'"),
        ("{name: a, class: INFRA, log: ''}", "a regular expression for one line"),
    ],
)
def test_problems_of_a_failure_rule_have_their_position(rule: str, told: str) -> None:
    """Line and column, as editors count."""
    [problem] = problems(f"rules:\n  - {rule}\n")

    assert told in problem
    assert problem.startswith("2:")
    assert parse_failure_rules(f"rules:\n  - {rule}\n").rules is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1:1: an empty file"),
        ("rules: [", "sign"),
        ("[]", "1:1: a list instead of keys"),
        ("rule: []", "did you mean 'rules'?"),
        ("rules: 3", "expected a list of"),
        (
            "rules:\n - {name: a, class: INFRA, signals: 9}\n - {name: a, class: INFRA, signals: 9}",
            "3:11: the name 'a'",
        ),
        ("rules:\n" + " - {name: a, class: INFRA, signals: 9}\n" * 101, "at most 100"),
        (
            "rules:\n" + "".join(f" - {{name: n{n}, class: INFRA, log: 'a.*b'}}\n" for n in range(12)),
            "more patterns with '*', '+' or choices than one file may have",
        ),
    ],
)
def test_problems_of_a_file(text: str, told: str) -> None:
    """And none of it is used."""
    assert any(told in problem for problem in problems(text)), problems(text)
    assert parse_failure_rules(text).rules is None


def test_the_place_of_a_bad_pattern_is_the_sign_in_it() -> None:
    """With or without quotes."""
    text = "rules:\n  - name: a\n    class: INFRA\n    log: 'lost (a|b)* gone'\n"

    assert problems(text)[0].startswith("4:21: in the pattern: a group that is repeated by '*'")


def test_a_good_file_becomes_rules_for_the_core() -> None:
    """In its order; a fault of the machine may pass, of tools only if the rule says so, a mistake never."""
    found = parse_failure_rules(GOOD)

    assert found.problems == ()
    assert found.rules == (
        FailureRule(name="gpu-lost", failure_class="INFRA", is_retryable=True, log_pattern="CUDA error: .*(lost|gone)"),
        FailureRule(
            name="licence",
            failure_class="TOOLING",
            is_retryable=False,
            exit_codes=(42, 43),
            error_codes=("UPLOAD",),
            signals=(11,),
        ),
        FailureRule(name="fetch", failure_class="TOOLING", is_retryable=True, exit_codes=(44,)),
        FailureRule(name="never", failure_class="INFRA", is_retryable=False, exit_codes=(45,)),
        FailureRule(name="own", failure_class="USER", is_retryable=False, has_failed_tests=True),
        FailureRule(name="quarantine", failure_class="FLAKY", is_retryable=True, all_failed_tests_flaky=True),
    )
    verdict = classify(Facts(exit_code=1, log_tail=("ok", "cuda ERROR: device gone")), (*found.rules, *RULES))
    assert (verdict.rule, verdict.line) == ("gpu-lost", "cuda ERROR: device gone")


def test_a_code_that_no_runner_reports_is_a_warning() -> None:
    """The rule stands; it is only never asked."""
    found = parse_failure_rules("rules: [{name: a, class: USER, error_codes: LEASE_LOST}]")

    assert [problem.is_warning for problem in found.problems] == [True]
    assert found.rules is not None


# -- patterns


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+b", "(a*)*", "(a|aa)+b", "(a|b){3}", "a.*b.*c", "(.*a){2}", "a?" * 10 + "b", "(a.*|b.*|c.*)d"),
        *(r"(a)\1", "(?=a)b", "(?<!a)b", "(?P<x>a)", "(?i)a", "(?>a)", "(?#x)a", "(?(1)a|b)"),
        *("a**", "a++", "a*+", "a{2}{3}", "*a", "a|*", "^*a", r"\b+a", "a{5,2}", "a{301}", "a{,}"),
        *("[", "[]", "[^]", "[a", "[[a]]", "[a--b]", "[a&&b]", r"[\b]", "[z-a]", "(", "a)", "(a", "x\\"),
        *(r"\x41", r"\Aa", r"\Z", r"\p", ".*", "a?", "(a)?", "a|", "", "a\tb", "a\nb", "x" * 501, "(" * 11 + "a"),
    ],
)
def test_a_pattern_that_may_take_long_or_is_none_is_refused(pattern: str) -> None:
    """With a column inside of it, or right behind it."""
    with pytest.raises(BadPattern) as bad:
        log_patterns.check(pattern)

    assert 1 <= bad.value.column <= len(pattern) + 1


@pytest.mark.parametrize(
    "pattern",
    [
        *(rule.log_pattern for rule in RULES if rule.log_pattern),
        *("a.*b", "^error: .+$", r"E\d{4}\b", "[A-Z_]{3,40} failed", "(?:lost|gone)?!", r"\(a\)", "é.*ü", "a+?b"),
        *("[^x]y", r"[\]\[]", r"exit code (1|2|137)", "x]", "x}", "a-b", r"\ta"),
    ],
)
def test_patterns_that_people_need_are_good(pattern: str) -> None:
    """The built-in ones first."""
    assert 1 <= log_patterns.check(pattern) <= log_patterns.MAX_WAYS


PIECES = st.sampled_from(
    ["a", "b", ".", "[ab]", r"\w", "(a|ab)", "(?:a)?", "a*", ".+", "a{0,9}", "|", "(", ")", "?", "*", "{2}", "\\", "é"]
)


@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=30))
def test_a_pattern_is_refused_or_quick(pattern: str) -> None:
    """On the line that is worst for it, however it was put together; nothing else is ever raised."""
    try:
        ways = log_patterns.check(pattern)
    except BadPattern:
        return
    begun = time.process_time()
    for letter in "ab":
        re.compile(pattern, re.IGNORECASE).search(letter * MAX_LINE_CHARS)

    assert ways <= log_patterns.MAX_WAYS
    assert time.process_time() - begun < 5.0  # Without the limit, some patterns take minutes.


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    """Never with anything but problems."""
    found = parse_failure_rules(text)

    assert (found.rules is None) == any(not problem.is_warning for problem in found.problems)


def test_the_page_has_the_rules_that_run() -> None:
    """Its example is good, and its limits are those of the code."""
    text = (ROOT / "docs" / "failures.md").read_text("utf-8")

    [example] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert parse_failure_rules(example).rules
    assert parse_failure_rules(example).problems == ()
    assert f"at most {log_patterns.MAX_WAYS} ways" in text
    assert f"a file in {failure_rules.MAX_WAYS:,}" in text
