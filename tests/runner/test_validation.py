"""What must hold after the steps: a rule that does not names itself, what it found and what it wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaci.core.failures import Facts, classify
from deltaci.runner.builtins.stage import Stage
from deltaci.runner.executors import Exit
from deltaci.runner.result import Ended
from deltaci.runner.rules import Rules
from deltaci.runner.steps import Steps
from tests.contract.places import on_loop
from tests.runner.desk import Desk
from tests.runner.stages import on_stage

REPORT = '<testsuite><testcase name="a"/><testcase name="b">{}</testcase></testsuite>'


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ({"run": "test -e good.xml"}, ""),
        ({"run": "exit 4", "name": "size"}, "rule size: the command: exit code 4; wanted exit code 0"),
        ({"run": "echo ${{ github.repository }} | grep -q acme"}, ""),
        ({"files": ["*.xml", "no/*.whl"]}, "rule *.xml, no/*.whl: no file matches 'no/*.whl'; wanted one for each"),
        ({"files": ["*.xml"]}, ""),
        ({"junit": "good.xml", "min_tests": 2}, ""),
        ({"junit": "good.xml", "min_tests": 3}, "rule good.xml: 2 tests; wanted at least 3"),
        ({"junit": "bad.xml"}, "rule bad.xml: 1 failed and 0 with errors of 2 (b); wanted none"),
        ({"junit": "none*.xml"}, "rule none*.xml: no test report matches 'none*.xml'; wanted one"),
        ({"junit": "evil.xml"}, "wanted a test report that can be read"),
        ({"files": ["/etc/passwd"]}, "absolute"),
        ({"name": "nothing"}, "rule nothing: a rule has exactly one of run, files and junit"),
    ],
)
@on_loop
async def test_a_rule_holds_or_says_why_not(rule: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    async def story(stage: Stage, desk: Desk) -> None:
        work = stage.layout.workspace
        (work / "good.xml").write_text(REPORT.format(""))
        (work / "bad.xml").write_text(REPORT.format('<failure message="x"/>'))
        (work / "evil.xml").write_text('<!DOCTYPE x [<!ENTITY a "b">]><testsuite>&a;</testsuite>')

        async def go_on(_index: int, _name: str) -> bool:
            return True

        steps = Steps(stage, {}, go_on, lambda: 60.0)
        well = Ended(exit=Exit(0, None, 0.0), steps=[])
        ended = await Rules(stage, steps, lambda: 60.0).check(well)

        assert ended.is_success is (not wanted)
        assert wanted in ended.summary
        assert ended.error_code == ("VALIDATION" if wanted else "")
        assert any("rule" in line for line in desk.said)

    await on_stage(tmp_path, story, rules=[rule])


def test_a_rule_that_does_not_hold_is_the_authors_mistake() -> None:
    """Whatever the log says: trying again would find the same."""
    failure = classify(Facts(error_code="VALIDATION", log_tail=("Connection reset by peer",)))

    assert (failure.failure_class, failure.is_retryable) == ("USER", False)
