"""The fixtures of merges: a repository, workstreams that are done, and a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from deltaci.storage.port import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Backend
from tests.controllers.merge_queue.site import Site, Streams, opened
from tests.support.upstream import Upstream

Opened = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    """Where the servers keep everything."""
    return Backend("sqlite", lambda backend: SqliteStore(str(tmp_path / "ci.db"), clock=backend.now), origin=wall_clock)


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    """A repository, and who works on it."""
    return Streams(Upstream(tmp_path / "upstream"), tmp_path / "bundles")


@pytest.fixture
def site(backend: Backend, streams: Streams, tmp_path: Path) -> Opened:
    """Opens a server."""

    def open(folder: str = "server", **options: Any) -> AbstractAsyncContextManager[Site]:
        return opened(backend, streams, tmp_path / folder, **options)

    return open
