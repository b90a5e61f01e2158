"""Leaves behind how much was tried, for `make fuzz`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.conftest import PLACES, contract_dsn, make_place
from tests.contract.places import Place
from tests.fuzz import profile

__all__ = ["contract_dsn", "place"]


@pytest.fixture(params=PLACES if profile.SCALE > 1 else ("postgres",))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """PostgreSQL, which accepts the fewest texts; in `make fuzz` all stores."""
    return make_place(request.param, tmp_path, request)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the numbers where `make fuzz` looks for them."""
    if "FUZZ_COUNTS" in os.environ:
        profile.write_counts(Path(os.environ["FUZZ_COUNTS"]))
