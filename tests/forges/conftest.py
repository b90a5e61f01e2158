"""Fixtures of the forge tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.conftest import contract_dsn, make_place
from tests.contract.places import Place

__all__ = ["contract_dsn", "memory", "place", "servers_place"]


@pytest.fixture(params=("memory", "sqlite", "postgres"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Provide each kind of store."""
    return make_place(request.param, tmp_path, request)


@pytest.fixture
def memory(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Provide a store in memory, for tests that do not depend on the kind of store."""
    return make_place("memory", tmp_path, request)


@pytest.fixture
def servers_place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Provide a PostgreSQL store, for several servers."""
    return make_place("postgres", tmp_path, request)
