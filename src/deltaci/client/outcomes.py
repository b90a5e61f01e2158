"""What became of a run, asked in one place."""

from __future__ import annotations

from typing import Final

from deltaci.wire import api

GOOD: Final = "SUCCEEDED"


def is_over(run: api.Run) -> bool:
    """Whether its outcome stands."""
    return bool(run.conclusion)


def is_good(run: api.Run) -> bool:
    """Whether that outcome is a success."""
    return is_over(run) and run.status == GOOD
