"""What tox and nox are told to do, as far as that can be seen without running them."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline.detect.tree import Place, dig, table, texts, word

# Where tools are: a folder that linters and packagers know to leave alone. What makes `.venv` itself is in another one.
TOOLS: Final = ".venv/bin"
LOCKERS: Final = ".tools/bin"
NOX: Final = f"{TOOLS}/nox --no-error-on-missing-interpreters"
MAX_LINES: Final = 5000
UNIT_WORDS: Final = ("unit", "test", "tests", "pytest", "unittest", "unittests")
LINT_WORDS: Final = (
    "lint",
    "linters",
    "linting",
    "style",
    "pre-commit",
    "flake8",
    "ruff",
    "check",
    "checks",
    "qa",
    "pep8",
)


def get(names: str, where: str = TOOLS) -> tuple[str, str]:
    """The steps that bring tools along."""
    return f"python3 -m venv {where.removesuffix('/bin')}", f"{where}/python -m pip install {names}"


class Tox(Struct, frozen=True, kw_only=True):
    """What tox would do."""

    evidence: str
    test: str | None = None  # the environment that runs the tests
    lint: str | None = None
    is_plain: bool = True
    doubt: str = ""
    wants_uv: bool = False


class Nox(Struct, frozen=True, kw_only=True):
    """Which sessions there are."""

    evidence: str
    test: str | None = None
    lint: str | None = None


def tox_of(place: Place, pyproject: dict[str, Any], setup_cfg: dict[str, Any]) -> Tox | None:
    """What tox is told, wherever that stands."""
    tool = table(pyproject, "tool", "tox")
    native = place.toml("tox.toml") if place.has("tox.toml") else {}
    legacy = word(tool.get("legacy_tox_ini"))
    if legacy or place.has("tox.ini"):
        return _of_ini(place, "tox.ini" if place.has("tox.ini") else "pyproject.toml", legacy)
    if tool or native:
        where = "tox.toml" if native else "pyproject.toml"
        return _of_toml(native or tool, where, place.text(where))
    return _of_sections(setup_cfg, "setup.cfg", place.text("setup.cfg")) if "tox:tox" in setup_cfg else None


def _of_ini(place: Place, where: str, legacy: str) -> Tox | None:
    if legacy and where == "pyproject.toml":
        sections = {name: {"commands": legacy} for name in re.findall(r"(?m)^\[(testenv[^\]]*)\]", legacy)}
        return _of_sections({"tox": {}, **sections}, where, legacy)
    return _of_sections(place.ini("tox.ini"), where, place.text("tox.ini"))


def _of_sections(sections: dict[str, Any], where: str, text: str) -> Tox | None:
    if "tox" not in sections and "tox:tox" not in sections and not any(name.startswith("testenv") for name in sections):
        return None
    environments = [name.removeprefix("testenv:") for name in sections if name.startswith("testenv:")]
    lines = [line.strip() for line in word(dig(sections, "testenv", "commands")).splitlines() if line.strip()]
    factors = [re.match(r"([\w.,!{}-]+):(?:\s|$)", line) for line in lines]
    uv = "uv-venv" in text
    lint = _first(LINT_WORDS, environments)
    if lines and not all(factors):
        asks = any(re.search(r"\{env:\w+\}", line[:2000]) for line in lines)
        doubt = "its commands are made of variables" if asks else ""
        return Tox(
            evidence=f"{where} says what tox runs", test="py", lint=lint, is_plain=not asks, doubt=doubt, wants_uv=uv
        )
    named = [each for found in factors if found for each in re.split(r"[,{}]", found[1])]
    if unit := _first(UNIT_WORDS, named):
        return Tox(evidence=f"{where} says what tox runs for {unit!r}", test=f"py-{unit}", lint=lint, wants_uv=uv)
    if unit := _first(UNIT_WORDS, environments):
        return Tox(evidence=f"{where} has [testenv:{unit}]", test=unit, lint=lint, wants_uv=uv)
    if lines and "py" in "".join(named):
        doubt = "which commands run depends on the environment that is chosen"
        return Tox(
            evidence=f"{where} says what tox runs", test="py", lint=lint, is_plain=False, doubt=doubt, wants_uv=uv
        )
    return Tox(evidence=f"there is {where}", lint=lint, wants_uv=uv)


def _of_toml(told: dict[str, Any], where: str, text: str) -> Tox:
    environments, uv = list(table(told, "env")), "uv-venv" in text
    lint = _first(LINT_WORDS, environments)
    if dig(told, "env_run_base", "commands"):
        return Tox(evidence=f"{where} says what tox runs", test="py", lint=lint, wants_uv=uv)
    test = _first(UNIT_WORDS, environments)
    return Tox(evidence=f"{where} says what tox runs", test=test, lint=lint, wants_uv=uv)


def nox_of(place: Place) -> Nox | None:
    """The sessions of a noxfile, by the names of its functions."""
    text = place.text("noxfile.py")
    if not text:
        return None
    sessions = _sessions(text.splitlines()[:MAX_LINES])
    test = _first(("tests", "test", "unit", "unit_tests", "unittest", "pytest"), sessions)
    lint = _first(("lint", "pre-commit", "pre_commit", "style", "linters"), sessions)
    evidence = f"noxfile.py has the session {test or lint!r}" if test or lint else "there is noxfile.py"
    return Nox(evidence=evidence, test=test, lint=lint)


def _sessions(lines: list[str]) -> list[str]:
    """The names of functions below the decorator of nox, and those that it is told."""
    found = []
    for number, line in enumerate(lines):
        if line.startswith(("@nox.session", "@session")):
            below = lines[number : number + 20]
            named = (re.match(r"def (\w{1,60})\(", each) for each in below)
            found += [each[1] for each in [next((each for each in named if each), None)] if each]
            found += [each[1] for each in [re.search(r"""name=["']([\w-]{1,60})["']""", line[:500])] if each]
    return found


def _first(words: tuple[str, ...], among: list[str]) -> str | None:
    return next((each for each in words if each in among), None)


def declared_tools(place: Place, pyproject: dict[str, Any]) -> str:
    """Everything that a project declares to need for its development, as one text to look names up in."""
    declared = [
        *table(pyproject, "dependency-groups").values(),
        *table(pyproject, "project", "optional-dependencies").values(),
    ]
    listed = [each for group in declared for each in texts(group)]
    return "\n".join(listed)


def hatch_of(place: Place, pyproject: dict[str, Any]) -> str | None:
    """What Hatch is to be told to run the tests, if it has an environment for them."""
    environments = table(pyproject, "tool", "hatch", "envs") or table(place.toml("hatch.toml"), "envs")
    if "hatch-test" in environments:
        return "test"
    for name in ("default", "test", "tests"):
        script = _first(
            ("test", "tests", "run", "pytest", "unit", "all", "cov"), list(table(environments, name, "scripts"))
        )
        if script and not (name == "default" and script in ("run", "all", "cov")):
            return f"run {script}" if name == "default" else f"run {name}:{script}"
    return None
