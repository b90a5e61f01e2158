"""The benchmarks run. Their figures are for `make bench`; here they only have to be there."""

from __future__ import annotations

import pytest

from bench import bench_core, bench_verify


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
