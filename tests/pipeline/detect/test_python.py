"""Detection of minimal Python projects."""

from __future__ import annotations

import pytest

from tests.pipeline.detect.trees import PACKAGE, PYTEST, jobs, proposed, steps

RUN = ".venv/bin/python -m pytest --junitxml=test-results.xml"
TEST = "tests/test_a.py"
TOX = "[testenv]\ncommands = pytest\n"
EXTRA = '[project.optional-dependencies]\ntest = ["pytest"]\n'

# Description: files, the expected confidence of the test job, and one of its commands.
PYTHON_PROJECTS: dict[str, tuple[dict[str, str], str, str]] = {
    "an extra": ({"pyproject.toml": PACKAGE + EXTRA, TEST: ""}, "sure", ".venv/bin/python -m pip install -e '.[test]'"),
    "a group": (
        {"pyproject.toml": PACKAGE + PYTEST + '[dependency-groups]\ntests = ["pytest"]\n', TEST: ""},
        "sure",
        ".venv/bin/python -m pip install -e . --group tests",
    ),
    "a group with another name": (
        {"pyproject.toml": PACKAGE + '[dependency-groups]\nquality = ["pytest>8"]\n', TEST: ""},
        "sure",
        ".venv/bin/python -m pip install -e . --group quality",
    ),
    "requirements for tests": (
        {"pyproject.toml": PACKAGE, "requirements-dev.txt": "pytest\n", TEST: ""},
        "sure",
        ".venv/bin/python -m pip install -e . -r requirements-dev.txt",
    ),
    "requirements with everything": (
        {"pyproject.toml": PACKAGE, "requirements.txt": "-e .\npytest\n", TEST: ""},
        "sure",
        ".venv/bin/python -m pip install -e . -r requirements.txt",
    ),
    "nothing declared": ({"setup.py": "setup()", "conftest.py": "", TEST: ""}, "likely", RUN),
    "setup.cfg alone": (
        {"setup.cfg": "[metadata]\nname = x\n[options.extras_require]\ntesting = pytest\n", "setup.py": "", TEST: ""},
        "sure",
        ".venv/bin/python -m pip install -e '.[testing]'",
    ),
    "an extra of setup.py": (
        {"setup.py": "setup(\n  extras_require={\n    'tests': ['pytest'],\n  },\n)\n", TEST: ""},
        "sure",
        ".venv/bin/python -m pip install -e '.[tests]'",
    ),
    "uv": (
        {"pyproject.toml": PACKAGE + PYTEST + '[dependency-groups]\ndev = ["pytest"]\n', "uv.lock": "", TEST: ""},
        "sure",
        ".tools/bin/uv sync --frozen --group dev",
    ),
    "poetry": (
        {"pyproject.toml": '[tool.poetry]\nname = "x"\n' + PYTEST, "poetry.lock": "", TEST: ""},
        "sure",
        ".tools/bin/poetry install --no-interaction",
    ),
    "pdm": (
        {"pyproject.toml": PACKAGE + PYTEST, "pdm.lock": "", TEST: ""},
        "sure",
        ".tools/bin/pdm install --frozen-lockfile",
    ),
    "pipenv": (
        {"Pipfile": "[dev-packages]\npytest = '*'\n", "Pipfile.lock": "", TEST: ""},
        "sure",
        ".tools/bin/pipenv sync --dev",
    ),
    "tox": ({"setup.py": "", "tox.ini": TOX, TEST: ""}, "sure", ".venv/bin/tox run -e py"),
    "tox with factors": (
        {"setup.py": "", "tox.ini": "[testenv]\ncommands =\n  unit: pytest\n  docs: make\n", TEST: ""},
        "sure",
        ".venv/bin/tox run -e py-unit",
    ),
    "tox in TOML": (
        {"pyproject.toml": PACKAGE + "[tool.tox.env_run_base]\ncommands = [['pytest']]\n", TEST: ""},
        "sure",
        ".venv/bin/tox run -e py",
    ),
    "tox beside a lock": (
        {"pyproject.toml": PACKAGE + PYTEST, "uv.lock": "", "tox.ini": TOX, TEST: ""},
        "sure",
        ".tools/bin/uv sync --frozen",
    ),
    "nox": (
        {"pyproject.toml": PACKAGE, "noxfile.py": "@nox.session(\n  python=['3.9']\n)\ndef tests(session):\n  pass\n"},
        "likely",
        ".venv/bin/nox --no-error-on-missing-interpreters -s tests",
    ),
    "hatch": (
        {"pyproject.toml": PACKAGE + "[tool.hatch.envs.test.scripts]\nrun = 'pytest'\n", TEST: ""},
        "sure",
        ".venv/bin/hatch run test:run",
    ),
    "Django": (
        {"manage.py": "", "requirements.txt": "django", "app/tests.py": ""},
        "likely",
        ".venv/bin/python manage.py test",
    ),
    "Django with pytest": (
        {"manage.py": "", "requirements.txt": "django\npytest-django", "pytest.ini": "", "app/tests.py": ""},
        "likely",
        RUN,
    ),
    "Django in a folder": (
        {"src/manage.py": "", "src/app/tests.py": "", "requirements.txt": "django"},
        "likely",
        ".venv/bin/python src/manage.py test",
    ),
    "test functions": ({"requirements.txt": "x", "a.py": "", TEST: "def test_a():\n    pass\n"}, "likely", RUN),
    "unittest": (
        {"setup.py": "", TEST: "import unittest\n"},
        "likely",
        ".venv/bin/python -m unittest discover -v -s tests",
    ),
    "unittest in a package": (
        {"setup.py": "", "tests/__init__.py": "", TEST: "import unittest\n"},
        "likely",
        ".venv/bin/python -m unittest discover -v",
    ),
    "tests without a word": ({"setup.py": "", TEST: "assert 1\n"}, "unsure", RUN),
    "a script with tests": ({"requirements.txt": "pytest", "a.py": "", "test_a.py": ""}, "likely", RUN),
    "an extension": ({"setup.py": "setup(ext_modules=[])", "requirements-test.txt": "pytest", TEST: ""}, "likely", RUN),
    "an extension, nothing declared": (
        {"setup.py": "setup(ext_modules=[])", "pytest.ini": "", TEST: ""},
        "unsure",
        RUN,
    ),
    "meson": ({"pyproject.toml": PACKAGE.replace("hatchling.build", "mesonpy") + EXTRA, TEST: ""}, "unsure", RUN),
    "make, as nothing else says what is needed": (
        {
            "pyproject.toml": PACKAGE + PYTEST,
            "Makefile": "test: venv\n\tpytest\nvenv:\n\tpython -m venv .venv\n",
            TEST: "",
        },
        "likely",
        'PATH="$PWD/.venv/bin:$PATH" make test',
    ),
    "tox with variables": (
        {"setup.py": "", "tox.ini": "[testenv]\ncommands = {env:RUN} {posargs}\n", TEST: ""},
        "likely",
        ".venv/bin/tox run -e py",
    ),
}


