"""Results of validation rules, from a runner's message to the job: a failed or missing result fails the job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltaci.core import attempt, job
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job
from deltaci.protocol.messages import Complete, JobSpec, RuleResult, ValidationRule
from deltaci.protocol.reports.rule_results import MAX_DETAILS_CHARS, validation_verdict
from tests.contract.backends import on_loop
from tests.contract.test_runs import planned
from tests.server.site import OpenSite
from tests.support.lab import task

RULES = [{"run": "make check"}, {"files": ["dist/*"]}]
GOOD = {"rule": "make check", "is_passed": True}
BAD = {"rule": "coverage", "is_passed": False, "found": "71.4", "wanted": "at least 80"}
COVERAGE = "rule coverage: found 71.4, wanted at least 80"
SILENCE = "the runner reported results for {} of 2 validation rules; update the runner"


@pytest.mark.proves("WST-TG8", "WST-TG9", "WST-TA3", "WST-TA9")
@pytest.mark.parametrize(
    ("said", "state", "details"),
    [
        ({"verdicts": [GOOD, GOOD]}, job.SUCCEEDED, ""),
        ({"verdicts": [GOOD, BAD]}, job.FAILED, COVERAGE),
        ({"verdicts": [BAD, BAD]}, job.FAILED, f"{COVERAGE}; {COVERAGE}"),
        ({}, job.FAILED, SILENCE.format(0)),
        ({"verdicts": []}, job.FAILED, SILENCE.format(0)),
        ({"verdicts": [GOOD]}, job.FAILED, SILENCE.format(1)),
        ({"is_skipped": True}, job.FAILED, SILENCE.format(0)),
    ],
)
@on_loop
async def test_a_job_is_valid_only_with_its_runners_results(
    site: OpenSite, said: dict[str, Any], state: str, details: str
) -> None:
    """The execution succeeded in each case; a runner that reports no results has not shown that the rules hold."""
    async with site() as here:
        runner = await here.runner()
        await planned(here.server, task("build", work={"steps": ["make"], "rules": RULES}, max_attempts=3))
        lease = await runner.take()

        reply = await lease.send("Complete", **said)

        built, ended = await here.server.find("r1/build", Job), await here.server.find("r1/build.1", Attempt)
        assert reply.body["accepted"] is True
        assert (ended.state, built.state, built.attempts) == (attempt.SUCCEEDED, state, 1)
        assert ended.verdict == attempt.Verdict(is_passed=not details, details=details)
        assert ended.report.get("verdicts") == (said.get("verdicts") or None)
        if details:
            assert built.last_error is not None
            assert (built.last_error.code, built.last_error.line) == ("VALIDATION_FAILED", details)


@on_loop
async def test_a_broken_rule_fails_an_attempt_of_the_plain_queue(site: OpenSite) -> None:
    """There is no job whose validation could fail. A repeated message gets the same response."""
    async with site() as here:
        runner = await here.runner()
        await here.server.enqueue("q1", spec={"steps": ["make"], "rules": RULES})
        lease = await runner.take()

        replies = [await lease.send("Complete", verdicts=[GOOD, BAD]) for _ in range(2)]

        ended = await here.server.find("q1", Attempt)
        assert [reply.body["accepted"] for reply in replies] == [True, True]
        assert (ended.state, ended.error and ended.error.line) == (attempt.FAILED, COVERAGE)


@pytest.mark.parametrize(
    ("spec", "said", "wanted"),
    [
        (JobSpec(), {}, None),
        (JobSpec(rules=[ValidationRule(within=["src/**"]), ValidationRule(mergeable=True)]), {}, None),
        (JobSpec(rules=[ValidationRule(run="a")], condition="false"), {"is_skipped": True}, None),
        (
            JobSpec(rules=[ValidationRule(run="a"), ValidationRule(mergeable=True)]),
            {"verdicts": [msgspec.convert(GOOD, RuleResult)]},
            True,
        ),
        (JobSpec(), {"verdicts": [msgspec.convert(BAD, RuleResult)]}, False),
        (JobSpec(rules=[ValidationRule(run="a")], condition="false"), {}, False),
    ],
)
def test_the_verdict_on_a_success(spec: JobSpec, said: dict[str, Any], wanted: bool | None) -> None:
    """The runner need not report rules that the server checks, nor those of a skipped job."""
    found = validation_verdict(Complete(lease_id="a.1.b", runner_id="r", status="SUCCEEDED", exit_code=0, **said), spec)

    assert (None if found is None else found.is_passed) is wanted


def test_the_details_of_a_verdict_are_one_short_line() -> None:
    """A dishonest runner must not be able to write many lines or control characters."""
    each = RuleResult(rule="a\x1b[31m\nb" * 100, is_passed=False, actual="c" * 2000, expected="")
    said = Complete(lease_id="a.1.b", runner_id="r", status="SUCCEEDED", exit_code=0, verdicts=[each] * 100)

    found = validation_verdict(said, JobSpec())

    assert found is not None
    assert len(found.details) <= MAX_DETAILS_CHARS
    assert found.details.isprintable()
