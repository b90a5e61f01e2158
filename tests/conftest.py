"""What the whole test run shares: figures that tests measure are shown at its end."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print every figure that a test recorded with `record_property("figure", text)`."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    figures = [str(value) for report in reports for name, value in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("figures")
        for figure in sorted(figures):
            terminalreporter.write_line(figure)
