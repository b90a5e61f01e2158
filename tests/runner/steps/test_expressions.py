"""What expressions see on a runner, and what conditions decide by it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec, Source
from deltaci.protocol.responses import NeededJob
from deltaci.runner.steps.expressions import JobExpressions, hash_files
from deltaci.runner.workspace.layout import layout_for


def job_expressions(tmp_path: Path, contexts: dict[str, Any] | None = None, **more: Any) -> JobExpressions:
    """The expressions of a job with these contexts."""
    spec = JobSpec(contexts={"github": {"repository": "acme/shop", "sha": "abc"}} if contexts is None else contexts)
    layout = layout_for(spec, tmp_path)
    layout.create()
    return JobExpressions(spec, layout, runner_name="r1", **more)


def test_texts_are_filled_in_from_all_there_is(tmp_path: Path) -> None:
    expressions = job_expressions(
        tmp_path, secrets={"KEY": "s3cret"}, needs={"build": NeededJob(result="success", outputs={"v": "1"})}
    )
    expressions.env = {"A": "a"}
    expressions.record_step("one", "failure", "success", {"out": "put"})

    text = "${{ env.A }} ${{ secrets.KEY }}${{ secrets.NONE }} ${{ needs.build.outputs.v }} ${{ steps.one.outcome }}"
    assert expressions.interpolate(text) == "a s3cret 1 failure"
    assert (
        expressions.interpolate("${{ steps.one.outputs.out }} ${{ job.status }} ${{ runner.name }}") == "put success r1"
    )
    assert expressions.interpolate("${{ github.workspace }}") == str(tmp_path / "work" / "shop")
    assert expressions.interpolate("${{ github.sha == 'ABC' }}") == "true"


def test_without_contexts_a_text_is_a_text(tmp_path: Path) -> None:
    """Somebody's template of another program must not be eaten."""
    spec = JobSpec(source=None, needs=["a"])
    assert JobExpressions(spec, layout_for(spec, tmp_path)).interpolate("${{ broken") == "${{ broken"


def test_a_variable_may_mention_those_before_it(tmp_path: Path) -> None:
    expressions = job_expressions(tmp_path)

    assert expressions.interpolate_all({"A": "1", "B": "${{ env.A }}2", "C": "${{ env.B }}3"}) == {
        "A": "1",
        "B": "12",
        "C": "123",
    }


@pytest.mark.parametrize(
    ("condition", "after_success", "after_failure"),
    [
        ("", True, False),
        ("true", True, False),
        ("always()", True, True),
        ("failure()", False, True),
        ("${{ failure() && github.sha == 'abc' }}", False, True),
        ("cancelled()", False, False),
        ("!cancelled()", True, True),
        ("success() || failure()", True, True),
        ("github.sha == 'other'", False, False),
    ],
)
def test_conditions_of_steps(condition: str, after_success: bool, after_failure: bool, tmp_path: Path) -> None:
    expressions = job_expressions(tmp_path)
    before = expressions.step_condition_holds(condition)
    expressions.status = "failure"

    assert (before, expressions.step_condition_holds(condition)) == (after_success, after_failure)


@pytest.mark.parametrize(
    ("condition", "results", "wanted"),
    [
        ("", {}, True),
        ("", {"a": "success"}, True),
        ("", {"a": "success", "b": "skipped"}, False),
        ("", {"a": "failure"}, False),
        ("always()", {"a": "failure"}, True),
        ("failure()", {"a": "failure"}, True),
        ("failure()", {"a": "skipped"}, False),
        ("needs.a.result == 'success'", {"a": "success"}, True),
        ("always() && needs.b.result == 'skipped'", {"a": "failure", "b": "skipped"}, True),
        ("!failure()", {"a": "skipped"}, True),
    ],
)
def test_conditions_of_jobs_are_about_their_needs(
    condition: str, results: dict[str, Any], wanted: bool, tmp_path: Path
) -> None:
    needs = {name: NeededJob(result=result) for name, result in results.items()}

    assert job_expressions(tmp_path, needs=needs).job_condition_holds(condition) is wanted


def test_a_need_that_the_run_does_not_have_is_skipped_and_hinders_nobody(tmp_path: Path) -> None:
    """It was left out because nothing that it is about was changed."""
    expressions = job_expressions(
        tmp_path, needs={"a": NeededJob(result="skipped", exists=False), "b": NeededJob(result="success")}
    )

    assert expressions.job_condition_holds("")
    assert expressions.job_condition_holds("needs.a.result == 'skipped'")


