"""A server for each module; its tests use runs of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deltaci.client import Client
from tests.client.hosted import Hosted, Player


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A server that listens."""
    with Hosted(tmp_path_factory.mktemp("server")) as hosted:
        yield hosted


@pytest.fixture
def client(hosted: Hosted) -> Iterator[Client]:
    """Who operates it."""
    with hosted.client() as client:
        yield client


@pytest.fixture
def player(hosted: Hosted) -> Iterator[Player]:
    """A runner."""
    with hosted.player() as player:
        yield player
