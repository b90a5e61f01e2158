"""Selection of jobs by changed paths: a table of changes, and properties that hold for all changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.pipeline.planning import select as selection
from deltaci.pipeline.planning.projects import Project
from deltaci.pipeline.planning.select import CODES, Choice, JobSelection, SelectableJob, select
from deltaci.protocol.patterns.path_patterns import path_filter

SHOP = [
    Project(name="web", path="web/", needs=("libs/ui", "api-client")),
    Project(name="api", path="api", needs=("libs/core",)),
    Project(name="api-client", path="libs/api-client", needs=("api",)),
    Project(name="ui", path="libs/ui", needs=("libs/tokens/src",)),
    Project(name="tokens", path="libs/tokens", needs=("assets",)),
]
JOBS = [
    SelectableJob(name="lint", has_outputs=False),
    SelectableJob(name="build-web", paths=("web/**",)),
    SelectableJob(
        name="test-web",
        paths=("web/**", "!web/**/*.md"),
        needs=("build-web",),
        consumes=("build-web",),
        has_outputs=False,
    ),
    SelectableJob(name="build-api", paths=("api",), needs=("lint",), consumes=()),
    SelectableJob(name="test-api", projects=("api",), needs=("build-api",), consumes=("build-api",), has_outputs=False),
    SelectableJob(name="docs", paths=("docs/**", "**/*.md"), has_outputs=False),
    SelectableJob(name="deploy", paths=("ops/",), needs=("test-api", "test-web"), consumes=()),
    SelectableJob(name="smoke", paths=("ops/smoke",), needs=("deploy",)),
]
WEB = {"build-web", "test-web"}
API = {"build-api", "test-api"}


def kept(choices: Sequence[Choice]) -> set[str]:
    return {choice.job for choice in choices if choice.is_kept}


def by_name(choices: Sequence[Choice]) -> dict[str, Choice]:
    return {choice.job: choice for choice in choices}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], set()),
        (["README"], set()),
        (["README.md"], {"docs"}),
        (["web/app.ts"], WEB),
        (["web/README.md"], {"build-web", "docs"}),
        (["libs/ui/button.ts"], WEB),
        (["libs/tokens/src/red.ts"], WEB),
        (["libs/tokens/README"], set()),  # ui needs its src only
        (["assets/logo.svg"], WEB),  # and what the project around that folder needs
        (["libs/core/x.py"], API | WEB),  # the client of the api is made from it
        (["libs/other/x.py"], set()),
        (["api/main.py"], API | WEB),
        (["api"], API | WEB),
        (["libs/api-client/x.ts"], WEB),
        (["docs/a/b.txt"], {"docs"}),
        (["ops/prod.yml"], {"deploy"}),
        (["ops/smoke/a.sh"], {"deploy", "smoke"}),
        (["old/name.ts", "web/name.ts"], WEB),  # a rename, with both of its names
        (["web.ts"], set()),
        (["libs/"], API | WEB | {"docs"}),  # a submodule: anything below it may have changed
        (["poetry.lock"], {job.name for job in JOBS}),
        (["web/poetry.lock"], WEB),
        ([".deltaci/pipeline.yml"], {job.name for job in JOBS}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_a_diff_keeps_the_jobs_that_it_can_affect(changed: list[str], expected: set[str]) -> None:
    assert kept(select(JOBS, changed, projects=SHOP)) == expected | {"lint"}


@pytest.mark.parametrize(
    ("changed", "job", "code", "reason"),
    [
        (None, "docs", "diff_unknown", "the changed files are not known, so everything runs"),
        (["web/b", "web/a"], "build-web", "path_matches", "web/a changed, which matches web/**"),
        (["x"], "lint", "no_paths", "it names no paths: every change affects it"),
        (["yarn.lock"], "docs", "affects_all", "yarn.lock changed, which affects every job (*.lock)"),
        (["libs/ui/b.ts"], "build-web", "dependency_changed", "web depends on ui, where libs/ui/b.ts changed"),
        (
            ["libs/core/x"],
            "build-web",
            "dependency_changed",
            "web depends on api-client, which depends on api, which depends on libs/core, where libs/core/x changed",
        ),
        (["api/x"], "test-api", "project_changed", "api/x changed, in project api"),
        (["ops/smoke/x"], "deploy", "path_matches", "ops/smoke/x changed, which matches ops/"),
        (["x"], "docs", "no_match", "no changed file matches its paths"),
        ([], "docs", "no_match", "no file changed"),
        (
            ["x"],
            "build-web",
            "no_match",
            "no changed file matches its paths or is in a folder that its projects depend on (web)",
        ),
        (["x"], "test-api", "no_match", "no changed file is in a folder that its projects depend on (api)"),
        (["web/a\nb"], "build-web", "path_matches", "'web/a\\nb' changed, which matches web/**"),
    ],
    ids=str,
)
def test_every_choice_has_a_code_and_a_reason(changed: list[str] | None, job: str, code: str, reason: str) -> None:
    choice = by_name(select(JOBS, changed, projects=SHOP))[job]

    assert (choice.code, choice.reason) == (code, reason)


def test_a_kept_job_keeps_the_jobs_whose_outputs_it_uses() -> None:
    """A job that downloads the artifacts of a job that did not run would fail, or use old artifacts."""
    build = SelectableJob(name="build", paths=("src",), needs=("fetch",))
    fetch = SelectableJob(name="fetch", paths=("never",), needs=("lint",))
    lint = SelectableJob(name="lint", paths=("never",), has_outputs=False)
    sure = SelectableJob(name="test", paths=("tests",), needs=("build",), consumes=("build",))
    unsure = SelectableJob(name="test", paths=("tests",), needs=("build",))
    indifferent = SelectableJob(name="test", paths=("tests",), needs=("build",), consumes=())

    takes = by_name(select([build, fetch, lint, sure], ["tests/a"]))
    may_take = by_name(select([build, fetch, lint, unsure], ["tests/a"]))

    assert takes["build"].reason == "needed by test, which uses its outputs or artifacts"
    assert may_take["build"].reason == "needed by test, which may use its outputs or artifacts"
    assert takes["fetch"].chain == ("build",)
    assert (takes["fetch"].code, takes["lint"].is_kept, takes["fetch"].needs) == ("needed", False, ())
    assert kept(select([build, fetch, lint, indifferent], ["tests/a"])) == {"test"}


def test_a_need_that_is_left_out_is_replaced_by_its_own_needs() -> None:
    """A deployment whose tests are left out must still wait for the checks that these tests need."""
    jobs = [
        SelectableJob(name="check", has_outputs=False),
        SelectableJob(name="test", paths=("src",), needs=("check",), consumes=(), has_outputs=False),
        SelectableJob(name="more", paths=("src",), needs=("test", "check"), consumes=(), has_outputs=False),
        SelectableJob(name="deploy", needs=("more",), consumes=()),
    ]

    choices = by_name(select(jobs, ["docs/a"]))

    assert kept(list(choices.values())) == {"check", "deploy"}
    assert choices["deploy"].needs == ("check",)


@pytest.mark.parametrize("strange", ["", "/etc/passwd", "../a", "a//b", "./a", "/"])
def test_an_invalid_path_keeps_everything(strange: str) -> None:
    choices = select(JOBS, ["docs/a", strange], projects=SHOP)

    assert kept(choices) == {job.name for job in JOBS}
    assert {choice.code for choice in choices} == {"diff_unknown"}


def test_too_much_to_compare_keeps_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    many = select(JOBS, [f"f{number}" for number in range(100_001)], projects=SHOP)
    monkeypatch.setattr(selection, "MAX_WORK", 1_000)
    much = select(JOBS, ["a" * 2_000], projects=SHOP)

    assert {choice.reason for choice in many} == {
        "the changed files are not known (more than 100,000 files changed), so everything runs"
    }
    assert {choice.reason for choice in much} == {
        "the changed files are not known (there is too much to compare), so everything runs"
    }


def test_the_reason_says_why_the_changed_files_are_unknown() -> None:
    (choice,) = select([SelectableJob(name="a", paths=("x",))], None, unknown_because="the clone is shallow")

    assert choice.reason == "the changed files are not known (the clone is shallow), so everything runs"


@pytest.mark.parametrize(
    ("jobs", "projects", "message"),
    [
        ([SelectableJob(name="a"), SelectableJob(name="a")], [], "job 'a' is declared twice"),
        ([SelectableJob(name="a", needs=("b",))], [], "needs 'b', which is not in the plan"),
        (
            [SelectableJob(name="a", needs=("b",)), SelectableJob(name="b", needs=("a",))],
            [],
            "jobs wait for each other",
        ),
        ([SelectableJob(name="a", consumes=("b",)), SelectableJob(name="b")], [], "add it to its needs"),
        ([SelectableJob(name="a", paths=("ok", "x["))], [], "job 'a': pattern 2, column 2: found '\\[' without"),
        ([SelectableJob(name="a", projects=("p",))], [], "project 'p', which is not declared"),
        ([], [Project(name="p", path="a"), Project(name="p", path="b")], "project 'p' is declared twice"),
        ([], [Project(name="p", path="../a")], "project 'p' is '../a'; write a folder"),
        ([], [Project(name="p", path="a", needs=("libs/*",))], "a need of project 'p' is 'libs/\\*'"),
        ([], [Project(name="p", path="")], "project 'p' is ''"),
        ([], [Project(name=f"p{n}", path=f"p{n}") for n in range(2_001)], "2001 projects, at most 2000"),
        ([], [Project(name="p", path="a", needs=("b",) * 20_001)], "20001 needs, at most 20000"),
        ([], [Project(name="p", path="a" * 256)], "256 characters, at most 255"),
    ],
)
def test_inconsistent_jobs_and_projects_are_refused(
    jobs: list[SelectableJob], projects: list[Project], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        select(jobs, [], projects=projects)


def test_a_bad_pattern_for_everything_is_refused() -> None:
    with pytest.raises(Refused, match="the paths that affect everything: pattern 1, column 1"):
        select([], [], always=("?",))


def test_a_long_dependency_path_is_shortened_in_the_reason_only() -> None:
    projects = [Project(name=f"p{n}", path=f"p{n}", needs=(f"p{n + 1}",)) for n in range(20)]

    (choice,) = select([SelectableJob(name="a", paths=("p0",))], ["p20/x"], projects=projects)

    assert choice.reason == (
        "p0 depends on p1, which depends on p2, which depends on p3, which depends on p4, which depends on p5, "
        "which over 14 further links depends on p20, where p20/x changed"
    )
    assert choice.chain == tuple(f"p{n}" for n in range(21))


def test_a_needed_folder_includes_the_needs_of_the_project_around_it() -> None:
    choice = by_name(select(JOBS, ["assets/logo.svg"], projects=SHOP))["build-web"]

    assert choice.reason == (
        "web depends on ui, which depends on libs/tokens/src, which is part of tokens, which depends on assets, "
        "where assets/logo.svg changed"
    )


def test_each_job_has_its_own_order_of_patterns() -> None:
    """Jobs share compiled patterns, but the order in which patterns decide is that of each job."""
    jobs = [SelectableJob(name="a", paths=("src", "!src/gen")), SelectableJob(name="b", paths=("!src/gen", "src"))]

    assert kept(select(jobs, ["src/gen/x"])) == {"b"}
    assert kept(select(list(reversed(jobs)), ["src/gen/x"])) == {"b"}


def test_a_negative_pattern_that_only_may_match_excludes_nothing() -> None:
    jobs = [
        SelectableJob(name="a", paths=("libs/ui/src/**", "!**/*.md")),
        SelectableJob(name="b", paths=("libs/ui/x/*.c",)),
        SelectableJob(name="c", paths=("lib",)),
    ]

    assert kept(select(jobs, ["libs/ui/"])) == {"a", "b"}


def test_the_reason_names_the_first_dependent_by_name() -> None:
    build = SelectableJob(name="build", paths=("never",))
    tests = [SelectableJob(name=f"test-{n}", paths=("tests",), needs=("build",)) for n in range(10)]

    assert by_name(select([build, *tests], ["tests/a"]))["build"].chain == ("test-0",)


def test_paths_between_projects_belong_to_the_inner_projects_and_the_outer_one() -> None:
    projects = [
        Project(name="all", path=".", needs=("vendor",)),
        Project(name="ui", path="libs/ui", needs=("kit",)),
        Project(name="kit", path="kit"),
    ]
    jobs = [SelectableJob(name="libs", paths=("libs/*/src/**",)), SelectableJob(name="ui", paths=("libs/ui/**",))]

    assert kept(select(jobs, ["vendor/a"], projects=projects)) == {"libs"}
    assert kept(select(jobs, ["kit/a"], projects=projects)) == {"libs", "ui"}


def test_the_page_lists_every_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "selection.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| ((?:kept|left out): .*) \|$", page, re.MULTILINE))

    assert listed == dict(CODES)


# --- What holds for every plan -----------------------------------------------------------------------

FOLDERS = ["a", "b", "a/x", "a/y", "b/x", "b/x/z", "c"]
FILES = [f"{folder}/{name}" for folder in FOLDERS for name in ("m.py", "README.md")] + ["top.py", "z.lock", "a/x/"]
PATTERNS = ["a/**", "a", "a/x/", "b/x/*.py", "**/*.py", "*.py", "b/**/*.md", "c/m.py", "a/[xy]/**", "!**/*.md", "!a/y"]


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[SelectableJob], list[Project]]:
    """Generate projects whose dependencies may be cyclic, and jobs whose needs are acyclic."""
    folders = draw(st.lists(st.sampled_from(FOLDERS), max_size=5, unique=True))
    names = [f"p-{folder.replace('/', '-')}" for folder in folders]
    needs = st.lists(st.sampled_from(FOLDERS + names), max_size=2, unique=True).map(tuple)
    projects = [Project(name=n, path=f, needs=draw(needs)) for n, f in zip(names, folders, strict=True)]
    jobs: list[SelectableJob] = []
    for number in range(draw(st.integers(1, 6))):
        paths = draw(st.lists(st.sampled_from(PATTERNS), max_size=3))
        wanted = draw(st.lists(st.sampled_from(jobs), max_size=2, unique=True)) if jobs else []
        before = tuple(job.name for job in wanted)
        jobs.append(
            SelectableJob(
                name=f"j{number}",
                paths=tuple(paths) if any(not text.startswith("!") for text in paths) else (),
                projects=draw(st.none() | st.lists(st.sampled_from(names), max_size=2, unique=True).map(tuple))
                if names
                else None,
                needs=before,
                consumes=draw(st.none() | st.just(before) | st.just(())),
                has_outputs=draw(st.booleans()),
            )
        )
    return jobs, projects


DIFFS = st.lists(st.sampled_from(FILES), max_size=5)


def is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/") or (path.endswith("/") and f"{folder}/".startswith(path))


def could_see(job: SelectableJob, projects: list[Project], changed: list[str]) -> bool:
    """Return whether a change affects a job: a brute-force definition, without jobs kept for their outputs."""
    if not job.paths and not job.projects:
        return True
    if "z.lock" in changed:
        return True
    own = path_filter(job.paths)
    if any(own.matches(path) for path in changed):
        return True
    at = {project.name: project.path for project in projects}
    if job.projects is not None:
        starts = {at[name] for name in job.projects}
        reached = set(starts)
    else:
        prefixes = {"a/**": "a", "a": "a", "a/x/": "a/x", "b/x/*.py": "b/x", "b/**/*.md": "b", "c/m.py": "c/m.py"}
        prefixes["a/[xy]/**"] = "a"
        begun = {prefixes[text] for text in job.paths if text in prefixes}
        starts = {folder for begin in begun for folder in meant(begin, set(at.values()))}
        reached = set()
    done, todo = set[str](), list(starts)
    while todo:
        folder = todo.pop()
        if folder in done:
            continue
        done.add(folder)
        about = {folder} if folder in at.values() else set(innermost(folder, set(at.values())))
        for project in projects:
            if project.path in about or project.path.startswith(f"{folder}/"):
                needed = {at.get(need, need) for need in project.needs}
                reached |= needed
                todo += needed
    return any(is_in(path, folder) for path in changed for folder in reached)


def innermost(folder: str, known: set[str]) -> list[str]:
    around = [other for other in known if folder.startswith(f"{other}/")]
    return [max(around, key=len)] if around else []


def meant(begin: str, known: set[str]) -> list[str]:
    if begin in known:
        return [begin]
    return [other for other in known if other.startswith(f"{begin}/")] + innermost(begin, known)


@settings(max_examples=100, deadline=None)
@given(plans(), DIFFS)
def test_exactly_the_affected_jobs_are_kept_for_their_own_paths(
    plan: tuple[list[SelectableJob], list[Project]], changed: list[str]
) -> None:
    jobs, projects = plan
    choices = by_name(select(jobs, changed, projects=projects))

    for job in jobs:
        choice = choices[job.name]
        if could_see(job, projects, changed):
            assert choice.is_kept, job
        elif "a/x/" not in changed:  # what only may match is kept too
            assert choice.code in ("needed", "no_match"), choice


@settings(max_examples=60, deadline=None)
@given(plans(), DIFFS, DIFFS)
def test_more_changes_never_leave_out_more_jobs(
    plan: tuple[list[SelectableJob], list[Project]], changed: list[str], more: list[str]
) -> None:
    jobs, projects = plan

    assert kept(select(jobs, changed, projects=projects)) <= kept(select(jobs, changed + more, projects=projects))


@settings(max_examples=60, deadline=None)
@given(plans(), DIFFS, st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_never_matters(
    plan: tuple[list[SelectableJob], list[Project]], changed: list[str], dice: st.DataObject
) -> None:
    jobs, projects = plan
    expected = select(jobs, changed, projects=projects)
    for some in (jobs, projects, changed):
        dice.shuffle(some)  # type: ignore[attr-defined]  # a random.Random that hypothesis draws

    assert select(jobs, [*changed, *changed], projects=projects) == expected


@settings(max_examples=60, deadline=None)
@given(plans(), st.none() | DIFFS)
def test_every_job_has_a_choice_and_the_kept_jobs_form_a_plan(
    plan: tuple[list[SelectableJob], list[Project]], changed: list[str] | None
) -> None:
    jobs, projects = plan
    choices = select(jobs, changed, projects=projects)
    known = {job.name: job for job in jobs}

    assert [choice.job for choice in choices] == sorted(known)
    assert changed is not None or kept(choices) == set(known)
    for choice in choices:
        assert choice.reason
        assert CODES[choice.code].startswith("kept" if choice.is_kept else "left out")
        assert set(choice.needs) <= kept(choices)
        if choice.is_kept:
            assert set(choice.needs) >= set(known[choice.job].needs) & kept(choices)
            assert set(known[choice.job].consumes or ()) <= kept(choices)


@settings(max_examples=100, deadline=None)
@given(
    plans(),
    st.sets(st.sampled_from([path for path in FILES if not path.startswith("a/x/")]), max_size=4),
    st.booleans(),
)
def test_the_digest_of_a_job_changes_exactly_with_the_files_that_affect_the_job(
    plan: tuple[list[SelectableJob], list[Project]], changed: set[str], is_submodule_changed: bool
) -> None:
    """Otherwise a job would be reused although a change affects it, or would run again for nothing."""
    jobs, projects = plan
    before = {path: "100644 blob 1" for path in FILES if not path.startswith("a/x/")} | {"a/x": "160000 commit 1"}
    after = before | dict.fromkeys(changed, "100644 blob 2")
    if is_submodule_changed:
        after["a/x"] = "160000 commit 2"
        changed = changed | {"a/x", "a/x/"}
    selection = JobSelection(jobs, projects)

    old, new = selection.digest_files(before), selection.digest_files(after)

    for choice in selection.select(changed):
        is_affected = bool(changed) if choice.code == "no_paths" else choice.code not in ("no_match", "needed")
        assert (old[choice.job] != new[choice.job]) == is_affected, choice
