"""Detect Python linters and type checkers.

Tools that pin their own versions (tox, pre-commit, nox) are preferred: a newer linter may report new problems.
"""

from __future__ import annotations

import re
from typing import Any, Final

from deltaci.pipeline.detect.ecosystems.python_tools import (
    RUN_NOX,
    TOOLS_BIN,
    declared_dev_requirements,
    install_tools,
    read_nox,
    read_tox,
)
from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder, get_nested, get_table

PRE_COMMIT: Final = ".pre-commit-config.yaml"
UNPINNED: Final = "its version is not pinned, and a newer version may report other problems"


def lint_drafts(
    folder: Folder, pyproject: dict[str, Any], setup_cfg: dict[str, Any], checkout: bool | int
) -> tuple[JobDraft, ...]:
    """Return at most one job for style checks and one for type checks."""
    tox_config, nox_config = read_tox(folder, pyproject, setup_cfg), read_nox(folder)
    if tox_config and tox_config.lint_environment:
        packages = "tox tox-uv" if tox_config.uses_uv else "tox"
        return (
            JobDraft(
                purpose="lint",
                title="Python linters with tox",
                confidence=SURE,
                evidence=(f"tox has the environment {tox_config.lint_environment!r}",),
                steps=(*install_tools(packages), f"{TOOLS_BIN}/tox run -e {tox_config.lint_environment}"),
                checkout=checkout,
            ),
        )
    if folder.find_file(PRE_COMMIT):
        return (_pre_commit_draft(),)
    if nox_config and nox_config.lint_session:
        return (
            JobDraft(
                purpose="lint",
                title="Python linters with nox",
                confidence=LIKELY,
                checkout=checkout,
                evidence=(f"noxfile.py has the session {nox_config.lint_session!r}",),
                uncertainty="the requirements of the session are unknown",
                steps=(*install_tools("nox"), f"{RUN_NOX} -s {nox_config.lint_session}"),
            ),
        )
    return (*_style_drafts(folder, pyproject, setup_cfg), *_type_drafts(folder, pyproject, setup_cfg))


def find_pre_commit(folder: Folder) -> Project | None:
    """Return a project with one job that runs the pre-commit hooks of the folder, or None if it has none."""
    if not folder.find_file(PRE_COMMIT):
        return None
    return Project(ecosystem="pre-commit", folder=folder.path, drafts=(_pre_commit_draft(),))


def _pre_commit_draft() -> JobDraft:
    return JobDraft(
        purpose="lint",
        title="pre-commit",
        confidence=LIKELY,
        evidence=(f"there is {PRE_COMMIT}",),
        uncertainty="its hooks may need the tools of other languages",
        # This hook protects the main branch from local commits; it would fail on a checkout of that branch.
        env={"SKIP": "no-commit-to-branch"},
        steps=(*install_tools("pre-commit"), f"{TOOLS_BIN}/pre-commit run --all-files --show-diff-on-failure"),
    )


def _style_drafts(folder: Folder, pyproject: dict[str, Any], setup_cfg: dict[str, Any]) -> tuple[JobDraft, ...]:
    tool_tables, tox_ini = get_table(pyproject, "tool"), folder.ini("tox.ini")
    linters: list[tuple[str, str, tuple[str, ...]]] = []
    if "ruff" in tool_tables or folder.find_file("ruff.toml", ".ruff.toml"):
        format_steps = (f"{TOOLS_BIN}/ruff format --check .",) if "format" in get_table(tool_tables, "ruff") else ()
        evidence = folder.find_file("ruff.toml", ".ruff.toml") or "pyproject.toml has [tool.ruff]"
        linters.append(("ruff", evidence, (f"{TOOLS_BIN}/ruff check .", *format_steps)))
    elif folder.find_file(".flake8") or "flake8" in setup_cfg or "flake8" in tox_ini:
        evidence = folder.find_file(".flake8") or (
            "setup.cfg has [flake8]" if "flake8" in setup_cfg else "tox.ini has [flake8]"
        )
        linters.append(("flake8", evidence, (f"{TOOLS_BIN}/flake8 --extend-exclude .venv",)))
    if "black" in tool_tables:
        linters.append(("black", "pyproject.toml has [tool.black]", (f"{TOOLS_BIN}/black --check .",)))
    if not linters:
        return ()
    versions = {linter_name: _pinned_version(folder, pyproject, linter_name) for linter_name, _, _ in linters}
    package_arguments = " ".join(
        f"{linter_name}=={versions[linter_name]}" if versions[linter_name] else linter_name
        for linter_name, _, _ in linters
    )
    is_sure = all(versions.values())
    return (
        JobDraft(
            purpose="lint",
            title=f"Python style with {' and '.join(linter_name for linter_name, _, _ in linters)}",
            confidence=SURE if is_sure else LIKELY,
            uncertainty="" if is_sure else UNPINNED,
            evidence=tuple(evidence if " " in evidence else f"there is {evidence}" for _, evidence, _ in linters),
            steps=(*install_tools(package_arguments), *(lint_step for _, _, steps in linters for lint_step in steps)),
        ),
    )


def _pinned_version(folder: Folder, pyproject: dict[str, Any], package_name: str) -> str | None:
    """Return the exact version of a tool that the requirements of the project pin, or None."""
    requirement_texts = [declared_dev_requirements(folder, pyproject)]
    requirement_texts += [folder.text(file_name) for file_name in folder.file_names(r"[\w.-]*requirements[\w.-]*\.txt")]
    requirement_texts += [
        folder.text(f"requirements/{file_name}") for file_name in folder.file_names(r"[\w.-]*\.txt", "requirements")
    ]
    for text in requirement_texts:
        if version_match := re.search(rf"(?m)^{package_name}==([0-9][0-9a-z.]{{0,30}})(?:\s|;|#|$)", text):
            return version_match[1]
    return None


def _type_drafts(folder: Folder, pyproject: dict[str, Any], setup_cfg: dict[str, Any]) -> tuple[JobDraft, ...]:
    """Return a job for mypy if it is configured. It is a guess, because the stubs that mypy needs are not declared."""
    mypy_config = (
        get_table(pyproject, "tool", "mypy")
        or get_table(folder.ini("mypy.ini"), "mypy")
        or get_table(setup_cfg, "mypy")
    )
    if not mypy_config:
        return ()
    has_targets = any(get_nested(mypy_config, target_key) for target_key in ("files", "packages", "modules"))
    path_argument = "" if has_targets else " src" if folder.first_match(r"src/.*\.py") else " ."
    return (
        JobDraft(
            purpose="types",
            title="Python types with mypy",
            confidence=UNSURE,
            evidence=("mypy is configured",),
            uncertainty="which stubs it needs"
            + ("" if has_targets else " and which files it checks")
            + " is not declared",
            steps=(
                "python3 -m venv .venv",
                ".venv/bin/python -m pip install mypy -e .",
                f".venv/bin/mypy{path_argument}",
            ),
        ),
    )