@pytest.mark.parametrize("name", list(PYTHON_PROJECTS))
def test_tests_are_run_as_the_project_declares(name: str) -> None:
    """There is exactly one test job, with the confidence that the evidence justifies."""
    files, confidence, command = PYTHON_PROJECTS[name]

    assert [job for job in jobs(files) if "test" in job] == ["test"]
    assert jobs(files)["test"][0] == confidence
    assert command in steps(files, "test")


def test_packages_are_installed_into_virtual_environments_only() -> None:
    """A job must not change the Python installation of the runner."""
    for files, _, _ in PYTHON_PROJECTS.values():
        for proposed_job in proposed(files).proposed_jobs:
            for step in proposed_job.job.steps or ():
                assert step.run is not None
                assert not step.run.startswith("pip")
                assert step.run.startswith(("python3 -m venv ", ".venv/bin/", ".tools/bin/", 'PATH="$PWD/.venv/bin'))


def test_pytest_writes_a_junit_report_that_is_an_artifact() -> None:
    """The server shows the tests of JUnit reports."""
    proposed_job = next(
        proposed_job
        for proposed_job in proposed(PYTHON_PROJECTS["an extra"][0]).proposed_jobs
        if proposed_job.id == "test"
    )

    assert [(artifact.path, artifact.type) for artifact in proposed_job.job.artifacts] == [
        ("test-results.xml", "junit")
    ]


@pytest.mark.parametrize(
    ("files", "confidence", "command"),
    [
        ({"pyproject.toml": PACKAGE + "[tool.ruff]\n"}, "likely", ".venv/bin/ruff check ."),
        (
            {"pyproject.toml": PACKAGE + "[tool.ruff]\n", "requirements-dev.txt": "ruff==0.9.1\n"},
            "sure",
            ".venv/bin/ruff check .",
        ),
        ({"pyproject.toml": PACKAGE + "[tool.ruff.format]\n"}, "likely", ".venv/bin/ruff format --check ."),
        ({"setup.py": "", ".flake8": ""}, "likely", ".venv/bin/flake8 --extend-exclude .venv"),
        ({"pyproject.toml": PACKAGE + "[tool.black]\n"}, "likely", ".venv/bin/black --check ."),
        (
            {"pyproject.toml": PACKAGE + "[tool.ruff]\n", ".pre-commit-config.yaml": ""},
            "likely",
            ".venv/bin/pre-commit run --all-files --show-diff-on-failure",
        ),
        ({"setup.py": "", "tox.ini": TOX + "[testenv:lint]\n"}, "sure", ".venv/bin/tox run -e lint"),
    ],
)
def test_linters_with_pinned_versions_are_preferred(files: dict[str, str], confidence: str, command: str) -> None:
    """A newer version may report problems that the project has not seen."""
    assert jobs(files)["lint"] == (confidence, command)


def test_types_are_a_guess() -> None:
    """Projects rarely declare which stubs mypy needs."""
    assert jobs({"pyproject.toml": PACKAGE + "[tool.mypy]\nfiles = ['x']\n"})["types"] == ("unsure", ".venv/bin/mypy")


def test_a_version_from_git_needs_the_history() -> None:
    """Without the git tags, the package has no version or a wrong one."""
    files = {"pyproject.toml": PACKAGE.replace('"hatchling"', '"hatchling", "hatch-vcs"')}

    assert [proposed_job.job.checkout for proposed_job in proposed(files).proposed_jobs] == [0]


def test_declared_python_versions_are_only_a_hint() -> None:
    """The runners may not have these versions, and the first run should succeed."""
    versions = "classifiers = ['Programming Language :: Python :: 3.11', 'Programming Language :: Python :: 3.13']\n"
    files = {"pyproject.toml": PACKAGE + versions + EXTRA, TEST: ""}
    proposed_job = next(proposed_job for proposed_job in proposed(files).proposed_jobs if proposed_job.id == "test")

    assert proposed_job.job.strategy is None
    assert "3.11 to 3.13" in proposed_job.hints[0]


def test_a_pyproject_with_only_tool_settings_is_not_a_python_project() -> None:
    """Projects in other languages use it to configure their tools."""
    assert jobs({"pyproject.toml": "[tool.ruff]\n", "main.c": ""}) == {}
