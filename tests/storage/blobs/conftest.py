"""The S3 of the cases, started once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.blobs.s3 import KEYS, S3, served


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    """A server that runs until the last case is over."""
    with served() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, and the keys for it where programs look for them."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return s3_server
