"""Detect C and C++ builds: CMake, Meson and autotools.

No job is `SURE`, because these builds rarely declare which libraries they need.
"""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.proposals import LIKELY, UNSURE, JobDraft, Project
from deltaci.pipeline.detect.tasks import read_task_file
from deltaci.pipeline.detect.tree import Folder

ECOSYSTEM: Final = "native"
LIBRARIES: Final = "the required compilers and libraries are not declared"
AUTOTOOLS: Final = ("configure.ac", "configure.in")


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of C and C++ builds reads this file."""
    return file_name in (
        "CMakeLists.txt",
        "meson.build",
        *AUTOTOOLS,
        "Makefile.am",
        "Makefile.in",
        "Makefile.pre.in",
        "autogen.sh",
    )


def find(folder: Folder) -> Project | None:
    """Return the build of the folder, or None if there is none.

    Also return None if a Makefile with a test target should be used instead. CMake takes precedence over such a
    Makefile if it declares tests itself.
    """
    task_file = read_task_file(folder)
    has_test_target = task_file is not None and any(target in task_file.targets for target in ("test", "check"))
    steps: tuple[str, ...] = ()
    artifacts: tuple[model.Artifact, ...] = ()
    if folder.find_file("CMakeLists.txt"):
        is_tested = _has_cmake_tests(folder)
        if has_test_target and not is_tested:
            return None
        evidence, title = "there is CMakeLists.txt", "CMake build"
        steps = ("cmake -S . -B _build -DCMAKE_BUILD_TYPE=Release", "cmake --build _build --parallel")
        if is_tested:
            steps += ("ctest --test-dir _build --output-on-failure --output-junit test-results.xml",)
            artifacts = (model.Artifact(path=folder.from_root("_build/test-results.xml"), type="junit"),)
    elif folder.find_file("meson.build"):
        if has_test_target or not re.search(r"(?m)^[ \t]*project[ \t]*\(", folder.text("meson.build")):
            return None
        is_tested, evidence, title = True, "there is meson.build", "Meson build"
        steps = ("meson setup _build", "meson compile -C _build", "meson test -C _build --print-errorlogs")
        artifacts = (model.Artifact(path=folder.from_root("_build/meson-logs/testlog.junit.xml"), type="junit"),)
    elif config_name := folder.find_file(*AUTOTOOLS, "configure"):
        return None if has_test_target and folder.find_file("Makefile") else _autotools(folder, config_name)
    else:
        return None
    return Project(
        ecosystem=ECOSYSTEM,
        folder=folder.path,
        drafts=(
            JobDraft(
                purpose="test" if is_tested else "build",
                title=title + (" with tests" if is_tested else ""),
                confidence=LIKELY if is_tested or folder.find_file("CMakeLists.txt") else UNSURE,
                uncertainty=LIBRARIES,
                evidence=(evidence,),
                steps=steps,
                artifacts=artifacts,
            ),
        ),
    )


def _has_cmake_tests(folder: Folder) -> bool:
    """Return whether CMakeLists.txt declares tests, in this folder or in its folders `test` and `tests`."""
    cmake_text = folder.text("CMakeLists.txt") + "".join(
        folder.text(f"{folder_name}/CMakeLists.txt") for folder_name in ("test", "tests")
    )
    return (
        re.search(
            r"(?im)^[ \t]*(enable_testing|include[ \t]*\([ \t]*CTest|add_test|(?:gtest|catch)_discover_tests)\b",
            cmake_text,
        )
        is not None
    )


def _autotools(folder: Folder, config_name: str) -> Project:
    generate_configure = "sh ./autogen.sh" if folder.find_file("autogen.sh") else "autoreconf -fi"
    generation_steps = () if folder.find_file("configure") else (generate_configure,)
    automake_text = "".join(
        folder.text(file_path) for file_path in ("Makefile.am", "tests/Makefile.am", "test/Makefile.am")
    )
    makefile_text = folder.text("Makefile.in") + folder.text("Makefile.pre.in")
    check_target = re.search(r"(?m)^(TESTS|check_PROGRAMS|check_SCRIPTS|check-local|check)\b", automake_text)
    test_target = "check" if check_target or re.search(r"(?m)^check[ \t]*:", makefile_text) else ""
    test_target = test_target or ("test" if re.search(r"(?m)^test[ \t]*:", automake_text + makefile_text) else "")
    draft = JobDraft(
        purpose="test" if test_target else "build",
        title="autotools build" + (" with tests" if test_target else ""),
        confidence=LIKELY,
        uncertainty=f"{LIBRARIES}, and configure may need options",
        steps=(*generation_steps, "sh ./configure", "make", *((f"make {test_target}",) if test_target else ())),
        evidence=(f"there is {config_name}",),
    )
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=(draft,))
