"""`failure-rules.yml`: how people class failures. Text in, rules for the core or all problems out.

The rules of a file are asked before the built-in ones, in the order in which they stand.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, field

from deltaci.core.failures import FLAKY, INFRA, MAX_RULES, RULES, USER, FailureRule
from deltaci.pipeline.model import FileStruct
from deltaci.pipeline.parse.field_types import doc, text_format
from deltaci.pipeline.parse.problems import Position, Problem, ProblemList, position_within, quote
from deltaci.pipeline.parse.reader import ParsedNode as ReadPart
from deltaci.pipeline.parse.reader import parse_node
from deltaci.pipeline.parse.yaml import YamlError, decode_utf8, parse_yaml
from deltaci.protocol import log_patterns
from deltaci.protocol.path_patterns import BadPattern

DEFAULT_FILE: Final = "failure-rules.yml"
MAX_WAYS: Final = 5 * log_patterns.MAX_WAYS  # Of all patterns of a file together: each line is held against each.

Name = Annotated[
    str, text_format("a name of letters, digits, '_', '.' and '-', without spaces", "[A-Za-z0-9_][A-Za-z0-9_.-]*", 100)
]
Code = Annotated[str, text_format("an error code, e.g. UPLOAD", "[A-Za-z0-9_.-]+", 100)]
ExitCode = Annotated[int, Meta(ge=1, le=255)]
Class = Literal["INFRA", "TOOLING", "FLAKY", "USER"]
Signal = Annotated[int, Meta(ge=1, le=64)]
LogPattern = Annotated[str, text_format("a regular expression for one line of the log", r"[^\x00-\x1f\x7f]+", 2000)]


class RuleEntry(FileStruct, frozen=True, kw_only=True):
    """One rule. Everything that it names must hold; at least one thing beside its name and class."""

    noun: ClassVar[str] = "a rule"

    name: Annotated[Name, doc("what it is called in events and explanations; no other rule has this name")]
    failure_class: Annotated[Class, doc("whose fault such a failure is")] = field(name="class")
    retryable: Annotated[
        bool | None, doc("whether another attempt may help; if not said: yes for INFRA and FLAKY; never for USER")
    ] = None
    error_codes: Annotated[
        Annotated[tuple[Code, ...], Meta(min_length=1, max_length=50, extra={"one": True})] | None,
        doc("the runner reports one of these"),
    ] = None
    exit_codes: Annotated[
        Annotated[tuple[ExitCode, ...], Meta(min_length=1, max_length=50, extra={"one": True})] | None,
        doc("it ended with one of these"),
    ] = None
    signals: Annotated[
        Annotated[tuple[Signal, ...], Meta(min_length=1, max_length=50, extra={"one": True})] | None,
        doc("one of these signals ended it"),
    ] = None
    log: Annotated[
        LogPattern | None,
        doc("one of the last lines of the log has this in it, in upper or lower case"),
    ] = None
    failed_tests: Annotated[
        Literal["any", "flaky"] | None,
        doc("tests failed; with `flaky`: only such as are known to fail now and then"),
    ] = None


class RuleFile(FileStruct, frozen=True, kw_only=True):
    """A file of rules."""

    noun: ClassVar[str] = "a file of failure rules"

    rules: Annotated[
        Annotated[tuple[RuleEntry, ...], Meta(max_length=MAX_RULES)],
        doc("the first one that fits decides; then the server's, then the built-in ones"),
    ]


class FailureRulesResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says, unless it has problems; warnings alone do not stand in its way."""

    file: str
    rules: tuple[FailureRule, ...] | None
    problems: tuple[Problem, ...] = ()


def parse_failure_rules(content: str | bytes, file: str = DEFAULT_FILE) -> FailureRulesResult:
    """Read a whole file."""
    problems = ProblemList(file)
    if not content.strip():
        problems.add(Position(), "an empty file", "expected at least: 'rules: []'")
        return FailureRulesResult(file=file, rules=None, problems=problems.in_order())
    part = _part(content, problems)
    if part is None:
        return FailureRulesResult(file=file, rules=None, problems=problems.in_order())
    source, rules, ways = content.decode() if isinstance(content, bytes) else content, part.value.rules, 0
    names: dict[str, int] = {}
    for index, rule in enumerate(rules):
        at = part.positions["rules", index]
        names.setdefault(rule.name, index)
        if names[rule.name] != index:
            problems.add(
                part.positions["rules", index, "name"], f"the name {quote(rule.name)} a second time", "another"
            )
        _check(rule, at, problems)
        ways += _check_pattern(rule, part.positions.get(("rules", index, "log"), at), source, problems)
        if ways > MAX_WAYS:
            problems.add(at, "more patterns with '*', '+' or choices than one file may have", "write letters")
            break
    if problems.has_errors:
        return FailureRulesResult(file=file, rules=None, problems=problems.in_order())
    return FailureRulesResult(file=file, rules=tuple(map(_rule, rules)), problems=problems.in_order())


def _part(content: str | bytes, problems: ProblemList) -> ReadPart | None:
    try:
        root = parse_yaml(decode_utf8(content, problems) if isinstance(content, bytes) else content, problems)
    except YamlError:
        return None
    part = parse_node(root, RuleFile, (), problems)
    return None if problems.has_errors else part


def _check(rule: RuleEntry, at: Position, problems: ProblemList) -> None:
    if rule.name in {each.name for each in RULES}:
        problems.add(at, f"the name {quote(rule.name)}, which a built-in rule has", "another name")
    if rule.failure_class == USER and rule.retryable:
        problems.add(at, "a rule of class USER that is retryable", "a mistake stays one: leave 'retryable' out")
    conditions = (rule.error_codes, rule.exit_codes, rule.signals, rule.log, rule.failed_tests)
    if not any(conditions):
        told = "expected at least one of: error_codes, exit_codes, signals, log, failed_tests"
        problems.add(at, f"the rule {quote(rule.name)}, which every failure fits", told)
    if "LEASE_LOST" in (rule.error_codes or ()):
        told = "the server itself ends these, by its own rules: this one will not be asked"
        problems.add(at, "the error code LEASE_LOST", told, is_warning=True)


def _check_pattern(rule: RuleEntry, at: Position, source: str, problems: ProblemList) -> int:
    if rule.log is None:
        return 0
    try:
        return log_patterns.check(rule.log)
    except BadPattern as bad:
        place = position_within(source, at, rule.log, bad.column - 1)
        problems.add(place, f"in the pattern: {bad.found}", bad.expected)
        return 0


def _rule(rule: RuleEntry) -> FailureRule:
    is_usual = rule.failure_class in (INFRA, FLAKY)  # Of tools, only what is fetched may be there the next time.
    return FailureRule(
        name=rule.name,
        failure_class=rule.failure_class,
        is_retryable=is_usual if rule.retryable is None else rule.retryable,
        error_codes=rule.error_codes or (),
        exit_codes=rule.exit_codes or (),
        signals=rule.signals or (),
        log_pattern=rule.log or "",
        all_failed_tests_flaky=rule.failed_tests == "flaky",
        has_failed_tests=rule.failed_tests == "any",
    )
