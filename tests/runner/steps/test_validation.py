"""What must hold after the steps: a rule that does not names itself, what it found and what it wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deltaci.protocol.messages import RuleResult
from deltaci.runner.actions.context import JobContext
from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import Exit
from deltaci.runner.steps.sequence import StepSequence
from deltaci.runner.steps.validation import MAX_READ_BYTES, RuleChecker
from deltaci.runner.transfers import JobStopped
from tests.contract.backends import on_loop
from tests.runner.leased_job import LeasedJob
from tests.runner.scenarios import run_scenario
from tests.runner.steps.test_report_values import COVERAGE_JSON, COVERAGE_XML

SUITE = '<testsuite><testcase name="a"/><testcase name="b">{}</testcase></testsuite>'
WELL = JobResult(exit=Exit(0, None, 0.0), steps=[], summary="1 steps succeeded")


class Case(NamedTuple):
    """A rule, what was found and wanted if it is broken, and its name if it has no other."""

    rule: dict[str, Any]
    found: str = ""
    wanted: str = ""
    name: str = ""


def number(report: str, at: str, **bounds: float) -> dict[str, Any]:
    return {"number": {"report": report, "at": at, **bounds}}


def result(printed: str, more: str = "") -> dict[str, Any]:
    return {"result": f"printf %s '{printed}'{more}"}


ONE = "exactly one of run, files, junit, number, result"
TEXT = "a line with '^# 1\\\\.[0-9]' in each file"
OBJECT = "a JSON object with 'passed', true or false"
COMMANDS = (
    Case({"run": "test -e good.xml"}),
    Case({"run": "exit 4", "name": "size"}, "exit code 4", "exit code 0", "size"),
    Case({"run": "kill -9 $$"}, "that signal 9 killed it", "exit code 0", "kill -9 $$"),
    Case({"run": "echo ${{ github.repository }} | grep -q acme"}),
    Case({"run": "echo ${{ fromJSON('{') }}", "name": "e"}, "", "a command that can be run", "e"),
    Case(result('{"passed": true}')),
    Case({"result": 'echo looking >&2; echo \'{"passed": true, "found": 3}\''}),
    Case({"result": "printf '{\\n\"passed\":\\ntrue}'", "name": "on three lines"}),
    Case(result('{"passed": false, "found": "3 todos", "wanted": "none"}'), "3 todos", "none"),
    Case(result('{"passed": false, "found": 3}'), "3", "that it passes"),
    Case(result('{"passed": true}', "; exit 3"), "'passed', but exit code 3", "exit code 0"),
    Case(result('{"passed": "yes"}'), 'exit code 0, and it printed \'{"passed": "yes"}\'', OBJECT),
    Case(result("fine"), "exit code 0, and it printed 'fine'", OBJECT),
    Case({"result": "exit 7"}, "exit code 7, and it printed nothing", OBJECT, "exit 7"),
    Case({"result": "head -c 100000 /dev/zero"}, "more than 65536 bytes", "a JSON object with 'passed'"),
)
FILES = (
    Case({"files": ["*.xml"]}),
    Case({"files": ["many/**"]}),
    Case({"files": ["*.xml", "no/*.whl"]}, "no file for 'no/*.whl'", "a file for each pattern", "*.xml, no/*.whl"),
    Case({"files": ["/etc/passwd"]}, "absolute", "a file for each pattern"),
    Case({"files": ["log.md"], "contains": r"^# 1\.[0-9]"}),
    Case({"files": ["long.txt"], "contains": "needle"}),
    Case({"files": ["*.md"], "contains": r"^# 1\.[0-9]"}, "none in 'empty.md', 'other.md'", TEXT),
    Case({"files": ["none.md"], "contains": r"^# 1\.[0-9]"}, "no file for 'none.md'", TEXT),
    Case({"files": ["raw.bin"], "contains": "text.{0,3}end"}),
    Case({"files": ["huge.bin"], "contains": "x"}, "files of more than", "a line with 'x' in each file"),
    Case({"files": ["log.md"], "contains": "(a+)+b"}, "a group that is repeated", "a line with"),
)
REPORTS = (
    Case({"junit": "good.xml", "min_tests": 2}),
    Case({"junit": "good.xml", "min_tests": 3}, "2 tests", "at least 3 tests, and none that failed", "good.xml"),
    Case({"junit": "bad.xml"}, "2 tests, 1 failed and 0 with errors (b)", "no test that failed", "bad.xml"),
    Case({"junit": "none*.xml"}, "no test report at 'none*.xml'", "no test that failed"),
    Case({"junit": "evil.xml"}, "has a document type", "no test that failed"),
    Case(number("coverage.json", "totals.percent_covered", min=70)),
    Case(
        number("coverage.json", "totals.percent_covered", min=80),
        "71.42857142857143",
        "at least 80",
        "totals.percent_covered of coverage.json",
    ),
    Case({"name": "seconds", **number("coverage.json", "totals.num_branches", max=0)}, "4", "at most 0", "seconds"),
    Case(number("coverage.xml", "./@line-rate", min=0.7, max=0.8)),
    Case(number("coverage.xml", "./@line-rate", min=0.8, max=1), "0.7143", "from 0.8 to 1"),
    Case(number("cover*.*", "a", min=1), "2 reports at 'cover*.*'", "one, with at least 1"),
    Case(number("none.json", "a", min=1), "no report at 'none.json'", "one, with at least 1"),
    Case(number("coverage.json", "a..b", min=1), "'.' in column 3 of the rule", "at least 1"),
    Case({"name": "nothing"}, "a rule with nothing", ONE, "nothing"),
    Case({"run": "true", "junit": "good.xml", "name": "two"}, "a rule with run and junit", ONE, "two"),
)


def furnish(work: Path) -> None:
    """The files that the cases are about."""
    (work / "good.xml").write_text(SUITE.format(""))
    (work / "bad.xml").write_text(SUITE.format('<failure message="x"/>'))
    (work / "evil.xml").write_text('<!DOCTYPE x [<!ENTITY a "b">]><testsuite>&a;</testsuite>')
    (work / "coverage.json").write_text(COVERAGE_JSON)
    (work / "coverage.xml").write_text(COVERAGE_XML)
    (work / "log.md").write_text("# Changes\n\n# 1.4\r\n")
    (work / "other.md").write_text("# Changes\n## 1.4\n")
    (work / "empty.md").write_text("")
    (work / "long.txt").write_text("x" * 70_000 + "needle" + "x" * 70_000)
    (work / "raw.bin").write_bytes(b"\xff\xfe text\xff\x00end")
    (work / "many").mkdir()
    for number in range(1001):  # More than a job may keep.
        (work / "many" / f"{number}").touch()
    with (work / "huge.bin").open("wb") as file:
        file.truncate(MAX_READ_BYTES + 1)  # A hole: nothing is on the disk.


async def looked_at(job: JobContext, *, may_go_on: bool = True) -> JobResult:
    """What the rules of this job make of a success."""

    async def go_on(_index: int, _name: str) -> bool:
        return may_go_on

    return await RuleChecker(job, StepSequence(job, {}, go_on, lambda: 60.0), lambda: 60.0).check(WELL)


@pytest.mark.proves("WST-TA3")
@pytest.mark.parametrize("cases", [COMMANDS, FILES, REPORTS], ids=["commands", "files", "reports"])
@on_loop
async def test_every_rule_holds_or_says_what_it_found_and_wanted(cases: tuple[Case, ...], tmp_path: Path) -> None:
    """All are looked at, whatever those before them say; and the job itself went well."""

    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        await asyncio.to_thread(furnish, job.layout.workspace)

        ended = await looked_at(job)

        assert ended.is_success
        assert not ended.is_valid
        assert ended.verdicts is not None
        for case, verdict in zip(cases, ended.verdicts, strict=True):
            assert verdict.is_passed is (not case.wanted), (case, verdict)
            assert case.name in ("", verdict.rule)
            if case.wanted:
                assert case.found in verdict.actual, (case, verdict)
                assert case.wanted in verdict.expected, (case, verdict)
                said = f"rule {verdict.rule}: found {verdict.actual}, wanted {verdict.expected}"
                assert any(said in line for line in leased_job.log_lines), said
        first = next(each for each in ended.verdicts if not each.is_passed)
        assert ended.summary == f"rule {first.rule}: found {first.actual}, wanted {first.expected}"

    await run_scenario(tmp_path, scenario, rules=[case.rule for case in cases])


@on_loop
async def test_rules_that_hold_change_nothing(tmp_path: Path) -> None:
    """The summary stays that of the steps."""

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        ended = await looked_at(job)

        assert (ended.is_valid, ended.summary) == (True, WELL.summary)
        assert ended.verdicts == [RuleResult(rule="true", is_passed=True, actual="exit code 0", expected="exit code 0")]

    await run_scenario(tmp_path, scenario, rules=[{"run": "true"}])


@on_loop
async def test_the_servers_rules_are_left_to_it(tmp_path: Path) -> None:
    """Only the server knows the base as it is then; a runner that guessed would be believed."""

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        ended = await looked_at(job)

        assert ended is WELL

    await run_scenario(tmp_path, scenario, rules=[{"within": ["src/**"]}, {"mergeable": True}])


@on_loop
async def test_a_rule_does_not_begin_without_a_lease(tmp_path: Path) -> None:
    """Somebody else may be at this very job by now."""

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        with pytest.raises(JobStopped):
            await looked_at(job, may_go_on=False)

        assert not (job.layout.workspace / "mine").exists()

    await run_scenario(tmp_path, scenario, rules=[{"run": "touch mine"}])


@on_loop
async def test_a_verdict_tells_no_secret(tmp_path: Path) -> None:
    """What a rule found may have one in it, and verdicts are for everybody."""

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        job.log.add_secrets(["s3cr3t-value"])

        ended = await looked_at(job)

        assert ended.verdicts is not None
        told = "".join(f"{verdict.rule} {verdict.actual} {verdict.expected}" for verdict in ended.verdicts)
        assert "s3cr3t" not in told + ended.summary

    rules = [{"result": "echo s3cr3t-value"}, {"run": "exit 1 # s3cr3t-value"}, {"files": ["s3cr3t-value"]}]
    await run_scenario(tmp_path, scenario, rules=rules)
