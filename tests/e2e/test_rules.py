"""Rules from the file to the job's error, through real processes: each kind, once as it should be and once not."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from deltaci.core import attempt, job
from deltaci.core.job import Job, JobSpec
from tests.e2e.deployment import deployed, on_loop
from tests.e2e.test_pipelines import started
from tests.pipeline.planning.planned import by_name, plan
from tests.runner.cells import needs
from tests.runner.steps.test_report_values import COVERAGE_JSON, COVERAGE_XML

FILE = r"""
jobs:
  run-good: {steps: [touch built], validate: test -e built}
  run-bad: {steps: [touch built], validate: {name: tidy, run: exit 3}}
  files-good: {steps: [echo '1.4 is here' > log.md], validate: {files: '*.md', contains: '^1\.[0-9]'}}
  files-bad: {steps: [echo '2.0 is here' > log.md], validate: {name: told, files: '*.md', contains: '^1\.[0-9]'}}
  junit-good: {steps: [echo "$SUITE" > r.xml], validate: {junit: r.xml, min-tests: 1}}
  junit-bad: {steps: [echo "$SUITE" > r.xml], validate: {name: tests, junit: r.xml, min-tests: 2}}
  json-good:
    steps: [echo "$JSON" > c.json]
    validate: {number: {report: c.json, at: totals.percent_covered, min: 71}}
  json-bad:
    steps: [echo "$JSON" > c.json]
    validate: {name: coverage, number: {report: c.json, at: totals.percent_covered, min: 80}}
  xml-good: {steps: [echo "$XML" > c.xml], validate: {number: {report: c.xml, at: ./@line-rate, min: 0.7, max: 1}}}
  xml-bad: {steps: [echo "$XML" > c.xml], validate: {name: lines, number: {report: c.xml, at: ./@line-rate, max: 0.7}}}
  result-good:
    steps: ['true']
    validate:
      - result: echo judging; echo '{"passed":true}'
  result-bad:
    steps: ['true']
    validate:
      - name: todos
        result: echo '{"passed":false,"found":"3","wanted":"0"}'
  all-bad:
    steps: ['true']
    validate: [{name: one, run: exit 1}, {name: two, run: 'true'}, {name: three, files: [none]}]
"""
ENV = {"SUITE": '<testsuite><testcase name="a"/></testsuite>', "JSON": COVERAGE_JSON, "XML": COVERAGE_XML}
WANTED = {
    "run": "rule tidy: found exit code 3, wanted exit code 0",
    "files": r"rule told: found none in 'log.md', wanted a line with '^1\\.[0-9]' in each file",
    "junit": "rule tests: found 1 tests, wanted at least 2 tests, and none that failed",
    "json": "rule coverage: found 71.42857142857143, wanted at least 80",
    "xml": "rule lines: found 0.7143, wanted at most 0.7",
    "result": "rule todos: found 3, wanted 0",
    "all": "rule one: found exit code 1, wanted exit code 0;"
    " rule three: found no file for 'none', wanted a file for each pattern",
}


def jobs(executor: str) -> list[JobSpec]:
    """Those of the file, as a planner makes them."""
    made = by_name(plan(FILE, source=None)).values()
    return [structs.replace(each.spec, work={**each.spec.work, "executor": executor, "env": ENV}) for each in made]


@pytest.mark.proves("WST-TA3", "WST-TG8", "WST-TG9", "WST-TA9")
@pytest.mark.parametrize("executor", ["process", "sandbox"])
@on_loop
async def test_each_kind_of_rule_holds_or_fails_its_job(executor: str, tmp_path: Path) -> None:
    """Whoever reads the job's error knows what to do; its log and its attempt say the same."""
    needs(executor)
    async with deployed(tmp_path) as place:
        place.start_runner("r1", "--slots", "4")
        specs = jobs(executor)
        await started(place, "r", *specs)

        for spec in specs:
            kind, _, how = spec.name.partition("-")
            await place.until(f"r/{spec.name}", lambda event: event.to in job.TERMINAL)
            ended, record = await place.outcome(f"r/{spec.name}.1"), await place.store.find(f"r/{spec.name}")

            assert isinstance(record, Job)
            assert ended.state == attempt.SUCCEEDED, place.log_of(ended)
            if how == "good":
                assert record.state == job.SUCCEEDED, (record.last_error, place.log_of(ended))
                assert ended.verdict == attempt.Verdict(is_passed=True)
                continue
            assert record.state == job.FAILED, place.log_of(ended)
            assert record.last_error is not None
            assert (record.last_error.code, record.last_error.line) == ("VALIDATION_FAILED", WANTED[kind])
            assert all(line in place.log_of(ended) for line in WANTED[kind].split("; "))
            assert ended.report["summary"] == WANTED[kind].split("; ")[0]
            assert len(ended.report["verdicts"]) == len(spec.work["rules"])
