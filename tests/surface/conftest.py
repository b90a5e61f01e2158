"""The histories of the scenarios, each played once for all processes of pytest-xdist."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.surface.scenarios import SCENARIOS
from tests.surface.stage import History, play

Histories = Callable[[str], History]


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Return a function that returns the history of a scenario, and plays it if no process has asked for it before."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # The folder of this run, which has a folder for each process.
    loaded: dict[str, History] = {}

    def history(name: str) -> History:
        if name not in loaded:
            loaded[name] = _load_or_play(name, folder / f"surface-{name}.pickle", tmp_path_factory)
        return loaded[name]

    return history


def _load_or_play(name: str, file: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    """Return the history in this file, which the first process writes while it holds the lock on the file."""
    with file.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        if pickled := stream.read():
            played: History = pickle.loads(pickled)
        else:
            played = play(SCENARIOS[name], tmp_path_factory.mktemp(name))
            stream.write(pickle.dumps(played))
        return played
