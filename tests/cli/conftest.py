"""A server for each module that asks for a desk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.desk import Desk
from tests.client.hosted import Hosted, Player


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Where somebody sits."""
    folder = tmp_path_factory.mktemp("desk")
    with Hosted(folder / ".state") as hosted:
        yield Desk(folder, hosted)


@pytest.fixture
def player(desk: Desk) -> Iterator[Player]:
    """A runner."""
    with desk.hosted.player() as player:
        yield player
