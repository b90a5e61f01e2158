"""Rules of a file: what no single key of one shows, with its place; and the rule that a runner, or the server, is told.

One way for pipeline files and for workstream files. `within` and `mergeable` are about commits that only the server
has, and so there are none in a pipeline, whose commit is what it was started with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from deltaci.pipeline.parse.nodes import child, entry, items, pairs
from deltaci.pipeline.parse.problems import ProblemList, join_words, position_within, quote
from deltaci.pipeline.parse.references import check_pattern_list
from deltaci.pipeline.parse.yaml import BOOL, NUMBER, OBJECT, TEXT, Node
from deltaci.pipeline.rule_model import RULE_KINDS, Rule
from deltaci.protocol import log_patterns, report_paths
from deltaci.protocol import messages as wire
from deltaci.protocol.path_patterns import BadPattern

WORKSTREAM_KINDS: Final = ("within", "mergeable")
COMPANIONS: Final = {"min-tests": "junit", "contains": "files"}  # Keys that say more of one kind.

InterpolateName = Callable[[int, str], str]
"""A name of the rule at this place of its list, with the values of its expressions."""


def keep_name(_position: int, name: str) -> str:
    """The name as it is written: for files in which nothing is evaluated."""
    return name


def protocol_rules(rules: Sequence[Rule], fill: InterpolateName = keep_name) -> list[wire.ValidationRule]:
    """The rules as the protocol has them. Commands, paths and reports keep their expressions: the runner fills them."""
    return [_wire_rule(rule, fill(position, rule.name)) for position, rule in enumerate(rules)]


def evaluated_texts(rule: Rule) -> tuple[str, ...]:
    """What the runner evaluates of a rule."""
    report = rule.number.report if rule.number is not None else ""
    return rule.run or "", rule.result or "", rule.junit or "", report, *(rule.files or ())


def _wire_rule(rule: Rule, name: str) -> wire.ValidationRule:
    number = rule.number
    return wire.ValidationRule(
        name=name,
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


# -- what is wrong with them


def check_rules(rules: Node | None, source: str, problems: ProblemList, *, is_stream: bool) -> None:
    """Everything that is wrong with a list of rules beyond its single keys; `is_stream`: of a workstream file."""
    for rule in items(rules):
        if rule.kind == OBJECT and not problems.is_full:
            _check_kinds(rule, problems, is_stream=is_stream)
            _check_number(child(rule, "number"), source, problems)
            _check_text(child(rule, "contains"), source, problems, log_patterns.check)
            if is_stream:
                check_pattern_list(child(rule, "within"), source, problems, is_branch=False)


def _check_kinds(rule: Node, problems: ProblemList, *, is_stream: bool) -> None:
    known = RULE_KINDS if is_stream else tuple(kind for kind in RULE_KINDS if kind not in WORKSTREAM_KINDS)
    kinds = [name for name in RULE_KINDS if entry(rule, name)]
    for name in kinds if not is_stream else ():
        if name in WORKSTREAM_KINDS and (found := entry(rule, name)):
            told = "only a workstream has commits of its own; leave it out, or write a workstream file"
            problems.add(found[0].position, f"{quote(name)} in a pipeline", told)
    if len(kinds) != 1:
        told = f"a rule with {join_words(kinds, 'and')}" if kinds else "a rule that demands nothing"
        problems.add(rule.position, told, f"expected exactly one of: {', '.join(known)}")
    for name, kind in COMPANIONS.items():
        if (extra := entry(rule, name)) and kind not in kinds:
            problems.add(extra[0].position, f"{quote(name)} without {quote(kind)}", f"expected {quote(kind)} beside it")
    mergeable = child(rule, "mergeable")
    if mergeable is not None and mergeable.kind == BOOL and not mergeable.value:
        problems.add(mergeable.position, "'mergeable: false', which demands nothing", "expected true, or no such rule")


def _check_number(number: Node | None, source: str, problems: ProblemList) -> None:
    if number is None or number.kind != OBJECT:
        return
    bounds = dict(_bounds(number))
    if not entry(number, "min") and not entry(number, "max"):
        problems.add(number.position, "a number that may be anything", "expected 'min', 'max' or both")
    if len(bounds) == 2 and bounds["min"].value > bounds["max"].value:
        told = f"expected at most 'max', {bounds['max'].raw}"
        problems.add(bounds["min"].position, f"a 'min' of {bounds['min'].raw}", told)
    _check_text(child(number, "at"), source, problems, report_paths.parse)


def _bounds(number: Node) -> Iterator[tuple[str, Node]]:
    for key, value in pairs(number):
        if key.raw in ("min", "max") and value.kind == NUMBER:
            yield key.raw, value


def _check_text(node: Node | None, source: str, problems: ProblemList, read: Callable[[str], object]) -> None:
    if node is None or node.kind != TEXT or not node.value or "${{" in node.value:
        return  # Its kind, and that nothing is evaluated here, is the model's.
    try:
        read(node.value)
    except BadPattern as bad:
        at = position_within(source, node.position, node.value, bad.column - 1)
        is_advice = bad.expected.startswith("write ")
        wanted = bad.expected if is_advice else f"expected {bad.expected}"
        problems.add(at, f"{bad.found} in {quote(node.value)}", wanted)
