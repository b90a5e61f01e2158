"""Fixtures of the tests of the command line: one server per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.terminal import Terminal
from tests.client.hosted import Hosted, Player


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Provide a terminal and its server."""
    folder = tmp_path_factory.mktemp("terminal")
    with Hosted(folder / ".state") as hosted:
        yield Terminal(folder, hosted)


@pytest.fixture
def player(terminal: Terminal) -> Iterator[Player]:
    """Provide a runner."""
    with terminal.hosted.player() as player:
        yield player
