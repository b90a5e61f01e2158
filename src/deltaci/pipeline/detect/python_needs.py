"""Python: what tests need, and how that gets into `.venv`."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline import model
from deltaci.pipeline.detect.python_tools import LOCKERS, get
from deltaci.pipeline.detect.tree import Place, dig, table, texts, word

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


class Known(Struct, kw_only=True):
    """What the files of a folder say, gathered once."""

    place: Place
    pyproject: dict[str, Any]
    setup_cfg: dict[str, Any]
    setup_py: str
    is_package: bool
    pytest: str | None = None  # what says that pytest is used
    tests: list[str] = []
    checkout: bool | int = True


class Needs(Struct, frozen=True, kw_only=True):
    """How to get everything that tests need into `.venv`, and from what that is concluded."""

    steps: tuple[str, ...]
    evidence: tuple[str, ...]
    caches: tuple[model.Cache, ...] = ()
    env: dict[str, str] = {}
    is_locked: bool = False
    is_declared: bool = True  # whether what only tests need is declared anywhere


def needs_of(known: Known) -> Needs:
    """By the tool whose lock file there is; else by pip."""
    place = known.place
    groups, extras = table(known.pyproject, "dependency-groups"), extras_of(known)
    if place.has("uv.lock") and known.pyproject:
        chosen = [*_options("--group", groups), *_options("--extra", extras)]
        sync = " ".join([f"{LOCKERS}/uv sync --frozen", *chosen])
        return Needs(
            steps=(*get("uv", LOCKERS), sync),
            evidence=("there is uv.lock",),
            is_locked=True,
            env={"UV_CACHE_DIR": ".cache/uv"},
            caches=(_cache(place, "uv", ".cache/uv", "uv.lock"),),
        )
    if place.has("poetry.lock") or backend_of(known).startswith("poetry") or table(known.pyproject, "tool", "poetry"):
        return _poetry(known, extras)
    if place.has("pdm.lock"):
        chosen = _options("-G", {**groups, **extras})
        install = " ".join([f"{LOCKERS}/pdm install --frozen-lockfile", *chosen])
        return Needs(steps=(*get("pdm", LOCKERS), install), evidence=("there is pdm.lock",), is_locked=True)
    if place.has("Pipfile"):
        install = "sync --dev" if place.has("Pipfile.lock") else "install --dev --skip-lock"
        return Needs(
            steps=(*get("pipenv", LOCKERS), f"{LOCKERS}/pipenv {install}"),
            evidence=("there is a Pipfile",),
            env={"PIPENV_VENV_IN_PROJECT": "1"},
        )
    return _by_pip(known, groups, extras)


def _poetry(known: Known, extras: dict[str, Any]) -> Needs:
    groups = table(known.pyproject, "tool", "poetry", "group")
    optional = {name: each for name, each in groups.items() if dig(each, "optional") is True}
    chosen = [*_options("--with", optional), *_options("--extras", extras)]
    says = "there is poetry.lock" if known.place.has("poetry.lock") else "pyproject.toml is Poetry's"
    return Needs(
        steps=(*get("poetry", LOCKERS), " ".join([f"{LOCKERS}/poetry install --no-interaction", *chosen])),
        evidence=(says,),
        env={"POETRY_VIRTUALENVS_IN_PROJECT": "true"},
        is_locked=True,
    )


def _by_pip(known: Known, groups: dict[str, Any], extras: dict[str, Any]) -> Needs:
    """Into a fresh environment, by pip: the project with its extras, a group, and lists of requirements."""
    place = known.place
    chosen, evidence = [], []
    extra, group = chosen_of(extras), chosen_of(groups)
    if extra in DEV_WORDS and group and group not in DEV_WORDS:
        extra = None
    is_for_tests = any(each and each not in DEV_WORDS for each in (extra, group))
    listed = None if is_for_tests else place.has(*REQUIREMENTS)
    if known.is_package and not extra and not group and not listed and "pytest" in place.text("requirements.txt"):
        listed = "requirements.txt"
    is_meson = backend_of(known) == "mesonpy"
    if known.is_package:
        how = "--no-build-isolation -e" if is_meson else "-e"
        chosen.append(f"{how} '.[{extra}]'" if extra else f"{how} .")
    for name in (place.has(*RUNTIME) if not known.is_package else None, listed):
        if name:
            chosen.append(f"-r {name}")
            evidence.append(f"there is {name}")
    if group:
        chosen.append(f"--group {group}")
        evidence.append(f"pyproject.toml has the dependency group {group!r}")
    if extra:
        evidence.append(f"the package has the extra {extra!r}")
    steps = ["python3 -m venv .venv", ".venv/bin/python -m pip install --upgrade pip"]
    if is_meson:  # What is installed in place is built anew whenever it is imported, so what builds it must stay.
        steps.append(".venv/bin/python -m pip install meson-python meson ninja cython numpy")
    if chosen:
        steps.append(f".venv/bin/python -m pip install {' '.join(chosen)}")
    files = [each for each in ("pyproject.toml", "setup.py", "setup.cfg", *RUNTIME) if place.has(each)]
    cached = _cache(place, "pip", ".cache/pip", *files, *([listed] if listed else []))
    return Needs(
        steps=tuple(steps),
        evidence=tuple(evidence),
        caches=(cached,) if files or listed else (),
        env={"PIP_CACHE_DIR": ".cache/pip"} if files or listed else {},
        is_declared=bool(extra or group or listed),
    )


def chosen_of(declared: dict[str, Any]) -> str | None:
    """The extra or group that is for tests: by its name, by pytest in it, or the one for all development."""
    usual = [name for name in TEST_WORDS if name in declared]
    named = (name for name, each in sorted(declared.items()) if any(item.startswith("pytest") for item in texts(each)))
    plain = [name for name in named if re.fullmatch(r"[A-Za-z][\w-]{0,40}", name, re.ASCII)]
    every = [name for name in DEV_WORDS if name in declared]
    return next(iter([*usual, *plain, *every]), None)


def _options(option: str, declared: dict[str, Any]) -> list[str]:
    found = chosen_of(declared)
    return [f"{option} {found}"] if found else []


def extras_of(known: Known) -> dict[str, Any]:
    """What the package offers as extras, wherever that is declared."""
    extras = {
        **table(known.pyproject, "project", "optional-dependencies"),
        **table(known.setup_cfg, "options.extras_require"),
    }
    extras |= table(known.pyproject, "tool", "poetry", "extras")
    extras |= table(known.pyproject, "tool", "flit", "metadata", "requires-extra")
    if start := re.search(r"extras_require[ \t]{0,9}=[ \t]{0,9}\{", known.setup_py):
        block = re.split(r"\n[ \t]{0,40}\}", known.setup_py[start.end() : start.end() + 4000])[0]
        extras |= {name: [] for name in re.findall(r"""(?m)^[ \t]*["']([\w-]{1,60})["'][ \t]*:""", block)}
    return extras


def _cache(place: Place, name: str, folder: str, *locks: str) -> model.Cache:
    return model.Cache(
        key=f"{name}-{{lock_hash}}", paths=(place.path(folder),), lock_files=tuple(place.path(lock) for lock in locks)
    )


def backend_of(known: Known) -> str:
    """What builds the package."""
    return word(dig(known.pyproject, "build-system", "build-backend"))
