"""Which folders of a repository are projects of their own, and how sure that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from deltaci.pipeline.detect import dotnet, go, java, native, node, others, php, python, ruby, rust, tasks
from deltaci.pipeline.detect.findings import LIKELY, UNSURE, Confidence, Project, weaker
from deltaci.pipeline.detect.python_linters import find_pre_commit
from deltaci.pipeline.detect.tree import MAX_DEPTH, Place, Tree, is_aside, is_foreign, is_plain

MAX_PROJECTS: Final = 25
MAX_LOOKED_AT: Final = 400
ECOSYSTEMS: Final[tuple[Callable[[Place], Project | None], ...]] = (
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
USUAL: Final = frozenset(
    {
        *("packages", "package", "pkg", "pkgs", "apps", "app", "services", "service", "libs", "lib", "libraries"),
        *("modules", "projects", "components", "plugins", "crates", "backend", "frontend", "front", "client"),
        *("clients", "server", "web", "webapp", "web-app", "api", "ui", "gui", "core", "cli", "sdk", "sdks", "src"),
        *("source", "python", "py", "js", "javascript", "typescript", "ts", "node", "go", "golang", "rust", "java"),
        *("kotlin", "ruby", "php", "dotnet", "csharp", "net", "cpp", "mobile", "desktop", "bindings", "lambda"),
        *("lambdas", "functions", "worker"),
    }
)
# One build of the whole tree: what lies inside is a part of it.
WHOLE: Final = frozenset({"java", "dotnet", "ruby", "php", "elixir", "swift", "scala", "haskell", "native", "bazel"})
NATIVE: Final = ("c", "cc", "cpp", "cxx", "h", "hpp")
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "python": ("py", "pyx"),
    "node": ("js", "ts", "jsx", "tsx", "mjs", "cjs", "mts", "vue", "svelte"),
    "go": ("go",),
    "rust": ("rs",),
    "ruby": ("rb",),
    "java": ("java", "kt", "scala", "groovy"),
    "php": ("php",),
}
MINOR: Final = 10
FEW: Final = "the repository is mostly C or C++, and this may only be for its tools"
INSIDE: Final = "it lies inside another project, and may be a part of it rather than one of its own"


class Found(NamedTuple):
    """All projects, and what was seen and is not proposed."""

    projects: list[Project]
    unclear: list[str]


def find_projects(tree: Tree) -> Found:
    """The root first, then the folders inside it."""
    found: list[Project] = []
    unclear: list[str] = []
    left_out: dict[str, int] = {}
    looked_at = 0
    for folder in tree.folders():
        if folder and not _has_manifest(tree, folder):
            continue
        skipped = _skipped(folder)
        if skipped:
            left_out[skipped] = left_out.get(skipped, 0) + 1
            continue
        looked_at += 1
        if looked_at > MAX_LOOKED_AT:
            left_out["beyond the limit"] = left_out.get("beyond the limit", 0) + 1
            continue
        for project in _in_folder(tree, folder, found):
            kept = _placed(tree, project, found)
            if kept is None:
                continue
            if kept.drafts and len({each.folder for each in found if each.drafts} | {folder}) > MAX_PROJECTS:
                left_out["beyond the limit"] = left_out.get("beyond the limit", 0) + 1
            else:
                found.append(kept)
    unclear += [_told(why, count) for why, count in sorted(left_out.items())]
    return Found(found, unclear)


def _has_manifest(tree: Tree, folder: str) -> bool:
    return any(
        name in MANIFESTS or re.fullmatch(r".*\.(?:slnx?|(?:cs|fs|vb)proj)", name) for name in tree.names(folder)
    )


def _skipped(folder: str) -> str:
    """Why a folder is not looked at; empty, if it is."""
    if is_foreign(f"{folder}/x"):
        return "foreign"
    if not is_plain(folder):
        return "strange"
    return "aside" if is_aside(folder) else "deep" if folder.count("/") >= MAX_DEPTH else ""


def _told(why: str, count: int) -> str:
    folders = f"{count} more folder{'s' if count > 1 else ''} with a project in {'them' if count > 1 else 'it'}"
    return {
        "foreign": f"{folders}: copies of others' work (in vendor, third_party and the like) are not looked at",
        "strange": f"{folders}: the names have characters that are not safe in commands, so nothing is proposed there",
        "aside": f"{folders}: examples, documentation, tests, tools and the like are not looked at",
        "deep": f"{folders}: more than {MAX_DEPTH} folders deep, which is not looked at",
        "beyond the limit": f"{folders}: at most {MAX_PROJECTS} are proposed",
    }[why]


def _in_folder(tree: Tree, folder: str, before: list[Project]) -> Iterator[Project]:
    place = Place(tree, folder)
    here = [project for find in ECOSYSTEMS if (project := find(place)) is not None]
    here += others.find_all(place)
    has_root = any(project.drafts for project in before)
    is_packaged = any(project.ecosystem == "python" and _does(project, "build") for project in here)
    built = native.find(place) if not is_packaged and (not folder or not has_root) else None
    if not folder and (built or tasks.tasks_of(place)):
        here = [_weakened(each, UNSURE, FEW) if _is_minor(tree, each.ecosystem) else each for each in here]
    if built is not None:
        here.append(built)
    if not folder and not any(project.ecosystem == "python" and _does(project, "lint") for project in here):
        here += [hooks] if (hooks := find_pre_commit(place)) else []
    yield from here
    if not folder or (not has_root and not here):
        runs = [draft for project in here for draft in project.drafts if draft.confidence != UNSURE]
        targets = tasks.find(
            place,
            frozenset(draft.task for draft in runs),
            is_alone=not any(draft.task in ("build", "test") for draft in runs),
        )
        if targets is not None:
            yield targets


def _does(project: Project, task: str) -> bool:
    return any(draft.task == task for draft in project.drafts)


def _is_minor(tree: Tree, ecosystem: str) -> bool:
    """Whether there is far more C or C++ in the repository than of this: then it is not what the project is made of."""
    own = SOURCES.get(ecosystem)
    return own is not None and tree.count(NATIVE) > MINOR * max(tree.count(own), 1)


def _placed(tree: Tree, project: Project, before: list[Project]) -> Project | None:
    """The project with what its place makes of it; nothing, if it is a part of one that is known already."""
    folder = project.folder
    if not folder:
        return project
    around = [each for each in before if each.drafts and _is_inside(folder, each.folder)]
    same = [each for each in around if each.ecosystem == project.ecosystem]
    if any(_covers(tree, outer, project) for outer in same):
        return None
    if not project.drafts:
        return None
    is_listed = project.ecosystem == "go" and tree.has("go.work")
    if around and not is_listed and folder.split("/")[0].lower() not in USUAL:
        return _weakened(project, UNSURE, INSIDE)
    if same and project.ecosystem != "go":
        return _weakened(project, LIKELY, INSIDE)
    return project


def _is_inside(folder: str, outer: str) -> bool:
    return not outer or folder.startswith(f"{outer}/")


def _covers(tree: Tree, outer: Project, inner: Project) -> bool:
    """Whether the outer one builds and tests the inner one as well."""
    if outer.ecosystem in WHOLE:
        return True
    place = Place(tree, outer.folder)
    below = inner.folder[len(outer.folder) + 1 if outer.folder else 0 :]
    if outer.ecosystem == "python":  # A Django project that has no list of its own lives on that of the outer one.
        return not Place(tree, inner.folder).has("pyproject.toml", "setup.py", "Pipfile", "requirements.txt")
    if outer.ecosystem == "rust":
        return "workspace" in place.toml("Cargo.toml")
    if outer.ecosystem == "node" and node.is_workspace(place):
        patterns = node.members(place)
        return not patterns or any(_matches(pattern, below) for pattern in patterns)
    return False


def _matches(pattern: str, folder: str) -> bool:
    """Whether a folder is, or lies in, what a pattern of workspaces names."""
    if pattern.startswith("!"):
        return False
    parts = [part for part in pattern.removeprefix("./").strip("/").split("/") if part]
    names = folder.split("/")
    if "**" in parts:
        parts = parts[: parts.index("**")]
    return len(names) >= len(parts) and all(
        re.fullmatch(re.escape(part).replace(r"\*", "[^/]*"), name) for part, name in zip(parts, names, strict=False)
    )


def _weakened(project: Project, confidence: Confidence, reason: str) -> Project:
    drafts = tuple(
        draft
        if weaker(draft.confidence, confidence) == draft.confidence
        else msgspec.structs.replace(draft, confidence=confidence, reason=reason)
        for draft in project.drafts
    )
    return msgspec.structs.replace(project, drafts=drafts)
