"""Compilation of workstreams: job specs and levels."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.job import JobSpec
from deltaci.core.plan import dependents
from deltaci.pipeline.workstream.compile import (
    compile_jobs,
    dependency_levels,
    required_labels,
    task_levels,
    validation_job_spec,
)
from deltaci.pipeline.workstream.model import Workstream
from deltaci.pipeline.workstream.parse import parse_file
from deltaci.protocol import messages as wire
from tests.pipeline.workstream.broken_workstreams import GOOD, task

SOURCE = wire.Source(url="https://example.org/shop.git", commit="a" * 40, ref="refs/heads/main")


def stream(text: str = GOOD) -> Workstream:
    """Return the workstream of a valid file."""
    parsed = parse_file(text)
    assert parsed.workstream is not None, [str(problem) for problem in parsed.problems]
    return parsed.workstream


def jobs(text: str = GOOD) -> dict[str, JobSpec]:
    """Return the compiled jobs by name."""
    return {
        job.name: job for job in compile_jobs(stream(text), workstream_id="r1", source=SOURCE, branch="ws/login-3f9a2c")
    }


def work(spec: JobSpec) -> wire.JobSpec:
    """Return the decoded job spec."""
    return msgspec.convert(spec.work, wire.JobSpec)


def test_every_task_becomes_a_job_with_validation() -> None:
    """In the order of the file; `critical` becomes `is_required`."""
    compiled = jobs()

    assert list(compiled) == ["schema", "api", "notes"]
    assert all(job.has_validation for job in compiled.values())
    assert [job.is_required for job in compiled.values()] == [True, True, False]
    assert compiled["notes"].needs == ("schema", "api")
    assert dependents(list(compiled.values()))["schema"] == ("api", "notes")


def test_tasks_that_share_a_worktree_run_one_at_a_time() -> None:
    """A task with its own worktree runs in parallel."""
    compiled = jobs()

    assert {name: job.group for name, job in compiled.items()} == {
        "schema": "workstream:r1",
        "api": "workstream:r1",
        "notes": "",
    }
    assert {name: work(job).tree.private_name for name, job in compiled.items() if work(job).tree} == {  # type: ignore[union-attr]
        "schema": "",
        "api": "",
        "notes": "notes",
    }


def test_the_job_spec_has_worktree_and_rules() -> None:
    """Commands run in order, in the worktree, with all variables."""
    api = work(jobs()["api"])

    assert [step.run for step in api.steps if isinstance(step, wire.Step)] == ["make api", "make docs"]
    assert api.env == {"CI": "true"}
    assert api.contexts is None
    assert [(rule.run, rule.junit, rule.min_tests) for rule in api.rules] == [
        ("make test", "", 0),
        ("", "report.xml", 2),
    ]
    assert api.tree == wire.Worktree(
        stream="r1", source=SOURCE, branch="ws/login-3f9a2c", message="api", author="Ada <ada@example.org>"
    )


def test_attempts_timeout_labels_and_limits() -> None:
    """The default is one attempt."""
    compiled = jobs()
    text = task(
        "runs-on: [gpu, linux]\ntimeout-minutes: 5\nmessage: by hand\nlimits: {memory: 2G}\nartifacts: out/*.xml\n"
        "output-path: out.json\nexecutor: sandbox\nnetwork: true\nsecrets: [TOKEN]\nimage: python"
    )
    [job] = compile_jobs(stream("runs-on: linux\n" + text), workstream_id="r2", source=SOURCE, branch="b")
    spec = work(job)

    assert (compiled["schema"].max_attempts, compiled["api"].max_attempts, compiled["api"].base_delay_seconds) == (
        1,
        3,
        10,
    )
    assert (job.queue_key, job.timeout_seconds) == ("gpu,linux", 300)
    assert required_labels(stream("runs-on: linux\n" + text)) == ["linux"]
    assert (spec.limits.memory_bytes, spec.output_path, spec.secrets) == (2 * 1024**3, "out.json", ["TOKEN"])
    assert (spec.executor, spec.network, spec.image) == ("sandbox", True, "python")
    assert spec.artifacts == [wire.ArtifactRule(path_glob="out/*.xml")]
    assert spec.tree is not None
    assert spec.tree.message == "by hand"


def test_settings_of_the_workstream_apply_to_tasks_and_validation() -> None:
    """A task may override them; the validation before the merge uses those of the workstream."""
    text = """\
workstream: all
env: {A: 1, B: 2}
executor: sandbox
image: debian
network: true
tasks:
  - {name: one, run: make}
  - {name: two, run: make, executor: container, image: alpine, env: {B: 3}}
"""
    one, two = (work(job) for job in jobs(text).values())

    assert (one.executor, one.image, one.network, one.env) == ("sandbox", "debian", True, {"A": "1", "B": "2"})
    assert (two.executor, two.image, two.network, two.env) == ("container", "alpine", True, {"A": "1", "B": "3"})
    assert validation_job_spec(stream(text)) == {
        **{"executor": "sandbox", "image": "debian", "network": True},
        "env": {"A": "1", "B": "2"},
    }


def test_compilation_is_deterministic() -> None:
    """Planning again after a crash gives the same jobs."""
    assert jobs() == jobs()


def test_levels_follow_the_needs() -> None:
    """Tasks without needs are first, in the order of the file."""
    assert task_levels(stream()) == (("schema",), ("api",), ("notes",))
    assert dependency_levels([("d", "bc"), ("b", "a"), ("c", "a"), ("a", ""), ("e", "")]) == (
        ("a", "e"),
        ("b", "c"),
        ("d",),
    )


@given(st.lists(st.sets(st.integers(0, 30)), max_size=30))
def test_every_need_is_in_an_earlier_level(numbers: list[set[int]]) -> None:
    """And every task is in exactly one level."""
    needs = [(str(number), [str(need) for need in needed if need < number]) for number, needed in enumerate(numbers)]

    level_of = {name: level for level, names in enumerate(dependency_levels(needs)) for name in names}

    assert set(level_of) == {name for name, _ in needs}
    assert sum(map(len, dependency_levels(needs))) == len(needs)
    for name, needed in needs:
        assert level_of[name] == max((level_of[need] + 1 for need in needed), default=0)
