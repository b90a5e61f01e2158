"""What must hold after the steps: commands, files, test reports, numbers. A rule says what it found and what it wanted.

All rules are looked at, also after one that does not hold; those that are commands run in the job's cell, like steps.
What a rule reads was written by the job, and is never trusted. The rules that need the server's commits are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.core.failures import MAX_LINE_CHARS
from deltaci.protocol import junit, log_patterns, report_paths
from deltaci.protocol.messages import ArtifactRule, NumberRule, RuleResult, ValidationRule
from deltaci.protocol.path_patterns import BadPattern
from deltaci.protocol.rule_results import describe_result
from deltaci.runner.actions.context import JobContext
from deltaci.runner.log.sections import VALIDATE
from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import Exit
from deltaci.runner.steps.report_values import MAX_REPORT_BYTES, number_in
from deltaci.runner.steps.sequence import StepSequence
from deltaci.runner.workspace.artifacts import ArtifactFile, SearchLimits, find_files, open_file, search_files

MAX_REPORTS_BYTES: Final = 128 * 1024**2
MAX_LINE_BYTES: Final = 64 * 1024  # What is longer is more than one line.
MAX_READ_BYTES: Final = 16 * 1024**2  # Of all files together that one rule looks into.
MAX_PRINTED_BYTES: Final = 64 * 1024
MAX_SHOWN: Final = 3
BOUNDS: Final = SearchLimits(files=100_000, bytes=2**60)  # They are looked at, not kept.
MAX_CHARS: Final = 300  # Of each text of a verdict.
KINDS: Final = ("run", "files", "junit", "number", "result")


class RuleOutcome(NamedTuple):
    """What a look at one rule shows."""

    is_passed: bool
    found: str
    wanted: str


class RuleChecker:
    """All rules of one job that a runner looks at."""

    def __init__(self, stage: JobContext, steps: StepSequence, left: Callable[[], float]) -> None:
        self._stage = stage
        self._steps = steps
        self._left = left

    async def check(self, ended: JobResult) -> JobResult:
        """How the job ended, with a verdict for each rule; the first that does not hold is the summary."""
        log, verdicts = self._stage.log, list[RuleResult]()
        rules = [rule for rule in self._stage.spec.rules if not rule.is_checked_by_server]
        if not rules:
            return ended
        with log.section(VALIDATE, "validate"):
            for number, rule in enumerate(rules):
                name = log.masked_line(_name(rule) or f"{number + 1}", MAX_CHARS)
                is_passed, found, wanted = await self._looked_at(rule, name)
                verdict = RuleResult(
                    rule=name,
                    is_passed=is_passed,
                    actual=log.masked_line(found, MAX_CHARS),
                    expected=log.masked_line(wanted, MAX_CHARS),
                )
                log.write_line(describe_result(verdict))
                verdicts.append(verdict)
        summary = next((describe_result(each) for each in verdicts if not each.is_passed), ended.summary)
        return structs.replace(ended, verdicts=verdicts, summary=summary)

    async def _looked_at(self, rule: ValidationRule, name: str) -> RuleOutcome:
        kinds = [kind for kind in KINDS if getattr(rule, kind)]
        if len(kinds) != 1:
            return RuleOutcome(
                False, f"a rule with {' and '.join(kinds) or 'nothing'}", f"exactly one of {', '.join(KINDS)}"
            )
        try:
            if rule.run:
                return _command(await self._steps.run_rule(await self._filled(rule.run), name))
            if rule.result:
                return await self._result(rule.result, name)
        except Refused as refused:
            return RuleOutcome(False, refused.message, "a command that can be run")
        work = self._stage.transfers.run_in_thread
        if rule.number is not None:
            return await work(self._number, rule.number)
        if rule.files:
            return await work(self._files, rule.files, rule.contains)
        return await work(self._tests, rule.junit, rule.min_tests)

    async def _filled(self, text: str) -> str:
        return await self._stage.transfers.run_in_thread(self._stage.expressions.text, text)

    # -- commands

    async def _result(self, script: str, name: str) -> RuleOutcome:
        """The command says itself how it judges; its exit code has to agree."""
        printed = bytearray()

        def hear(data: bytes) -> None:
            printed.extend(data[: MAX_PRINTED_BYTES + 1 - len(printed)])

        last = await self._steps.run_rule(await self._filled(script), name, hear)
        how = _command(last)
        if len(printed) > MAX_PRINTED_BYTES:
            return RuleOutcome(False, f"more than {MAX_PRINTED_BYTES} bytes", "a JSON object with 'passed'")
        said = _judgement(bytes(printed))
        if said is None:
            text = bytes(printed).decode("utf-8", "replace").strip()
            found = f"{how.found}, and it printed {text!r}" if text else f"{how.found}, and it printed nothing"
            return RuleOutcome(False, found, "a JSON object with 'passed', true or false")
        found, wanted = _text(said.get("found")), _text(said.get("wanted"))
        if said["passed"] and not how.is_passed:
            return RuleOutcome(False, f"'passed', but {how.found}", how.wanted)
        return RuleOutcome(said["passed"], found or _text(said["passed"]), wanted or "that it passes")

    # -- files

    def _files(self, patterns: list[str], contains: str) -> RuleOutcome:
        text, workspace = self._stage.expressions.text, self._stage.layout.workspace
        wanted = "a file for each pattern"
        try:
            if contains:
                wanted = f"a line with {contains!r} in each file"
                log_patterns.check(contains)
            kept = [ArtifactRule(path_glob=text(pattern)) for pattern in patterns]
            found, missed = search_files(workspace, kept, BOUNDS)
            if missed:
                return RuleOutcome(False, f"no file for {_listed(each.path_glob for each in missed)}", wanted)
            if contains and sum(each.bytes for each in found) > MAX_READ_BYTES:
                return RuleOutcome(False, f"files of more than {MAX_READ_BYTES} bytes", wanted)
            without = [each.path for each in found if not self._has(each, contains)] if contains else []
        except (BadPattern, Refused, OSError) as error:
            return RuleOutcome(False, _said(error), wanted)
        if without:
            return RuleOutcome(False, f"none in {_listed(without)}", wanted)
        return RuleOutcome(True, f"{len(found)} files", wanted)

    def _has(self, found: ArtifactFile, pattern: str) -> bool:
        """Whether a line fits. A long one is looked at in pieces: that bounds how long a search can take."""
        fits, step, read = re.compile(pattern).search, MAX_LINE_CHARS // 2, 0
        with open_file(self._stage.layout.workspace, found) as file:
            while read < found.bytes and (raw := file.readline(min(MAX_LINE_BYTES, found.bytes - read))):
                read += len(raw)
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                if any(fits(line[at : at + MAX_LINE_CHARS]) for at in range(0, max(1, len(line) - step), step)):
                    return True
                if self._left() <= 0:
                    raise Refused("too_large", f"so much in {found.path!r} that the time of the job is over")
        return False

    # -- reports

    def _tests(self, pattern: str, fewest: int) -> RuleOutcome:
        wanted = f"at least {fewest} tests, and none that failed" if fewest else "no test that failed"
        try:
            found = self._found(self._stage.expressions.text(pattern), MAX_REPORTS_BYTES)
            if not found:
                return RuleOutcome(False, f"no test report at {pattern!r}", wanted)
            broken: list[str] = []
            report = junit.read(
                [(each.path, self._content(each)) for each in found], lambda bad: broken.append(bad.message)
            )
        except (Refused, OSError) as error:
            return RuleOutcome(False, _said(error), wanted)
        if broken:
            return RuleOutcome(False, broken[0], wanted)
        told_failed = ""
        if report.failed or report.errors:
            names = ", ".join(report.failed_names[:MAX_SHOWN])
            told_failed = f", {report.failed} failed and {report.errors} with errors ({names})"
        is_passed = not told_failed and report.tests >= fewest
        return RuleOutcome(is_passed, f"{report.tests} tests{told_failed}", wanted)

    def _number(self, rule: NumberRule) -> RuleOutcome:
        wanted = wanted_of(rule)
        try:
            path = report_paths.parse(rule.at)
            found = self._found(self._stage.expressions.text(rule.report), MAX_REPORT_BYTES)
            if len(found) != 1:
                how_many = f"{len(found)} reports" if found else "no report"
                return RuleOutcome(False, f"{how_many} at {rule.report!r}", f"one, with {wanted}")
            value, written = number_in(self._content(found[0]), path)
        except (BadPattern, Refused, OSError) as error:
            return RuleOutcome(False, _said(error), wanted)
        is_low, is_high = rule.min is not None and value < rule.min, rule.max is not None and value > rule.max
        return RuleOutcome(not is_low and not is_high, written, wanted)

    def _found(self, pattern: str, most: int) -> list[ArtifactFile]:
        found = find_files(self._stage.layout.workspace, [ArtifactRule(path_glob=pattern)], BOUNDS)
        if sum(each.bytes for each in found) > most:
            raise Refused("too_large", f"reports of more than {most} bytes")
        return found

    def _content(self, found: ArtifactFile) -> bytes:
        with open_file(self._stage.layout.workspace, found) as file:
            return file.read(found.bytes)


def wanted_of(rule: NumberRule) -> str:
    """What the number has to be, in words."""
    if rule.min is not None and rule.max is not None:
        return f"from {rule.min:.15g} to {rule.max:.15g}"
    if rule.min is not None:
        return f"at least {rule.min:.15g}"
    return f"at most {rule.max:.15g}" if rule.max is not None else "any number"


def _name(rule: ValidationRule) -> str:
    """Its name, or what it says."""
    number = f"{rule.number.at} of {rule.number.report}" if rule.number is not None else ""
    said = rule.run or rule.result
    return rule.name or said.strip().partition("\n")[0] or rule.junit or ", ".join(rule.files) or number


def _command(last: Exit) -> RuleOutcome:
    wanted = "exit code 0"
    if last.is_timed_out:
        return RuleOutcome(False, f"that it took too long, and was stopped after {last.seconds:.1f} s", wanted)
    if last.signal is not None:
        return RuleOutcome(False, f"that signal {last.signal} killed it", wanted)
    return RuleOutcome(last.exit_code == 0, f"exit code {last.exit_code}", wanted)


def _judgement(printed: bytes) -> dict[str, Any] | None:
    """The object that a command printed: all of it, or its last line."""
    for text in (printed.strip(), printed.strip().rpartition(b"\n")[2]):
        try:
            said = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(said, dict) and isinstance(said.get("passed"), bool):
            return said
    return None


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return msgspec.json.encode(value).decode()


def _said(error: Exception) -> str:
    match error:
        case Refused():
            return error.message
        case BadPattern():
            return f"{error.found} in column {error.column} of the rule itself; expected {error.expected}"
    return str(error)


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - MAX_SHOWN} more" if len(shown) > MAX_SHOWN else ""
    return ", ".join(shown[:MAX_SHOWN]) + more
