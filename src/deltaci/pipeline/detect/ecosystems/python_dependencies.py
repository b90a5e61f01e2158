"""Determine how the dependencies of Python tests are declared, and the steps that install them into `.venv`."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline import model
from deltaci.pipeline.detect.ecosystems.python_tools import PACKAGE_MANAGERS_BIN, install_tools
from deltaci.pipeline.detect.tree import Folder, get_nested, get_table, string_list, string_or_empty

TEST_WORDS: Final = ("test", "tests", "testing", "unittest", "pytest")
DEV_WORDS: Final = ("dev", "develop", "development")
REQUIREMENTS: Final = (
    *(
        f"{start}{word}{end}.txt"
        for start, end in (("requirements-", ""), ("requirements_", ""), ("", "-requirements"))
        for word in ("test", "tests", "testing")
    ),
    *(f"requirements/{word}.txt" for word in ("test", "tests", "testing", "requirements-test", "requirements-tests")),
    *("test_requirements.txt", "tests_requirements.txt", "tests/requirements.txt", "test/requirements.txt"),
    *("requirements-dev.txt", "requirements_dev.txt", "dev-requirements.txt", "dev_requirements.txt"),
    *("requirements-ci.txt", "requirements/dev.txt", "requirements/development.txt", "requirements/ci.txt"),
    *("requirements/local.txt", "requirements.dev.txt", "requirements.test.txt"),
)
RUNTIME: Final = ("requirements.txt", "requirements/base.txt", "requirements/default.txt")


class PythonProject(Struct, kw_only=True):
    """The parsed configuration files of a folder with a Python project."""

    folder: Folder
    pyproject: dict[str, Any]
    setup_cfg: dict[str, Any]
    setup_py: str
    is_package: bool
    pytest_evidence: str | None = None  # Evidence that pytest is used.
    test_paths: list[str] = []
    checkout: bool | int = True


class Installation(Struct, frozen=True, kw_only=True):
    """Steps that install the dependencies of the tests into `.venv`, and the evidence for them."""

    steps: tuple[str, ...]
    evidence: tuple[str, ...]
    caches: tuple[model.Cache, ...] = ()
    env: dict[str, str] = {}
    is_locked: bool = False
    is_declared: bool = True  # Whether any file declares dependencies of the tests.


def plan_installation(project: PythonProject) -> Installation:
    """Return an installation with the package manager that the project uses, else with pip."""
    folder = project.folder
    group_by_name, extra_by_name = get_table(project.pyproject, "dependency-groups"), package_extras(project)
    if folder.find_file("uv.lock") and project.pyproject:
        options = [*_select_options("--group", group_by_name), *_select_options("--extra", extra_by_name)]
        sync_command = " ".join([f"{PACKAGE_MANAGERS_BIN}/uv sync --frozen", *options])
        return Installation(
            steps=(*install_tools("uv", PACKAGE_MANAGERS_BIN), sync_command),
            evidence=("there is uv.lock",),
            is_locked=True,
            env={"UV_CACHE_DIR": ".cache/uv"},
            caches=(_cache(folder, "uv", ".cache/uv", "uv.lock"),),
        )
    if (
        folder.find_file("poetry.lock")
        or build_backend(project).startswith("poetry")
        or get_table(project.pyproject, "tool", "poetry")
    ):
        return _install_with_poetry(project, extra_by_name)
    if folder.find_file("pdm.lock"):
        options = _select_options("-G", {**group_by_name, **extra_by_name})
        install_command = " ".join([f"{PACKAGE_MANAGERS_BIN}/pdm install --frozen-lockfile", *options])
        return Installation(
            steps=(*install_tools("pdm", PACKAGE_MANAGERS_BIN), install_command),
            evidence=("there is pdm.lock",),
            is_locked=True,
        )
    if folder.find_file("Pipfile"):
        install_command = "sync --dev" if folder.find_file("Pipfile.lock") else "install --dev --skip-lock"
        return Installation(
            steps=(*install_tools("pipenv", PACKAGE_MANAGERS_BIN), f"{PACKAGE_MANAGERS_BIN}/pipenv {install_command}"),
            evidence=("there is a Pipfile",),
            env={"PIPENV_VENV_IN_PROJECT": "1"},
        )
    return _install_with_pip(project, group_by_name, extra_by_name)


def _install_with_poetry(project: PythonProject, extra_by_name: dict[str, Any]) -> Installation:
    group_by_name = get_table(project.pyproject, "tool", "poetry", "group")
    optional_groups = {name: group for name, group in group_by_name.items() if get_nested(group, "optional") is True}
    options = [*_select_options("--with", optional_groups), *_select_options("--extras", extra_by_name)]
    evidence = (
        "there is poetry.lock" if project.folder.find_file("poetry.lock") else "pyproject.toml is configured for Poetry"
    )
    return Installation(
        steps=(
            *install_tools("poetry", PACKAGE_MANAGERS_BIN),
            " ".join([f"{PACKAGE_MANAGERS_BIN}/poetry install --no-interaction", *options]),
        ),
        evidence=(evidence,),
        env={"POETRY_VIRTUALENVS_IN_PROJECT": "true"},
        is_locked=True,
    )


def _install_with_pip(
    project: PythonProject, group_by_name: dict[str, Any], extra_by_name: dict[str, Any]
) -> Installation:
    """Return an installation with pip into a new environment.

    A package is installed with at most one extra and one dependency group, then the files of requirements.
    """
    folder = project.folder
    pip_arguments, evidence = [], []
    extra_name, group = test_group_name(extra_by_name), test_group_name(group_by_name)
    if extra_name in DEV_WORDS and group and group not in DEV_WORDS:
        extra_name = None
    has_test_group = any(group_name and group_name not in DEV_WORDS for group_name in (extra_name, group))
    requirements_file = None if has_test_group else folder.find_file(*REQUIREMENTS)
    if (
        project.is_package
        and not extra_name
        and not group
        and not requirements_file
        and "pytest" in folder.text("requirements.txt")
    ):
        requirements_file = "requirements.txt"
    is_meson = build_backend(project) == "mesonpy"
    if project.is_package:
        editable_options = "--no-build-isolation -e" if is_meson else "-e"
        pip_arguments.append(f"{editable_options} '.[{extra_name}]'" if extra_name else f"{editable_options} .")
    for file_name in (folder.find_file(*RUNTIME) if not project.is_package else None, requirements_file):
        if file_name:
            pip_arguments.append(f"-r {file_name}")
            evidence.append(f"there is {file_name}")
    if group:
        pip_arguments.append(f"--group {group}")
        evidence.append(f"pyproject.toml has the dependency group {group!r}")
    if extra_name:
        evidence.append(f"the package has the extra {extra_name!r}")
    steps = ["python3 -m venv .venv", ".venv/bin/python -m pip install --upgrade pip"]
    if is_meson:  # An editable package is rebuilt on import, so its build tools must stay installed.
        steps.append(".venv/bin/python -m pip install meson-python meson ninja cython numpy")
    if pip_arguments:
        steps.append(f".venv/bin/python -m pip install {' '.join(pip_arguments)}")
    lock_files = [
        file_name for file_name in ("pyproject.toml", "setup.py", "setup.cfg", *RUNTIME) if folder.find_file(file_name)
    ]
    cache = _cache(folder, "pip", ".cache/pip", *lock_files, *([requirements_file] if requirements_file else []))
    return Installation(
        steps=tuple(steps),
        evidence=tuple(evidence),
        caches=(cache,) if lock_files or requirements_file else (),
        env={"PIP_CACHE_DIR": ".cache/pip"} if lock_files or requirements_file else {},
        is_declared=bool(extra_name or group or requirements_file),
    )


def test_group_name(requirements_by_name: dict[str, Any]) -> str | None:
    """Return the name of the extra or dependency group to install for tests, or None.

    A usual name for tests comes first, then a group that contains pytest, then a group for development.
    """
    usual_names = [name for name in TEST_WORDS if name in requirements_by_name]
    names_with_pytest = (
        name
        for name, requirements in sorted(requirements_by_name.items())
        if any(requirement.startswith("pytest") for requirement in string_list(requirements))
    )
    plain_names = [name for name in names_with_pytest if re.fullmatch(r"[A-Za-z][\w-]{0,40}", name, re.ASCII)]
    development_names = [name for name in DEV_WORDS if name in requirements_by_name]
    return next(iter([*usual_names, *plain_names, *development_names]), None)


def _select_options(option_name: str, requirements_by_name: dict[str, Any]) -> list[str]:
    name = test_group_name(requirements_by_name)
    return [f"{option_name} {name}"] if name else []


def package_extras(project: PythonProject) -> dict[str, Any]:
    """Return the extras that pyproject.toml, setup.cfg and setup.py declare.

    The names in setup.py are found by pattern, so their requirements are empty.
    """
    requirements_by_extra = {
        **get_table(project.pyproject, "project", "optional-dependencies"),
        **get_table(project.setup_cfg, "options.extras_require"),
    }
    requirements_by_extra |= get_table(project.pyproject, "tool", "poetry", "extras")
    requirements_by_extra |= get_table(project.pyproject, "tool", "flit", "metadata", "requires-extra")
    if block_start := re.search(r"extras_require[ \t]{0,9}=[ \t]{0,9}\{", project.setup_py):
        block = re.split(r"\n[ \t]{0,40}\}", project.setup_py[block_start.end() : block_start.end() + 4000])[0]
        requirements_by_extra |= {
            extra_name: [] for extra_name in re.findall(r"""(?m)^[ \t]*["']([\w-]{1,60})["'][ \t]*:""", block)
        }
    return requirements_by_extra


def _cache(folder: Folder, cache_name: str, cache_path: str, *lock_files: str) -> model.Cache:
    return model.Cache(
        key=f"{cache_name}-{{lock_hash}}",
        paths=(folder.from_root(cache_path),),
        lock_files=tuple(folder.from_root(lock) for lock in lock_files),
    )


def build_backend(project: PythonProject) -> str:
    """Return the build backend that pyproject.toml declares; empty if there is none."""
    return string_or_empty(get_nested(project.pyproject, "build-system", "build-backend"))
