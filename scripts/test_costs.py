"""A pytest plugin that prints the most expensive test files, by CPU time: `make test COSTS=1`.

The CPU time of a file includes its child processes and their children, also those that still run. Servers and browsers
that several files share count for the file that used them.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

LISTED_FILES: Final = 20
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(root: int) -> float:
    """Return the CPU time of a process, of its ended children and of its living descendants."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # The process has ended.
        pid = int(file.parent.name)
        ticks[pid] = sum(map(int, fields[11:15]))
        children[int(fields[1])].append(pid)
    total, pending = 0, [root]
    while pending:
        pid = pending.pop()
        total += ticks.get(pid, 0)
        pending += children[pid]
    return total / TICKS_PER_SECOND


class CostRecorder:
    """Measure each file of tests in one pytest process, and attach its cost to the report of its last test."""

    def __init__(self) -> None:
        self._start: tuple[float, float] | None = None
        self._is_last_of_file = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Note when a file of tests begins and whether this test is its last."""
        if self._start is None:
            self._start = (time.monotonic(), tree_cpu_seconds(os.getpid()))
        self._is_last_of_file = nextitem is None or nextitem.path != item.path
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the cost of the file to the report of its last test."""
        report = yield
        if call.when == "teardown" and self._is_last_of_file and self._start is not None:
            wall, cpu = self._start
            report.user_properties.append(
                ("cost", (time.monotonic() - wall, max(0.0, tree_cpu_seconds(os.getpid()) - cpu)))
            )
            self._start = None
        return report


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each process that runs tests."""
    config.pluginmanager.register(CostRecorder())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files whose tests took the most CPU time."""
    costs: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    tests: dict[str, set[str]] = defaultdict(set)
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if not isinstance(report, pytest.TestReport):
            continue
        file = report.nodeid.partition("::")[0]
        tests[file].add(report.nodeid)
        cost: tuple[float, float] = dict(report.user_properties).get("cost", (0.0, 0.0))  # type: ignore[assignment]
        costs[file] = [spent + more for spent, more in zip(costs[file], cost, strict=True)]
    if not costs:
        return
    terminalreporter.section(f"the {LISTED_FILES} most expensive of {len(costs)} test files")
    terminalreporter.write_line("   CPU s   wall s  tests  file")
    for file, (wall, cpu) in sorted(costs.items(), key=lambda entry: -entry[1][1])[:LISTED_FILES]:
        terminalreporter.write_line(f"{cpu:8.1f} {wall:8.1f} {len(tests[file]):6}  {file}")
    wall, cpu = (sum(values) for values in zip(*costs.values(), strict=True))
    terminalreporter.write_line(f"{cpu:8.1f} {wall:8.1f} {sum(map(len, tests.values())):6}  all files")
