"""What a job leaves behind: files to keep, test reports, its output. Collected when nobody of it runs any more.

Rules that match nothing and reports that cannot be read are lines in the log. Too much, or an output that is none, is
the job's own mistake: it fails with `ARTIFACTS` or `OUTPUT`, unless its steps failed before. A server that keeps
nothing for too long is not: then it fails with `UPLOAD`, and may be tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.core.errors import Refused
from deltaci.engine.validation import json_copy
from deltaci.protocol import junit
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import Artifact, ArtifactRule, FailedTest, JobSpec, TestTotals
from deltaci.runner.client import Unreachable
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.transfers import PATIENCE_SECONDS, Transfers
from deltaci.runner.workspace.artifacts import ArtifactFile, escape_pattern, find_files, open_file, search_files

JUNIT: Final = "junit"
MAX_REPORTS_BYTES: Final = 128 * 1024**2
MAX_LISTED_BYTES: Final = 512 * 1024  # `Complete` names every artifact, and has an end too.
MAX_NAME: Final = 500
MAX_MESSAGE: Final = 500


class CollectedOutputs(msgspec.Struct, kw_only=True):
    """What was brought in. `error_code` says that something of it makes a success a failure."""

    artifacts: list[Artifact] = []
    tests: TestTotals | None = None
    output: Any = None
    error_code: str = ""
    summary: str = ""

    @property
    def bytes(self) -> int:
        """Of all artifacts."""
        return sum(each.bytes for each in self.artifacts)

    def fail(self, code: str, why: str) -> None:
        """The first reason is the one that is told."""
        if not self.error_code:
            self.error_code, self.summary = code, why


class OutputCollector:
    """Collects what one job left."""

    def __init__(self, transfers: Transfers, workspace: Path, log: JobLog) -> None:
        self._transfers = transfers
        self._workspace = workspace
        self._log = log
        self.collected = CollectedOutputs()

    async def collect(self, spec: JobSpec) -> None:
        """All of it, in this order: reports and output are small and tell most."""
        found = await self._find(spec.artifacts)
        await self._read_reports([each for each in found if each.type == JUNIT])
        if spec.output_path:
            await self._read_output(spec.output_path)
        await self._send(found)

    def _fail(self, code: str, why: str) -> None:
        why = self._log.masked_line(why)
        self._log.write_line(why)
        self.collected.fail(code, why)

    async def _find(self, rules: list[ArtifactRule]) -> list[ArtifactFile]:
        if not rules:
            return []
        try:
            found, missed = await self._transfers.run_in_thread(search_files, self._workspace, rules)
        except (Refused, OSError) as error:
            self._fail("ARTIFACTS", f"artifacts: {_why(error)}")
            return []
        for rule in missed:
            self._log.write_line(f"artifacts: no file matches {rule.path_glob!r}")
        return found

    def add_outputs(self, outputs: dict[str, str]) -> None:
        """What expressions say that the job's output is, beside what its file does."""
        if not isinstance(self.collected.output, dict | None):
            self._fail("OUTPUT", "output: the file has no object, so outputs cannot be put into it; write one")
            return
        try:
            both = json_copy("it", {**(self.collected.output or {}), **outputs})
            if len(msgspec.json.encode(both)) > wire.MAX_OUTPUT_BYTES:
                raise Refused("too_large", f"it has more than {wire.MAX_OUTPUT_BYTES} bytes; keep it as an artifact")
            self.collected.output = self._log.masked_json(both)
        except Refused as refused:
            self._fail("OUTPUT", f"output: {refused.message}")

    # -- test reports

    async def _read_reports(self, found: list[ArtifactFile]) -> None:
        if not found:
            return
        troubles: list[str] = []
        try:
            reports = self._reports(found, troubles)
            report = await self._transfers.run_in_thread(junit.read, reports, lambda bad: troubles.append(bad.message))
        except (Refused, OSError) as error:
            self._log.write_line(f"test reports: {_why(error)}")
            return
        finally:
            for trouble in troubles:
                self._log.write_line(trouble)
        if len(troubles) == len(found):
            return  # Nothing is known, which is not the same as no tests.
        failures = zip(report.failed_names, report.failed_messages, strict=True)
        self.collected.tests = TestTotals(
            total=report.tests,
            passed=report.passed,
            failed=report.failed,
            errors=report.errors,
            skipped=report.skipped,
            flaky=report.flaky,
            seconds=report.seconds,
            failures=[
                FailedTest(
                    name=self._log.masked_line(name, MAX_NAME), message=self._log.masked_line(message, MAX_MESSAGE)
                )
                for name, message in list(failures)[: wire.MAX_FAILED_TESTS]
            ],
        )
        self._log.write_line(
            f"tests: {report.tests}, passed {report.passed}, failed {report.failed}, errors {report.errors}, "
            f"skipped {report.skipped}, flaky {report.flaky}"
        )

    def _reports(self, found: list[ArtifactFile], troubles: list[str]) -> Iterator[tuple[str, bytes]]:
        left = MAX_REPORTS_BYTES
        for each in found:
            if each.bytes > min(left, junit.MAX_REPORT_BYTES):
                troubles.append(f"the test report {each.path} is too large to be read: {each.bytes} bytes")
                continue
            left -= each.bytes
            with open_file(self._workspace, each) as file:
                yield each.path, file.read(each.bytes)

    # -- output

    async def _read_output(self, path: str) -> None:
        try:
            value = await self._transfers.run_in_thread(self._output, path)
            self.collected.output = self._log.masked_json(value)
        except (Refused, OSError) as error:
            self._fail("OUTPUT", f"output {path!r}: {_why(error)}")

    def _output(self, path: str) -> Any:
        """The value in the file, as the server will take it."""
        found = find_files(self._workspace, [ArtifactRule(path_glob=escape_pattern(path))])
        if len(found) != 1 or found[0].path != "/".join(part for part in path.split("/") if part not in ("", ".")):
            raise Refused("not_found", "there is no such file in the workspace; let a step write it")
        if found[0].bytes > wire.MAX_OUTPUT_BYTES:
            raise Refused(
                "too_large", f"it has {found[0].bytes} bytes, at most {wire.MAX_OUTPUT_BYTES}; keep it as an artifact"
            )
        with open_file(self._workspace, found[0]) as file:
            data = file.read(wire.MAX_OUTPUT_BYTES)
        try:
            return json_copy("it", wire.decoder(object)(data))
        except msgspec.DecodeError as error:
            raise Refused("bad_request", f"it is not JSON: {error}") from None

    # -- artifacts

    async def _send(self, found: list[ArtifactFile]) -> None:
        listed = 0
        for each in found:
            if self._log.masked(each.path) != each.path:
                self._fail("ARTIFACTS", f"artifact {each.path!r}: its name has a secret in it; rename it")
                continue
            if each.bytes > wire.MAX_ARTIFACT_BYTES:
                most = wire.MAX_ARTIFACT_BYTES
                self._fail("ARTIFACTS", f"artifact {each.path!r}: it has {each.bytes} bytes, at most {most}; split it")
                continue
            try:
                kept = await self._transfers.upload(
                    f"artifacts/{quote(each.path)}",
                    lambda each=each: open_file(self._workspace, each),  # type: ignore[misc]
                    each.bytes,
                    PATIENCE_SECONDS,
                )
            except Refused as refused:
                self._fail("ARTIFACTS", f"artifact {each.path!r}: {refused.message}")
                continue
            except Unreachable as error:
                self._fail("UPLOAD", f"artifact {each.path!r}: {error}")
                return
            artifact = Artifact(type=each.type, uri=kept.uri, name=each.path, bytes=kept.bytes)
            listed += len(wire.encode(artifact))
            if listed > MAX_LISTED_BYTES:
                self._fail("ARTIFACTS", f"artifacts up to {each.path!r} are more than a result can name; pack them")
                return
            self.collected.artifacts = [*self.collected.artifacts, artifact]
        if found:
            self._log.write_line(
                f"artifacts: {len(self.collected.artifacts)} of {len(found)}, {self.collected.bytes} bytes"
            )


def _why(error: Exception) -> str:
    if isinstance(error, Refused):
        return error.message
    return getattr(error, "strerror", None) or str(error)
