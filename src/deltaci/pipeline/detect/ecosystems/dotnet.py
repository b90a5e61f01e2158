"""Detect .NET solutions, and single projects that have no solution."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, Confidence, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder, is_plain

ECOSYSTEM: Final = "dotnet"
SOLUTION: Final = r".*\.slnx?"
PROJECT: Final = r".*\.(?:cs|fs|vb)proj"
TARGETS: Final = re.compile(r"<TargetFrameworks?>([^<]{0,500})<")
FRAMEWORK: Final = re.compile(r"net[1-4]\d{1,2}")
WINDOWS: Final = re.compile(r"net[1-4]\d{1,2}|net\d{1,2}\.0-windows[\d.]{0,20}")
TEST_SDK: Final = re.compile(r"Microsoft\.NET\.Test\.Sdk|<IsTestProject>true|xunit|nunit|MSTest", re.I)


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of .NET projects reads this file."""
    return re.fullmatch(PROJECT, file_name) is not None or file_name in ("global.json", "Directory.Build.props")


def find(folder: Folder) -> Project | None:
    """Return the .NET project of the folder, which is its main solution or only project file, or None."""
    solutions, projects = folder.file_names(SOLUTION), folder.file_names(PROJECT)
    if not solutions and not projects:
        return None
    build_target = _main_solution(solutions) if solutions else projects[0] if len(projects) == 1 else None
    if build_target is None or not is_plain(build_target):
        problem = f"there are {len(solutions or projects)} solutions or projects, and it is unclear which one to build"
        return Project(ecosystem=ECOSYSTEM, folder=folder.path, unclear=(problem,))
    project_paths = list(folder.paths_matching(r"(?:.*/)?" + PROJECT))
    project_texts = [(path, folder.text(path)) for path in project_paths if folder.text(path)]
    windows_project = next((path for path, text in project_texts if _is_for_windows(text)), None)
    test_project = next(
        (path for path in project_paths if re.search(r"(?i)tests?\b|specs?\b", path.rpartition("/")[2])), None
    )
    test_project = test_project or next((path for path, text in project_texts if TEST_SDK.search(text)), None)
    confidence: Confidence = SURE if len(solutions) < 2 else LIKELY
    uncertainty = "" if len(solutions) < 2 else "there are several solutions; this one has the shortest name"
    if any(FRAMEWORK.fullmatch(framework) for _, text in project_texts for framework in _frameworks(text)):
        confidence, uncertainty = (
            LIKELY,
            "it also targets .NET Framework, which exists only on Windows",
        )
    if windows_project:
        confidence, uncertainty = UNSURE, "a project targets only Windows: it needs a Windows runner (runs-on)"
    build = JobDraft(
        purpose="build",
        title=".NET build",
        confidence=confidence,
        uncertainty=uncertainty,
        evidence=(f"there is {build_target}",),
        steps=(f"dotnet restore {build_target}", f"dotnet build {build_target} --no-restore"),
    )
    test = JobDraft(
        purpose="test",
        title=".NET tests",
        confidence=confidence,
        uncertainty=uncertainty,
        evidence=(f"there is {build_target}", "there is a test project"),
        steps=(f"dotnet restore {build_target}", f"dotnet test {build_target} --no-restore"),
    )
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=(build, test) if test_project else (build,))


def _main_solution(solutions: list[str]) -> str:
    """Return the solution with the shortest name: the longer names usually denote parts or variants of it.

    Of several it is the one in the new format (.slnx). `solutions` must not be empty.
    """
    return min(solutions, key=lambda name: (len(name.rpartition(".")[0]), not name.endswith("x"), name))


def _frameworks(project_text: str) -> list[str]:
    """Return the target frameworks that a project file declares."""
    return [
        framework.strip()
        for frameworks in TARGETS.findall(project_text)[:10]
        for framework in frameworks.split(";")
        if framework.strip()
    ]


def _is_for_windows(project_text: str) -> bool:
    """Return whether a project file targets only Windows."""
    frameworks = _frameworks(project_text)
    is_windows_only = bool(frameworks) and all(WINDOWS.fullmatch(framework) for framework in frameworks)
    return is_windows_only or "<UseWPF>true" in project_text or "<UseWindowsForms>true" in project_text
