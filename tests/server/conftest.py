"""The fixtures of the server's cases: each runs over memory and SQLite, and ends with the checks of `Site`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.contract.conftest import make_place
from tests.contract.places import Place
from tests.server.site import Site, open_site

__all__ = ["place", "site"]


@pytest.fixture(params=("memory", "sqlite"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The stores of the contract that cost little; tests/contract, tests/fuzz and tests/e2e use PostgreSQL too."""
    return make_place(request.param, tmp_path, request)


@pytest.fixture
def site(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Callable[[], AbstractAsyncContextManager[Site]]:
    """Opens the server over this place."""
    caplog.set_level(logging.DEBUG)
    return lambda: open_site(place, tmp_path / "logs", caplog)
