"""Python: how its tests are run and what they need, from what packaging, tox, nox, lock files and Django declare."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline import model
from deltaci.pipeline.discovery.findings import LIKELY, SURE, UNSURE, Confidence, Draft, Project, quoted
from deltaci.pipeline.discovery.python_linters import lint_drafts
from deltaci.pipeline.discovery.python_tools import NOX, PIP, TOOLS, Nox, Tox, nox_of, tox_of
from deltaci.pipeline.discovery.tree import Place, dig, table, texts, word

ECOSYSTEM: Final = "python"
MANIFESTS: Final = ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "manage.py", "requirements.txt", "tox.ini")

TEST_WORDS: Final = ("test", "tests", "testing", "unittest", "pytest")
DEV_WORDS: Final = ("dev", "develop", "development", "ci", "all")
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
TEST_FILE: Final = r"(?:.*/)?(?:test_[^/]*|[^/]*_test|tests?)\.py"
PYTEST_FILES: Final = (
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    "conftest.py",
    "tests/conftest.py",
    "test/conftest.py",
)
# Their version comes from tags of git, so the build needs the history.
FROM_GIT: Final = ("setuptools_scm", "setuptools-scm", "hatch-vcs", "versioneer", "versioningit", "dunamai", "pbr")
PLAIN_BACKENDS: Final = ("setuptools", "hatchling", "flit", "poetry", "pdm", "uv_build", "whey", "jupyter_packaging")
JUNIT: Final = "test-results.xml"


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


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about how a Python project is tested."""
    if name in (*MANIFESTS, "noxfile.py", "pytest.ini", ".pre-commit-config.yaml", "mypy.ini", "Pipfile.lock"):
        return True
    is_list = name.endswith(".txt") and "requirements" in f"{folder}/{name}".lower()
    is_test = re.fullmatch(TEST_FILE, name) is not None and folder.rpartition("/")[2] in ("", "test", "tests")
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
    for name in (
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
        "Pipfile",
        "tox.ini",
        "noxfile.py",
        *REQUIREMENTS,
        *RUNTIME,
    ):
        if re.search(r"(?<![\w-])pytest(?![\w])", place.text(name)):
            return f"{name} names pytest"
    return None


# -- what tests need


class Needs(Struct, frozen=True, kw_only=True):
    """How to get everything that tests need into `.venv`, and from what that is concluded."""

    steps: tuple[str, ...]
    evidence: tuple[str, ...]
    caches: tuple[model.Cache, ...] = ()
    env: dict[str, str] = {}
    is_locked: bool = False
    is_declared: bool = True  # whether what only tests need is declared anywhere


def _needs(known: Known) -> Needs:
    place = known.place
    groups, extras = table(known.pyproject, "dependency-groups"), _extras(known)
    if place.has("uv.lock") and known.pyproject:
        chosen = [*_options("--group", groups, TEST_WORDS), *_options("--extra", extras, (*TEST_WORDS, "dev"))]
        sync = " ".join([f"{TOOLS}/uv sync --frozen", *chosen])
        return Needs(
            steps=(*PIP("uv"), sync),
            evidence=("there is uv.lock",),
            is_locked=True,
            env={"UV_CACHE_DIR": ".cache/uv"},
            caches=(_cache(place, "uv", ".cache/uv", "uv.lock"),),
        )
    if place.has("poetry.lock") or _backend(known).startswith("poetry") or table(known.pyproject, "tool", "poetry"):
        return _poetry(known, extras)
    if place.has("pdm.lock"):
        chosen = _options("-G", {**groups, **extras}, TEST_WORDS)
        install = " ".join([f"{TOOLS}/pdm install --frozen-lockfile", *chosen])
        return Needs(steps=(*PIP("pdm"), install), evidence=("there is pdm.lock",), is_locked=True)
    if place.has("Pipfile"):
        install = "sync --dev" if place.has("Pipfile.lock") else "install --dev --skip-lock"
        return Needs(
            steps=(*PIP("pipenv"), f"{TOOLS}/pipenv {install}"),
            evidence=("there is a Pipfile",),
            env={"PIPENV_VENV_IN_PROJECT": "1"},
        )
    return _by_pip(known, groups, extras)


def _poetry(known: Known, extras: dict[str, Any]) -> Needs:
    groups = table(known.pyproject, "tool", "poetry", "group")
    optional = {name: each for name, each in groups.items() if dig(each, "optional") is True}
    chosen = [*_options("--with", optional, TEST_WORDS), *_options("--extras", extras, TEST_WORDS)]
    says = "there is poetry.lock" if known.place.has("poetry.lock") else "pyproject.toml is Poetry's"
    return Needs(
        steps=(*PIP("poetry"), " ".join([f"{TOOLS}/poetry install --no-interaction", *chosen])),
        evidence=(says,),
        env={"POETRY_VIRTUALENVS_IN_PROJECT": "true"},
        is_locked=True,
    )


