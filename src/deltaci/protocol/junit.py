"""Test reports in JUnit's XML, in the dialects that tools write: totals, what failed, what is flaky.

Reports come from jobs, so they are hostile until proven otherwise: a document type or an entity is refused, and size,
depth and counts are bounded. Whatever is wrong is a `Refused` with file and line.

We count test cases ourselves; the sums that reports state are often wrong. A test is flaky that failed and then passed:
Maven says so (`flakyFailure`, `flakyError`), others write the case again in the same suite, in the order of the tries.
Only there: the same name in another suite or file is another test, and a failure is never explained away by it.
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
_SLICE: Final = 1024 * 1024

PASSED: Final = "passed"
FAILED: Final = "failed"
ERROR: Final = "error"
SKIPPED: Final = "skipped"

_SUITES: Final = {"testsuite", "testsuites"}
_VERDICTS: Final = {"failure": FAILED, "error": ERROR, "skipped": SKIPPED, "disabled": SKIPPED}
# These tell of a try that failed; how the test ended is told beside them.
_EARLIER_TRIES: Final = {"flakyFailure", "flakyError", "rerunFailure", "rerunError", "rerun"}
# What a test that failed has to say, besides its message.
_OUTPUTS: Final = {"failure", "error", "system-out", "system-err"}
# Tools that write the outcome only as an attribute: GoogleTest, CTest, Bazel.
_STATUSES: Final = {
    "fail": FAILED,
    "failed": FAILED,
    "failure": FAILED,
    "error": ERROR,
    "notrun": SKIPPED,
    "skipped": SKIPPED,
    "disabled": SKIPPED,
    "suppressed": SKIPPED,
}
_RANK: Final = {PASSED: 0, SKIPPED: 0, FAILED: 1, ERROR: 2}


class ReportTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What the reports say together. Names are sorted, and at most `MAX_NAMES`; the numbers count all of them.

    `failed_messages` has what each of `failed_names` said, in the same order.
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
    """One test. What it said is kept of the first `MAX_NAMES` that failed, and never more than some of it."""

    name: str
    outcome: str
    is_flaky: bool
    seconds: float
    message: str = ""
    output: str = ""

    @property
    def is_failed(self) -> bool:
        """Whether it failed, or could not be run to its end."""
        return _RANK[self.outcome] > 0


class _Case:
    """One test with all of its tries."""

    __slots__ = ("had_failed", "message", "name", "outcome", "output", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome = PASSED
        self.had_failed = False
        self.message = ""
        self.output = ""
        self.seconds = 0.0


class _Reader:
    """One report. Every handler is called by the parser, in the order of the document."""

    def __init__(self, file: str, *, has_output: bool = False) -> None:
        self._file = file
        self._output: list[str] = []
        self._output_left = 0
        self._outputs = 0
        self._is_output = False
        self._open: list[str] = []
        self._suites: list[str] = []
        self._suite_number = 0
        self._suite_numbers: list[int] = []
        self._case: _Case | None = None
        self._messages = 0
        self._key: tuple[int, str] = (0, "")
        self.cases: dict[tuple[int, str], _Case] = {}
        parser = self._parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        if has_output:
            parser.buffer_text = True
            parser.CharacterDataHandler = self._text

    def read(self, data: bytes) -> None:
        """All of it, or a refusal."""
        if len(data) > MAX_REPORT_BYTES:
            raise self._refused("too_large", f"has {len(data)} bytes, at most {MAX_REPORT_BYTES}; split it")
        try:
            for at in range(0, len(data), _SLICE):
                self._parser.Parse(data[at : at + _SLICE], False)
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise self._refused("unreadable", f"is not XML: {expat.ErrorString(error.code)}") from None
        except (LookupError, ValueError) as error:
            raise self._refused("unreadable", f"has an encoding that cannot be read: {error}") from None

    def _refused(self, code: str, what: str) -> Refused:
        line = self._parser.CurrentLineNumber
        return Refused(code, f"the test report {self._file}, line {line}, {what}")

    def _doctype(self, *_: object) -> None:
        raise self._refused("unreadable", "has a document type; write the report without <!DOCTYPE>")

    def _entity(self, *_: object) -> None:
        raise self._refused("unreadable", "defines an entity; write the report without it")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = tag.rpartition(":")[2]
        if not self._open and tag not in _SUITES:
            raise self._refused(
                "unreadable", f"begins with <{tag[:80]}>; a JUnit report with <testsuites>, <testsuite>"
            )
        if len(self._open) >= MAX_DEPTH:
            raise self._refused("too_large", f"is more than {MAX_DEPTH} elements deep")
        parent = self._open[-1] if self._open else ""
        self._open.append(tag)
        if tag in _SUITES:
            self._suite_number += 1
            self._suite_numbers.append(self._suite_number)
            self._suites.append(attributes.get("name", ""))
        elif tag == "testcase" and self._case is None:
            self._begin_case(attributes)
        elif self._case is not None and parent == "testcase":
            self._judge(self._case, tag, attributes)
            self._is_output = tag in _OUTPUTS
            if self._is_output and self._output and not self._output[-1].endswith("\n"):
                self._output.append("\n")

    def _text(self, text: str) -> None:
        if self._is_output and self._output_left > 0:
            self._output.append(text[: self._output_left])
            self._output_left -= len(text)

    def _begin_case(self, attributes: dict[str, str]) -> None:
        scope = attributes.get("classname") or (self._suites[-1] if self._suites else "")
        name = ".".join(part for part in (scope, attributes.get("name", "")) if part)[:MAX_NAME_CHARACTERS]
        case = self._case = _Case(name)
        case.seconds = _seconds(attributes.get("time", ""))
        self._output, self._output_left = [], MAX_OUTPUT_CHARACTERS
        for attribute in ("status", "result"):
            stated = _STATUSES.get(attributes.get(attribute, "").lower(), PASSED)
            if case.outcome == PASSED:
                case.outcome = stated
        # Two tests that differ only beyond the bound must not become one: the whole name is the key.
        whole = f"{scope}\0{attributes.get('name', '')}\0{attributes.get('file', '')}"
        self._key = (self._suite_numbers[-1] if self._suite_numbers else 0, whole)

    def _judge(self, case: _Case, tag: str, attributes: dict[str, str]) -> None:
        if tag in _EARLIER_TRIES:
            case.had_failed = True
        elif (verdict := _VERDICTS.get(tag)) is not None and (
            case.outcome == PASSED or _RANK[verdict] > _RANK[case.outcome]
        ):
            case.outcome = verdict
            self._messages += bool(_RANK[verdict])
            if _RANK[verdict] and self._messages <= MAX_NAMES:  # More are not told, and need not be kept.
                case.message = attributes.get("message", "")[:MAX_MESSAGE_CHARACTERS]

    def _end(self, tag: str) -> None:
        tag = tag.rpartition(":")[2]
        self._open.pop()
        self._is_output = False
        if tag in _SUITES:
            self._suites.pop()
            self._suite_numbers.pop()
        elif tag == "testcase" and self._case is not None and "testcase" not in self._open:
            self._end_case(self._case)
            self._case = None

    def _end_case(self, case: _Case) -> None:
        if _RANK[case.outcome] and self._output and self._outputs < MAX_NAMES:
            self._outputs += 1
            case.output = "".join(self._output).strip("\r\n")
        earlier = self.cases.get(self._key)
        if earlier is not None:
            case.had_failed |= earlier.had_failed or _RANK[earlier.outcome] > 0
            case.seconds += earlier.seconds
            if case.outcome == SKIPPED:  # A try that was not made changes nothing.
                case.outcome, case.message, case.output = earlier.outcome, earlier.message, earlier.output
        elif len(self.cases) >= MAX_TESTS:
            raise self._refused("too_large", f"has more than {MAX_TESTS} tests")
        self.cases[self._key] = case


def read(reports: Iterable[tuple[str, bytes]], on_trouble: Callable[[Refused], None] | None = None) -> ReportTotals:
    """Read reports, each with the name of its file, and count them together.

    One that cannot be read is told to `on_trouble` and left out; it ends everything if nobody listens.
    """
    cases = _read(reports, on_trouble)
    outcomes = [case.outcome for case in cases]
    failed = sorted((case.name, case.message) for case in cases if _RANK[case.outcome])
    return ReportTotals(
        tests=len(cases),
        passed=outcomes.count(PASSED),
        failed=outcomes.count(FAILED),
        errors=outcomes.count(ERROR),
        skipped=outcomes.count(SKIPPED),
        flaky=sum(_is_flaky(case) for case in cases),
        seconds=round(math.fsum(case.seconds for case in cases), 3),
        failed_names=tuple(name for name, _ in failed[:MAX_NAMES]),
        failed_messages=tuple(message for _, message in failed[:MAX_NAMES]),
    )


def read_cases(reports: Iterable[tuple[str, bytes]], on_trouble: Callable[[Refused], None]) -> list[TestCase]:
    """The same, test by test, with what those said that failed."""
    return [
        TestCase(
            name=case.name,
            outcome=case.outcome,
            is_flaky=_is_flaky(case),
            seconds=case.seconds,
            message=case.message,
            output=case.output,
        )
        for case in _read(reports, on_trouble, has_output=True)
    ]


def _is_flaky(case: _Case) -> bool:
    return case.had_failed and case.outcome == PASSED


def _read(
    reports: Iterable[tuple[str, bytes]], on_trouble: Callable[[Refused], None] | None, *, has_output: bool = False
) -> list[_Case]:
    cases: list[_Case] = []
    for file, data in reports:
        reader = _Reader(file, has_output=has_output)
        try:
            reader.read(data)
        except Refused as refused:
            if on_trouble is None:
                raise
            on_trouble(refused)
            continue
        cases.extend(reader.cases.values())
        if len(cases) > MAX_TESTS:
            raise Refused("too_large", f"the test report {file} is one too many: more than {MAX_TESTS} tests")
    return cases


def _seconds(text: str) -> float:
    """A time as reports have it ("1,234.5" too); what is no time counts as none."""
    try:
        seconds = float(text.strip().removesuffix("s").replace(",", ""))
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < 1e9 else 0.0
