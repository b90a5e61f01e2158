"""Repository contents are untrusted: detection must not put them into commands, take long, or fail on them."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.pipeline.detect import files_to_read, propose
from deltaci.pipeline.detect.render import NOTHING_CERTAIN, render_pipeline_file
from deltaci.pipeline.detect.tree import MAX_READ_CHARS, MAX_READ_FILES, is_plain
from deltaci.pipeline.parse.printer import format_pipeline
from deltaci.pipeline.parse.reader import parse_pipeline
from tests.pipeline.detect.test_node import JEST
from tests.pipeline.detect.test_others import REPOSITORIES
from tests.pipeline.detect.test_python import PYTHON_PROJECTS
from tests.pipeline.detect.trees import package, proposed

UNSAFE = "$(touch owned)`touch owned`;touch owned|touch owned&\n'\"${{ secrets.KEY }}\\u0000 # * --help"
MANIFESTS = (
    *(
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
        "tox.ini",
        "noxfile.py",
        "Pipfile",
        "requirements-dev.txt",
        "pytest.ini",
    ),
    *("package.json", "pnpm-workspace.yaml", "lerna.json", "go.mod", ".golangci.yml", "Cargo.toml", "rustfmt.toml"),
    *("pom.xml", "build.gradle", "X.csproj", "Gemfile", "Rakefile", "composer.json", "phpunit.xml", "CMakeLists.txt"),
    *("meson.build", "configure.ac", "Makefile.am", "Makefile", "justfile", "Taskfile.yml", "mix.exs", "hatch.toml"),
    *("tests/test_a.py", "tests/CMakeLists.txt", "src/Makefile", "a.go", "src/lib.rs", "tox.toml", "Kconfig"),
)
# The words that a proposed command may contain.
WORD = re.compile(
    r"PATH=\"\$PWD/\.venv/bin:\$PATH\"|[A-Za-z0-9_./@=:,+-]+|'\.\[[\w-]+\]'|'using|Pkg;|Pkg\.test\(\)'|//\.\.\.|\*\.tar\.gz|\./\.\.\."
)


def assert_harmless(files: dict[str, str]) -> None:
    """Assert that the rendered proposal can be parsed, and that its commands consist of allowed words."""
    proposal = proposed(files)
    text = render_pipeline_file(proposal)
    result = parse_pipeline(text)
    assert result.problems == ()
    assert result.pipeline is not None
    assert not result.expressions
    for proposed_job in proposal.proposed_jobs:
        for step in proposed_job.job.steps or ():
            assert all(WORD.fullmatch(word) for word in (step.run or "").split()), step.run
            assert "owned" not in (step.run or "")


@pytest.mark.parametrize(
    "text",
    [
        *(UNSAFE, UNSAFE * 1000, "{", "[" * 5000, '{"a":' * 5000, "[a]\n" * 5000, "\x00\ud800\ufeff"),
        *("a" * MAX_READ_CHARS, "-\n:\n="),
    ],
    ids=["evil", "more", "open", "deep", "deeper", "same", "strange", "large", "odd"],
)
def test_any_text_is_accepted_in_any_manifest(text: str) -> None:
    """A text that cannot be parsed is treated as empty."""
    for name in MANIFESTS:
        assert_harmless({name: text, "a.go": "", "README.md": ""})
    assert_harmless(dict.fromkeys(MANIFESTS, text))


@pytest.mark.parametrize(
    "files",
    [
        {"package.json": package({"test": UNSAFE, "lint": UNSAFE, "build": UNSAFE}, engines={"node": UNSAFE})},
        {"package.json": package({"test": "jest"}, packageManager=UNSAFE, main=UNSAFE, bin=UNSAFE)},
        {"package.json": package({UNSAFE: "jest"}, workspaces=[UNSAFE]), f"{UNSAFE}/package.json": JEST},
        {"pyproject.toml": f"[project]\nname='x'\n[dependency-groups]\n'''{UNSAFE}''' = ['pytest']\n", "test_a.py": ""},
        {"pyproject.toml": f"[project]\nrequires-python = '''{UNSAFE}'''\n[tool.pytest]\na=1\n", "test_a.py": ""},
        {"pyproject.toml": f"[build-system]\nbuild-backend = '''{UNSAFE}'''\n[project]\nname='x'\n", "test_a.py": ""},
        {"tox.ini": "[testenv]\ncommands = x\n[testenv:$(touch owned)]\n", "a.py": "", "setup.py": ""},
        {"setup.py": "extras_require={\n '$(touch owned)': [],\n }", "pytest.ini": "", "test_a.py": ""},
        {"Makefile": "test $(touch owned): ; touch owned\n\ttouch owned\n"},
        {"$(touch owned).sln": ""},
        {"a b/package.json": JEST, "-rf/go.mod": "", "-rf/a.go": "", "a;b/go.mod": "", "a;b/a.go": ""},
        {"${{ secrets.X }}/go.mod": "", "${{ secrets.X }}/a.go": "", "a*/go.mod": "", "a*/a.go": ""},
        {"../go.mod": "", "../a.go": "", "a/../../go.mod": "", "/etc/go.mod": "", "a//go.mod": "", "./go.mod": ""},
        {"noxfile.py": "@nox.session(name='$(touch owned)')\ndef tests(s): pass\n", "setup.py": ""},
        {"requirements-dev.txt": "ruff==1;touch owned\n", "pyproject.toml": "[project]\nname='x'\n[tool.ruff]\n"},
    ],
)  # fmt: skip
def test_untrusted_text_never_becomes_part_of_a_command(files: dict[str, str]) -> None:
    """Untrusted names of scripts, targets, extras, files and folders must not be executed."""
    assert_harmless(files)


def test_folders_with_unsafe_names_are_skipped_with_a_message() -> None:
    """The message explains why no job is proposed for the folder."""
    proposal = proposed({"a b/package.json": JEST, "go.mod": "", "a.go": ""})

    assert [proposed_job.id for proposed_job in proposal.proposed_jobs] == ["build"]
    assert any("not safe in commands" in message for message in proposal.unclear)
    assert not any(map(is_plain, ("a b", "-a", "a/../b", "..", "a\nb", "$x", "a'b", "ä", "c++")))


def test_a_manifest_that_cannot_be_parsed_is_reported() -> None:
    """Its author has to fix a mistake that other tools will report too."""
    proposal = proposed({"package.json": "{", "pyproject.toml": "[", "go.mod": "", "a.go": ""})

    assert [message for message in proposal.unclear if "cannot be parsed" in message] == [
        "package.json cannot be parsed and is ignored",
        "pyproject.toml cannot be parsed and is ignored",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("\n", " ", "no test ", "test: a ", "@nox.session\n", "extras_require={", "v4net48;", "\\\n", "a.a."),
        *("<TargetFramework>", "test:\n", "a ", "[a.b]\n", "{", "- ", "\t\n"),
    ],
)
def test_large_texts_are_processed_quickly(text: str) -> None:
    """A user who may push must not be able to block the planner for minutes."""
    content = (text * MAX_READ_CHARS)[:MAX_READ_CHARS]
    started = time.process_time()

    proposed(dict.fromkeys(MANIFESTS, content))

    assert time.process_time() - started < 20


def test_the_number_of_files_that_are_read_is_limited() -> None:
    """Files near the root come first."""
    paths = [f"a{number}/package.json" for number in range(5000)] + ["package.json", "node_modules/x/package.json"]

    paths_to_read = files_to_read(paths)

    assert len(paths_to_read) <= MAX_READ_FILES
    assert paths_to_read[0] == "package.json"
    assert not any("node_modules" in path for path in paths_to_read)


def test_a_huge_tree_is_processed_quickly() -> None:
    """The largest repositories have about 100,000 files."""
    paths = [f"d{number % 997}/e{number % 89}/f{number}.c" for number in range(100_000)]
    started = time.process_time()

    propose([*paths, "Makefile", "pyproject.toml", "package.json"], {"Makefile": "all:\ntest:\n"})

    assert time.process_time() - started < 20


ALL_REPOSITORIES = {name: files for name, (files, *_) in (REPOSITORIES | PYTHON_PROJECTS).items()}


@pytest.mark.parametrize("name", list(ALL_REPOSITORIES))
def test_the_rendered_file_parses_to_the_proposed_pipeline(name: str) -> None:
    """The comments must not cause problems or warnings."""
    proposal = proposed(ALL_REPOSITORIES[name])
    result = parse_pipeline(render_pipeline_file(proposal))

    assert result.problems == ()
    assert result.pipeline is not None
    if proposal.pipeline is None:
        assert NOTHING_CERTAIN in (result.pipeline.jobs["undecided"].steps or ())[0].run  # type: ignore[operator]
    else:
        assert result.pipeline.jobs == proposal.pipeline.jobs
        assert parse_pipeline(format_pipeline(proposal.pipeline)).pipeline == proposal.pipeline


def test_an_uncommented_guess_is_a_valid_job() -> None:
    """Users can enable a guessed job by removing the comment signs."""
    proposal = proposed(ALL_REPOSITORIES["a Rust workspace"])
    text = re.sub(r"(?m)^  # (format:|  .*)$", lambda line: f"  {line[1]}", render_pipeline_file(proposal))
    result = parse_pipeline(text)

    assert result.problems == ()
    assert result.pipeline is not None
    assert result.pipeline.jobs == {proposed_job.id: proposed_job.job for proposed_job in proposal.proposed_jobs}


NAMES = st.sampled_from([*MANIFESTS, "uv.lock", "yarn.lock", "gradlew", "manage.py", ".gitmodules", "X.sln", "nx.json"])
FOLDERS = st.sampled_from(["", "a/", "packages/b/", "apps/web/", "docs/", "a b/", "vendor/x/", "ü/"])
TEXTS = st.one_of(
    st.sampled_from(sorted({text for files in ALL_REPOSITORIES.values() for text in files.values()})),
    st.text(st.sampled_from("[]{}:=\"'$\n\t #-ab.\u2028\x00"), max_size=50),
)


@given(st.dictionaries(st.builds("{}{}".format, FOLDERS, NAMES), TEXTS, max_size=12), st.randoms())
def test_the_order_of_the_paths_does_not_matter(files: dict[str, str], randomizer: object) -> None:
    """Any combination of files results in a valid pipeline file."""
    paths = list(files)
    randomizer.shuffle(paths)  # type: ignore[attr-defined]

    proposal = propose(paths, {path: files[path] for path in files_to_read(paths)})

    assert proposal == proposed(files)
    result = parse_pipeline(render_pipeline_file(proposal))
    assert result.problems == ()
    assert result.pipeline is not None
    assert proposal.pipeline is None or result.pipeline.jobs == proposal.pipeline.jobs
    assert all(proposed_job.evidence and proposed_job.job.steps for proposed_job in proposal.proposed_jobs)
    assert all(proposed_job.uncertainty for proposed_job in proposal.proposed_jobs if proposed_job.confidence != "sure")
