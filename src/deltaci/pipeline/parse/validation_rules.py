"""Check validation rules (`validate`) of pipeline and workstream files, and convert them to the runner protocol.

The rules `within` and `mergeable` compare commits that only the server has. They are allowed only in workstream files:
the commit of a pipeline's run is fixed when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from deltaci.pipeline.parse.problems import ProblemList, join_words, position_within, quote
from deltaci.pipeline.parse.references import check_pattern_list
from deltaci.pipeline.parse.yaml import BOOL, NUMBER, OBJECT, TEXT, Node, child, entry, items, pairs
from deltaci.pipeline.rule_model import RULE_KINDS, Rule
from deltaci.protocol import messages as wire
from deltaci.protocol.patterns import log_patterns
from deltaci.protocol.patterns.path_patterns import BadPattern
from deltaci.protocol.reports import report_paths

WORKSTREAM_KINDS: Final = ("within", "mergeable")
REQUIRED_KINDS: Final = {"min-tests": "junit", "contains": "files"}  # Keys that are allowed only with one kind.

InterpolateName = Callable[[int, str], str]
"""A function of the index and name of a rule that returns the name with its expressions evaluated."""


def keep_name(_index: int, rule_name: str) -> str:
    """Return the name unchanged, for files in which nothing is evaluated."""
    return rule_name


def protocol_rules(rules: Sequence[Rule], interpolate_name: InterpolateName = keep_name) -> list[wire.ValidationRule]:
    """Convert rules to the runner protocol. Only names are evaluated: the runner evaluates commands and paths."""
    return [_protocol_rule(rule, interpolate_name(rule_index, rule.name)) for rule_index, rule in enumerate(rules)]


def evaluated_texts(rule: Rule) -> tuple[str, ...]:
    """Return the commands and paths of a rule, in which the runner evaluates expressions."""
    report = rule.number.report if rule.number is not None else ""
    return rule.run or "", rule.result or "", rule.junit or "", report, *(rule.files or ())


def _protocol_rule(rule: Rule, rule_name: str) -> wire.ValidationRule:
    number = rule.number
    return wire.ValidationRule(
        name=rule_name,
        run=rule.run or "",
        files=list(rule.files or ()),
        contains=rule.contains or "",
        junit=rule.junit or "",
        min_tests=rule.min_tests or 0,
        number=wire.NumberRule(report=number.report, at=number.at, min=number.min, max=number.max) if number else None,
        result=rule.result or "",
        within=list(rule.within or ()),
        mergeable=bool(rule.mergeable),
    )


# -- checks


def check_rules(rules_node: Node | None, file_text: str, problems: ProblemList, *, is_workstream: bool) -> None:
    """Report wrong combinations of keys, and invalid report paths and patterns, in a list of validation rules.

    `is_workstream` says that the rules are in a workstream file, not in a pipeline file.
    """
    for rule in items(rules_node):
        if rule.kind == OBJECT and not problems.is_full:
            _check_kinds(rule, problems, is_workstream=is_workstream)
            _check_number(child(rule, "number"), file_text, problems)
            _check_text(child(rule, "contains"), file_text, problems, log_patterns.check)
            if is_workstream:
                check_pattern_list(child(rule, "within"), file_text, problems, is_branch=False)


def _check_kinds(rule: Node, problems: ProblemList, *, is_workstream: bool) -> None:
    """Report a rule that is not of exactly one allowed kind, keys that its kind lacks, and `mergeable: false`."""
    allowed_kinds = (
        RULE_KINDS
        if is_workstream
        else tuple(required_kind for required_kind in RULE_KINDS if required_kind not in WORKSTREAM_KINDS)
    )
    kinds = [key_name for key_name in RULE_KINDS if entry(rule, key_name)]
    for key_name in kinds if not is_workstream else ():
        if key_name in WORKSTREAM_KINDS and (kind_entry := entry(rule, key_name)):
            expected = "only a workstream has commits of its own; remove it, or write a workstream file"
            problems.add(kind_entry[0].position, f"{quote(key_name)} in a pipeline", expected)
    if len(kinds) != 1:
        message = f"a rule with {join_words(kinds, 'and')}" if kinds else "a rule that requires nothing"
        problems.add(rule.position, message, f"expected exactly one of: {', '.join(allowed_kinds)}")
    for key_name, required_kind in REQUIRED_KINDS.items():
        if (key_entry := entry(rule, key_name)) and required_kind not in kinds:
            problems.add(
                key_entry[0].position,
                f"{quote(key_name)} without {quote(required_kind)}",
                f"expected {quote(required_kind)} as well",
            )
    mergeable = child(rule, "mergeable")
    if mergeable is not None and mergeable.kind == BOOL and not mergeable.value:
        problems.add(mergeable.position, "'mergeable: false', which requires nothing", "expected true, or no such rule")


def _check_number(number_node: Node | None, file_text: str, problems: ProblemList) -> None:
    if number_node is None or number_node.kind != OBJECT:
        return
    bounds = dict(_bounds(number_node))
    if not entry(number_node, "min") and not entry(number_node, "max"):
        problems.add(number_node.position, "a number without limits", "expected 'min', 'max' or both")
    if len(bounds) == 2 and bounds["min"].value > bounds["max"].value:
        expected = f"expected at most 'max', {bounds['max'].raw}"
        problems.add(bounds["min"].position, f"a 'min' of {bounds['min'].raw}", expected)
    _check_text(child(number_node, "at"), file_text, problems, report_paths.parse)


def _bounds(number_node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the keys `min` and `max` that have a number, with its node."""
    for key_node, value_node in pairs(number_node):
        if key_node.raw in ("min", "max") and value_node.kind == NUMBER:
            yield key_node.raw, value_node


def _check_text(node: Node | None, file_text: str, problems: ProblemList, parse: Callable[[str], object]) -> None:
    """Report the error with which `parse` rejects a text, at the position of the invalid character."""
    if node is None or node.kind != TEXT or not node.value or "${{" in node.value:
        return  # The reader reports other kinds, and expressions, which are not evaluated here.
    try:
        parse(node.value)
    except BadPattern as error:
        position = position_within(file_text, node.position, node.value, error.column - 1)
        is_advice = error.expected.startswith("write ")
        expected = error.expected if is_advice else f"expected {error.expected}"
        problems.add(position, f"{error.found} in {quote(node.value)}", expected)
