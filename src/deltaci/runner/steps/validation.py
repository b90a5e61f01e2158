"""Checks the validation rules of a job after its steps: commands, files, test reports and numbers in reports.

Each rule results in an actual and an expected value. A failed rule does not stop the others. Commands run in the job's
cell, like steps. The files that a rule reads are untrusted: the job wrote them. Rules about commits are checked by the
server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.core.failures import MAX_LINE_CHARS
from deltaci.protocol.messages import ArtifactRule, NumberRule, RuleResult, ValidationRule
from deltaci.protocol.patterns import log_patterns
from deltaci.protocol.patterns.path_patterns import BadPattern
from deltaci.protocol.reports import junit, report_paths
from deltaci.protocol.reports.rule_results import describe_result
from deltaci.runner.actions.context import JobContext
from deltaci.runner.log.sections import VALIDATE
from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import Exit
from deltaci.runner.steps.report_values import MAX_REPORT_BYTES, read_number
from deltaci.runner.steps.sequence import StepSequence
from deltaci.runner.workspace.artifacts import ArtifactFile, SearchLimits, find_files, open_file, search_files

MAX_REPORTS_BYTES: Final = 128 * 1024**2
MAX_LINE_BYTES: Final = 64 * 1024  # A longer line is searched in pieces.
MAX_READ_BYTES: Final = 16 * 1024**2  # Of all files together that one rule searches.
MAX_PRINTED_BYTES: Final = 64 * 1024
MAX_NAMES: Final = 3  # That a message lists.
BOUNDS: Final = SearchLimits(files=100_000, bytes=2**60)  # Sizes do not matter: the files are not stored.
MAX_CHARS: Final = 300  # Of each text of a rule's result.
KINDS: Final = ("run", "files", "junit", "number", "result")


class RuleOutcome(NamedTuple):
    """Whether a rule passed, and its actual and expected value as texts that are not yet masked."""

    is_passed: bool
    actual: str
    expected: str


class RuleChecker:
    """Checks the validation rules of one job, except those that the server checks."""

    def __init__(self, job: JobContext, steps: StepSequence, seconds_left: Callable[[], float]) -> None:
        self._job = job
        self._steps = steps
        self._seconds_left = seconds_left

    async def check(self, result: JobResult) -> JobResult:
        """Check the rules that the runner has to check, and return the result with their verdicts.

        The first failed rule becomes its summary. Its status is unchanged: the server decides.
        """
        log, verdicts = self._job.log, list[RuleResult]()
        rules = [rule for rule in self._job.spec.rules if not rule.is_checked_by_server]
        if not rules:
            return result
        with log.section(VALIDATE, "validate"):
            for rule_index, rule in enumerate(rules):
                rule_name = log.masked_line(_describe_rule(rule) or f"{rule_index + 1}", MAX_CHARS)
                outcome = await self._check_rule(rule, rule_name)
                verdict = RuleResult(
                    rule=rule_name,
                    is_passed=outcome.is_passed,
                    actual=log.masked_line(outcome.actual, MAX_CHARS),
                    expected=log.masked_line(outcome.expected, MAX_CHARS),
                )
                log.write_line(describe_result(verdict))
                verdicts.append(verdict)
        summary_text = next((describe_result(verdict) for verdict in verdicts if not verdict.is_passed), result.summary)
        return structs.replace(result, verdicts=verdicts, summary=summary_text)

    async def _check_rule(self, rule: ValidationRule, rule_name: str) -> RuleOutcome:
        """Check one rule of any kind and return its outcome."""
        kinds = [kind for kind in KINDS if getattr(rule, kind)]
        if len(kinds) != 1:
            return RuleOutcome(
                False, f"a rule with {' and '.join(kinds) or 'nothing'}", f"exactly one of {', '.join(KINDS)}"
            )
        try:
            if rule.run:
                return _check_exit(await self._steps.run_rule(await self._interpolate(rule.run), rule_name))
            if rule.result:
                return await self._check_result(rule.result, rule_name)
        except Refused as refused:
            return RuleOutcome(False, refused.message, "a command that can be run")
        run_in_thread = self._job.transfers.run_in_thread
        if rule.number is not None:
            return await run_in_thread(self._check_number, rule.number)
        if rule.files:
            return await run_in_thread(self._check_files, rule.files, rule.contains)
        return await run_in_thread(self._check_tests, rule.junit, rule.min_tests)

    async def _interpolate(self, text: str) -> str:
        """Return the text with its expressions replaced by their values."""
        return await self._job.transfers.run_in_thread(self._job.expressions.interpolate, text)

    # -- commands

    async def _check_result(self, command: str, rule_name: str) -> RuleOutcome:
        """Run a command that prints its verdict as a JSON object, and return the outcome.

        If the verdict is that the rule passed, the exit code must be 0, too.
        """
        printed_bytes = bytearray()

        def on_output(chunk: bytes) -> None:
            printed_bytes.extend(chunk[: MAX_PRINTED_BYTES + 1 - len(printed_bytes)])

        exit_outcome = _check_exit(await self._steps.run_rule(await self._interpolate(command), rule_name, on_output))
        if len(printed_bytes) > MAX_PRINTED_BYTES:
            return RuleOutcome(False, f"more than {MAX_PRINTED_BYTES} bytes", "a JSON object with 'passed'")
        verdict = _parse_verdict(bytes(printed_bytes))
        if verdict is None:
            verdict_text = bytes(printed_bytes).decode("utf-8", "replace").strip()
            printed_text = f"it printed {verdict_text!r}" if verdict_text else "it printed nothing"
            actual_text = f"{exit_outcome.actual}, and {printed_text}"
            return RuleOutcome(False, actual_text, "a JSON object with 'passed', true or false")
        actual_text, expected_text = _to_text(verdict.get("found")), _to_text(verdict.get("wanted"))
        if verdict["passed"] and not exit_outcome.is_passed:
            return RuleOutcome(False, f"'passed', but {exit_outcome.actual}", exit_outcome.expected)
        return RuleOutcome(
            verdict["passed"], actual_text or _to_text(verdict["passed"]), expected_text or "that it passes"
        )

    # -- files

    def _check_files(self, path_patterns: list[str], content_pattern: str) -> RuleOutcome:
        """Check that a file matches each pattern and, with `content_pattern`, that each file has a matching line."""
        interpolate, workspace = self._job.expressions.interpolate, self._job.layout.workspace
        expected_text = "a file for each pattern"
        try:
            if content_pattern:
                expected_text = f"a line with {content_pattern!r} in each file"
                log_patterns.check(content_pattern)
            rules = [ArtifactRule(path_glob=interpolate(pattern)) for pattern in path_patterns]
            matching_files, unmatched_rules = search_files(workspace, rules, BOUNDS)
            if unmatched_rules:
                return RuleOutcome(
                    False, f"no file for {_list_names(rule.path_glob for rule in unmatched_rules)}", expected_text
                )
            if content_pattern and sum(matching_file.bytes for matching_file in matching_files) > MAX_READ_BYTES:
                return RuleOutcome(False, f"files of more than {MAX_READ_BYTES} bytes", expected_text)
            paths_without_match = (
                [
                    matching_file.path
                    for matching_file in matching_files
                    if not self._has_line(matching_file, content_pattern)
                ]
                if content_pattern
                else []
            )
        except (BadPattern, Refused, OSError) as error:
            return RuleOutcome(False, _error_message(error), expected_text)
        if paths_without_match:
            return RuleOutcome(False, f"none in {_list_names(paths_without_match)}", expected_text)
        return RuleOutcome(True, f"{len(matching_files)} files", expected_text)

    def _has_line(self, matching_file: ArtifactFile, pattern: str) -> bool:
        """Return whether a line of the file matches.

        Long lines are searched in overlapping pieces, to bound the time.
        """
        search, stride, read_byte_count = re.compile(pattern).search, MAX_LINE_CHARS // 2, 0
        with open_file(self._job.layout.workspace, matching_file) as opened_file:
            while read_byte_count < matching_file.bytes and (
                encoded_text := opened_file.readline(min(MAX_LINE_BYTES, matching_file.bytes - read_byte_count))
            ):
                read_byte_count += len(encoded_text)
                decoded_text = encoded_text.decode("utf-8", "replace").rstrip("\r\n")
                if any(
                    search(decoded_text[window_start : window_start + MAX_LINE_CHARS])
                    for window_start in range(0, max(1, len(decoded_text) - stride), stride)
                ):
                    return True
                if self._seconds_left() <= 0:
                    raise Refused(
                        "too_large", f"{matching_file.path!r} is so large that the job timed out during the search"
                    )
        return False

    # -- reports

    def _check_tests(self, path_pattern: str, min_tests: int) -> RuleOutcome:
        """Check that test reports have enough tests and that no test failed."""
        expected_text = f"at least {min_tests} tests, and none that failed" if min_tests else "no test that failed"
        try:
            reports = self._find_reports(self._job.expressions.interpolate(path_pattern), MAX_REPORTS_BYTES)
            if not reports:
                return RuleOutcome(False, f"no test report at {path_pattern!r}", expected_text)
            error_messages: list[str] = []
            totals = junit.read(
                [(report.path, self._read_file(report)) for report in reports],
                lambda refused: error_messages.append(refused.message),
            )
        except (Refused, OSError) as error:
            return RuleOutcome(False, _error_message(error), expected_text)
        if error_messages:
            return RuleOutcome(False, error_messages[0], expected_text)
        failures_text = ""
        if totals.failed or totals.errors:
            joined_names = ", ".join(totals.failed_names[:MAX_NAMES])
            failures_text = f", {totals.failed} failed and {totals.errors} with errors ({joined_names})"
        is_passed = not failures_text and totals.tests >= min_tests
        return RuleOutcome(is_passed, f"{totals.tests} tests{failures_text}", expected_text)

    def _check_number(self, rule: NumberRule) -> RuleOutcome:
        """Check that the number at a path of the report is within the rule's range."""
        expected_text = describe_range(rule)
        try:
            report_path = report_paths.parse(rule.at)
            reports = self._find_reports(self._job.expressions.interpolate(rule.report), MAX_REPORT_BYTES)
            if len(reports) != 1:
                count_text = f"{len(reports)} reports" if reports else "no report"
                return RuleOutcome(False, f"{count_text} at {rule.report!r}", f"one, with {expected_text}")
            report_value, value_text = read_number(self._read_file(reports[0]), report_path)
        except (BadPattern, Refused, OSError) as error:
            return RuleOutcome(False, _error_message(error), expected_text)
        is_low, is_high = (
            rule.min is not None and report_value < rule.min,
            rule.max is not None and report_value > rule.max,
        )
        return RuleOutcome(not is_low and not is_high, value_text, expected_text)

    def _find_reports(self, path_pattern: str, max_bytes: int) -> list[ArtifactFile]:
        """Return the files that match the pattern. Raise `Refused` if they are too large together."""
        reports = find_files(self._job.layout.workspace, [ArtifactRule(path_glob=path_pattern)], BOUNDS)
        if sum(report.bytes for report in reports) > max_bytes:
            raise Refused("too_large", f"reports of more than {max_bytes} bytes")
        return reports

    def _read_file(self, matching_file: ArtifactFile) -> bytes:
        with open_file(self._job.layout.workspace, matching_file) as opened_file:
            return opened_file.read(matching_file.bytes)


