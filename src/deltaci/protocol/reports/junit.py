"""Parse test reports in JUnit XML and its dialects: totals, failed tests, flaky tests.

Jobs write the reports, so they are untrusted input: a document type or an entity is refused, and size, depth and
counts are bounded. Every error is a `Refused` with file and line.

Test cases are counted here, because the totals that reports state are often wrong. A test that failed and then passed
is flaky: Maven marks it (`flakyFailure`, `flakyError`), other tools repeat the case in the same suite, in order of
execution. The same name in another suite or file is a different test, so that it cannot hide a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final
from xml.parsers import expat

import msgspec

from deltaci.core.errors import Refused

MAX_REPORT_BYTES: Final = 64 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_TESTS: Final = 500_000
MAX_NAMES: Final = 1000
MAX_NAME_CHARACTERS: Final = 500
MAX_MESSAGE_CHARACTERS: Final = 1000
MAX_OUTPUT_CHARACTERS: Final = 4000
_CHUNK_BYTES: Final = 1024 * 1024

PASSED: Final = "passed"
FAILED: Final = "failed"
ERROR: Final = "error"
SKIPPED: Final = "skipped"

_SUITE_TAGS: Final = {"testsuite", "testsuites"}
_OUTCOME_TAGS: Final = {"failure": FAILED, "error": ERROR, "skipped": SKIPPED, "disabled": SKIPPED}
# Elements for an earlier failed execution of the same test; they do not change its outcome.
_RETRY_TAGS: Final = {"flakyFailure", "flakyError", "rerunFailure", "rerunError", "rerun"}
# Elements whose text is the output of a failed test.
_OUTPUT_TAGS: Final = {"failure", "error", "system-out", "system-err"}
# Outcomes that GoogleTest, CTest and Bazel write only as an attribute.
_STATUS_OUTCOMES: Final = {
    "fail": FAILED,
    "failed": FAILED,
    "failure": FAILED,
    "error": ERROR,
    "notrun": SKIPPED,
    "skipped": SKIPPED,
    "disabled": SKIPPED,
    "suppressed": SKIPPED,
}
_SEVERITY: Final = {PASSED: 0, SKIPPED: 0, FAILED: 1, ERROR: 2}


class ReportTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of several reports. The names are sorted and at most `MAX_NAMES`; the numbers count all tests.

    `failed_messages` has the message of each of `failed_names`, in the same order.
    """

    tests: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    flaky: int = 0
    seconds: float = 0.0
    failed_names: tuple[str, ...] = ()
    failed_messages: tuple[str, ...] = ()


class TestCase(msgspec.Struct, frozen=True, kw_only=True):
    """One test. Only the first `MAX_NAMES` failed tests have a message and output, both truncated."""

    name: str
    outcome: str
    is_flaky: bool
    seconds: float
    message: str = ""
    output: str = ""

    @property
    def is_failed(self) -> bool:
        """Whether the outcome is a failure or an error."""
        return _SEVERITY[self.outcome] > 0


