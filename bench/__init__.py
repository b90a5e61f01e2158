"""Benchmarks, side by side with what others do: each `bench_NAME.py` has a `run()` that returns figures."""
