"""Parse `failure-rules.yml`, in which users classify failures, into the failure rules of the core.

The rules of a file are tried before the built-in ones, in their order.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, field

from deltaci.core.failures import FLAKY, INFRA, MAX_RULES, RULES, USER, FailureRule
from deltaci.pipeline.model import FileStruct
from deltaci.pipeline.parse.field_types import doc, text_format
from deltaci.pipeline.parse.problems import Position, Problem, ProblemList, position_within, quote
from deltaci.pipeline.parse.reader import ParsedNode, parse_node
from deltaci.pipeline.parse.yaml import YamlError, decode_utf8, parse_yaml
from deltaci.protocol.patterns import log_patterns
from deltaci.protocol.patterns.path_patterns import BadPattern

DEFAULT_FILE: Final = "failure-rules.yml"
# The sum of `log_patterns.check` over all patterns of a file: each line of a log is compared with each pattern.
MAX_WAYS: Final = 5 * log_patterns.MAX_WAYS

Name = Annotated[
    str, text_format("a name of letters, digits, '_', '.' and '-', without spaces", "[A-Za-z0-9_][A-Za-z0-9_.-]*", 100)
]
Code = Annotated[str, text_format("an error code, e.g. UPLOAD", "[A-Za-z0-9_.-]+", 100)]
ExitCode = Annotated[int, Meta(ge=1, le=255)]
Class = Literal["INFRA", "TOOLING", "FLAKY", "USER"]
Signal = Annotated[int, Meta(ge=1, le=64)]
LogPattern = Annotated[str, text_format("a regular expression for one line of the log", r"[^\x00-\x1f\x7f]+", 2000)]


class RuleEntry(FileStruct, frozen=True, kw_only=True):
    """One rule. All of its conditions must hold; it must have at least one."""

    noun: ClassVar[str] = "a rule"

    name: Annotated[Name, doc("its unique name, for events and explanations")]
    failure_class: Annotated[Class, doc("the class of such a failure")] = field(name="class")
    retryable: Annotated[
        bool | None, doc("whether another attempt may help; absent: yes for INFRA and FLAKY; never for USER")
    ] = None
    error_codes: Annotated[
        Annotated[tuple[Code, ...], Meta(min_length=1, max_length=50, extra={"one": True})] | None,
        doc("the runner reports one of these"),
    ] = None
    exit_codes: Annotated[
        Annotated[tuple[ExitCode, ...], Meta(min_length=1, max_length=50, extra={"one": True})] | None,
        doc("the exit code is one of these"),
    ] = None
    signals: Annotated[
        Annotated[tuple[Signal, ...], Meta(min_length=1, max_length=50, extra={"one": True})] | None,
        doc("one of these signals ended the job"),
    ] = None
    log: Annotated[
        LogPattern | None,
        doc("one of the last lines of the log matches this, in upper or lower case"),
    ] = None
    failed_tests: Annotated[
        Literal["any", "flaky"] | None,
        doc("tests failed; with `flaky`: only tests that are known to be flaky"),
    ] = None


class RuleFile(FileStruct, frozen=True, kw_only=True):
    """The content of `failure-rules.yml`."""

    noun: ClassVar[str] = "a file of failure rules"

    rules: Annotated[
        Annotated[tuple[RuleEntry, ...], Meta(max_length=MAX_RULES)],
        doc("the first rule that matches decides; then the server's rules, then the built-in ones"),
    ]


class FailureRulesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of parsing a file of failure rules. `rules` is None if a problem is more than a warning."""

    file: str
    rules: tuple[FailureRule, ...] | None
    problems: tuple[Problem, ...] = ()


