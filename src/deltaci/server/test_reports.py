"""Test reports of finished attempts, parsed on request and cached.

A record stores only the totals and the first failures of an attempt; the report files have all tests. The files are
untrusted, so their size, the number of tests and the size of the cache are limited.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.text import plain_line
from deltaci.protocol.reports.junit import (
    MAX_MESSAGE_CHARACTERS,
    MAX_NAME_CHARACTERS,
    MAX_OUTPUT_CHARACTERS,
    TestCase,
    read_cases,
)
from deltaci.server.disk import DiskThreads
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStore

JUNIT: Final = "junit"
MAX_BYTES: Final = 16 * 1024 * 1024  # The limit for all reports of an attempt.
MAX_TESTS: Final = 50_000  # The limit for an attempt.
MAX_CACHED: Final = 100_000  # The number of cached tests of recently requested attempts.


class ParsedReports(msgspec.Struct, frozen=True):
    """The tests of an attempt's reports, and messages about reports that could not be read."""

    cases: tuple[TestCase, ...] = ()
    problems: tuple[str, ...] = ()


class TestReports:
    """Parses and caches the test reports of attempts, one attempt at a time because parsing uses much CPU time."""

    __test__ = False  # Not a test class, despite its name.

    def __init__(self) -> None:
        self._reports_by_lease: OrderedDict[tuple[str, int], ParsedReports] = OrderedDict()
        self._lock = asyncio.Lock()

    async def read(self, attempt: Attempt, lease_number: int, blobs: BlobStore, disk: DiskThreads) -> ParsedReports:
        """Return the parsed reports that a finished attempt uploaded under a lease, from the cache if possible."""
        report_key = (attempt.id, lease_number)
        async with self._lock:
            reports = self._reports_by_lease.pop(report_key, None)
            if reports is None:
                reports = await disk.run(lambda: read_reports(blobs, attempt, lease_number))
            self._reports_by_lease[report_key] = reports
            cached_case_count = sum(len(cached_reports.cases) for cached_reports in self._reports_by_lease.values())
            while cached_case_count > MAX_CACHED and len(self._reports_by_lease) > 1:
                _, evicted_reports = self._reports_by_lease.popitem(last=False)
                cached_case_count -= len(evicted_reports.cases)
        return reports


def read_reports(blobs: BlobStore, attempt: Attempt, lease_number: int) -> ParsedReports:
    """Parse the reports that an attempt uploaded under a lease. An unreadable report becomes a problem."""
    problem_messages: list[str] = []
    files = _read_files(blobs, attempt, lease_number, problem_messages)
    try:
        cases = read_cases(files, lambda error: problem_messages.append(error.message))
    except Refused as refused:
        return ParsedReports((), (*problem_messages, refused.message))
    if len(cases) > MAX_TESTS:
        return ParsedReports(
            (), (*problem_messages, f"there are {len(cases)} tests; at most {MAX_TESTS} of a job are listed")
        )
    return ParsedReports(tuple(map(_sanitize, cases)), tuple(problem_messages))


def _sanitize(test_case: TestCase) -> TestCase:
    """Return the test without control characters and bidirectional marks, its texts shortened as runners do."""
    output = "\n".join(plain_line(line, MAX_OUTPUT_CHARACTERS) for line in test_case.output.splitlines())
    message = plain_line(test_case.message, MAX_MESSAGE_CHARACTERS)
    return msgspec.structs.replace(
        test_case, name=plain_line(test_case.name, MAX_NAME_CHARACTERS), message=message, output=output
    )


def _read_files(
    blobs: BlobStore, attempt: Attempt, lease_number: int, problem_messages: list[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield path and contents of each uploaded report. For a skipped report, append a message to `problem_messages`."""
    remaining_bytes = MAX_BYTES
    for path in report_paths(attempt.report):
        try:
            blob_key = keys.artifact_key(attempt.tenant, attempt.id, lease_number, path)
        except Refused:
            problem_messages.append(f"the test report {path[:200]} has a name that cannot be stored")
            continue
        blob_stat = blobs.stat(blob_key)
        if blob_stat is None:
            problem_messages.append(f"the test report {path[:200]} is no longer stored")
        elif blob_stat.bytes > remaining_bytes:
            problem_messages.append(
                f"the test report {path[:200]} has {blob_stat.bytes} bytes; at most {MAX_BYTES} are read here"
            )
        else:
            remaining_bytes -= blob_stat.bytes
            yield path, b"".join(keys.read_all(blobs, blob_key))


def report_paths(report: Any) -> list[str]:
    """Return the paths of the artifacts of type `junit` in an attempt's report."""
    artifacts = report.get("artifacts") if isinstance(report, dict) else None
    return [
        str(artifact.get("name", ""))
        for artifact in artifacts or ()
        if isinstance(artifact, dict) and artifact.get("type") == JUNIT
    ]
