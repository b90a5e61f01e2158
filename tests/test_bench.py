"""The benchmarks run. Their figures are for `make bench`; here they only have to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import bench_core, bench_queue, bench_verify, peers


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
