"""What the whole test run shares: figures that tests measure are shown at its end, one PostgreSQL server, and time."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from deltaci.engine import engine
from deltaci.engine.clock import MonotonicClock
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import PostgresServer

# The same examples in every run, so that a failure can be repeated; `make fuzz` looks for new ones. No deadline: how
# long an example takes depends on the other processes of the machine.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
# Hypothesis also draws constants from the source of every module imported so far, which depends on the files that the
# same process tested before. An empty list keeps the examples of `make test` the same; `make fuzz` wants the constants.
if not os.environ.get("FUZZ_SEED"):
    pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: providers._local_constants)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting the thousands of collected tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print every figure that a test recorded with `record_property("figure", text)`."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    figures = [str(value) for report in reports for name, value in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("figures")
        for figure in sorted(figures):
            terminalreporter.write_line(figure)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL, started by the first test that asks for it; each process of pytest-xdist has its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a new, empty database."""
    postgres_server.start()  # an earlier test may have killed it and failed
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.start()
    postgres_server.drop_database(dsn)


@pytest.fixture
def nats_server() -> Iterator[NatsServer]:
    """A real NATS with JetStream and nothing in it."""
    with NatsServer() as server:
        yield server


@pytest.fixture(autouse=True)
def moved_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test lets time pass by moving the store's clock: that is no jump, however little real time it takes."""
    monkeypatch.setattr(engine, "MonotonicClock", partial(MonotonicClock, jump_seconds=math.inf))
