"""Find the projects of a repository, and lower the confidence of projects that may be parts of others.

Folders are examined from the root downwards. A project inside another one is dropped if the outer build covers it, and
otherwise proposed with a confidence that depends on its folder name and ecosystem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from deltaci.pipeline.detect import tasks
from deltaci.pipeline.detect.ecosystems import dotnet, go, java, native, node, others, php, python, ruby, rust
from deltaci.pipeline.detect.ecosystems.python_linters import find_pre_commit
from deltaci.pipeline.detect.proposals import LIKELY, UNSURE, Confidence, Project, weaker
from deltaci.pipeline.detect.tree import MAX_DEPTH, Folder, Tree, is_auxiliary, is_plain, is_third_party

MAX_PROJECTS: Final = 25
MAX_FOLDERS: Final = 400
ECOSYSTEMS: Final[tuple[Callable[[Folder], Project | None], ...]] = (
    *(python.find, node.find, go.find, rust.find, java.find, dotnet.find, ruby.find, php.find),
)
MANIFESTS: Final = frozenset(
    {
        *("pyproject.toml", "setup.py", "Pipfile", "manage.py", "package.json", "go.mod", "Cargo.toml", "pom.xml"),
        *("settings.gradle", "settings.gradle.kts", "build.gradle", "build.gradle.kts", "Gemfile", "composer.json"),
        *("mix.exs", "Package.swift", "build.sbt", "CMakeLists.txt", "meson.build", "requirements.txt"),
    }
)
# Folders that usually hold projects of their own.
PROJECT_FOLDER_NAMES: Final = frozenset(
    {
        *("packages", "package", "pkg", "pkgs", "apps", "app", "services", "service", "libs", "lib", "libraries"),
        *("modules", "projects", "components", "plugins", "crates", "backend", "frontend", "front", "client"),
        *("clients", "server", "web", "webapp", "web-app", "api", "ui", "gui", "core", "cli", "sdk", "sdks", "src"),
        *("source", "python", "py", "js", "javascript", "typescript", "ts", "node", "go", "golang", "rust", "java"),
        *("kotlin", "ruby", "php", "dotnet", "csharp", "net", "cpp", "mobile", "desktop", "bindings", "lambda"),
        *("lambdas", "functions", "worker"),
    }
)
# Ecosystems whose build includes all projects of the same ecosystem in nested folders.
WHOLE_TREE_ECOSYSTEMS: Final = frozenset(
    {"java", "dotnet", "ruby", "php", "elixir", "swift", "scala", "haskell", "native", "bazel"}
)
NATIVE_EXTENSIONS: Final = ("c", "cc", "cpp", "cxx", "h", "hpp")
SOURCE_EXTENSIONS: Final[dict[str, tuple[str, ...]]] = {
    "python": ("py", "pyx"),
    "node": ("js", "ts", "jsx", "tsx", "mjs", "cjs", "mts", "vue", "svelte"),
    "go": ("go",),
    "rust": ("rs",),
    "ruby": ("rb",),
    "java": ("java", "kt", "scala", "groovy"),
    "php": ("php",),
}
MINOR_RATIO: Final = 10
MINOR_REASON: Final = "the repository is mostly C or C++, and this may only belong to its tools"
NESTED_REASON: Final = "it lies inside another project, and may be a part of it rather than one of its own"


class DetectedProjects(NamedTuple):
    """All projects of a repository, and messages about folders that were skipped."""

    projects: list[Project]
    unclear: list[str]


def find_projects(tree: Tree) -> DetectedProjects:
    """Return the projects of all folders, the root first, and messages about skipped folders."""
    projects: list[Project] = []
    unclear: list[str] = []
    skipped_count_by_reason: dict[str, int] = {}
    examined_count = 0
    for folder in tree.folders():
        if folder and not _has_manifest(tree, folder):
            continue
        skip_reason = _skip_reason(folder)
        if skip_reason:
            skipped_count_by_reason[skip_reason] = skipped_count_by_reason.get(skip_reason, 0) + 1
            continue
        examined_count += 1
        if examined_count > MAX_FOLDERS:
            skipped_count_by_reason["beyond_limit"] = skipped_count_by_reason.get("beyond_limit", 0) + 1
            continue
        for project in _projects_in_folder(tree, folder, projects):
            adjusted_project = _adjust(tree, project, projects)
            if adjusted_project is None:
                continue
            if (
                adjusted_project.drafts
                and len({accepted.folder for accepted in projects if accepted.drafts} | {folder}) > MAX_PROJECTS
            ):
                skipped_count_by_reason["beyond_limit"] = skipped_count_by_reason.get("beyond_limit", 0) + 1
            else:
                projects.append(adjusted_project)
    unclear += [
        _skip_message(reason_to_skip, skipped_count)
        for reason_to_skip, skipped_count in sorted(skipped_count_by_reason.items())
    ]
    return DetectedProjects(projects, unclear)


def _has_manifest(tree: Tree, folder: str) -> bool:
    return any(
        file_name in MANIFESTS or re.fullmatch(r".*\.(?:slnx?|(?:cs|fs|vb)proj)", file_name)
        for file_name in tree.file_names(folder)
    )


def _skip_reason(folder: str) -> str:
    """Return the code of the reason for skipping a folder; empty if it is not skipped."""
    if is_third_party(f"{folder}/x"):
        return "third_party"
    if not is_plain(folder):
        return "unsafe_name"
    return "auxiliary" if is_auxiliary(folder) else "deep" if folder.count("/") >= MAX_DEPTH else ""


def _skip_message(reason_to_skip: str, folder_count: int) -> str:
    plural_ending, pronoun = ("s", "them") if folder_count > 1 else ("", "it")
    subject = f"{folder_count} more folder{plural_ending} with a project in {pronoun}"
    return {
        "third_party": f"{subject}: third-party code (in vendor, third_party and similar folders) is skipped",
        "unsafe_name": f"{subject}: skipped, as the names have characters that are not safe in commands",
        "auxiliary": f"{subject}: examples, documentation, tests, tools and similar folders are skipped",
        "deep": f"{subject}: skipped, as they are {MAX_DEPTH} or more folders deep",
        "beyond_limit": f"{subject}: at most {MAX_PROJECTS} are proposed",
    }[reason_to_skip]


def _projects_in_folder(tree: Tree, folder_path: str, projects_before: list[Project]) -> Iterator[Project]:
    """Yield the projects of one folder, for each ecosystem. `projects_before` are those of earlier folders."""
    folder = Folder(tree, folder_path)
    projects = [project for find_project in ECOSYSTEMS if (project := find_project(folder)) is not None]
    projects += others.find_all(folder)
    has_outer_project = any(project.drafts and _is_inside(folder_path, project.folder) for project in projects_before)
    is_packaged = any(project.ecosystem == "python" and _has_job_for(project, "build") for project in projects)
    native_project = native.find(folder) if not is_packaged and (not folder_path or not has_outer_project) else None
    if not folder_path and (native_project or tasks.read_task_file(folder)):
        projects = [
            _with_confidence_at_most(project, UNSURE, MINOR_REASON) if _is_minor(tree, project.ecosystem) else project
            for project in projects
        ]
    if native_project is not None:
        projects.append(native_project)
    if not folder_path and not any(
        project.ecosystem == "python" and _has_job_for(project, "lint") for project in projects
    ):
        projects += [hooks_project] if (hooks_project := find_pre_commit(folder)) else []
    yield from projects
    if not folder_path or (not has_outer_project and not projects):
        included_drafts = [draft for project in projects for draft in project.drafts if draft.confidence != UNSURE]
        target_project = tasks.find(
            folder,
            frozenset(draft.purpose for draft in included_drafts),
            is_alone=not any(draft.purpose in ("build", "test") for draft in included_drafts),
        )
        if target_project is not None:
            yield target_project


def _has_job_for(project: Project, purpose: str) -> bool:
    return any(draft.purpose == purpose for draft in project.drafts)


def _is_minor(tree: Tree, ecosystem: str) -> bool:
    """Return whether the repository has far more C and C++ files than files of this ecosystem."""
    extensions = SOURCE_EXTENSIONS.get(ecosystem)
    return extensions is not None and tree.count(NATIVE_EXTENSIONS) > MINOR_RATIO * max(tree.count(extensions), 1)


def _adjust(tree: Tree, project: Project, projects_before: list[Project]) -> Project | None:
    """Return a project with the confidence that its folder justifies, or None if an earlier project includes it."""
    folder = project.folder
    if not folder:
        return project
    outer_projects = [outer for outer in projects_before if outer.drafts and _is_inside(folder, outer.folder)]
    outer_projects_of_ecosystem = [outer for outer in outer_projects if outer.ecosystem == project.ecosystem]
    if any(_covers(tree, outer, project) for outer in outer_projects_of_ecosystem):
        return None
    if not project.drafts:
        return None
    is_in_go_workspace = project.ecosystem == "go" and tree.has("go.work")
    if outer_projects and not is_in_go_workspace and folder.split("/")[0].lower() not in PROJECT_FOLDER_NAMES:
        return _with_confidence_at_most(project, UNSURE, NESTED_REASON)
    if outer_projects_of_ecosystem and project.ecosystem != "go":
        return _with_confidence_at_most(project, LIKELY, NESTED_REASON)
    return project


def _is_inside(folder: str, outer_folder: str) -> bool:
    return not outer_folder or folder.startswith(f"{outer_folder}/")


def _covers(tree: Tree, outer: Project, inner: Project) -> bool:
    """Return whether the build of the outer project also builds and tests the inner one."""
    if outer.ecosystem in WHOLE_TREE_ECOSYSTEMS:
        return True
    folder = Folder(tree, outer.folder)
    relative_path = inner.folder[len(outer.folder) + 1 if outer.folder else 0 :]
    if outer.ecosystem == "python":  # A Django project without its own dependencies uses those of the outer project.
        return not Folder(tree, inner.folder).find_file("pyproject.toml", "setup.py", "Pipfile", "requirements.txt")
    if outer.ecosystem == "rust":
        return "workspace" in folder.toml("Cargo.toml")
    if outer.ecosystem == "node" and node.is_workspace(folder):
        workspace_patterns = node.workspace_patterns(folder)
        return not workspace_patterns or any(_matches(pattern, relative_path) for pattern in workspace_patterns)
    return False


def _matches(pattern: str, folder: str) -> bool:
    """Return whether a workspace pattern matches a folder or one of its parents."""
    if pattern.startswith("!"):
        return False
    pattern_parts = [pattern_part for pattern_part in pattern.removeprefix("./").strip("/").split("/") if pattern_part]
    folder_names = folder.split("/")
    if "**" in pattern_parts:
        pattern_parts = pattern_parts[: pattern_parts.index("**")]
    return len(folder_names) >= len(pattern_parts) and all(
        re.fullmatch(re.escape(pattern_part).replace(r"\*", "[^/]*"), folder_name)
        for pattern_part, folder_name in zip(pattern_parts, folder_names, strict=False)
    )


def _with_confidence_at_most(project: Project, confidence: Confidence, uncertainty: str) -> Project:
    """Return a project with the confidence of its drafts lowered to `confidence`, because of `uncertainty`."""
    drafts = tuple(
        draft
        if weaker(draft.confidence, confidence) == draft.confidence
        else msgspec.structs.replace(draft, confidence=confidence, uncertainty=uncertainty)
        for draft in project.drafts
    )
    return msgspec.structs.replace(project, drafts=drafts)