def parse_failure_rules(content: str | bytes, file: str = DEFAULT_FILE) -> FailureRulesResult:
    """Parse the content of a file of failure rules. `file` is its name, for messages."""
    problems = ProblemList(file)
    if not content.strip():
        problems.add(Position(), "an empty file", "expected at least: 'rules: []'")
        return FailureRulesResult(file=file, rules=None, problems=problems.in_order())
    parsed = _parse_file(content, problems)
    if parsed is None:
        return FailureRulesResult(file=file, rules=None, problems=problems.in_order())
    file_text, rules, way_count = content.decode() if isinstance(content, bytes) else content, parsed.value.rules, 0
    first_indices: dict[str, int] = {}
    for rule_index, rule in enumerate(rules):
        position = parsed.positions["rules", rule_index]
        first_indices.setdefault(rule.name, rule_index)
        if first_indices[rule.name] != rule_index:
            name_position = parsed.positions["rules", rule_index, "name"]
            problems.add(name_position, f"the name {quote(rule.name)} a second time", "expected another name")
        _check_rule(rule, position, problems)
        way_count += _check_pattern(
            rule, parsed.positions.get(("rules", rule_index, "log"), position), file_text, problems
        )
        if way_count > MAX_WAYS:
            problems.add(position, "more patterns with '*', '+' or choices than one file may have", "write letters")
            break
    if problems.has_errors:
        return FailureRulesResult(file=file, rules=None, problems=problems.in_order())
    return FailureRulesResult(file=file, rules=tuple(map(_to_core_rule, rules)), problems=problems.in_order())


def _parse_file(content: str | bytes, problems: ProblemList) -> ParsedNode | None:
    """Return the content as a `RuleFile`, or None if it is invalid."""
    try:
        root_node = parse_yaml(decode_utf8(content, problems) if isinstance(content, bytes) else content, problems)
    except YamlError:
        return None
    parsed = parse_node(root_node, RuleFile, (), problems)
    return None if problems.has_errors else parsed


def _check_rule(rule: RuleEntry, position: Position, problems: ProblemList) -> None:
    if rule.name in {built_in.name for built_in in RULES}:
        problems.add(position, f"the name {quote(rule.name)}, which a built-in rule has", "expected another name")
    if rule.failure_class == USER and rule.retryable:
        problems.add(position, "a rule of class USER that is retryable", "remove 'retryable': no attempt can help")
    conditions = (rule.error_codes, rule.exit_codes, rule.signals, rule.log, rule.failed_tests)
    if not any(conditions):
        expected = "expected at least one of: error_codes, exit_codes, signals, log, failed_tests"
        problems.add(position, f"the rule {quote(rule.name)}, which every failure matches", expected)
    if "LEASE_LOST" in (rule.error_codes or ()):
        expected = "the server itself ends these attempts, by its own rules: this rule is never tried"
        problems.add(position, "the error code LEASE_LOST", expected, is_warning=True)


def _check_pattern(rule: RuleEntry, position: Position, file_text: str, problems: ProblemList) -> int:
    """Report an invalid log pattern.

    Return the number of ways in which the pattern can match at one position of a line; 0 without a valid pattern.
    """
    if rule.log is None:
        return 0
    try:
        return log_patterns.check(rule.log)
    except BadPattern as error:
        pattern_position = position_within(file_text, position, rule.log, error.column - 1)
        problems.add(pattern_position, f"in the pattern: {error.found}", error.expected)
        return 0


def _to_core_rule(rule: RuleEntry) -> FailureRule:
    """Convert a rule of the file to a rule of the core."""
    # A TOOLING failure is retryable only if the rule says so, because only failed downloads may succeed the next time.
    is_retryable_by_default = rule.failure_class in (INFRA, FLAKY)
    return FailureRule(
        name=rule.name,
        failure_class=rule.failure_class,
        is_retryable=is_retryable_by_default if rule.retryable is None else rule.retryable,
        error_codes=rule.error_codes or (),
        exit_codes=rule.exit_codes or (),
        signals=rule.signals or (),
        log_pattern=rule.log or "",
        all_failed_tests_flaky=rule.failed_tests == "flaky",
        has_failed_tests=rule.failed_tests == "any",
    )
