"""What is proposed for tiny real projects is run, as it is, by a shell. What would need the network is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from deltaci.pipeline.detect import Finding, propose, wanted
from tests.pipeline.trees import package

FETCHING = ("pip install", "npm install", "npm ci")


def laid(folder: Path, files: dict[str, str]) -> dict[str, Finding]:
    """A project on disk, and what is proposed for it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return {each.id: each for each in propose(files, {name: files[name] for name in wanted(files)}).findings}


def run(folder: Path, finding: Finding) -> list[int]:
    """How each step ends."""
    ends = []
    for step in finding.job.steps or ():
        if any(word in (step.run or "") for word in FETCHING):
            continue
        env = os.environ | {name: str(value) for name, value in finding.job.env.items()}
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step.run or ""],
            cwd=folder / (finding.where or "."),
            env=env,
            capture_output=True,
            timeout=120,
            check=False,
        )
        ends.append(done.returncode)
    return ends


def test_a_python_project_is_tested(tmp_path: Path) -> None:
    """Also in a folder: a good one succeeds, a broken one fails."""
    test = (
        "import unittest\nfrom adding import add\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
    )
    files = {
        "services/api/setup.py": "from setuptools import setup\nsetup(name='adding', py_modules=['adding'])\n",
        "services/api/adding.py": "def add(a, b):\n    return a + b\n",
        "services/api/test_adding.py": test,
    }
    found = laid(tmp_path, files)["services-api-test"]

    assert run(tmp_path, found) == [0, 0]

    (tmp_path / "services/api/adding.py").write_text("def add(a, b):\n    return a - b\n", encoding="utf-8")
    assert found.job.steps is not None
    only_tests = msgspec.structs.replace(found, job=msgspec.structs.replace(found.job, steps=found.job.steps[-1:]))
    assert run(tmp_path, only_tests) == [1]


def test_a_python_project_is_tested_with_pytest_and_writes_a_report(tmp_path: Path) -> None:
    """With the environment of these tests instead of one that had to be filled from the network."""
    files = {
        "pyproject.toml": "[project]\nname = 'x'\n[tool.pytest.ini_options]\naddopts = '-p no:cacheprovider'\n",
        "requirements-dev.txt": "pytest\n",
        "tests/test_a.py": "def test_a():\n    assert True\n",
    }
    found = laid(tmp_path, files)["test"]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)

    assert found.job.steps is not None
    done = subprocess.run(["bash", "-c", found.job.steps[-1].run or ""], cwd=tmp_path, capture_output=True, check=False)

    assert done.returncode == 0, done.stdout
    assert (tmp_path / found.job.artifacts[0].path).is_file()


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here")
def test_a_node_project_is_built_tested_and_checked(tmp_path: Path) -> None:
    """Every script is run by npm under its own name."""
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

    found = laid(tmp_path, files)

    assert {name: run(tmp_path, each) for name, each in found.items()} == {"build": [0], "test": [0], "lint": [0]}
    assert (tmp_path / "built").read_text(encoding="utf-8") == "true"


def has_cargo() -> bool:
    """Whether it runs: what rustup puts on the PATH needs the home of whoever installed it."""
    found = shutil.which("cargo")
    return found is not None and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_cargo(), reason="there is no cargo here")
def test_a_rust_project_is_built_and_tested(tmp_path: Path) -> None:
    """Without dependencies, so without the network."""
    files = {
        "Cargo.toml": '[package]\nname = "adding"\nversion = "0.1.0"\nedition = "2021"\n',
        "src/lib.rs": "pub fn one() -> i32 {\n    1\n}\n\n#[test]\nfn is_one() {\n    assert_eq!(one(), 1);\n}\n",
    }

    found = laid(tmp_path, files)

    assert [run(tmp_path, found[job]) for job in ("build", "test", "format")] == [[0], [0], [0]]


def test_a_project_with_a_makefile_is_built_and_tested(tmp_path: Path) -> None:
    """What is tested was made by the first target."""
    files = {"Makefile": "all:\n\techo made > made\n\ntest:\n\tgrep made made\n"}

    assert run(tmp_path, laid(tmp_path, files)["test"]) == [0, 0]
