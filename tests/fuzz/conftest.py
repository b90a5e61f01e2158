"""Leaves behind how much was tried, for `make fuzz`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.backends import Backend
from tests.contract.conftest import BACKENDS, contract_dsn, make_backend
from tests.fuzz import profile

__all__ = ["backend", "contract_dsn"]


@pytest.fixture(params=BACKENDS if profile.SCALE > 1 else ("postgres",))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """PostgreSQL, which accepts the fewest texts; in `make fuzz` all stores."""
    return make_backend(request.param, tmp_path, request)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the numbers where `make fuzz` looks for them."""
    if "FUZZ_COUNTS" in os.environ:
        profile.write_counts(Path(os.environ["FUZZ_COUNTS"]))
