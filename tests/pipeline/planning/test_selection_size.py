"""Selection in a large repository, with many files, and with patterns that somebody wrote to make it slow."""

from __future__ import annotations

import time

from deltaci.pipeline.planning import select as selection
from deltaci.pipeline.planning.projects import Project
from deltaci.pipeline.planning.select import SelectableJob, select


def monorepo(count: int) -> tuple[list[SelectableJob], list[Project]]:
    """Projects of which each depends on up to three earlier ones, with five jobs each."""
    projects, jobs = [], []
    for number in range(count):
        needs = tuple(f"packages/p{number // divisor}" for divisor in (2, 3, 5) if number // divisor < number)
        folder = f"packages/p{number}"
        projects.append(Project(name=f"p{number}", path=folder, needs=tuple(dict.fromkeys(needs))))
        build, mine = f"build-{number}", (f"{folder}/**", f"!{folder}/docs/**")
        jobs += [
            SelectableJob(name=f"lint-{number}", paths=(f"{folder}/**/*.ts", f"{folder}/*.json"), has_outputs=False),
            SelectableJob(name=build, paths=mine),
            SelectableJob(name=f"test-{number}", paths=mine, needs=(build,), consumes=(build,)),
            SelectableJob(name=f"docs-{number}", paths=(f"{folder}/docs/**", "**/*.md"), projects=()),
            SelectableJob(name=f"ship-{number}", projects=(f"p{number}",), needs=(f"test-{number}",), consumes=()),
        ]
    return jobs, projects


def test_a_monorepo_of_sixty_projects_is_planned_at_once() -> None:
    jobs, projects = monorepo(60)
    changed = [f"packages/p{number % 60}/src/m{number % 7}/file{number}.ts" for number in range(2_000)]

    began = time.process_time()
    all_of_them = select(jobs, changed, projects=projects)
    took = time.process_time() - began
    few = select(jobs, changed[59:60], projects=projects)

    assert took < 5.0
    assert {choice.job for choice in all_of_them if not choice.is_kept} == {f"docs-{number}" for number in range(60)}
    assert {choice.job for choice in few if choice.is_kept} == {"lint-59", "build-59", "test-59", "ship-59"}


def test_a_hundred_thousand_files_and_a_thousand_patterns_are_no_hundred_million_comparisons() -> None:
    jobs, projects = monorepo(170)
    assert sum(len(job.paths) for job in jobs) > 1_000
    changed = [f"packages/p{n % 400}/src/module{n % 37}/some/folder{n % 5}/file_{n}.ts" for n in range(100_000)]

    began = time.process_time()
    choices = select(jobs, changed, projects=projects)
    took = time.process_time() - began

    assert took < 30.0
    assert {choice.code for choice in choices if choice.job.startswith("build")} == {"path_matches"}


def test_what_somebody_wrote_to_make_it_slow_is_bounded() -> None:
    """As much of it as is compared at all takes seconds; beyond, everything runs."""
    jobs = [SelectableJob(name=f"j{n}", paths=(f"**/*a*b*c*{n}*d+e?f?/**/*z{n}",)) for n in range(1_000)]
    size = sum(len(job.paths[0]) for job in jobs)
    paths = [f"{'abc' * 20}{n}/dddef" for n in range(selection.MAX_WORK // size // 70 // 20)]

    began = time.process_time()
    compared = select(jobs, paths)
    took = time.process_time() - began

    assert took < 30.0
    assert {choice.code for choice in compared} == {"no_match"}


def test_a_long_chain_of_jobs_does_not_recurse_deeply() -> None:
    depth = 3_000
    jobs = [SelectableJob(name="j0", paths=("x",), has_outputs=False)]
    jobs += [SelectableJob(name=f"j{n}", paths=("x",), needs=(f"j{n - 1}",), consumes=()) for n in range(1, depth)]
    jobs.append(SelectableJob(name="last", needs=(f"j{depth - 1}",)))

    choices = {choice.job: choice for choice in select(jobs, ["y"])}

    assert choices["last"].needs == (f"j{depth - 1}",)
    assert sum(choice.is_kept for choice in choices.values()) == 2


def test_projects_that_need_thousands_of_folders_are_no_millions_of_links() -> None:
    inner = tuple(f"a/f{n}" for n in range(10_000))
    projects = [Project(name="a", path="a", needs=inner), Project(name="b", path="b", needs=inner)]

    began = time.process_time()
    (choice,) = select([SelectableJob(name="j", paths=("b",))], ["a/f77/x"], projects=projects)
    took = time.process_time() - began

    assert choice.reason == "b depends on a/f77, where a/f77/x changed"
    assert took < 5.0
