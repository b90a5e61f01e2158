"""What a plan costs: a pipeline file of a large repository, from its text to the plan with its hash."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.figures import Figure
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.problems import ProblemList
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.parse.yaml import parse_yaml
from deltaci.pipeline.planning.compile import compile_pipeline
from tests.pipeline.planning.monorepo import files, pipeline
from tests.pipeline.planning.planned import PUSH, SOURCE

PROJECTS = 60
FILES = 2000
ROUNDS = 5


def run() -> list[Figure]:
    """Reading, planning for a change of every file, of one file, and of nobody knows what."""
    text, everything = pipeline(PROJECTS), files(FILES, PROJECTS)
    found = parse_pipeline(text)
    yaml = spent(lambda: parse_yaml(text, ProblemList("")))
    reading = spent(lambda: parse_pipeline(text))
    all_of_it, one, unknown = (
        spent(lambda changed=changed: plan(found, changed))  # type: ignore[misc]
        for changed in (everything, everything[PROJECTS - 1 : PROJECTS], None)
    )
    made = compile_pipeline(found, PUSH, changed=everything, source=SOURCE).plan
    jobs = len(made.jobs) if made is not None else 0
    what = f"{FILES:,} files, {PROJECTS} projects, {jobs} jobs"
    return [
        Figure(
            f"{what}: text to plan", (reading + all_of_it) * 1e3, "ms", {"YAML alone": (reading + all_of_it) / yaml}
        ),
        Figure("reading and checking the file", reading * 1e3, "ms", {"YAML alone": reading / yaml}),
        Figure("planning, every file changed", all_of_it * 1e3, "ms", {"reading": all_of_it / reading}),
        Figure("planning, one file changed", one * 1e3, "ms", {"every file": one / all_of_it}),
        Figure("planning, the diff is not known", unknown * 1e3, "ms", {"every file": unknown / all_of_it}),
    ]


def plan(found: ParseResult, changed: list[str] | None) -> None:
    """One plan."""
    compile_pipeline(found, PUSH, changed=changed, source=SOURCE)


def spent(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of a few rounds."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)
