"""Discovery reads what strangers wrote: nothing of it may become a command, cost much, or make it fail."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.pipeline.detect import propose, wanted
from deltaci.pipeline.detect.tree import MAX_READ_CHARS, MAX_READ_FILES, is_plain
from deltaci.pipeline.detect.writing import NOTHING, written
from deltaci.pipeline.parse.printer import format_pipeline
from deltaci.pipeline.parse.reader import parse_pipeline
from tests.pipeline.test_discovery_node import JEST
from tests.pipeline.test_discovery_others import TREES
from tests.pipeline.test_discovery_python import WAYS
from tests.pipeline.trees import package, proposed

EVIL = "$(touch owned)`touch owned`;touch owned|touch owned&\n'\"${{ secrets.KEY }}\\u0000 # * --help"
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
# Everything that may stand in a proposed command, unless it is one of ours with a meaning.
WORD = re.compile(
    r"PATH=\"\$PWD/\.venv/bin:\$PATH\"|[A-Za-z0-9_./@=:,+-]+|'\.\[[\w-]+\]'|'using|Pkg;|Pkg\.test\(\)'|//\.\.\.|\*\.tar\.gz|\./\.\.\."
)


def assert_harmless(files: dict[str, str]) -> None:
    """It reads back as it is, and its commands consist of plain words."""
    proposal = proposed(files)
    text = written(proposal)
    found = parse_pipeline(text)
    assert found.problems == ()
    assert found.pipeline is not None
    assert not found.expressions
    for finding in proposal.findings:
        for step in finding.job.steps or ():
            assert all(WORD.fullmatch(word) for word in (step.run or "").split()), step.run
            assert "owned" not in (step.run or "")


@pytest.mark.parametrize(
    "text",
    [
        *(EVIL, EVIL * 1000, "{", "[" * 5000, '{"a":' * 5000, "[a]\n" * 5000, "\x00\ud800\ufeff"),
        *("a" * MAX_READ_CHARS, "-\n:\n="),
    ],
    ids=["evil", "more", "open", "deep", "deeper", "same", "strange", "large", "odd"],
)
def test_any_text_in_any_manifest_is_survived(text: str) -> None:
    """As if it said nothing."""
    for name in MANIFESTS:
        assert_harmless({name: text, "a.go": "", "README.md": ""})
    assert_harmless(dict.fromkeys(MANIFESTS, text))


@pytest.mark.parametrize(
    "files",
    [
        {"package.json": package({"test": EVIL, "lint": EVIL, "build": EVIL}, engines={"node": EVIL})},
        {"package.json": package({"test": "jest"}, packageManager=EVIL, main=EVIL, bin=EVIL)},
        {"package.json": package({EVIL: "jest"}, workspaces=[EVIL]), f"{EVIL}/package.json": JEST},
        {"pyproject.toml": f"[project]\nname='x'\n[dependency-groups]\n'''{EVIL}''' = ['pytest']\n", "test_a.py": ""},
        {"pyproject.toml": f"[project]\nrequires-python = '''{EVIL}'''\n[tool.pytest]\na=1\n", "test_a.py": ""},
        {"pyproject.toml": f"[build-system]\nbuild-backend = '''{EVIL}'''\n[project]\nname='x'\n", "test_a.py": ""},
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
def test_what_strangers_write_never_becomes_a_command(files: dict[str, str]) -> None:
    """Names of scripts, targets, extras, files and folders least of all."""
    assert_harmless(files)


def test_folders_with_strange_names_are_told_and_not_used() -> None:
    """Somebody may wonder why nothing is proposed there."""
    proposal = proposed({"a b/package.json": JEST, "go.mod": "", "a.go": ""})

    assert [each.id for each in proposal.findings] == ["build"]
    assert any("not safe in commands" in each for each in proposal.unclear)
    assert not any(map(is_plain, ("a b", "-a", "a/../b", "..", "a\nb", "$x", "a'b", "ä", "c++")))


def test_a_manifest_that_cannot_be_read_is_told() -> None:
    """Its author made a mistake that other tools will meet too."""
    proposal = proposed({"package.json": "{", "pyproject.toml": "[", "go.mod": "", "a.go": ""})

    assert [each for each in proposal.unclear if "cannot be read" in each] == [
        "package.json cannot be read as what it should be; it is left aside",
        "pyproject.toml cannot be read as what it should be; it is left aside",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("\n", " ", "no test ", "test: a ", "@nox.session\n", "extras_require={", "v4net48;", "\\\n", "a.a."),
        *("<TargetFramework>", "test:\n", "a ", "[a.b]\n", "{", "- ", "\t\n"),
    ],
)
def test_large_texts_cost_little(text: str) -> None:
    """Whoever may push may not stop the planner for minutes."""
    content = (text * MAX_READ_CHARS)[:MAX_READ_CHARS]
    before = time.process_time()

    proposed(dict.fromkeys(MANIFESTS, content))

    assert time.process_time() - before < 20


def test_only_a_few_files_are_read() -> None:
    """However many there are, and those near the root first."""
    paths = [f"a{number}/package.json" for number in range(5000)] + ["package.json", "node_modules/x/package.json"]

    asked = wanted(paths)

    assert len(asked) <= MAX_READ_FILES
    assert asked[0] == "package.json"
    assert not any("node_modules" in path for path in asked)


def test_a_huge_tree_is_looked_at_quickly() -> None:
    """As large as the largest that people have."""
    paths = [f"d{number % 997}/e{number % 89}/f{number}.c" for number in range(100_000)]
    before = time.process_time()

    propose([*paths, "Makefile", "pyproject.toml", "package.json"], {"Makefile": "all:\ntest:\n"})

    assert time.process_time() - before < 20


ALL = {name: files for name, (files, *_) in (TREES | WAYS).items()}


@pytest.mark.parametrize("name", list(ALL))
def test_what_is_written_reads_back_as_what_is_proposed(name: str) -> None:
    """Without a problem and without a warning, comments and all."""
    proposal = proposed(ALL[name])
    found = parse_pipeline(written(proposal))

    assert found.problems == ()
    assert found.pipeline is not None
    if proposal.pipeline is None:
        assert NOTHING in (found.pipeline.jobs["undecided"].steps or ())[0].run  # type: ignore[operator]
    else:
        assert found.pipeline.jobs == proposal.pipeline.jobs
        assert parse_pipeline(format_pipeline(proposal.pipeline)).pipeline == proposal.pipeline


def test_a_guess_becomes_a_job_when_its_comment_is_taken_away() -> None:
    """Nobody should have to write it anew."""
    proposal = proposed(ALL["a Rust workspace"])
    text = re.sub(r"(?m)^  # (format:|  .*)$", lambda line: f"  {line[1]}", written(proposal))
    found = parse_pipeline(text)

    assert found.problems == ()
    assert found.pipeline is not None
    assert found.pipeline.jobs == {each.id: each.job for each in proposal.findings}


NAMES = st.sampled_from([*MANIFESTS, "uv.lock", "yarn.lock", "gradlew", "manage.py", ".gitmodules", "X.sln", "nx.json"])
FOLDERS = st.sampled_from(["", "a/", "packages/b/", "apps/web/", "docs/", "a b/", "vendor/x/", "ü/"])
TEXTS = st.one_of(
    st.sampled_from(sorted({text for files in ALL.values() for text in files.values()})),
    st.text(st.sampled_from("[]{}:=\"'$\n\t #-ab.\u2028\x00"), max_size=50),
)


@given(st.dictionaries(st.builds("{}{}".format, FOLDERS, NAMES), TEXTS, max_size=12), st.randoms())
def test_any_mixture_is_read_the_same_in_any_order(files: dict[str, str], chance: object) -> None:
    """And what comes out is always a good file."""
    paths = list(files)
    chance.shuffle(paths)  # type: ignore[attr-defined]

    proposal = propose(paths, {path: files[path] for path in wanted(paths)})

    assert proposal == proposed(files)
    found = parse_pipeline(written(proposal))
    assert found.problems == ()
    assert found.pipeline is not None
    assert proposal.pipeline is None or found.pipeline.jobs == proposal.pipeline.jobs
    assert all(each.evidence and each.job.steps for each in proposal.findings)
    assert all(each.reason for each in proposal.findings if each.confidence != "sure")
