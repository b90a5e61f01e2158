"""How steps end, as a job tells it."""

from __future__ import annotations

import pytest

from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import Exit


@pytest.mark.parametrize(
    ("exit", "error_code", "is_success"),
    [
        (Exit(0, None, 1.0), "", True),
        (Exit(1, None, 1.0), "", False),
        (Exit(None, 9, 1.0), "", False),
        (Exit(0, None, 1.0, is_timed_out=True), "", False),
        (Exit(0, None, 1.0), "OUTPUT", False),
    ],
)
def test_only_a_zero_in_time_without_trouble_is_a_success(exit: Exit, error_code: str, is_success: bool) -> None:
    """A step that was told to end because it took too long may say 0; that must not be said to the server."""
    assert JobResult(exit=exit, steps=[], error_code=error_code).is_success is is_success
