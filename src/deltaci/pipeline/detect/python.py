"""Python: how its tests are run and what they need, from what packaging, tox, nox, lock files and Django declare."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Confidence, Draft, Project, quoted
from deltaci.pipeline.detect.python_linters import lint_drafts
from deltaci.pipeline.detect.python_needs import REQUIREMENTS, RUNTIME, Known, Needs, backend_of, extras_of, needs_of
from deltaci.pipeline.detect.python_tools import LOCKERS, NOX, TOOLS, Nox, Tox, get, hatch_of, nox_of, tox_of
from deltaci.pipeline.detect.tasks import test_recipe
from deltaci.pipeline.detect.tree import Place, dig, table, texts, word

ECOSYSTEM: Final = "python"
MANIFESTS: Final = ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "manage.py", "requirements.txt", "tox.ini")

TEST_FILE: Final = r"(?:.*/)?(?:test_[^/]*|[^/]*_test|tests?)\.py"
PYTEST_FILES: Final = (
    *("pytest.ini", ".pytest.ini", "pytest.toml", "conftest.py", "tests/conftest.py", "test/conftest.py"),
)
PYTEST_STYLE: Final = re.compile(r"(?m)^(?:(?:import|from) pytest\b|(?:async )?def test_)")
# Their version comes from tags of git, so the build needs the history.
FROM_GIT: Final = ("setuptools_scm", "setuptools-scm", "hatch-vcs", "versioneer", "versioningit", "dunamai", "pbr")
PLAIN_BACKENDS: Final = ("setuptools", "hatchling", "flit", "poetry", "pdm", "uv_build", "whey", "jupyter_packaging")
JUNIT: Final = "test-results.xml"
# What a Makefile does that brings along what the tests need.
INSTALLS: Final = re.compile(
    r"pip3? install|-m venv|\buv (?:sync|run|pip)|poetry (?:install|run)|\bhatch |\btox\b|\bnox\b|VENV|"
    r"\b(?:setup|bootstrap)\b"
)


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about how a Python project is tested."""
    if name in MANIFESTS or name in ("noxfile.py", "hatch.toml", "tox.toml", "mypy.ini"):
        return True
    is_list = name.endswith(".txt") and "requirements" in f"{folder}/{name}".lower()
    is_test = re.fullmatch(TEST_FILE, name) is not None
    return is_list or is_test


def find(place: Place) -> Project | None:
    """The Python project of this folder, if there is one."""
    known = _gather(place)
    if known is None:
        return None
    tests, unclear = _tests(known)
    build = _build(known)
    lint = lint_drafts(place, known.pyproject, known.setup_cfg, known.checkout)
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=(*build, *tests, *lint), unclear=unclear)


def _gather(place: Place) -> Known | None:
    pyproject, setup_cfg = place.toml("pyproject.toml"), place.ini("setup.cfg")
    declares = bool({"project", "build-system"} & set(pyproject)) or bool(table(pyproject, "tool", "poetry"))
    is_package = declares or place.has("setup.py") is not None or "metadata" in setup_cfg
    tests = [path for path in place.below(TEST_FILE) if not path.endswith("setup_test.py")][:5000]
    has_code = is_package or place.has("manage.py", "Pipfile") is not None
    loose = place.has("requirements.txt", "tox.ini", "noxfile.py") is not None and place.any(r".*\.py")
    if not has_code and not loose and not (pyproject and tests):
        return None
    known = Known(
        place=place,
        pyproject=pyproject,
        setup_cfg=setup_cfg,
        setup_py=place.text("setup.py"),
        is_package=is_package,
        tests=tests,
    )
    known.pytest = _pytest(known)
    declared = place.text("pyproject.toml") + place.text("setup.cfg") + known.setup_py
    known.checkout = 0 if any(name in declared for name in FROM_GIT) else True
    return known


def _pytest(known: Known) -> str | None:
    """What says that tests are run by pytest."""
    place = known.place
    if table(known.pyproject, "tool", "pytest"):
        return "pyproject.toml configures pytest"
    if "tool:pytest" in known.setup_cfg:
        return "setup.cfg has [tool:pytest]"
    if "pytest" in place.ini("tox.ini"):
        return "tox.ini has [pytest]"
    if found := place.has(*PYTEST_FILES):
        return f"there is {found}"
    for name in (*MANIFESTS, "noxfile.py", *REQUIREMENTS, *RUNTIME):
        if re.search(r"(?<![\w-])pytest(?![\w])", place.text(name)):
            return f"{name} names pytest"
    near = (path for path in known.tests if path.count("/") <= 1 and PYTEST_STYLE.search(place.text(path)))
    return next((f"{path} is written for pytest" for path in near), None)


# -- tests


