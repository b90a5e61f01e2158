"""Rules as files have them: what a runner or the server is told, and what is wrong with them in files of both kinds."""

from __future__ import annotations

import pytest

from deltaci.pipeline.parse.problems import ProblemList
from deltaci.pipeline.parse.reader import parse_node
from deltaci.pipeline.parse.validation_rules import WORKSTREAM_KINDS, check_rules, evaluated_texts, protocol_rules
from deltaci.pipeline.parse.yaml import child, parse_yaml
from deltaci.pipeline.rule_model import RULE_KINDS, NumberRule, Rule
from deltaci.pipeline.workstream.model import Rules
from deltaci.protocol import messages as wire
from tests.pipeline.planning.planned import work

ONE_OF_EACH = (
    ({"run": "make"}, {"run": "make"}),
    ({"name": "n", "result": "x"}, {"name": "n", "result": "x"}),
    ({"files": ("a", "b"), "contains": "c"}, {"files": ["a", "b"], "contains": "c"}),
    ({"junit": "r.xml", "min_tests": 3}, {"junit": "r.xml", "min_tests": 3}),
    (
        {"number": NumberRule(report="c.json", at="a.b", min=1.5)},
        {"number": wire.NumberRule(report="c.json", at="a.b", min=1.5)},
    ),
    ({"within": ("src/**",)}, {"within": ["src/**"]}),
    ({"mergeable": True}, {"mergeable": True}),
)


def test_every_kind_of_rule_is_converted_to_the_protocol() -> None:
    """Pipelines and workstreams share this conversion."""
    told = protocol_rules([Rule(**written) for written, _ in ONE_OF_EACH])

    assert told == [wire.ValidationRule(**wanted) for _, wanted in ONE_OF_EACH]
    assert {kind for kind in RULE_KINDS for written, _ in ONE_OF_EACH if kind in written} == set(RULE_KINDS)
    assert {each.is_checked_by_server for each in told if each.within or each.mergeable} == {True}
    assert not any(each.is_checked_by_server for each in told if not each.within and not each.mergeable)
    assert set(wire.ValidationRule.__struct_fields__) == {"name", "contains", "min_tests", *RULE_KINDS}


def test_the_name_of_a_rule_is_interpolated_and_its_references_are_sent() -> None:
    """The runner gets the contexts that the rules reference, and a final name."""
    text = """
jobs:
  test:
    strategy: {matrix: {mode: [fast]}}
    steps: [make]
    validate:
      - {name: '${{ matrix.mode }} coverage', number: {report: '${{ matrix.mode }}.json', at: a, min: 1}}
      - {result: 'judge ${{ github.run_id }}'}
"""
    made = work(text, "test (fast)")

    assert [rule.get("name", "") for rule in made["rules"]] == ["fast coverage", ""]
    assert made["rules"][0]["number"]["report"] == "${{ matrix.mode }}.json"
    assert made["contexts"]["matrix"] == {"mode": "fast"}
    assert "run_id" in made["contexts"]["github"]


def test_all_evaluated_texts_of_a_rule_are_listed() -> None:
    """A rule may reference secrets or needs that the job must have."""
    number = NumberRule(report="e", at="${{ no }}", min=0)

    assert set(evaluated_texts(Rule(run="a", result="b", junit="c", files=("d",), number=number))) == set("abcde")
    assert not any(evaluated_texts(Rule(within=("a",), mergeable=True, name="n", contains="c")))


def said(text: str, *, is_workstream: bool) -> list[str]:
    """Return the problems of a list of rules, without the file name."""
    problems = ProblemList("f")
    rules = child(parse_yaml(text, problems), "rules")
    assert rules is not None
    parse_node(rules, Rules, ("rules",), problems)
    check_rules(rules, text, problems, is_workstream=is_workstream)
    return [str(each).removeprefix("f:") for each in problems.in_order()]


@pytest.mark.parametrize("name", WORKSTREAM_KINDS)
def test_rules_about_commits_are_for_workstreams(name: str) -> None:
    """A pipeline runs on the commit that it was started with: there is nothing to compare or to merge."""
    text = f"rules: [{{{name}: {'true' if name == 'mergeable' else '[src/**]'}}}]"

    assert not said(text, is_workstream=True)
    [problem] = said(text, is_workstream=False)
    assert problem.startswith(f"1:10: '{name}' in a pipeline; only a workstream has commits of its own; remove it")


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("[{}]", "1:9: a rule that requires nothing; expected exactly one of: " + ", ".join(RULE_KINDS)),
        ("[{within: a, mergeable: true}]", "1:9: a rule with within and mergeable; expected exactly one of"),
        ("[{mergeable: false}]", "1:21: 'mergeable: false', which requires nothing"),
        ("[{within: [a, 'b/**/[']}]", "1:28: '[' without ']' in the pattern 'b/**/['"),
        ("[{within: ['!a']}]", "1:20: only patterns with '!' in the pattern '!a'"),
        ("[{within: []}]", "1:18: an empty list"),
        ("[{number: {report: a, at: 'b[', max: 2}}]", "1:36: '[' in 'b['"),
        ("[{files: a, contains: 'b('}]", "1:32: '(' without ')' in 'b('; write '\\('"),
    ],
)
def test_problems_of_a_rule_have_their_position(rules: str, problem: str) -> None:
    found = said(f"rules: {rules}", is_workstream=True)

    assert len(found) == 1
    assert problem in found[0]


def test_a_text_is_a_command() -> None:
    """Both kinds of files have the same short form."""
    assert not said("rules: make check", is_workstream=True)
    assert not said("rules: [make check, {files: a}]", is_workstream=False)