class _ParsedCase:
    """The state of one test while its report is parsed, over all of its executions."""

    __slots__ = ("had_failed", "message", "name", "outcome", "output", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome = PASSED
        self.had_failed = False
        self.message = ""
        self.output = ""
        self.seconds = 0.0


class _Reader:
    """Parser of one report. expat calls the handlers in document order."""

    def __init__(self, file_name: str, *, has_output: bool = False) -> None:
        self._file_name = file_name
        self._output: list[str] = []
        self._output_budget = 0
        self._output_count = 0
        self._in_output = False
        self._open_tags: list[str] = []
        self._suite_names: list[str] = []
        self._suite_number = 0
        self._suite_numbers: list[int] = []
        self._case: _ParsedCase | None = None
        self._message_count = 0
        self._case_key: tuple[int, str] = (0, "")
        self.cases: dict[tuple[int, str], _ParsedCase] = {}
        parser = self._parser = expat.ParserCreate()
        parser.StartElementHandler = self._on_start_tag
        parser.EndElementHandler = self._on_end_tag
        parser.StartDoctypeDeclHandler = self._on_doctype
        parser.EntityDeclHandler = self._on_entity
        if has_output:
            parser.buffer_text = True
            parser.CharacterDataHandler = self._on_text

    def read(self, xml_bytes: bytes) -> None:
        """Parse the whole report; raise `Refused` if it is malformed or too large."""
        if len(xml_bytes) > MAX_REPORT_BYTES:
            raise self._error("too_large", f"has {len(xml_bytes)} bytes, at most {MAX_REPORT_BYTES}; split it")
        try:
            for offset in range(0, len(xml_bytes), _CHUNK_BYTES):
                self._parser.Parse(xml_bytes[offset : offset + _CHUNK_BYTES], False)
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise self._error("unreadable", f"is not XML: {expat.ErrorString(error.code)}") from None
        except (LookupError, ValueError) as error:
            raise self._error("unreadable", f"has an encoding that cannot be read: {error}") from None

    def _error(self, code: str, problem: str) -> Refused:
        """Return the error for this report, with its file name and the current line."""
        line_number = self._parser.CurrentLineNumber
        return Refused(code, f"the test report {self._file_name}, line {line_number}, {problem}")

    def _on_doctype(self, *_: object) -> None:
        raise self._error("unreadable", "has a document type; write the report without <!DOCTYPE>")

    def _on_entity(self, *_: object) -> None:
        raise self._error("unreadable", "defines an entity; write the report without it")

    def _on_start_tag(self, tag: str, value_by_attribute: dict[str, str]) -> None:
        tag = tag.rpartition(":")[2]
        if not self._open_tags and tag not in _SUITE_TAGS:
            raise self._error("unreadable", f"begins with <{tag[:80]}>; a JUnit report with <testsuites>, <testsuite>")
        if len(self._open_tags) >= MAX_DEPTH:
            raise self._error("too_large", f"is more than {MAX_DEPTH} elements deep")
        parent_tag = self._open_tags[-1] if self._open_tags else ""
        self._open_tags.append(tag)
        if tag in _SUITE_TAGS:
            self._suite_number += 1
            self._suite_numbers.append(self._suite_number)
            self._suite_names.append(value_by_attribute.get("name", ""))
        elif tag == "testcase" and self._case is None:
            self._begin_case(value_by_attribute)
        elif self._case is not None and parent_tag == "testcase":
            self._apply_outcome(self._case, tag, value_by_attribute)
            self._in_output = tag in _OUTPUT_TAGS
            if self._in_output and self._output and not self._output[-1].endswith("\n"):
                self._output.append("\n")

    def _on_text(self, text: str) -> None:
        if self._in_output and self._output_budget > 0:
            self._output.append(text[: self._output_budget])
            self._output_budget -= len(text)

    def _begin_case(self, value_by_attribute: dict[str, str]) -> None:
        class_name = value_by_attribute.get("classname") or (self._suite_names[-1] if self._suite_names else "")
        case_name = ".".join(name_part for name_part in (class_name, value_by_attribute.get("name", "")) if name_part)[
            :MAX_NAME_CHARACTERS
        ]
        case = self._case = _ParsedCase(case_name)
        case.seconds = _seconds(value_by_attribute.get("time", ""))
        self._output, self._output_budget = [], MAX_OUTPUT_CHARACTERS
        for attribute in ("status", "result"):
            attribute_outcome = _STATUS_OUTCOMES.get(value_by_attribute.get(attribute, "").lower(), PASSED)
            if case.outcome == PASSED:
                case.outcome = attribute_outcome
        # The key is the full name: two names that differ only after truncation are different tests.
        full_name = f"{class_name}\0{value_by_attribute.get('name', '')}\0{value_by_attribute.get('file', '')}"
        self._case_key = (self._suite_numbers[-1] if self._suite_numbers else 0, full_name)

    def _apply_outcome(self, case: _ParsedCase, tag: str, value_by_attribute: dict[str, str]) -> None:
        if tag in _RETRY_TAGS:
            case.had_failed = True
        elif (outcome := _OUTCOME_TAGS.get(tag)) is not None and (
            case.outcome == PASSED or _SEVERITY[outcome] > _SEVERITY[case.outcome]
        ):
            case.outcome = outcome
            self._message_count += bool(_SEVERITY[outcome])
            if _SEVERITY[outcome] and self._message_count <= MAX_NAMES:  # Later ones are not reported.
                case.message = value_by_attribute.get("message", "")[:MAX_MESSAGE_CHARACTERS]

    def _on_end_tag(self, tag: str) -> None:
        tag = tag.rpartition(":")[2]
        self._open_tags.pop()
        self._in_output = False
        if tag in _SUITE_TAGS:
            self._suite_names.pop()
            self._suite_numbers.pop()
        elif tag == "testcase" and self._case is not None and "testcase" not in self._open_tags:
            self._end_case(self._case)
            self._case = None

    def _end_case(self, case: _ParsedCase) -> None:
        if _SEVERITY[case.outcome] and self._output and self._output_count < MAX_NAMES:
            self._output_count += 1
            case.output = "".join(self._output).strip("\r\n")
        earlier_case = self.cases.get(self._case_key)
        if earlier_case is not None:
            case.had_failed |= earlier_case.had_failed or _SEVERITY[earlier_case.outcome] > 0
            case.seconds += earlier_case.seconds
            if case.outcome == SKIPPED:  # A skipped repetition does not change the outcome.
                case.outcome, case.message, case.output = (
                    earlier_case.outcome,
                    earlier_case.message,
                    earlier_case.output,
                )
        elif len(self.cases) >= MAX_TESTS:
            raise self._error("too_large", f"has more than {MAX_TESTS} tests")
        self.cases[self._case_key] = case


def read(reports: Iterable[tuple[str, bytes]], on_error: Callable[[Refused], None] | None = None) -> ReportTotals:
    """Parse reports, each given as file name and content, and return their common totals.

    A report that cannot be parsed is passed to `on_error` and skipped; without `on_error` the error is raised.
    """
    cases = _parse_reports(reports, on_error)
    outcomes = [case.outcome for case in cases]
    failed = sorted((case.name, case.message) for case in cases if _SEVERITY[case.outcome])
    return ReportTotals(
        tests=len(cases),
        passed=outcomes.count(PASSED),
        failed=outcomes.count(FAILED),
        errors=outcomes.count(ERROR),
        skipped=outcomes.count(SKIPPED),
        flaky=sum(_is_flaky(case) for case in cases),
        seconds=round(math.fsum(case.seconds for case in cases), 3),
        failed_names=tuple(failed_name for failed_name, _ in failed[:MAX_NAMES]),
        failed_messages=tuple(message for _, message in failed[:MAX_NAMES]),
    )


def read_cases(reports: Iterable[tuple[str, bytes]], on_error: Callable[[Refused], None]) -> list[TestCase]:
    """Parse reports like `read` and return every test; failed tests have their output."""
    return [
        TestCase(
            name=case.name,
            outcome=case.outcome,
            is_flaky=_is_flaky(case),
            seconds=case.seconds,
            message=case.message,
            output=case.output,
        )
        for case in _parse_reports(reports, on_error, has_output=True)
    ]


def _is_flaky(case: _ParsedCase) -> bool:
    """Return whether a test passed in the end after it had failed."""
    return case.had_failed and case.outcome == PASSED


def _parse_reports(
    reports: Iterable[tuple[str, bytes]], on_error: Callable[[Refused], None] | None, *, has_output: bool = False
) -> list[_ParsedCase]:
    """Return the tests of all reports, in order; handle malformed reports like `read`."""
    cases: list[_ParsedCase] = []
    for file_name, report_bytes in reports:
        report_reader = _Reader(file_name, has_output=has_output)
        try:
            report_reader.read(report_bytes)
        except Refused as refused:
            if on_error is None:
                raise
            on_error(refused)
            continue
        cases.extend(report_reader.cases.values())
        if len(cases) > MAX_TESTS:
            raise Refused("too_large", f"the test report {file_name} is one too many: more than {MAX_TESTS} tests")
    return cases


def _seconds(text: str) -> float:
    """Return the seconds in a duration such as `1,234.5` or `2s`; 0 if the text is no valid duration."""
    try:
        seconds = float(text.strip().removesuffix("s").replace(",", ""))
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < 1e9 else 0.0
