"""Python: what looks at the code without running it. What pins its own versions wins, as every release wants more."""

from __future__ import annotations

import re
from typing import Any, Final

from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Draft, Project
from deltaci.pipeline.detect.python_tools import NOX, TOOLS, declared_tools, get, nox_of, tox_of
from deltaci.pipeline.detect.tree import Place, dig, table

PRE_COMMIT: Final = ".pre-commit-config.yaml"
NEWER: Final = "no version of it is declared, and a newer one may want other things"


def lint_drafts(
    place: Place, pyproject: dict[str, Any], setup_cfg: dict[str, Any], checkout: bool | int
) -> tuple[Draft, ...]:
    """At most one job that looks at the style, and one for the types."""
    tox, nox = tox_of(place, pyproject, setup_cfg), nox_of(place)
    if tox and tox.lint:
        names = "tox tox-uv" if tox.wants_uv else "tox"
        return (
            Draft(
                task="lint",
                what="Python linters with tox",
                confidence=SURE,
                evidence=(f"tox has the environment {tox.lint!r}",),
                steps=(*get(names), f"{TOOLS}/tox run -e {tox.lint}"),
                checkout=checkout,
            ),
        )
    if place.has(PRE_COMMIT):
        return (_pre_commit(),)
    if nox and nox.lint:
        return (
            Draft(
                task="lint",
                what="Python linters with nox",
                confidence=LIKELY,
                checkout=checkout,
                evidence=(f"noxfile.py has the session {nox.lint!r}",),
                reason="what the session needs is not to be seen",
                steps=(*get("nox"), f"{NOX} -s {nox.lint}"),
            ),
        )
    return (*_style(place, pyproject, setup_cfg), *_types(place, pyproject, setup_cfg))


def find_pre_commit(place: Place) -> Project | None:
    """The hooks of a repository that is not one of Python."""
    if not place.has(PRE_COMMIT):
        return None
    return Project(ecosystem="pre-commit", folder=place.folder, drafts=(_pre_commit(),))


def _pre_commit() -> Draft:
    return Draft(
        task="lint",
        what="pre-commit",
        confidence=LIKELY,
        evidence=(f"there is {PRE_COMMIT}",),
        reason="its hooks may need tools of other languages",
        env={"SKIP": "no-commit-to-branch"},  # This hook is for people who commit; here it would always fail.
        steps=(*get("pre-commit"), f"{TOOLS}/pre-commit run --all-files --show-diff-on-failure"),
    )


def _style(place: Place, pyproject: dict[str, Any], setup_cfg: dict[str, Any]) -> tuple[Draft, ...]:
    tool, tox_ini = table(pyproject, "tool"), place.ini("tox.ini")
    found: list[tuple[str, str, tuple[str, ...]]] = []
    if "ruff" in tool or place.has("ruff.toml", ".ruff.toml"):
        formats = (f"{TOOLS}/ruff format --check .",) if "format" in table(tool, "ruff") else ()
        where = place.has("ruff.toml", ".ruff.toml") or "pyproject.toml has [tool.ruff]"
        found.append(("ruff", where, (f"{TOOLS}/ruff check .", *formats)))
    elif place.has(".flake8") or "flake8" in setup_cfg or "flake8" in tox_ini:
        where = place.has(".flake8") or ("setup.cfg has [flake8]" if "flake8" in setup_cfg else "tox.ini has [flake8]")
        found.append(("flake8", where, (f"{TOOLS}/flake8 --extend-exclude .venv",)))
    if "black" in tool:
        found.append(("black", "pyproject.toml has [tool.black]", (f"{TOOLS}/black --check .",)))
    if not found:
        return ()
    version = {name: _pinned(place, pyproject, name) for name, _, _ in found}
    names = " ".join(f"{name}=={version[name]}" if version[name] else name for name, _, _ in found)
    is_sure = all(version.values())
    return (
        Draft(
            task="lint",
            what=f"Python style with {' and '.join(name for name, _, _ in found)}",
            confidence=SURE if is_sure else LIKELY,
            reason="" if is_sure else NEWER,
            evidence=tuple(where if " " in where else f"there is {where}" for _, where, _ in found),
            steps=(*get(names), *(step for _, _, steps in found for step in steps)),
        ),
    )


def _pinned(place: Place, pyproject: dict[str, Any], name: str) -> str | None:
    """The version that the project pins, if it is one."""
    texts = [declared_tools(place, pyproject)]
    texts += [place.text(each) for each in place.names(r"[\w.-]*requirements[\w.-]*\.txt")]
    texts += [place.text(f"requirements/{each}") for each in place.names(r"[\w.-]*\.txt", "requirements")]
    for text in texts:
        if found := re.search(rf"(?m)^{name}==([0-9][0-9a-z.]{{0,30}})(?:\s|;|#|$)", text):
            return found[1]
    return None


def _types(place: Place, pyproject: dict[str, Any], setup_cfg: dict[str, Any]) -> tuple[Draft, ...]:
    """mypy needs what the project needs, and to be told what to look at: without that it is a guess."""
    told = table(pyproject, "tool", "mypy") or table(place.ini("mypy.ini"), "mypy") or table(setup_cfg, "mypy")
    if not told:
        return ()
    chooses = any(dig(told, key) for key in ("files", "packages", "modules"))
    target = "" if chooses else " src" if place.any(r"src/.*\.py") else " ."
    return (
        Draft(
            task="types",
            what="Python types with mypy",
            confidence=UNSURE,
            evidence=("mypy is configured",),
            reason="which stubs it needs" + ("" if chooses else " and what it should look at") + " is not declared",
            steps=("python3 -m venv .venv", ".venv/bin/python -m pip install mypy -e .", f".venv/bin/mypy{target}"),
        ),
    )
