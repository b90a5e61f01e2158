"""`deltaci init`: what people see, what programs get, and what is never overwritten."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from deltaci.cli.app import app


def init(*arguments: str) -> Result:
    """The command, called."""
    return CliRunner().invoke(app, ["init", *arguments])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lay(folder: Path, **files: str) -> None:
    """A Go module, and more files."""
    for name, text in {"go.mod": "module x\n\ngo 1.23\n", "a.go": "package x\n", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def git(folder: Path, *words: str) -> None:
    """One command of git, without anybody's settings."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=folder, env=env, check=True, capture_output=True)


def test_nothing_at_all_is_told_and_nothing_is_written(here: Path) -> None:
    """With what was looked for."""
    result = init()

    assert result.exit_code == 1
    assert result.stderr.startswith("deltaci init: found nothing to build, test or lint; looked for")
    assert list(here.iterdir()) == []


def test_a_file_that_is_there_stays(here: Path) -> None:
    """Somebody may have worked on it; also a link is somebody's."""
    lay(here, **{".deltaci.yml": "mine"})

    result = init()

    assert result.exit_code == 2
    assert ".deltaci.yml already exists; --force overwrites it" in result.stderr
    assert (here / ".deltaci.yml").read_text() == "mine"
    assert "+ build: Go packages (sure)" in result.stdout

    assert init("--force").exit_code == 0
    assert "go build ./..." in (here / ".deltaci.yml").read_text()

    (here / ".deltaci.yml").unlink()
    (here / ".deltaci.yml").symlink_to("nowhere")
    assert init().exit_code == 2


def test_a_place_that_is_no_folder_is_refused(here: Path) -> None:
    """Before anything is looked at."""
    assert "nowhere is not a folder" in init("nowhere").stderr


def test_what_is_found_is_told_and_written_and_good(here: Path) -> None:
    """With how sure it is, and why; guesses as comments."""
    lay(here, **{"odd/package.json": '{"scripts": {"test": "jest"}}'})

    result = init()

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "+ build: Go packages (sure)",
        "    there is go.mod, for Go 1.23",
        "? odd-test: Node tests in odd (unsure: it lies inside another project, and may be a part of it rather than "
        "one of its own)",
        "    package.json has the script 'test': 'jest'",
        "    npm: there is no lock file",
        "",
        ".deltaci.yml was written; check it with `deltaci lint`.",
    ]
    assert "  # odd-test:\n" in (here / ".deltaci.yml").read_text()
    linted = CliRunner().invoke(app, ["lint"])
    assert (linted.exit_code, linted.stdout) == (0, ".deltaci.yml: ok, 1 job\n")


def test_guesses_alone_make_a_file_that_says_so(here: Path) -> None:
    """A run that tests nothing must not look good, and nothing may run that is only a guess."""
    (here / "Makefile").write_text("x: x.c\n\tcc\n")

    assert init().exit_code == 0

    text = (here / ".deltaci.yml").read_text()
    assert "  undecided:\n" in text
    assert "  # build:\n" in text
    assert CliRunner().invoke(app, ["lint"]).exit_code == 0


def test_printing_writes_nothing(here: Path) -> None:
    """What is printed is the file, and nothing else."""
    lay(here)

    result = init("--print")

    assert result.exit_code == 0
    assert not (here / ".deltaci.yml").exists()
    assert CliRunner().invoke(app, ["lint", "-"], input=result.stdout).exit_code == 0


def test_programs_get_everything_as_json(here: Path) -> None:
    """Also the text of the file."""
    lay(here, **{".github/workflows/ci.yml": "on: push\n"})

    told = msgspec.json.decode(init("--json", "--print").stdout)

    assert told["findings"][0]["id"] == "build"
    assert told["findings"][0]["job"]["steps"] == ["go build ./...", "go vet ./..."]
    assert (told["findings"][0]["confidence"], told["findings"][0]["runs"]) == ("sure", True)
    assert (told["workflows"], told["written"]) == ([".github/workflows/ci.yml"], None)
    assert told["file"].startswith("# Written by")


def test_workflows_of_github_are_mentioned(here: Path) -> None:
    """They run as they are, unless there is a file of ours."""
    lay(here, **{".github/workflows/ci.yml": "on: push\n", ".github/workflows/b.yaml": "on: push\n"})

    result = init()

    assert "There are 2 files in .github/workflows/" in result.stdout
    assert "`deltaci import` converts them exactly" in result.stdout


def test_in_git_what_is_ignored_is_not_there(here: Path) -> None:
    """Somebody's experiments are not the project."""
    lay(here, **{".gitignore": "ui/\n", "ui/package.json": '{"scripts": {"test": "jest"}}'})
    git(here, "init", "-q")

    assert [finding["id"] for finding in msgspec.json.decode(init("--json", "--print").stdout)["findings"]] == ["build"]


def test_without_git_what_tools_installed_is_not_there(here: Path) -> None:
    """And a file that is no text, is too large, or leads out of the repository says nothing."""
    lay(here, **{"node_modules/x/package.json": '{"scripts": {"test": "jest"}}'})
    (here / "pyproject.toml").write_bytes(b"\xff\xfe")
    (here / "Makefile").write_text("test:\n" + "#" * 2_000_000)
    (here / "package.json").symlink_to("/etc/hostname")
    (here / "Cargo.toml").symlink_to("Cargo.toml")
    os.mkfifo(here / "composer.json")

    result = init("--json", "--print")

    assert [finding["id"] for finding in msgspec.json.decode(result.stdout)["findings"]] == ["build"]
