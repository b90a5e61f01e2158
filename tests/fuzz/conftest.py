"""Leaves behind how much was tried, for `make fuzz`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.conftest import contract_dsn, place
from tests.fuzz import profile

__all__ = ["contract_dsn", "place"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the numbers where `make fuzz` looks for them."""
    if "FUZZ_COUNTS" in os.environ:
        profile.write_counts(Path(os.environ["FUZZ_COUNTS"]))