def describe_range(rule: NumberRule) -> str:
    """Return a text with the range of numbers that the rule accepts, such as `at least 80`."""
    if rule.min is not None and rule.max is not None:
        return f"from {rule.min:.15g} to {rule.max:.15g}"
    if rule.min is not None:
        return f"at least {rule.min:.15g}"
    return f"at most {rule.max:.15g}" if rule.max is not None else "any number"


def _describe_rule(rule: ValidationRule) -> str:
    """Return the name of the rule; if it has none, the first line of its command, or its files or report."""
    number_text = f"{rule.number.at} of {rule.number.report}" if rule.number is not None else ""
    command = rule.run or rule.result
    return rule.name or command.strip().partition("\n")[0] or rule.junit or ", ".join(rule.files) or number_text


def _check_exit(command_exit: Exit) -> RuleOutcome:
    """Return the outcome of a rule whose command must exit with 0."""
    expected_text = "exit code 0"
    if command_exit.is_timed_out:
        actual_text = f"that it took too long, and was stopped after {command_exit.seconds:.1f} s"
        return RuleOutcome(False, actual_text, expected_text)
    if command_exit.signal is not None:
        return RuleOutcome(False, f"that signal {command_exit.signal} killed it", expected_text)
    return RuleOutcome(command_exit.exit_code == 0, f"exit code {command_exit.exit_code}", expected_text)


def _parse_verdict(printed: bytes) -> dict[str, Any] | None:
    """Return the JSON object that is the whole output of a command, or its last line; None if neither is one."""
    for candidate_json in (printed.strip(), printed.strip().rpartition(b"\n")[2]):
        try:
            verdict = msgspec.json.decode(candidate_json)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(verdict, dict) and isinstance(verdict.get("passed"), bool):
            return verdict
    return None


def _to_text(value: Any) -> str:
    """Return a text unchanged, other values as JSON, and None as the empty text."""
    if isinstance(value, str) or value is None:
        return value or ""
    return msgspec.json.encode(value).decode()


def _error_message(error: Exception) -> str:
    match error:
        case Refused():
            return error.message
        case BadPattern():
            return f"{error.found} in column {error.column} of the rule; expected {error.expected}"
    return str(error)


def _list_names(names: Iterable[str]) -> str:
    """Return the first names, quoted, and how many more there are."""
    quoted_names = [repr(name) for name in names]
    more_text = f" and {len(quoted_names) - MAX_NAMES} more" if len(quoted_names) > MAX_NAMES else ""
    return ", ".join(quoted_names[:MAX_NAMES]) + more_text
