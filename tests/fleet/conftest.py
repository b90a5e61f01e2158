"""The fixtures of the fleet: servers with ears, over each of the three places."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.contract.conftest import contract_dsn, place
from tests.contract.places import Place
from tests.fleet.site import FleetSite, opened

__all__ = ["contract_dsn", "fleet", "place"]


@pytest.fixture
def fleet(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Callable[[], AbstractAsyncContextManager[FleetSite]]:
    """Opens a server over this place, and one more each time that it is called."""
    caplog.set_level(logging.DEBUG)
    return lambda: opened(place, tmp_path / "logs", caplog)
