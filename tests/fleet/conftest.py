"""Fixtures of the fleet tests: servers over memory and SQLite."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.contract.conftest import make_place
from tests.contract.places import Place
from tests.fleet.site import FleetSite, opened

__all__ = ["fleet", "place"]


@pytest.fixture(params=("memory", "sqlite"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Provide the cheap stores; tests/contract, tests/fuzz and tests/e2e use PostgreSQL too."""
    return make_place(request.param, tmp_path, request)


@pytest.fixture
def fleet(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Callable[[], AbstractAsyncContextManager[FleetSite]]:
    """Return a function that opens one more server over the same store with each call."""
    caplog.set_level(logging.DEBUG)
    return lambda: opened(place, tmp_path / "logs", caplog)
