"""Python projects, each as small as it can be, and what is proposed for them."""

from __future__ import annotations

import pytest

from tests.pipeline.trees import PACKAGE, PYTEST, jobs, proposed, steps

RUN = ".venv/bin/python -m pytest --junitxml=test-results.xml"
TEST = "tests/test_a.py"
TOX = "[testenv]\ncommands = pytest\n"
EXTRA = '[project.optional-dependencies]\ntest = ["pytest"]\n'

# what it is: files, how sure the tests are, and a command that must be among their steps
WAYS: dict[str, tuple[dict[str, str], str, str]] = {
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


@pytest.mark.parametrize("name", list(WAYS))
def test_tests_are_run_as_the_project_declares(name: str) -> None:
    """Exactly one test job, as sure as the evidence is."""
    files, confidence, command = WAYS[name]

    assert [job for job in jobs(files) if "test" in job] == ["test"]
    assert jobs(files)["test"][0] == confidence
    assert command in steps(files, "test")


def test_everything_is_installed_into_an_environment_of_its_own() -> None:
    """Nothing that a job installs may touch the machine."""
    for files, _, _ in WAYS.values():
        for finding in proposed(files).findings:
            for step in finding.job.steps or ():
                assert step.run is not None
                assert not step.run.startswith("pip")
                assert step.run.startswith(("python3 -m venv ", ".venv/bin/", ".tools/bin/", 'PATH="$PWD/.venv/bin'))


def test_a_report_is_kept_where_the_tool_can_write_one() -> None:
    """JUnit is what the server shows tests from."""
    found = next(each for each in proposed(WAYS["an extra"][0]).findings if each.id == "test")

    assert [(each.path, each.type) for each in found.job.artifacts] == [("test-results.xml", "junit")]


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
def test_linters_that_pin_their_versions_win(files: dict[str, str], confidence: str, command: str) -> None:
    """A newer one fails for reasons that nobody in the project knows."""
    assert jobs(files)["lint"] == (confidence, command)


def test_types_are_a_guess() -> None:
    """Which stubs mypy needs is hardly ever declared."""
    assert jobs({"pyproject.toml": PACKAGE + "[tool.mypy]\nfiles = ['x']\n"})["types"] == ("unsure", ".venv/bin/mypy")


def test_a_version_from_git_needs_the_history() -> None:
    """Else the package has no version, or a wrong one."""
    files = {"pyproject.toml": PACKAGE.replace('"hatchling"', '"hatchling", "hatch-vcs"')}

    assert [each.job.checkout for each in proposed(files).findings] == [0]


def test_declared_versions_are_told_and_not_run() -> None:
    """Which of them a machine has is not to be seen from here, and the first run must be right."""
    versions = "classifiers = ['Programming Language :: Python :: 3.11', 'Programming Language :: Python :: 3.13']\n"
    files = {"pyproject.toml": PACKAGE + versions + EXTRA, TEST: ""}
    found = next(each for each in proposed(files).findings if each.id == "test")

    assert found.job.strategy is None
    assert "3.11 to 3.13" in found.hints[0]


def test_tools_of_other_projects_are_no_python_project() -> None:
    """A pyproject.toml with nothing but settings says nothing about tests."""
    assert jobs({"pyproject.toml": "[tool.ruff]\n", "main.c": ""}) == {}
