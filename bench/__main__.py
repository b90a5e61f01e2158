"""Runs the benchmarks: `python -m bench`, or one with `python -m bench NAME`; `--list` names them.

Prints one table per benchmark and writes the same figures to `bench/out/NAME.json`.
"""

import argparse
import importlib
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.figures import Figure

HERE = Path(__file__).parent
OUT = HERE / "out"
PREFIX = "bench_"


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen benchmarks; exits with 2 if there is no benchmark of that name."""
    names = sorted(path.stem.removeprefix(PREFIX) for path in HERE.glob(f"{PREFIX}*.py"))
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    parser.add_argument("name", nargs="?", help="run only this one")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    options = parser.parse_args(arguments)

    if options.list:
        print(*names, sep="\n")
        return 0
    if options.name is not None and options.name not in names:
        parser.error(f"no benchmark {options.name!r}; there are: {', '.join(names) or 'none yet'}")

    console = Console()
    for name in names if options.name is None else [options.name]:
        figures = measure(name)
        console.print(table(name, figures))
        console.print(f"written to {save(name, figures).relative_to(HERE.parent)}")
    return 0


def measure(name: str) -> list[Figure]:
    """Run one benchmark in this process. Errors are not caught: a failed benchmark has no figures."""
    figures: list[Figure] = importlib.import_module(f"bench.{PREFIX}{name}").run()
    return figures


def save(name: str, figures: list[Figure]) -> Path:
    """Write the figures of the latest run, replacing those of the run before."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    return path


def table(name: str, figures: list[Figure]) -> Table:
    result = Table("metric", title=name, title_justify="left")
    result.add_column("value", justify="right")
    result.add_column("unit")
    result.add_column("ratios")
    for figure in figures:
        ratios = ", ".join(f"{ratio:.3g}× {name_of_other}" for name_of_other, ratio in figure.ratios.items())
        result.add_row(figure.metric, format_number(figure.value), figure.unit, ratios)
    return result


def format_number(value: float) -> str:
    """Format with three significant digits, but counts without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    raise SystemExit(main())