def test_the_jobs_of_a_matrix_are_one_need(tmp_path: Path) -> None:
    """As bad as the worst of them, with the outputs of all; by whichever way their name is known."""
    contexts = {"needs": {"c": {"jobs": ["c, one"]}, "gone": {"result": "skipped", "outputs": {"x": "y"}}}}
    needs = {
        "a (1)": NeededJob(result="success", outputs={"one": "1"}, family="a"),
        "a (2)": NeededJob(result="failure", outputs={"two": "2"}, family="a"),
        "b (1)": NeededJob(result="success", outputs={"v": "b"}),
        "c, one": NeededJob(result="success", outputs={"v": "c"}),
        "gone": NeededJob(result="skipped", exists=False),
    }
    expressions = job_expressions(tmp_path, contexts, needs=needs)

    assert (
        expressions.interpolate("${{ needs.a.result }}${{ needs.a.outputs.one }}${{ needs.a.outputs.two }}")
        == "failure12"
    )
    assert (
        expressions.interpolate("${{ needs.b.outputs.v }}${{ needs.c.outputs.v }}${{ needs.gone.outputs.x }}") == "bcy"
    )


def test_a_mistake_in_an_expression_is_the_authors(tmp_path: Path) -> None:
    expressions = job_expressions(tmp_path)
    for text in ("${{ ", "${{ nothing.x }}", "${{ fromJSON('{') }}", "${{ hashFiles('../x') }}"):
        with pytest.raises(Refused) as refused:
            expressions.interpolate(text)
        assert refused.value.code == "bad_spec"


def test_files_are_hashed_by_their_contents_in_order(tmp_path: Path) -> None:
    """Nothing that matches nothing; and never through a link that leads outside."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.lock").write_text("x")
    (tmp_path / "y.lock").write_text("y")
    (tmp_path / "leak.lock").symlink_to("/etc/hostname")
    wanted = hashlib.sha256(hashlib.sha256(b"x").digest() + hashlib.sha256(b"y").digest()).hexdigest()

    assert hash_files(tmp_path, ["**/*.lock"]) == wanted
    assert hash_files(tmp_path, [f"{tmp_path}/a/*.lock\n# no\ny.lock"]) == wanted
    assert hash_files(tmp_path, ["**/*.lock", "!a/**"]) == hashlib.sha256(hashlib.sha256(b"y").digest()).hexdigest()
    assert hash_files(tmp_path, ["*.none"]) == ""


def test_a_step_of_a_pipeline_knows_where_it_is(tmp_path: Path) -> None:
    variables = job_expressions(
        tmp_path, {"github": {"sha": "abc", "run_id": 7, "event": {"x": 1}, "ref": "a\0b"}}
    ).variables()

    assert variables["GITHUB_SHA"] == "abc"
    assert variables["GITHUB_RUN_ID"] == "7"
    assert variables["HOME"] == str(tmp_path / "home")
    assert {"GITHUB_EVENT", "GITHUB_REF", "GITHUB_ACTIONS"}.isdisjoint(variables)
    assert job_expressions(tmp_path, {"github": {"workflow_ref": "a/.github/workflows/ci.yml"}}).variables()[
        "GITHUB_ACTIONS"
    ]


def test_what_nobody_mentions_is_known_from_the_sources(tmp_path: Path) -> None:
    """Tools look for these variables, and no expression says so."""
    source = Source(url="https://git.example/acme/shop.git", commit="a" * 40, ref="refs/tags/v1/x")
    spec = JobSpec(contexts={"github": {"ref": "refs/heads/other"}}, source=source)
    variables = JobExpressions(spec, layout_for(spec, tmp_path)).variables()

    assert (variables["GITHUB_SHA"], variables["GITHUB_REF"]) == ("a" * 40, "refs/heads/other")
    assert (variables["GITHUB_REF_NAME"], variables["GITHUB_REF_TYPE"]) == ("v1/x", "tag")
    assert variables["GITHUB_REPOSITORY"] == "acme/shop"
    assert variables["GITHUB_WORKSPACE"] == str(tmp_path / "work" / "shop")


@pytest.mark.parametrize("path", ["..", "/etc", "a/../../b", "~/../x", "a\0b"])
def test_a_path_of_somebody_else_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not in the job's"):
        layout_for(JobSpec(contexts={}), tmp_path).resolve(path)


def test_paths_are_those_of_the_job(tmp_path: Path) -> None:
    layout = layout_for(JobSpec(contexts={"github": {"repository": "a/../x.git"}}), tmp_path)

    assert [
        layout.resolve(path) for path in (".", "a/b", "~/.cache", "~", f"{tmp_path}/temp/x", f"{layout.workspace}/y")
    ] == [
        "work/x",
        "work/x/a/b",
        "home/.cache",
        "home",
        "temp/x",
        "work/x/y",
    ]
