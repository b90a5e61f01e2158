"""Read the configuration of tox, nox and Hatch without running them."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline.detect.tree import Folder, get_nested, get_table, string_list, string_or_empty

# Tools are installed into `.venv`, which linters and packagers ignore. Package managers that create `.venv` themselves
# are installed into a folder of their own.
TOOLS_BIN: Final = ".venv/bin"
PACKAGE_MANAGERS_BIN: Final = ".tools/bin"
RUN_NOX: Final = f"{TOOLS_BIN}/nox --no-error-on-missing-interpreters"
MAX_LINES: Final = 5000
UNIT_TEST_NAMES: Final = ("unit", "test", "tests", "pytest", "unittest", "unittests")
LINT_NAMES: Final = (
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


def install_tools(package_arguments: str, bin_folder: str = TOOLS_BIN) -> tuple[str, str]:
    """Return the steps that install packages into the virtual environment that contains `bin_folder`."""
    return (
        f"python3 -m venv {bin_folder.removesuffix('/bin')}",
        f"{bin_folder}/python -m pip install {package_arguments}",
    )


class ToxConfig(Struct, frozen=True, kw_only=True):
    """The environments of a tox configuration that run tests and linters."""

    evidence: str
    test_environment: str | None = None  # The environment that runs the tests.
    lint_environment: str | None = None
    is_plain: bool = True  # False: `uncertainty` says why the commands are uncertain.
    uncertainty: str = ""
    uses_uv: bool = False


class NoxConfig(Struct, frozen=True, kw_only=True):
    """The sessions of a noxfile that run tests and linters."""

    evidence: str
    test_session: str | None = None
    lint_session: str | None = None


def read_tox(folder: Folder, pyproject: dict[str, Any], setup_cfg: dict[str, Any]) -> ToxConfig | None:
    """Read the tox configuration from tox.ini, tox.toml, pyproject.toml or setup.cfg. Return None if there is none."""
    tox_table = get_table(pyproject, "tool", "tox")
    tox_toml = folder.toml("tox.toml") if folder.find_file("tox.toml") else {}
    legacy_ini = string_or_empty(tox_table.get("legacy_tox_ini"))
    if legacy_ini or folder.find_file("tox.ini"):
        return _read_ini(folder, "tox.ini" if folder.find_file("tox.ini") else "pyproject.toml", legacy_ini)
    if tox_table or tox_toml:
        file_name = "tox.toml" if tox_toml else "pyproject.toml"
        return _from_toml(tox_toml or tox_table, file_name, folder.text(file_name))
    return _from_sections(setup_cfg, "setup.cfg", folder.text("setup.cfg")) if "tox:tox" in setup_cfg else None


def _read_ini(folder: Folder, file_name: str, legacy_ini: str) -> ToxConfig | None:
    if legacy_ini and file_name == "pyproject.toml":
        sections = {
            section_name: {"commands": legacy_ini}
            for section_name in re.findall(r"(?m)^\[(testenv[^\]]*)\]", legacy_ini)
        }
        return _from_sections({"tox": {}, **sections}, file_name, legacy_ini)
    return _from_sections(folder.ini("tox.ini"), file_name, folder.text("tox.ini"))


def _from_sections(section_by_name: dict[str, Any], file_name: str, file_text: str) -> ToxConfig | None:
    if (
        "tox" not in section_by_name
        and "tox:tox" not in section_by_name
        and not any(section_name.startswith("testenv") for section_name in section_by_name)
    ):
        return None
    environments = [
        section_name.removeprefix("testenv:") for section_name in section_by_name if section_name.startswith("testenv:")
    ]
    command_lines = [
        command.strip()
        for command in string_or_empty(get_nested(section_by_name, "testenv", "commands")).splitlines()
        if command.strip()
    ]
    factor_matches = [re.match(r"([\w.,!{}-]+):(?:\s|$)", command) for command in command_lines]
    uses_uv = "uv-venv" in file_text
    lint_environment = _first_in(LINT_NAMES, environments)
    if command_lines and not all(factor_matches):
        uses_variables = any(re.search(r"\{env:\w+\}", command[:2000]) for command in command_lines)
        uncertainty = "its commands are taken from environment variables" if uses_variables else ""
        return ToxConfig(
            evidence=f"{file_name} configures the commands of tox",
            test_environment="py",
            lint_environment=lint_environment,
            is_plain=not uses_variables,
            uncertainty=uncertainty,
            uses_uv=uses_uv,
        )
    factor_names = [
        factor for factor_match in factor_matches if factor_match for factor in re.split(r"[,{}]", factor_match[1])
    ]
    if environment := _first_in(UNIT_TEST_NAMES, factor_names):
        return ToxConfig(
            evidence=f"{file_name} configures the commands of tox for {environment!r}",
            test_environment=f"py-{environment}",
            lint_environment=lint_environment,
            uses_uv=uses_uv,
        )
    if environment := _first_in(UNIT_TEST_NAMES, environments):
        return ToxConfig(
            evidence=f"{file_name} has [testenv:{environment}]",
            test_environment=environment,
            lint_environment=lint_environment,
            uses_uv=uses_uv,
        )
    if command_lines and "py" in "".join(factor_names):
        uncertainty = "which commands run depends on the selected environment"
        return ToxConfig(
            evidence=f"{file_name} configures the commands of tox",
            test_environment="py",
            lint_environment=lint_environment,
            is_plain=False,
            uncertainty=uncertainty,
            uses_uv=uses_uv,
        )
    return ToxConfig(evidence=f"there is {file_name}", lint_environment=lint_environment, uses_uv=uses_uv)


def _from_toml(tox_table: dict[str, Any], file_name: str, file_text: str) -> ToxConfig:
    environments, uses_uv = list(get_table(tox_table, "env")), "uv-venv" in file_text
    lint_environment = _first_in(LINT_NAMES, environments)
    if get_nested(tox_table, "env_run_base", "commands"):
        return ToxConfig(
            evidence=f"{file_name} configures the commands of tox",
            test_environment="py",
            lint_environment=lint_environment,
            uses_uv=uses_uv,
        )
    test_environment = _first_in(UNIT_TEST_NAMES, environments)
    return ToxConfig(
        evidence=f"{file_name} configures the commands of tox",
        test_environment=test_environment,
        lint_environment=lint_environment,
        uses_uv=uses_uv,
    )


def read_nox(folder: Folder) -> NoxConfig | None:
    """Read the session names of noxfile.py. Return None if there is no noxfile."""
    noxfile_text = folder.text("noxfile.py")
    if not noxfile_text:
        return None
    session_names = _session_names(noxfile_text.splitlines()[:MAX_LINES])
    test_session = _first_in(("tests", "test", "unit", "unit_tests", "unittest", "pytest"), session_names)
    lint_session = _first_in(("lint", "pre-commit", "pre_commit", "style", "linters"), session_names)
    evidence = (
        f"noxfile.py has the session {test_session or lint_session!r}"
        if test_session or lint_session
        else "there is noxfile.py"
    )
    return NoxConfig(evidence=evidence, test_session=test_session, lint_session=lint_session)


def _session_names(noxfile_lines: list[str]) -> list[str]:
    """Return the names of the functions decorated as nox sessions, and names passed to the decorator as `name`."""
    session_names = []
    for index, line in enumerate(noxfile_lines):
        if line.startswith(("@nox.session", "@session")):
            following_lines = noxfile_lines[index : index + 20]
            function_matches = (re.match(r"def (\w{1,60})\(", following_text) for following_text in following_lines)
            session_names += [function_match[1] for function_match in function_matches if function_match][:1]
            if name_match := re.search(r"""name=["']([\w-]{1,60})["']""", line[:500]):
                session_names.append(name_match[1])
    return session_names


def _first_in(preferred_names: tuple[str, ...], available_names: list[str]) -> str | None:
    return next((name for name in preferred_names if name in available_names), None)


def declared_dev_requirements(folder: Folder, pyproject: dict[str, Any]) -> str:
    """Return the requirements of all dependency groups and extras of pyproject.toml, one per line."""
    requirement_groups = [
        *get_table(pyproject, "dependency-groups").values(),
        *get_table(pyproject, "project", "optional-dependencies").values(),
    ]
    requirements = [requirement for group in requirement_groups for requirement in string_list(group)]
    return "\n".join(requirements)


def hatch_test_command(folder: Folder, pyproject: dict[str, Any]) -> str | None:
    """Return the Hatch arguments that run the tests, or None if no environment of Hatch has a test script."""
    environments = get_table(pyproject, "tool", "hatch", "envs") or get_table(folder.toml("hatch.toml"), "envs")
    if "hatch-test" in environments:
        return "test"
    for environment_name in ("default", "test", "tests"):
        script = _first_in(
            ("test", "tests", "run", "pytest", "unit", "all", "cov"),
            list(get_table(environments, environment_name, "scripts")),
        )
        if script and not (environment_name == "default" and script in ("run", "all", "cov")):
            return f"run {script}" if environment_name == "default" else f"run {environment_name}:{script}"
    return None
