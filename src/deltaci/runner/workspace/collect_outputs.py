"""Collect the artifacts, test reports and output of a job after all of its processes have ended.

Rules that match no file and unreadable reports are lines in the log. Too many artifacts or an invalid output fail the
job with `ARTIFACTS` or `OUTPUT`, unless a step has failed. A server that is unreachable for too long fails it with
`UPLOAD`, which may be retried.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.core.errors import Refused, Unreachable
from deltaci.core.json_values import json_copy
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import Artifact, ArtifactRule, FailedTest, JobSpec, TestTotals
from deltaci.protocol.reports import junit
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.transfers import PATIENCE_SECONDS, Transfers
from deltaci.runner.workspace.artifacts import ArtifactFile, escape_pattern, find_files, open_file, search_files

JUNIT: Final = "junit"
MAX_REPORTS_BYTES: Final = 128 * 1024**2
MAX_LISTED_BYTES: Final = 512 * 1024  # The message `Complete` lists all artifacts and has a maximum size.
MAX_NAME_CHARS: Final = 500
MAX_MESSAGE_CHARS: Final = 500


class CollectedOutputs(msgspec.Struct, kw_only=True):
    """The artifacts, test totals and output of a job. A non-empty `error_code` makes a successful job fail."""

    artifacts: list[Artifact] = []
    tests: TestTotals | None = None
    output: Any = None
    error_code: str = ""
    summary: str = ""

    @property
    def bytes(self) -> int:
        """The total size of the artifacts."""
        return sum(artifact.bytes for artifact in self.artifacts)

    def fail(self, code: str, reason: str) -> None:
        """Record an error, unless one is recorded already."""
        if not self.error_code:
            self.error_code, self.summary = code, reason


class OutputCollector:
    """Collects the outputs of one job."""

    def __init__(self, transfers: Transfers, workspace: Path, log: JobLog) -> None:
        self._transfers = transfers
        self._workspace = workspace
        self._log = log
        self.collected = CollectedOutputs()

    async def collect(self, spec: JobSpec) -> None:
        """Collect the test reports, then the output, then the artifacts, so that the small ones come first."""
        artifact_files = await self._find_artifacts(spec.artifacts)
        await self._read_reports([artifact_file for artifact_file in artifact_files if artifact_file.type == JUNIT])
        if spec.output_path:
            await self._read_output(spec.output_path)
        await self._upload_artifacts(artifact_files)

    def _record_error(self, code: str, reason: str) -> None:
        """Log the reason, masked, and record the error."""
        reason = self._log.masked_line(reason)
        self._log.write_line(reason)
        self.collected.fail(code, reason)

    async def _find_artifacts(self, rules: list[ArtifactRule]) -> list[ArtifactFile]:
        """Return the files that match the rules, and log the rules that match none."""
        if not rules:
            return []
        try:
            matching_files, unmatched_rules = await self._transfers.run_in_thread(search_files, self._workspace, rules)
        except (Refused, OSError) as error:
            self._record_error("ARTIFACTS", f"artifacts: {_error_text(error)}")
            return []
        for rule in unmatched_rules:
            self._log.write_line(f"artifacts: no file matches {rule.path_glob!r}")
        return matching_files

    def add_outputs(self, value_by_output: dict[str, str]) -> None:
        """Add evaluated outputs to the values of the output file.

        An evaluated output replaces a value of the same name.
        """
        if not isinstance(self.collected.output, dict | None):
            self._record_error(
                "OUTPUT", "output: the file does not contain an object, so outputs cannot be added; write an object"
            )
            return
        try:
            merged_output = json_copy("it", {**(self.collected.output or {}), **value_by_output})
            if len(msgspec.json.encode(merged_output)) > wire.MAX_OUTPUT_BYTES:
                raise Refused("too_large", f"it has more than {wire.MAX_OUTPUT_BYTES} bytes; keep it as an artifact")
            self.collected.output = self._log.masked_json(merged_output)
        except Refused as refused:
            self._record_error("OUTPUT", f"output: {refused.message}")

    # -- test reports

    async def _read_reports(self, report_files: list[ArtifactFile]) -> None:
        """Parse the test reports and store their totals; log the reports that cannot be read."""
        if not report_files:
            return
        problem_messages: list[str] = []
        try:
            reports = self._open_reports(report_files, problem_messages)
            totals = await self._transfers.run_in_thread(
                junit.read, reports, lambda refused: problem_messages.append(refused.message)
            )
        except (Refused, OSError) as error:
            self._log.write_line(f"test reports: {_error_text(error)}")
            return
        finally:
            for problem in problem_messages:
                self._log.write_line(problem)
        if len(problem_messages) == len(report_files):
            return  # No report is readable, which is not the same as no tests.
        failures = zip(totals.failed_names, totals.failed_messages, strict=True)
        self.collected.tests = TestTotals(
            total=totals.tests,
            passed=totals.passed,
            failed=totals.failed,
            errors=totals.errors,
            skipped=totals.skipped,
            flaky=totals.flaky,
            seconds=totals.seconds,
            failures=[
                FailedTest(
                    name=self._log.masked_line(test_name, MAX_NAME_CHARS),
                    message=self._log.masked_line(failure_message, MAX_MESSAGE_CHARS),
                )
                for test_name, failure_message in list(failures)[: wire.MAX_FAILED_TESTS]
            ],
        )
        self._log.write_line(
            f"tests: {totals.tests}, passed {totals.passed}, failed {totals.failed}, errors {totals.errors}, "
            f"skipped {totals.skipped}, flaky {totals.flaky}"
        )

    def _open_reports(
        self, report_files: list[ArtifactFile], problem_messages: list[str]
    ) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of each report; append a message to `problem_messages` for each that is too large."""
        remaining_bytes = MAX_REPORTS_BYTES
        for report_file in report_files:
            if report_file.bytes > min(remaining_bytes, junit.MAX_REPORT_BYTES):
                problem_messages.append(
                    f"the test report {report_file.path} is too large to be read: {report_file.bytes} bytes"
                )
                continue
            remaining_bytes -= report_file.bytes
            with open_file(self._workspace, report_file) as opened_file:
                yield report_file.path, opened_file.read(report_file.bytes)

    # -- output

    async def _read_output(self, output_path: str) -> None:
        """Store the value in the output file, with its secrets masked."""
        try:
            output_value = await self._transfers.run_in_thread(self._load_output, output_path)
            self.collected.output = self._log.masked_json(output_value)
        except (Refused, OSError) as error:
            self._record_error("OUTPUT", f"output {output_path!r}: {_error_text(error)}")

    def _load_output(self, output_path: str) -> Any:
        """Return the value in the output file, in the form in which the server stores it."""
        matching_files = find_files(self._workspace, [ArtifactRule(path_glob=escape_pattern(output_path))])
        if len(matching_files) != 1 or matching_files[0].path != "/".join(
            path_part for path_part in output_path.split("/") if path_part not in ("", ".")
        ):
            raise Refused("not_found", "the file does not exist in the workspace; let a step write it")
        if matching_files[0].bytes > wire.MAX_OUTPUT_BYTES:
            raise Refused(
                "too_large",
                f"it has {matching_files[0].bytes} bytes, at most {wire.MAX_OUTPUT_BYTES}; keep it as an artifact",
            )
        with open_file(self._workspace, matching_files[0]) as opened_file:
            content = opened_file.read(wire.MAX_OUTPUT_BYTES)
        try:
            return json_copy("it", wire.decoder(object)(content))
        except msgspec.DecodeError as error:
            raise Refused("bad_request", f"it is not JSON: {error}") from None

    # -- artifacts

    async def _upload_artifacts(self, artifact_files: list[ArtifactFile]) -> None:
        """Upload the files and add each to the collected artifacts."""
        listed_bytes = 0
        for artifact_file in artifact_files:
            if self._log.masked(artifact_file.path) != artifact_file.path:
                self._record_error(
                    "ARTIFACTS", f"artifact {artifact_file.path!r}: its name contains a secret; rename it"
                )
                continue
            if artifact_file.bytes > wire.MAX_ARTIFACT_BYTES:
                max_bytes = wire.MAX_ARTIFACT_BYTES
                self._record_error(
                    "ARTIFACTS",
                    f"artifact {artifact_file.path!r}: it has {artifact_file.bytes} bytes, at most {max_bytes}; "
                    "split it",
                )
                continue
            try:
                uploaded = await self._transfers.upload(
                    f"artifacts/{quote(artifact_file.path)}",
                    lambda artifact_file=artifact_file: open_file(self._workspace, artifact_file),  # type: ignore[misc]
                    artifact_file.bytes,
                    PATIENCE_SECONDS,
                )
            except Refused as refused:
                self._record_error("ARTIFACTS", f"artifact {artifact_file.path!r}: {refused.message}")
                continue
            except Unreachable as error:
                self._record_error("UPLOAD", f"artifact {artifact_file.path!r}: {error}")
                return
            artifact = Artifact(
                type=artifact_file.type, uri=uploaded.uri, name=artifact_file.path, bytes=uploaded.bytes
            )
            listed_bytes += len(wire.encode(artifact))
            if listed_bytes > MAX_LISTED_BYTES:
                self._record_error(
                    "ARTIFACTS", f"artifacts up to {artifact_file.path!r} exceed what a result can list; pack them"
                )
                return
            self.collected.artifacts = [*self.collected.artifacts, artifact]
        if artifact_files:
            self._log.write_line(
                f"artifacts: {len(self.collected.artifacts)} of {len(artifact_files)}, {self.collected.bytes} bytes"
            )


def _error_text(error: Exception) -> str:
    """Return the message of an error without its type."""
    if isinstance(error, Refused):
        return error.message
    return getattr(error, "strerror", None) or str(error)
