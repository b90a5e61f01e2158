"""The benchmarks run. Their figures are for `make bench`; here they only have to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import (
    bench_api,
    bench_core,
    bench_fleet,
    bench_http,
    bench_log,
    bench_merging,
    bench_plan,
    bench_queue,
    bench_streams,
    bench_verify,
    bench_web,
    bench_workstreams,
    peers,
)
from tests.support.budget import IS_THOROUGH
from tests.support.postgres_server import ServerFailed

only_thorough = pytest.mark.skipif(not IS_THOROUGH, reason="make test THOROUGH=1 runs it")


def test_the_benchmark_of_the_verifier_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that broke unnoticed is found when somebody needs its figure."""
    monkeypatch.setattr(bench_verify, "EVENTS", 2000)
    monkeypatch.setattr(bench_verify, "SEEDS", range(2))

    figures = bench_verify.run()

    assert figures[0].value > 0


def test_the_benchmark_of_the_core_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the cost of a decision."""
    monkeypatch.setattr(bench_core, "JOBS", 20)
    monkeypatch.setattr(bench_core, "LARGE", 50)

    figures = bench_core.run()

    assert figures[0].value > 0


def test_the_benchmark_of_plans_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what a change costs before anything runs."""
    for name, value in {"PROJECTS": 3, "FILES": 20, "ROUNDS": 1}.items():
        monkeypatch.setattr(bench_plan, name, value)

    figures = bench_plan.run()

    assert figures[0].value > 0
    assert "20 files, 3 projects, 12 jobs" in figures[0].metric


def test_the_benchmark_of_the_queue_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The same for the queue; without the peers it says so and goes on."""
    monkeypatch.setattr(peers, "PYTHON", tmp_path / "python")
    for name, value in {
        "JOBS": 40,
        "ROUNDS": 1,
        "LIFECYCLES": {10: 20},
        "IDLE_JOBS": 1,
        "IDLE_SECONDS": 0.2,
        "QUEUES": (30, 60),
        "CLAIMS": {1: 2, 10: 2},
        "RUNS": {10: 20, 20: 20},
        "LEASES": 20,
        "BEAT_BATCH": 10,
    }.items():
        monkeypatch.setattr(bench_queue, name, value)

    figures = bench_queue.run()

    assert all(figure.value > 0 for figure in figures if figure.unit in ("jobs/s", "ms", "s"))
    assert "not installed: PgQueuer" in capsys.readouterr().err


def test_the_benchmark_of_the_server_over_http_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a real server and the load on it; without PostgreSQL it says so and goes on."""

    def missing() -> None:
        raise ServerFailed("there is none here")

    monkeypatch.setattr(bench_http, "PostgresServer", missing)
    shapes = (bench_http.Shape("single", 4, 1, 20), bench_http.Shape("batched", 2, 5, 40))
    monkeypatch.setattr(bench_http, "SHAPES", shapes)

    figures = bench_http.run()

    rates = [figure for figure in figures if figure.unit == "jobs/s"]
    assert len(rates) == 2
    assert all(figure.value > 0 and all(ratio > 0 for ratio in figure.ratios.values()) for figure in rates)


def test_the_benchmark_of_the_api_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what people and programs ask; without PostgreSQL it says so and goes on."""

    def missing() -> None:
        raise ServerFailed("there is none here")

    monkeypatch.setattr(bench_api, "PostgresServer", missing)
    for name, value in {
        "CONNECTIONS": 4,
        "COUNT": 20,
        "ROUNDS": 1,
        "PLANS": (1, 2),
        "PASTS": (60, 120),
        "PAGES": 2,
        "REFUSALS": 2,
    }.items():
        monkeypatch.setattr(bench_api, name, value)

    figures = {figure.metric: figure for figure in bench_api.run()}

    assert all(figure.value > 0 for figure in figures.values() if figure.unit != "µs/request")
    assert all(ratio > 0 for figure in figures.values() for ratio in figure.ratios.values())
    assert set(figures["SQLite, POST /runs, 2 jobs"].ratios) == {
        *("GET /me", "uvicorn that only decodes and encodes", "direct calls", "the store alone")
    }


@only_thorough
def test_the_benchmark_of_a_fleet_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for runners that wait."""
    for name, value in {
        "RUNNERS": 20,
        "WAIT_SECONDS": 0.3,
        "IDLE_SECONDS": 0.5,
        "JOBS": 2,
        "BURST": 5,
        "BEATS": 20,
    }.items():
        monkeypatch.setattr(bench_fleet, name, value)

    figures = {figure.metric: figure for figure in bench_fleet.run()}

    assert figures["20 runners wait: long polls while idle"].value > 0
    assert figures["20 runners wait: enqueued to granted, p50"].value > 0


@only_thorough
def test_the_benchmark_of_streams_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for those who follow events."""
    for name, value in {"STREAMS": 10, "SINGLES": 3, "BURST": 20, "ROUNDS": 1}.items():
        monkeypatch.setattr(bench_streams, name, value)

    figures = {figure.metric: figure for figure in bench_streams.run()}

    assert figures["10 streams: delivered, 20 events at once"].value > 0


def test_the_benchmark_of_a_log_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what a job writes."""
    monkeypatch.setattr(bench_log, "MEGABYTES", 1)
    monkeypatch.setattr(bench_log, "LINES", 5)

    figures = bench_log.run()

    assert all(figure.value > 0 for figure in figures if figure.unit in ("MB/s", "ms"))


@only_thorough
def test_the_benchmark_of_the_merge_queue_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what lands on a base."""
    for name, value in {"FILES": 100, "MERGES": {2: 4, 1: 2}, "BARE": 1, "BUILT": 1}.items():
        monkeypatch.setattr(bench_merging, name, value)

    figures = {figure.metric: figure for figure in bench_merging.run()}

    assert all(figure.value > 0 for figure in figures.values())
    assert set(figures["100 files, batches of 2: merges"].ratios) == {"git alone", "git merge in a work tree"}


@only_thorough
def test_the_benchmark_of_workstreams_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for whole workstreams, beside plain jobs and a plain loop."""
    monkeypatch.setattr(bench_workstreams, "STREAMS", 2)
    monkeypatch.setattr(bench_workstreams, "TASKS", 2)

    figures = {figure.metric: figure for figure in bench_workstreams.run()}

    assert all(figure.value > 0 for figure in figures.values())
    assert set(figures["tasks"].ratios) == {"a plain loop of git and sh", "plain jobs"}


@only_thorough
def test_the_benchmark_of_pages_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what a browser makes of them; a log that is written fast is looked at while it comes."""
    small = {"JOBS": (5,), "RUNS": 2, "ROUNDS": 1, "ASKED": 2, "CHANGES": 1, "CALM_SECONDS": 0.1, "LOG_SECONDS": 1.0}
    for name, value in small.items():
        monkeypatch.setattr(bench_web, name, value)

    figures = {figure.metric: figure for figure in bench_web.run()}

    assert 0 < figures["run of 5 jobs: first view"].value < 100
    assert figures["a change, committed to on the screen, on a busy page, p50"].value > 0
    assert set(figures["a log of 10,000 lines/s: frame time, p95"].ratios) == {"one element a line", "an empty page"}
