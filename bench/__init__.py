"""Benchmarks, compared with other systems and with physical limits: each `bench_NAME.py` has a `run()` that returns
figures.
"""
