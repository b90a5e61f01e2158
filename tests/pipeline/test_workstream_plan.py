"""What a workstream file makes runners do, and the stages of its plan."""

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
from tests.pipeline.broken_workstreams import GOOD, task

SOURCE = wire.Source(url="https://example.org/shop.git", commit="a" * 40, ref="refs/heads/main")


def stream(text: str = GOOD) -> Workstream:
    """The workstream of a good file."""
    found = parse_file(text)
    assert found.workstream is not None, [str(each) for each in found.problems]
    return found.workstream


def jobs(text: str = GOOD) -> dict[str, JobSpec]:
    """Its jobs, by name."""
    return {each.name: each for each in compile_jobs(stream(text), id="r1", source=SOURCE, branch="ws/login-3f9a2c")}


def work(spec: JobSpec) -> wire.JobSpec:
    """What a runner is told."""
    return msgspec.convert(spec.work, wire.JobSpec)


def test_every_task_is_a_job_that_is_validated() -> None:
    """In the order of the file; critical is what the core calls required."""
    found = jobs()

    assert list(found) == ["schema", "api", "notes"]
    assert all(each.has_validation for each in found.values())
    assert [each.is_required for each in found.values()] == [True, True, False]
    assert found["notes"].needs == ("schema", "api")
    assert dependents(list(found.values()))["schema"] == ("api", "notes")


def test_tasks_of_one_tree_run_one_at_a_time() -> None:
    """A task with a tree of its own runs beside them."""
    found = jobs()

    assert {name: each.group for name, each in found.items()} == {
        "schema": "workstream:r1",
        "api": "workstream:r1",
        "notes": "",
    }
    assert {name: work(each).tree.own for name, each in found.items() if work(each).tree} == {  # type: ignore[union-attr]
        "schema": "",
        "api": "",
        "notes": "notes",
    }


def test_a_runner_is_told_where_to_work_and_what_must_hold() -> None:
    """Commands one after the other, in the tree, with all variables."""
    api = work(jobs()["api"])

    assert [each.run for each in api.steps if isinstance(each, wire.Step)] == ["make api", "make docs"]
    assert api.env == {"CI": "true"}
    assert api.contexts is None
    assert [(rule.run, rule.junit, rule.min_tests) for rule in api.rules] == [
        ("make test", "", 0),
        ("", "report.xml", 2),
    ]
    assert api.tree == wire.Worktree(
        stream="r1", source=SOURCE, branch="ws/login-3f9a2c", message="api", author="Ada <ada@example.org>"
    )


def test_how_often_how_long_and_where() -> None:
    """A task has no attempts but one unless it says so."""
    found = jobs()
    text = task(
        "runs-on: [gpu, linux]\ntimeout-minutes: 5\nmessage: by hand\nlimits: {memory: 2G}\nartifacts: out/*.xml\n"
        "output-path: out.json\nexecutor: sandbox\nnetwork: true\nsecrets: [TOKEN]\nimage: python"
    )
    [made] = compile_jobs(stream("runs-on: linux\n" + text), id="r2", source=SOURCE, branch="b")
    told = work(made)

    assert (found["schema"].max_attempts, found["api"].max_attempts, found["api"].base_delay_seconds) == (1, 3, 10)
    assert (made.queue_key, made.timeout_seconds) == ("gpu,linux", 300)
    assert required_labels(stream("runs-on: linux\n" + text)) == ["linux"]
    assert (told.limits.memory_bytes, told.output_path, told.secrets) == (2 * 1024**3, "out.json", ["TOKEN"])
    assert (told.executor, told.network, told.image) == ("sandbox", True, "python")
    assert told.artifacts == [wire.ArtifactRule(path_glob="out/*.xml")]
    assert told.tree is not None
    assert told.tree.message == "by hand"


def test_what_holds_for_all_holds_for_tasks_and_tests() -> None:
    """A task may say something else; before the merge it is tested as the whole says."""
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
    one, two = (work(each) for each in jobs(text).values())

    assert (one.executor, one.image, one.network, one.env) == ("sandbox", "debian", True, {"A": "1", "B": "2"})
    assert (two.executor, two.image, two.network, two.env) == ("container", "alpine", True, {"A": "1", "B": "3"})
    assert validation_job_spec(stream(text)) == {
        **{"executor": "sandbox", "image": "debian", "network": True},
        "env": {"A": "1", "B": "2"},
    }


def test_the_same_file_makes_the_same_jobs() -> None:
    """Whoever plans it again after a crash plans the same."""
    assert jobs() == jobs()


def test_stages_are_the_levels_of_the_graph() -> None:
    """What needs nothing is first, in the order of the file."""
    assert task_levels(stream()) == (("schema",), ("api",), ("notes",))
    assert dependency_levels([("d", "bc"), ("b", "a"), ("c", "a"), ("a", ""), ("e", "")]) == (
        ("a", "e"),
        ("b", "c"),
        ("d",),
    )


@given(st.lists(st.sets(st.integers(0, 30)), max_size=30))
def test_whatever_is_needed_is_in_an_earlier_stage(wanted: list[set[int]]) -> None:
    """And every task is in exactly one."""
    needs = [(str(each), [str(other) for other in found if other < each]) for each, found in enumerate(wanted)]

    stage = {name: number for number, names in enumerate(dependency_levels(needs)) for name in names}

    assert set(stage) == {name for name, _ in needs}
    assert sum(map(len, dependency_levels(needs))) == len(needs)
    for name, found in needs:
        assert stage[name] == max((stage[other] + 1 for other in found), default=0)
