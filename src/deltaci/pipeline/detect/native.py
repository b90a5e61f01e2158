"""C and C++: CMake, Meson and autotools. What libraries they need is hardly ever declared, so nothing here is sure."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import LIKELY, UNSURE, Draft, Project
from deltaci.pipeline.detect.tasks import tasks_of
from deltaci.pipeline.detect.tree import Place

ECOSYSTEM: Final = "native"
LIBRARIES: Final = "which compilers and libraries it needs is not declared"
AUTOTOOLS: Final = ("configure.ac", "configure.in")


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about such a build."""
    return name in (
        "CMakeLists.txt",
        "meson.build",
        *AUTOTOOLS,
        "Makefile.am",
        "Makefile.in",
        "Makefile.pre.in",
        "autogen.sh",
    )


def find(place: Place) -> Project | None:
    """The build of this folder. A Makefile that tests wins, unless CMake is told of tests."""
    tasks = tasks_of(place)
    has_target = tasks is not None and any(name in tasks.targets for name in ("test", "check"))
    steps: tuple[str, ...] = ()
    artifacts: tuple[model.Artifact, ...] = ()
    if place.has("CMakeLists.txt"):
        is_tested = _ctest(place)
        if has_target and not is_tested:
            return None
        told, what = "there is CMakeLists.txt", "CMake build"
        steps = ("cmake -S . -B _build -DCMAKE_BUILD_TYPE=Release", "cmake --build _build --parallel")
        if is_tested:
            steps += ("ctest --test-dir _build --output-on-failure --output-junit test-results.xml",)
            artifacts = (model.Artifact(path=place.path("_build/test-results.xml"), type="junit"),)
    elif place.has("meson.build"):
        if has_target or not re.search(r"(?m)^[ \t]*project[ \t]*\(", place.text("meson.build")):
            return None
        is_tested, told, what = True, "there is meson.build", "Meson build"
        steps = ("meson setup _build", "meson compile -C _build", "meson test -C _build --print-errorlogs")
        artifacts = (model.Artifact(path=place.path("_build/meson-logs/testlog.junit.xml"), type="junit"),)
    elif config := place.has(*AUTOTOOLS, "configure"):
        return None if has_target and place.has("Makefile") else _autotools(place, config)
    else:
        return None
    return Project(
        ecosystem=ECOSYSTEM,
        folder=place.folder,
        drafts=(
            Draft(
                task="test" if is_tested else "build",
                what=what + (" with tests" if is_tested else ""),
                confidence=LIKELY if is_tested or place.has("CMakeLists.txt") else UNSURE,
                reason=LIBRARIES,
                evidence=(told,),
                steps=steps,
                artifacts=artifacts,
            ),
        ),
    )


def _ctest(place: Place) -> bool:
    """Whether CMake knows of tests: here, or in folders that it is likely to add."""
    here = place.text("CMakeLists.txt") + "".join(place.text(f"{name}/CMakeLists.txt") for name in ("test", "tests"))
    return (
        re.search(
            r"(?im)^[ \t]*(enable_testing|include[ \t]*\([ \t]*CTest|add_test|(?:gtest|catch)_discover_tests)\b",
            here,
        )
        is not None
    )


def _autotools(place: Place, config: str) -> Project:
    make_configure = "sh ./autogen.sh" if place.has("autogen.sh") else "autoreconf -fi"
    first = () if place.has("configure") else (make_configure,)
    said = "".join(place.text(name) for name in ("Makefile.am", "tests/Makefile.am", "test/Makefile.am"))
    made = place.text("Makefile.in") + place.text("Makefile.pre.in")
    found = re.search(r"(?m)^(TESTS|check_PROGRAMS|check_SCRIPTS|check-local|check)\b", said)
    target = "check" if found or re.search(r"(?m)^check[ \t]*:", made) else ""
    target = target or ("test" if re.search(r"(?m)^test[ \t]*:", said + made) else "")
    draft = Draft(
        task="test" if target else "build",
        what="autotools build" + (" with tests" if target else ""),
        confidence=LIKELY,
        reason=f"{LIBRARIES}, and configure may have to be told which",
        steps=(*first, "sh ./configure", "make", *((f"make {target}",) if target else ())),
        evidence=(f"there is {config}",),
    )
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=(draft,))
