"""The fixtures of the server's cases: each runs in all three places, and ends with the checks of `Site`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.contract.conftest import contract_dsn, place
from tests.contract.places import Place
from tests.server.site import Site, opened

__all__ = ["contract_dsn", "place", "site"]


@pytest.fixture
def site(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Callable[[], AbstractAsyncContextManager[Site]]:
    """Opens the server over this place."""
    caplog.set_level(logging.DEBUG)
    return lambda: opened(place, tmp_path / "logs", caplog)
