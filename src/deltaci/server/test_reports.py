"""Test reports that jobs left behind, read test by test when somebody asks, and remembered for a while.

A record keeps only the totals and the first failures of an attempt; the files have all of it. They are a stranger's:
what is read of them is bounded, in bytes, in tests and in how much of it is remembered.
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
from deltaci.protocol.junit import (
    MAX_MESSAGE_CHARACTERS,
    MAX_NAME_CHARACTERS,
    MAX_OUTPUT_CHARACTERS,
    TestCase,
    read_cases,
)
from deltaci.server.disk import Disk
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStore

JUNIT: Final = "junit"
MAX_BYTES: Final = 16 * 1024 * 1024  # Of all reports of an attempt.
MAX_TESTS: Final = 50_000  # Of an attempt.
MAX_REMEMBERED: Final = 100_000  # Tests, of all attempts that were looked at last.


class Reported(msgspec.Struct, frozen=True):
    """All tests of an attempt; or what could be read, and why not all."""

    cases: tuple[TestCase, ...] = ()
    troubles: tuple[str, ...] = ()


class TestReports:
    """Reads one attempt's reports at a time: to read them is work for a processor, and others need it, too."""

    __test__ = False  # It is none, whatever its name begins with.

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], Reported] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, attempt: Attempt, lease_number: int, blobs: BlobStore, disk: Disk) -> Reported:
        """The tests of an attempt that told of any. It is over, so they never change."""
        key = (attempt.id, lease_number)
        async with self._turn:
            found = self._known.pop(key, None)
            if found is None:
                found = await disk.do(lambda: read_reports(blobs, attempt, lease_number))
            self._known[key] = found
            left = sum(len(each.cases) for each in self._known.values())
            while left > MAX_REMEMBERED and len(self._known) > 1:
                _, gone = self._known.popitem(last=False)
                left -= len(gone.cases)
        return found


def read_reports(blobs: BlobStore, attempt: Attempt, lease_number: int) -> Reported:
    """Every test of the reports that the attempt left behind."""
    troubles: list[str] = []
    files = _files(blobs, attempt, lease_number, troubles)
    try:
        cases = read_cases(files, lambda bad: troubles.append(bad.message))
    except Refused as refused:
        return Reported((), (*troubles, refused.message))
    if len(cases) > MAX_TESTS:
        return Reported((), (*troubles, f"there are {len(cases)} tests; at most {MAX_TESTS} of a job are listed"))
    return Reported(tuple(map(_safe, cases)), tuple(troubles))


def _safe(case: TestCase) -> TestCase:
    """Nothing in it that a terminal would obey, or that turns a line around; names as runners report them."""
    output = "\n".join(plain_line(line, MAX_OUTPUT_CHARACTERS) for line in case.output.splitlines())
    message = plain_line(case.message, MAX_MESSAGE_CHARACTERS)
    return msgspec.structs.replace(
        case, name=plain_line(case.name, MAX_NAME_CHARACTERS), message=message, output=output
    )


def _files(blobs: BlobStore, attempt: Attempt, lease_number: int, troubles: list[str]) -> Iterator[tuple[str, bytes]]:
    left = MAX_BYTES
    for path in report_paths(attempt.report):
        try:
            key = keys.artifact_key(attempt.tenant, attempt.id, lease_number, path)
        except Refused:
            troubles.append(f"the test report {path[:200]} has a name under which nothing is kept")
            continue
        stored = blobs.stat(key)
        if stored is None:
            troubles.append(f"the test report {path[:200]} is no longer kept")
        elif stored.bytes > left:
            troubles.append(f"the test report {path[:200]} has {stored.bytes} bytes; at most {MAX_BYTES} are read here")
        else:
            left -= stored.bytes
            yield path, b"".join(keys.read_all(blobs, key))


def report_paths(report: Any) -> list[str]:
    """Which of the artifacts that an attempt told of are test reports."""
    told = report.get("artifacts") if isinstance(report, dict) else None
    return [str(each.get("name", "")) for each in told or () if isinstance(each, dict) and each.get("type") == JUNIT]
