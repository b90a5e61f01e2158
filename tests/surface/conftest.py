"""The histories of the scenarios, each played once per process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.surface.scenarios import SCENARIOS
from tests.surface.stage import History, play

Histories = Callable[[str], History]


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Return a function that returns the history of a scenario, and plays it if no test has asked for it before."""
    played: dict[str, History] = {}

    def history(name: str) -> History:
        if name not in played:
            played[name] = play(SCENARIOS[name], tmp_path_factory.mktemp(name))
        return played[name]

    return history