def _tests(known: Known) -> tuple[tuple[Draft, ...], tuple[str, ...]]:
    place = known.place
    has_lock = place.has("uv.lock", "poetry.lock", "pdm.lock") is not None
    tox, nox = tox_of(place, known.pyproject, known.setup_cfg), nox_of(place)
    if tox and tox.test and not (has_lock and known.pytest):
        return (_by_tox(known, tox),), ()
    needs = needs_of(known)
    inner = place.any(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/manage\.py") if place.has("manage.py") is None else None
    manage = place.has("manage.py") or inner
    if manage and not known.pytest:
        return (_by_django(known, needs, manage),), ()
    if nox and nox.test and not (needs.is_declared and known.pytest):
        return (_by_nox(known, nox),), ()
    is_lost = not needs.is_declared and not needs.is_locked
    if is_lost and (script := hatch_of(place, known.pyproject)):
        return (_by_hatch(known, script),), ()
    if (is_lost or _compiled(known)) and INSTALLS.search(test_recipe(place)):
        return (_by_make(known),), ()
    if known.pytest and (known.tests or place.any(r"(?:.*/)?(?:tests?|testing)/.*\.py")):
        return (_by_pytest(known, needs),), ()
    if known.tests:
        return (_by_unittest(known, needs),), ()
    if known.pytest:
        return (), (f"{known.pytest}, but no test files were found",)
    return (), ("no tests were found in this Python project",) if known.is_package else ()


def _by_tox(known: Known, tox: Tox) -> Draft:
    names = "tox tox-uv" if tox.wants_uv else "tox"
    return Draft(
        task="test",
        what="Python tests with tox",
        confidence=SURE if tox.is_plain else LIKELY,
        reason="" if tox.is_plain else tox.doubt,
        evidence=(tox.evidence,),
        checkout=known.checkout,
        steps=(*get(names), f"{TOOLS}/tox run -e {tox.test}"),
        hints=_versions(known),
    )


def _by_nox(known: Known, nox: Nox) -> Draft:
    return Draft(
        task="test",
        what="Python tests with nox",
        confidence=LIKELY,
        evidence=(nox.evidence,),
        checkout=known.checkout,
        reason="the session may ask for versions of Python that the machine does not have",
        steps=(*get("nox"), f"{NOX} -s {nox.test}"),
        hints=_versions(known),
    )


def _by_hatch(known: Known, script: str) -> Draft:
    return Draft(
        task="test",
        what="Python tests with Hatch",
        confidence=SURE,
        evidence=("pyproject.toml has an environment of Hatch for tests",),
        steps=(*get("hatch"), f"{TOOLS}/hatch {script}"),
        checkout=known.checkout,
        hints=_versions(known),
    )


def _by_make(known: Known) -> Draft:
    """The Makefile gets what the tests need, and nothing else says what that is; what it installs goes into .venv."""
    return Draft(
        task="test",
        what="Python tests with make",
        confidence=LIKELY,
        reason="only the Makefile knows what the tests need",
        evidence=("the Makefile has the target 'test', and gets what that needs",),
        steps=("python3 -m venv .venv", 'PATH="$PWD/.venv/bin:$PATH" make test'),
        checkout=known.checkout,
        hints=_versions(known),
    )


def _by_pytest(known: Known, needs: Needs) -> Draft:
    confidence: Confidence = SURE
    reason = ""
    compiled = _compiled(known)
    if compiled == "mesonpy":
        confidence, reason = UNSURE, "it is built by meson-python in place, and what that needs is a guess"
    elif compiled and not needs.is_declared and not needs.is_locked:
        confidence, reason = UNSURE, f"{compiled} builds it, and nothing says what that and the tests need"
    elif compiled:
        confidence, reason = LIKELY, f"{compiled} builds it, which may need a compiler and libraries"
    elif not needs.is_declared and not needs.is_locked:
        confidence, reason = LIKELY, "nothing says what the tests need beside pytest"
    elif not known.tests:
        confidence, reason = LIKELY, "there are tests, but none with a usual name"
    by_uv = (f"{LOCKERS}/uv pip install pytest",) if known.place.has("uv.lock") else ()
    by_pip = () if needs.is_locked else (".venv/bin/python -m pip install pytest",)
    install = () if _lists_pytest(known) else by_uv or by_pip
    told = known.pytest or "there are test files"
    return Draft(
        task="test",
        what="Python tests with pytest",
        confidence=confidence,
        reason=reason,
        evidence=(told, *needs.evidence),
        env=needs.env,
        caches=needs.caches,
        checkout=known.checkout,
        steps=(*needs.steps, *install, f".venv/bin/python -m pytest --junitxml={JUNIT}"),
        artifacts=(model.Artifact(path=known.place.path(JUNIT), type="junit"),),
        hints=_versions(known),
    )


def _lists_pytest(known: Known) -> bool:
    """Whether what is installed surely brings pytest along."""
    declared = [*table(known.pyproject, "dependency-groups").values(), *extras_of(known).values()]
    listed = " ".join(each for group in declared for each in texts(group))
    name = known.place.has(*REQUIREMENTS)
    return "pytest" in listed or bool(name and re.search(r"(?m)^pytest\b", known.place.text(name)))


def _by_django(known: Known, needs: Needs, manage: str) -> Draft:
    return Draft(
        task="test",
        what="Django tests",
        confidence=LIKELY,
        evidence=(f"there is {manage}", *needs.evidence),
        reason="its settings may want a database or secrets",
        env=needs.env,
        caches=needs.caches,
        steps=(*needs.steps, f".venv/bin/python {manage} test"),
        checkout=known.checkout,
    )


def _by_unittest(known: Known, needs: Needs) -> Draft:
    """Test files, and not a word about pytest: unittest, if that is what they use."""
    place = known.place
    seen = [(path, place.text(path)) for path in known.tests if place.text(path)]
    uses = next((path for path, text in seen if re.search(r"(?m)^[ \t]*(?:import|from) unittest\b", text)), None)
    folder = next((name for name in ("tests", "test") if place.any(rf"{name}/.*\.py")), None)
    start = f" -s {folder}" if folder and not place.has(f"{folder}/__init__.py") else ""
    odd = not any(path.rpartition("/")[2].startswith("test") for path in known.tests)
    if uses and not odd:
        return Draft(
            task="test",
            what="Python tests with unittest",
            confidence=LIKELY,
            reason="nothing says how the tests are started",
            evidence=(f"{uses} imports unittest", *needs.evidence),
            steps=(*needs.steps, f".venv/bin/python -m unittest discover -v{start}"),
            env=needs.env,
            caches=needs.caches,
            checkout=known.checkout,
        )
    draft = _by_pytest(known, needs)
    told = f"{known.tests[0]} looks like a test" if known.tests else "there are tests"
    return Draft(
        task="test",
        what=draft.what,
        confidence=UNSURE,
        reason="nothing says how the tests are started",
        evidence=(quoted(told, 100).strip("'"), *needs.evidence),
        steps=draft.steps,
        env=draft.env,
        caches=draft.caches,
        artifacts=draft.artifacts,
        checkout=draft.checkout,
    )


def _versions(known: Known) -> tuple[str, ...]:
    """The versions that the project declares: whether a machine has them is not to be seen from here."""
    declared = " ".join(texts(dig(known.pyproject, "project", "classifiers")))
    declared += known.setup_py + word(dig(known.setup_cfg, "metadata", "classifiers"))
    found = sorted({int(minor) for minor in re.findall(r"Python :: 3\.(\d{1,2})(?!\d)", declared)})
    wanted = word(dig(known.pyproject, "project", "requires-python"))
    if len(found) > 1:
        told = ", ".join(f"'3.{minor}'" for minor in found[-5:])
        return (
            f"it declares Python 3.{found[0]} to 3.{found[-1]}; to try them all: "
            f"strategy: {{matrix: {{python: [{told}]}}}} and a first step"
            " {uses: setup-python, with: {python-version: '${{ matrix.python }}'}}",
        )
    return (f"it wants Python {quoted(wanted)}",) if wanted else ()


# -- the package


def _compiled(known: Known) -> str:
    """What builds it, if that is more than copying files."""
    backend = backend_of(known)
    if backend == "mesonpy":
        return backend
    if backend and not backend.startswith(PLAIN_BACKENDS):
        return "its own backend" if dig(known.pyproject, "build-system", "backend-path") else _plain_word(backend)
    return "setup.py" if re.search(r"\bExtension\(|ext_modules|cythonize|rust_extensions", known.setup_py) else ""


def _plain_word(text: str) -> str:
    return text if re.fullmatch(r"[\w.:-]{1,60}", text) else "another backend"


def _build(known: Known) -> tuple[Draft, ...]:
    if not known.is_package or dig(known.pyproject, "tool", "poetry", "package-mode") is False:
        return ()
    compiled, place = _compiled(known), known.place
    is_declared = "build-system" in known.pyproject and (
        "project" in known.pyproject or table(known.pyproject, "tool", "poetry") or place.has("setup.py", "setup.cfg")
    )
    if not is_declared and not known.setup_py:
        return ()
    is_sure = bool(is_declared) and not compiled
    doubt = f"{compiled} builds it, which may need a compiler and libraries" if compiled else "only setup.py says how"
    return (
        Draft(
            task="build",
            what="Python package",
            confidence=SURE if is_sure else LIKELY,
            reason="" if is_sure else doubt,
            evidence=("pyproject.toml has [build-system]" if is_declared else "there is setup.py",),
            steps=(*get("build"), f"{TOOLS}/python -m build"),
            checkout=known.checkout,
            artifacts=(model.Artifact(path=place.path("dist/*")),),
        ),
    )
