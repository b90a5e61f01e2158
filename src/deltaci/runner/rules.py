"""What must hold after the steps: commands, files, test reports. A rule that does not says what it found and wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.runner import junit
from deltaci.runner.artifacts import find, open_found, search
from deltaci.runner.builtins.stage import Stage
from deltaci.runner.executors import Exit
from deltaci.runner.result import Ended
from deltaci.runner.sections import VALIDATE
from deltaci.runner.steps import Steps, told
from deltaci.wire.messages import ArtifactRule, Rule

CODE: Final = "VALIDATION"
MAX_REPORTS_BYTES: Final = 128 * 1024**2
MAX_SHOWN: Final = 3


class Rules:
    """All rules of one job."""

    def __init__(self, stage: Stage, steps: Steps, left: Callable[[], float]) -> None:
        self._stage = stage
        self._steps = steps
        self._left = left

    async def check(self, ended: Ended) -> Ended:
        """How the job ended, with the first rule that does not hold; all are looked at, and told."""
        log, failure = self._stage.log, ""
        with log.section(VALIDATE, "validate"):
            for number, rule in enumerate(self._stage.spec.rules):
                name = rule.name or rule.run.strip().partition("\n")[0] or rule.junit or ", ".join(rule.files)
                try:
                    wrong = await self._wrong(rule)
                except (Refused, OSError) as error:
                    wrong = error.message if isinstance(error, Refused) else str(error)
                said = log.said(f"rule {name or number + 1}: {wrong or 'holds'}")
                log.line(said)
                failure = failure or (said if wrong else "")
        if not failure:
            return ended
        return structs.replace(ended, exit=Exit(None, None, 0.0), error_code=CODE, summary=failure)

    async def _wrong(self, rule: Rule) -> str:
        """What is wrong; empty if it holds."""
        stage, text = self._stage, self._stage.scene.text
        if sum(map(bool, (rule.run, rule.files, rule.junit))) != 1:
            raise Refused("bad_spec", "a rule has exactly one of run, files and junit")
        if rule.run:
            last = await self._steps.run_rule(text(rule.run))
            is_well = last.exit_code == 0 and not last.is_timed_out
            return "" if is_well else f"{told('the command', last)}; wanted exit code 0"
        if rule.files:
            wanted = [ArtifactRule(path_glob=text(pattern)) for pattern in rule.files]
            _, missed = await stage.transfers.work(search, stage.layout.workspace, wanted)
            missing = ", ".join(repr(each.path_glob) for each in missed)
            return f"no file matches {missing}; wanted one for each" if missing else ""
        return await stage.transfers.work(self._tests, text(rule.junit), rule.min_tests)

    def _tests(self, pattern: str, fewest: int) -> str:
        workspace = self._stage.layout.workspace
        found = find(workspace, [ArtifactRule(path_glob=pattern, type="junit")])
        if not found:
            return f"no test report matches {pattern!r}; wanted one"
        if sum(each.bytes for each in found) > MAX_REPORTS_BYTES:
            return f"the test reports have more than {MAX_REPORTS_BYTES} bytes; wanted less"
        texts: list[tuple[str, bytes]] = []
        for each in found:
            with open_found(workspace, each) as file:
                texts.append((each.path, file.read(each.bytes)))
        broken: list[str] = []
        report = junit.read(texts, lambda bad: broken.append(bad.message))
        if broken:
            return f"{broken[0]}; wanted a test report that can be read"
        if report.failed or report.errors:
            names = ", ".join(report.failed_names[:MAX_SHOWN])
            return f"{report.failed} failed and {report.errors} with errors of {report.tests} ({names}); wanted none"
        if report.tests < fewest:
            return f"{report.tests} tests; wanted at least {fewest}"
        return ""
