"""Run the proposed commands of tiny real projects in a shell, except for those that need the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from deltaci.pipeline.detect import ProposedJob, files_to_read, propose
from tests.pipeline.detect.trees import package

NETWORK_COMMANDS = ("pip install", "npm install", "npm ci")


def proposed_jobs_of_files(folder: Path, files: dict[str, str]) -> dict[str, ProposedJob]:
    """Write the files into the folder and return the jobs proposed for them by id."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return {
        proposed_job.id: proposed_job
        for proposed_job in propose(files, {name: files[name] for name in files_to_read(files)}).proposed_jobs
    }


def run(folder: Path, proposed_job: ProposedJob) -> list[int]:
    """Run the steps of a proposed job that do not need the network, and return their exit codes."""
    exit_codes = []
    for step in proposed_job.job.steps or ():
        if any(word in (step.run or "") for word in NETWORK_COMMANDS):
            continue
        env = os.environ | {name: str(value) for name, value in proposed_job.job.env.items()}
        process = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step.run or ""],
            cwd=folder / (proposed_job.folder or "."),
            env=env,
            capture_output=True,
            timeout=120,
            check=False,
        )
        exit_codes.append(process.returncode)
    return exit_codes


def test_a_python_project_is_tested(tmp_path: Path) -> None:
    """The job runs in the folder of the project, and fails if a test fails."""
    test = (
        "import unittest\nfrom adding import add\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
    )
    files = {
        "services/api/setup.py": "from setuptools import setup\nsetup(name='adding', py_modules=['adding'])\n",
        "services/api/adding.py": "def add(a, b):\n    return a + b\n",
        "services/api/test_adding.py": test,
    }
    proposed_job = proposed_jobs_of_files(tmp_path, files)["services-api-test"]

    assert run(tmp_path, proposed_job) == [0, 0]

    (tmp_path / "services/api/adding.py").write_text("def add(a, b):\n    return a - b\n", encoding="utf-8")
    assert proposed_job.job.steps is not None
    only_tests = msgspec.structs.replace(
        proposed_job, job=msgspec.structs.replace(proposed_job.job, steps=proposed_job.job.steps[-1:])
    )
    assert run(tmp_path, only_tests) == [1]


def test_a_python_project_is_tested_with_pytest_and_writes_a_report(tmp_path: Path) -> None:
    """The environment of this test run replaces one that would be installed from the network."""
    files = {
        "pyproject.toml": "[project]\nname = 'x'\n[tool.pytest.ini_options]\naddopts = '-p no:cacheprovider'\n",
        "requirements-dev.txt": "pytest\n",
        "tests/test_a.py": "def test_a():\n    assert True\n",
    }
    proposed_job = proposed_jobs_of_files(tmp_path, files)["test"]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)

    assert proposed_job.job.steps is not None
    process = subprocess.run(
        ["bash", "-c", proposed_job.job.steps[-1].run or ""], cwd=tmp_path, capture_output=True, check=False
    )

    assert process.returncode == 0, process.stdout
    assert (tmp_path / proposed_job.job.artifacts[0].path).is_file()


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here")
def test_a_node_project_is_built_tested_and_checked(tmp_path: Path) -> None:
    """npm runs each script by its name."""
    scripts = {
        "build": "node -e \"require('fs').writeFileSync('built', process.env.CI)\"",
        "test": "node --test",
        "lint": "node --check a.js",
    }
    files = {
        "package.json": package(scripts),
        "a.js": "module.exports = 1;\n",
        "a.test.js": "require('node:test')('is one', () => require('assert').equal(require('./a.js'), 1));\n",
    }

    proposed_jobs = proposed_jobs_of_files(tmp_path, files)

    assert {name: run(tmp_path, proposed_job) for name, proposed_job in proposed_jobs.items()} == {
        "build": [0],
        "test": [0],
        "lint": [0],
    }
    assert (tmp_path / "built").read_text(encoding="utf-8") == "true"


def has_cargo() -> bool:
    """Return whether cargo can be started: the one of rustup needs the home folder of the user who installed it."""
    cargo = shutil.which("cargo")
    return cargo is not None and subprocess.run([cargo, "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_cargo(), reason="there is no cargo here")
def test_a_rust_project_is_built_and_tested(tmp_path: Path) -> None:
    """The crate has no dependencies, so cargo does not need the network."""
    files = {
        "Cargo.toml": '[package]\nname = "adding"\nversion = "0.1.0"\nedition = "2021"\n',
        "src/lib.rs": "pub fn one() -> i32 {\n    1\n}\n\n#[test]\nfn is_one() {\n    assert_eq!(one(), 1);\n}\n",
    }

    proposed_jobs = proposed_jobs_of_files(tmp_path, files)

    assert [run(tmp_path, proposed_jobs[job]) for job in ("build", "test", "format")] == [[0], [0], [0]]


def test_a_project_with_a_makefile_is_built_and_tested(tmp_path: Path) -> None:
    """The default target builds what the test target needs."""
    files = {"Makefile": "all:\n\techo made > made\n\ntest:\n\tgrep made made\n"}

    assert run(tmp_path, proposed_jobs_of_files(tmp_path, files)["test"]) == [0, 0]
