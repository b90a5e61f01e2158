"""Detect Python projects: their package build, and the command that runs their tests.

The test runner is the first of these that the project configures: tox, Django, nox, Hatch, make, pytest, unittest. Lock
files and declared dependencies can make pytest precede tox and nox, because they install what the tests need.
"""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.ecosystems.python_dependencies import (
    REQUIREMENTS,
    RUNTIME,
    Installation,
    PythonProject,
    build_backend,
    package_extras,
    plan_installation,
)
from deltaci.pipeline.detect.ecosystems.python_linters import lint_drafts
from deltaci.pipeline.detect.ecosystems.python_tools import (
    PACKAGE_MANAGERS_BIN,
    RUN_NOX,
    TOOLS_BIN,
    NoxConfig,
    ToxConfig,
    hatch_test_command,
    install_tools,
    read_nox,
    read_tox,
)
from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, Confidence, JobDraft, Project, quoted
from deltaci.pipeline.detect.tasks import test_recipe
from deltaci.pipeline.detect.tree import Folder, get_nested, get_table, string_list, string_or_empty

ECOSYSTEM: Final = "python"
MANIFESTS: Final = ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "manage.py", "requirements.txt", "tox.ini")

TEST_FILE: Final = r"(?:.*/)?(?:test_[^/]*|[^/]*_test|tests?)\.py"
PYTEST_FILES: Final = (
    *("pytest.ini", ".pytest.ini", "pytest.toml", "conftest.py", "tests/conftest.py", "test/conftest.py"),
)
PYTEST_STYLE: Final = re.compile(r"(?m)^(?:(?:import|from) pytest\b|(?:async )?def test_)")
# Tools that derive the version of the package from git tags, so that the build needs the git history.
GIT_VERSION_TOOLS: Final = (
    "setuptools_scm",
    "setuptools-scm",
    "hatch-vcs",
    "versioneer",
    "versioningit",
    "dunamai",
    "pbr",
)
PURE_PYTHON_BACKENDS: Final = (
    "setuptools",
    "hatchling",
    "flit",
    "poetry",
    "pdm",
    "uv_build",
    "whey",
    "jupyter_packaging",
)
JUNIT_FILE: Final = "test-results.xml"
# Commands of a Makefile that install the dependencies of the tests.
INSTALL_COMMANDS: Final = re.compile(
    r"pip3? install|-m venv|\buv (?:sync|run|pip)|poetry (?:install|run)|\bhatch |\btox\b|\bnox\b|VENV|"
    r"\b(?:setup|bootstrap)\b"
)


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of Python projects reads this file."""
    if file_name in MANIFESTS or file_name in ("noxfile.py", "hatch.toml", "tox.toml", "mypy.ini"):
        return True
    is_requirements_file = file_name.endswith(".txt") and "requirements" in f"{folder}/{file_name}".lower()
    is_test = re.fullmatch(TEST_FILE, file_name) is not None
    return is_requirements_file or is_test


def find(folder: Folder) -> Project | None:
    """Return the Python project of the folder, or None if there is none."""
    project = _read_project(folder)
    if project is None:
        return None
    test_drafts, unclear = _propose_tests(project)
    build_drafts = _build_drafts(project)
    linter_drafts = lint_drafts(folder, project.pyproject, project.setup_cfg, project.checkout)
    return Project(
        ecosystem=ECOSYSTEM, folder=folder.path, drafts=(*build_drafts, *test_drafts, *linter_drafts), unclear=unclear
    )


def _read_project(folder: Folder) -> PythonProject | None:
    pyproject, setup_cfg = folder.toml("pyproject.toml"), folder.ini("setup.cfg")
    is_declared = bool({"project", "build-system"} & set(pyproject)) or bool(get_table(pyproject, "tool", "poetry"))
    is_package = is_declared or folder.find_file("setup.py") is not None or "metadata" in setup_cfg
    test_paths = [
        test_path for test_path in folder.paths_matching(TEST_FILE) if not test_path.endswith("setup_test.py")
    ][:5000]
    has_code = is_package or folder.find_file("manage.py", "Pipfile") is not None
    has_unpackaged_code = folder.find_file(
        "requirements.txt", "tox.ini", "noxfile.py"
    ) is not None and folder.first_match(r".*\.py")
    if not has_code and not has_unpackaged_code and not (pyproject and test_paths):
        return None
    project = PythonProject(
        folder=folder,
        pyproject=pyproject,
        setup_cfg=setup_cfg,
        setup_py=folder.text("setup.py"),
        is_package=is_package,
        test_paths=test_paths,
    )
    project.pytest_evidence = _pytest_evidence(project)
    metadata_text = folder.text("pyproject.toml") + folder.text("setup.cfg") + project.setup_py
    project.checkout = 0 if any(tool_name in metadata_text for tool_name in GIT_VERSION_TOOLS) else True
    return project


def _pytest_evidence(project: PythonProject) -> str | None:
    """Return the evidence that the tests use pytest, or None."""
    folder = project.folder
    if get_table(project.pyproject, "tool", "pytest"):
        return "pyproject.toml configures pytest"
    if "tool:pytest" in project.setup_cfg:
        return "setup.cfg has [tool:pytest]"
    if "pytest" in folder.ini("tox.ini"):
        return "tox.ini has [pytest]"
    if file_name := folder.find_file(*PYTEST_FILES):
        return f"there is {file_name}"
    for requirement_file in (*MANIFESTS, "noxfile.py", *REQUIREMENTS, *RUNTIME):
        if re.search(r"(?<![\w-])pytest(?![\w])", folder.text(requirement_file)):
            return f"{requirement_file} names pytest"
    written_for_pytest = (
        path for path in project.test_paths if path.count("/") <= 1 and PYTEST_STYLE.search(folder.text(path))
    )
    return next((f"{path} is written for pytest" for path in written_for_pytest), None)


# -- tests


def _propose_tests(project: PythonProject) -> tuple[tuple[JobDraft, ...], tuple[str, ...]]:
    """Return the job that runs the tests or, if there is none, a message about the missing tests.

    Neither for a project that has no tests and is no package.
    """
    folder = project.folder
    has_lock = folder.find_file("uv.lock", "poetry.lock", "pdm.lock") is not None
    tox_config, nox_config = read_tox(folder, project.pyproject, project.setup_cfg), read_nox(folder)
    if tox_config and tox_config.test_environment and not (has_lock and project.pytest_evidence):
        return (_tox_draft(project, tox_config),), ()
    installation = plan_installation(project)
    nested_manage_path = (
        folder.first_match(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/manage\.py") if folder.find_file("manage.py") is None else None
    )
    manage_path = folder.find_file("manage.py") or nested_manage_path
    if manage_path and not project.pytest_evidence:
        return (_django_draft(project, installation, manage_path),), ()
    if nox_config and nox_config.test_session and not (installation.is_declared and project.pytest_evidence):
        return (_nox_draft(project, nox_config),), ()
    is_undeclared = not installation.is_declared and not installation.is_locked
    if is_undeclared and (script := hatch_test_command(folder, project.pyproject)):
        return (_hatch_draft(project, script),), ()
    if (is_undeclared or _compiler_backend(project)) and INSTALL_COMMANDS.search(test_recipe(folder)):
        return (_make_draft(project),), ()
    if project.pytest_evidence and (project.test_paths or folder.first_match(r"(?:.*/)?(?:tests?|testing)/.*\.py")):
        return (_pytest_draft(project, installation),), ()
    if project.test_paths:
        return (_unittest_draft(project, installation),), ()
    if project.pytest_evidence:
        return (), (f"{project.pytest_evidence}, but no test files were found",)
    return (), ("no tests were found in this Python project",) if project.is_package else ()


def _tox_draft(project: PythonProject, tox_config: ToxConfig) -> JobDraft:
    packages = "tox tox-uv" if tox_config.uses_uv else "tox"
    return JobDraft(
        purpose="test",
        title="Python tests with tox",
        confidence=SURE if tox_config.is_plain else LIKELY,
        uncertainty="" if tox_config.is_plain else tox_config.uncertainty,
        evidence=(tox_config.evidence,),
        checkout=project.checkout,
        steps=(*install_tools(packages), f"{TOOLS_BIN}/tox run -e {tox_config.test_environment}"),
        hints=_version_hints(project),
    )


def _nox_draft(project: PythonProject, nox_config: NoxConfig) -> JobDraft:
    return JobDraft(
        purpose="test",
        title="Python tests with nox",
        confidence=LIKELY,
        evidence=(nox_config.evidence,),
        checkout=project.checkout,
        uncertainty="the session may require versions of Python that the runner does not have",
        steps=(*install_tools("nox"), f"{RUN_NOX} -s {nox_config.test_session}"),
        hints=_version_hints(project),
    )


def _hatch_draft(project: PythonProject, script: str) -> JobDraft:
    return JobDraft(
        purpose="test",
        title="Python tests with Hatch",
        confidence=SURE,
        evidence=("pyproject.toml has a Hatch environment for tests",),
        steps=(*install_tools("hatch"), f"{TOOLS_BIN}/hatch {script}"),
        checkout=project.checkout,
        hints=_version_hints(project),
    )


def _make_draft(project: PythonProject) -> JobDraft:
    """Return a job that runs `make test`, for a Makefile that installs the undeclared dependencies of the tests.

    The job puts `.venv` first on the PATH, so that the Makefile installs into it.
    """
    return JobDraft(
        purpose="test",
        title="Python tests with make",
        confidence=LIKELY,
        uncertainty="only the Makefile declares what the tests need",
        evidence=("the Makefile has the target 'test', which installs its requirements",),
        steps=("python3 -m venv .venv", 'PATH="$PWD/.venv/bin:$PATH" make test'),
        checkout=project.checkout,
        hints=_version_hints(project),
    )


def _pytest_draft(project: PythonProject, installation: Installation) -> JobDraft:
    confidence: Confidence = SURE
    uncertainty = ""
    compiler_backend = _compiler_backend(project)
    if compiler_backend == "mesonpy":
        confidence, uncertainty = UNSURE, "meson-python builds it in place, and the build requirements are a guess"
    elif compiler_backend and not installation.is_declared and not installation.is_locked:
        confidence, uncertainty = (
            UNSURE,
            f"{compiler_backend} builds it, and the requirements of the build and the tests are not declared",
        )
    elif compiler_backend:
        confidence, uncertainty = LIKELY, f"{compiler_backend} builds it, which may need a compiler and libraries"
    elif not installation.is_declared and not installation.is_locked:
        confidence, uncertainty = LIKELY, "no requirements of the tests are declared besides pytest"
    elif not project.test_paths:
        confidence, uncertainty = LIKELY, "there are tests, but none has a usual file name"
    install_with_uv = (f"{PACKAGE_MANAGERS_BIN}/uv pip install pytest",) if project.folder.find_file("uv.lock") else ()
    install_with_pip = () if installation.is_locked else (".venv/bin/python -m pip install pytest",)
    install_pytest = () if _installs_pytest(project) else install_with_uv or install_with_pip
    pytest_evidence = project.pytest_evidence or "there are test files"
    return JobDraft(
        purpose="test",
        title="Python tests with pytest",
        confidence=confidence,
        uncertainty=uncertainty,
        evidence=(pytest_evidence, *installation.evidence),
        env=installation.env,
        caches=installation.caches,
        checkout=project.checkout,
        steps=(*installation.steps, *install_pytest, f".venv/bin/python -m pytest --junitxml={JUNIT_FILE}"),
        artifacts=(model.Artifact(path=project.folder.from_root(JUNIT_FILE), type="junit"),),
        hints=_version_hints(project),
    )


def _installs_pytest(project: PythonProject) -> bool:
    """Return whether the declared dependencies include pytest."""
    requirement_groups = [
        *get_table(project.pyproject, "dependency-groups").values(),
        *package_extras(project).values(),
    ]
    declared_requirements = " ".join(
        requirement for group_requirements in requirement_groups for requirement in string_list(group_requirements)
    )
    requirements_file = project.folder.find_file(*REQUIREMENTS)
    return "pytest" in declared_requirements or bool(
        requirements_file and re.search(r"(?m)^pytest\b", project.folder.text(requirements_file))
    )


def _django_draft(project: PythonProject, installation: Installation, manage_path: str) -> JobDraft:
    return JobDraft(
        purpose="test",
        title="Django tests",
        confidence=LIKELY,
        evidence=(f"there is {manage_path}", *installation.evidence),
        uncertainty="its settings may need a database or secrets",
        env=installation.env,
        caches=installation.caches,
        steps=(*installation.steps, f".venv/bin/python {manage_path} test"),
        checkout=project.checkout,
    )


def _unittest_draft(project: PythonProject, installation: Installation) -> JobDraft:
    """Return a job for test files without evidence of pytest.

    It runs unittest if they import it and have names that it discovers; else it is a guess with pytest.
    """
    folder = project.folder
    test_texts = [(path, folder.text(path)) for path in project.test_paths if folder.text(path)]
    unittest_file = next(
        (path for path, text in test_texts if re.search(r"(?m)^[ \t]*(?:import|from) unittest\b", text)), None
    )
    test_folder = next(
        (folder_name for folder_name in ("tests", "test") if folder.first_match(rf"{folder_name}/.*\.py")), None
    )
    start_option = f" -s {test_folder}" if test_folder and not folder.find_file(f"{test_folder}/__init__.py") else ""
    has_unusual_names = not any(path.rpartition("/")[2].startswith("test") for path in project.test_paths)
    if unittest_file and not has_unusual_names:
        return JobDraft(
            purpose="test",
            title="Python tests with unittest",
            confidence=LIKELY,
            uncertainty="it is not declared how the tests are started",
            evidence=(f"{unittest_file} imports unittest", *installation.evidence),
            steps=(*installation.steps, f".venv/bin/python -m unittest discover -v{start_option}"),
            env=installation.env,
            caches=installation.caches,
            checkout=project.checkout,
        )
    draft = _pytest_draft(project, installation)
    evidence = f"{project.test_paths[0]} looks like a test" if project.test_paths else "there are tests"
    return JobDraft(
        purpose="test",
        title=draft.title,
        confidence=UNSURE,
        uncertainty="it is not declared how the tests are started",
        evidence=(quoted(evidence, 100).strip("'"), *installation.evidence),
        steps=draft.steps,
        env=draft.env,
        caches=draft.caches,
        artifacts=draft.artifacts,
        checkout=draft.checkout,
    )


def _version_hints(project: PythonProject) -> tuple[str, ...]:
    """Return a hint with the Python versions that the project declares.

    They are not used for jobs, because it is unknown whether the runners have these versions.
    """
    metadata_text = " ".join(string_list(get_nested(project.pyproject, "project", "classifiers")))
    metadata_text += project.setup_py + string_or_empty(get_nested(project.setup_cfg, "metadata", "classifiers"))
    minor_numbers = sorted({int(minor) for minor in re.findall(r"Python :: 3\.(\d{1,2})(?!\d)", metadata_text)})
    required_version = string_or_empty(get_nested(project.pyproject, "project", "requires-python"))
    if len(minor_numbers) > 1:
        listed_versions = ", ".join(f"'3.{minor}'" for minor in minor_numbers[-5:])
        return (
            f"it declares Python 3.{minor_numbers[0]} to 3.{minor_numbers[-1]}; to test all of them: "
            f"strategy: {{matrix: {{python: [{listed_versions}]}}}} and a first step"
            " {uses: setup-python, with: {python-version: '${{ matrix.python }}'}}",
        )
    return (f"it requires Python {quoted(required_version)}",) if required_version else ()


# -- the package


def _compiler_backend(project: PythonProject) -> str:
    """Return the name of the tool that compiles the package, for messages; empty if the build only copies files."""
    backend = build_backend(project)
    if backend == "mesonpy":
        return backend
    if backend and not backend.startswith(PURE_PYTHON_BACKENDS):
        return (
            "its own backend"
            if get_nested(project.pyproject, "build-system", "backend-path")
            else _printable_backend(backend)
        )
    return "setup.py" if re.search(r"\bExtension\(|ext_modules|cythonize|rust_extensions", project.setup_py) else ""


def _printable_backend(text: str) -> str:
    return text if re.fullmatch(r"[\w.:-]{1,60}", text) else "another backend"


def _build_drafts(project: PythonProject) -> tuple[JobDraft, ...]:
    if not project.is_package or get_nested(project.pyproject, "tool", "poetry", "package-mode") is False:
        return ()
    compiler_backend, folder = _compiler_backend(project), project.folder
    is_declared = "build-system" in project.pyproject and (
        "project" in project.pyproject
        or get_table(project.pyproject, "tool", "poetry")
        or folder.find_file("setup.py", "setup.cfg")
    )
    if not is_declared and not project.setup_py:
        return ()
    is_sure = bool(is_declared) and not compiler_backend
    uncertainty = (
        f"{compiler_backend} builds it, which may need a compiler and libraries"
        if compiler_backend
        else "only setup.py describes the build"
    )
    return (
        JobDraft(
            purpose="build",
            title="Python package",
            confidence=SURE if is_sure else LIKELY,
            uncertainty="" if is_sure else uncertainty,
            evidence=("pyproject.toml has [build-system]" if is_declared else "there is setup.py",),
            steps=(*install_tools("build"), f"{TOOLS_BIN}/python -m build"),
            checkout=project.checkout,
            artifacts=(model.Artifact(path=folder.from_root("dist/*")),),
        ),
    )
