""".NET: a solution, or projects without one."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Confidence, Draft, Project
from deltaci.pipeline.detect.tree import Place, is_plain

ECOSYSTEM: Final = "dotnet"
SOLUTION: Final = r".*\.slnx?"
PROJECT: Final = r".*\.(?:cs|fs|vb)proj"
TARGETS: Final = re.compile(r"<TargetFrameworks?>([^<]{0,500})<")
FRAMEWORK: Final = re.compile(r"net[1-4]\d{1,2}")
WINDOWS: Final = re.compile(r"net[1-4]\d{1,2}|net\d{1,2}\.0-windows[\d.]{0,20}")
TEST_SDK: Final = re.compile(r"Microsoft\.NET\.Test\.Sdk|<IsTestProject>true|xunit|nunit|MSTest", re.I)


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about a .NET project."""
    return re.fullmatch(PROJECT, name) is not None or name in ("global.json", "Directory.Build.props")


def find(place: Place) -> Project | None:
    """The solution of this folder, or its project."""
    solutions, projects = place.names(SOLUTION), place.names(PROJECT)
    if not solutions and not projects:
        return None
    chosen = _chosen(solutions) if solutions else projects[0] if len(projects) == 1 else None
    if chosen is None or not is_plain(chosen):
        told = f"there are {len(solutions or projects)} solutions or projects, and none is the obvious one"
        return Project(ecosystem=ECOSYSTEM, folder=place.folder, unclear=(told,))
    every = list(place.below(r"(?:.*/)?" + PROJECT))
    said = [(path, place.text(path)) for path in every if place.text(path)]
    windows = next((path for path, text in said if _is_for_windows(text)), None)
    tests = next((path for path in every if re.search(r"(?i)tests?\b|specs?\b", path.rpartition("/")[2])), None)
    tests = tests or next((path for path, text in said if TEST_SDK.search(text)), None)
    confidence: Confidence = SURE if len(solutions) < 2 else LIKELY
    reason = "" if len(solutions) < 2 else "there are several solutions, and this is the one with the shortest name"
    if any(FRAMEWORK.fullmatch(each) for _, text in said for each in _targets(text)):
        confidence, reason = (
            LIKELY,
            "one of its targets is .NET Framework, which other systems than Windows do not have",
        )
    if windows:
        confidence, reason = UNSURE, "a project is for Windows alone: it needs such a machine (runs-on)"
    build = Draft(
        task="build",
        what=".NET build",
        confidence=confidence,
        reason=reason,
        evidence=(f"there is {chosen}",),
        steps=(f"dotnet restore {chosen}", f"dotnet build {chosen} --no-restore"),
    )
    test = Draft(
        task="test",
        what=".NET tests",
        confidence=confidence,
        reason=reason,
        evidence=(f"there is {chosen}", "there is a test project"),
        steps=(f"dotnet restore {chosen}", f"dotnet test {chosen} --no-restore"),
    )
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=(build, test) if tests else (build,))


def _chosen(solutions: list[str]) -> str | None:
    """The one with the shortest name: what others add to it says that they are parts or variants."""
    return min(solutions, key=lambda name: (len(name.rpartition(".")[0]), not name.endswith("x"), name))


def _targets(text: str) -> list[str]:
    """The frameworks that a project is built for."""
    return [each.strip() for found in TARGETS.findall(text)[:10] for each in found.split(";") if each.strip()]


def _is_for_windows(text: str) -> bool:
    """Whether nothing that it is built for runs anywhere else."""
    targets = _targets(text)
    is_only = bool(targets) and all(WINDOWS.fullmatch(each) for each in targets)
    return is_only or "<UseWPF>true" in text or "<UseWindowsForms>true" in text