def _by_pip(known: Known, groups: dict[str, Any], extras: dict[str, Any]) -> Needs:
    """Into a fresh environment, by pip: the project with its extras, a group, and lists of requirements."""
    place = known.place
    chosen, evidence = [], []
    extra = next((name for name in (*TEST_WORDS, *DEV_WORDS[:2]) if name in extras), None)
    group = next((name for name in (*TEST_WORDS, *DEV_WORDS[:2]) if name in groups), None)
    if extra in DEV_WORDS and group in TEST_WORDS:
        extra = None
    listed = None if extra in TEST_WORDS or group in TEST_WORDS else place.has(*REQUIREMENTS)
    if known.is_package:
        chosen.append(f"-e '.[{extra}]'" if extra else "-e .")
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


def _options(option: str, declared: dict[str, Any], words: tuple[str, ...]) -> list[str]:
    found = next((name for name in words if name in declared), None)
    return [f"{option} {found}"] if found else []


def _extras(known: Known) -> dict[str, Any]:
    extras = {
        **table(known.pyproject, "project", "optional-dependencies"),
        **table(known.setup_cfg, "options.extras_require"),
    }
    extras |= table(known.pyproject, "tool", "poetry", "extras")
    block = re.search(r"extras_require\s*=\s*\{(.{0,4000}?)\n\s*\}", known.setup_py, re.DOTALL)
    if block:
        extras |= {name: [] for name in re.findall(r"""^\s*["']([\w-]+)["']\s*:""", block[1], re.MULTILINE)}
    return extras


def _cache(place: Place, name: str, folder: str, *locks: str) -> model.Cache:
    return model.Cache(
        key=f"{name}-{{lock_hash}}", paths=(place.path(folder),), lock_files=tuple(place.path(lock) for lock in locks)
    )


def _backend(known: Known) -> str:
    return word(dig(known.pyproject, "build-system", "build-backend"))


# -- tests


def _tests(known: Known) -> tuple[tuple[Draft, ...], tuple[str, ...]]:
    place = known.place
    has_lock = place.has("uv.lock", "poetry.lock", "pdm.lock") is not None
    tox, nox = tox_of(place, known.pyproject, known.setup_cfg), nox_of(place)
    if tox and tox.test and not (has_lock and known.pytest):
        return (_by_tox(known, tox),), ()
    needs = _needs(known)
    manage = place.has("manage.py")
    if manage and not (known.pytest and "pytest" in known.pytest):
        return (_by_django(known, needs),), ()
    if nox and nox.test and not (needs.is_declared and known.pytest):
        return (_by_nox(known, nox),), ()
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
        steps=(*PIP(names), f"{TOOLS}/tox run -e {tox.test}"),
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
        steps=(*PIP("nox"), f"{NOX} -s {nox.test}"),
        hints=_versions(known),
    )


def _by_pytest(known: Known, needs: Needs) -> Draft:
    confidence: Confidence = SURE
    reason = ""
    compiled = _compiled(known)
    if compiled:
        confidence, reason = LIKELY, f"{compiled} builds it, which may need a compiler and libraries"
    elif not needs.is_declared and not needs.is_locked:
        confidence, reason = LIKELY, "nothing says what the tests need beside pytest"
    elif not known.tests:
        confidence, reason = LIKELY, "there are tests, but none with a usual name"
    names_pytest = needs.is_locked or _lists_pytest(known)
    install = () if names_pytest else (".venv/bin/python -m pip install pytest",)
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
    declared = [*table(known.pyproject, "dependency-groups").values(), *_extras(known).values()]
    listed = " ".join(each for group in declared for each in texts(group))
    name = known.place.has(*REQUIREMENTS)
    return "pytest" in listed or bool(name and re.search(r"(?m)^pytest\b", known.place.text(name)))


def _by_django(known: Known, needs: Needs) -> Draft:
    return Draft(
        task="test",
        what="Django tests",
        confidence=LIKELY,
        evidence=("there is manage.py", *needs.evidence),
        reason="its settings may want a database or secrets",
        env=needs.env,
        caches=needs.caches,
        steps=(*needs.steps, ".venv/bin/python manage.py test"),
        checkout=known.checkout,
    )


def _by_unittest(known: Known, needs: Needs) -> Draft:
    """Test files, and not a word about pytest: unittest, if that is what they use."""
    place = known.place
    seen = [(path, place.text(path)) for path in known.tests if place.text(path)]
    uses = next((path for path, text in seen if re.search(r"(?m)^\s*(?:import|from) unittest\b", text)), None)
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
    backend = _backend(known)
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
            steps=(*PIP("build"), f"{TOOLS}/python -m build"),
            checkout=known.checkout,
            artifacts=(model.Artifact(path=place.path("dist/*")),),
        ),
    )
