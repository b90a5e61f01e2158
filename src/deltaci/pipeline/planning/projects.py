"""Projects: folders that depend on other folders. Find the projects that changed folders affect.

Only folders are compared here, never patterns. A project may depend on another project, by name, or on any folder.
A dependency on a folder includes the needs of the projects inside that folder and of the project that contains it: in
case of doubt, a project is affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec import Struct

from deltaci.core.errors import Refused

MAX_PROJECTS: Final = 2_000
MAX_NEEDS: Final = 20_000  # of all projects together

MAX_FOLDER_LENGTH: Final = 255

DEPENDS, CONTAINS, INSIDE = "depends on", "contains", "is part of"
# Appended to the folder of a project, this names a graph node that has the project's needs but not its files. No path
# in a repository contains it.
NEEDS_SUFFIX: Final = "//"


class Project(Struct, frozen=True, kw_only=True):
    """A named folder (`path`) and its dependencies (`needs`): names of projects, or folders."""

    name: str
    path: str
    needs: tuple[str, ...] = ()


class _SearchNode(NamedTuple):
    """A folder in the search, and whether the path to it already contains a link of kind DEPENDS."""

    folder: str
    is_dependency: bool


class Link(NamedTuple):
    """An edge of the graph of folders. `kind` is DEPENDS, CONTAINS or INSIDE, `folder` is its target."""

    kind: str
    folder: str


class DependencyPath(NamedTuple):
    """A path in the graph of folders, from the folder `start` over `links` to a changed folder."""

    start: str
    links: tuple[Link, ...]

    @property
    def end(self) -> str:
        """The changed folder, at which the path ends."""
        return self.links[-1].folder if self.links else self.start


class Projects:
    """All projects of a pipeline, as a graph of folders."""

    def __init__(self, projects: Iterable[Project]) -> None:
        sorted_projects = sorted(projects, key=lambda project: project.name)
        self._check_projects(sorted_projects)
        self.folders = {
            project.name: normalize_folder(project.path, f"project {project.name!r}") for project in sorted_projects
        }
        self._name_by_folder: dict[str, str] = {}
        for name, folder in self.folders.items():
            self._name_by_folder.setdefault(folder, name)
        self._project_folders_by_outer_folder: dict[str, list[str]] = {}  # folder -> the project folders inside it
        for folder in sorted(self._name_by_folder):
            for outer_folder in ancestors(folder):
                self._project_folders_by_outer_folder.setdefault(outer_folder, []).append(folder)
        links_by_folder: dict[str, set[Link]] = {folder: set() for folder in self._name_by_folder}
        for project in sorted_projects:
            links_by_folder[self.folders[project.name]].update(
                Link(DEPENDS, folder) for folder in self._needed_folders(project)
            )
        for folder in {link.folder for outgoing_links in links_by_folder.values() for link in outgoing_links} - set(
            links_by_folder
        ):
            links_by_folder[folder] = set()
            containing_folder = self._containing_project(folder)
            if containing_folder is not None:
                needs_node = containing_folder + NEEDS_SUFFIX
                links_by_folder[folder].add(Link(INSIDE, needs_node))
                if needs_node not in links_by_folder:
                    links_by_folder[needs_node] = {*links_by_folder[containing_folder]}
        for folder, outgoing_links in links_by_folder.items():
            outgoing_links.update(
                Link(CONTAINS, inner_folder) for inner_folder in self._project_folders_by_outer_folder.get(folder, ())
            )
        self._links_by_folder = {
            folder: tuple(sorted(outgoing_links)) for folder, outgoing_links in links_by_folder.items()
        }

    def _needed_folders(self, project: Project) -> Iterator[str]:
        """Yield the folders that a project depends on."""
        for need in project.needs:
            folder = self.folders.get(need)
            yield normalize_folder(need, f"a need of project {project.name!r}") if folder is None else folder

    @staticmethod
    def _check_projects(sorted_projects: Sequence[Project]) -> None:
        """Raise `Refused` if there are too many projects or needs, or two projects of the same name."""
        if len(sorted_projects) > MAX_PROJECTS:
            raise Refused(
                "too_large", f"{len(sorted_projects)} projects, at most {MAX_PROJECTS}; declare larger folders"
            )
        if (need_count := sum(len(project.needs) for project in sorted_projects)) > MAX_NEEDS:
            raise Refused("too_large", f"projects have {need_count} needs, at most {MAX_NEEDS}; declare larger folders")
        for project, next_project in pairwise(sorted_projects):
            if project.name == next_project.name:
                raise Refused("bad_spec", f"project {project.name!r} is declared twice; give each its own name")

    @property
    def watched(self) -> Iterable[str]:
        """All folders of the graph: a change in any of them can affect a project."""
        return self._links_by_folder

    def label(self, folder: str) -> str:
        """Return the name for a folder in messages: that of its project, or else its path."""
        folder = folder.removesuffix(NEEDS_SUFFIX)
        return self._name_by_folder.get(folder) or folder or "the repository"

    def projects_of(self, folder: str) -> tuple[str, ...]:
        """Return the folder if it is a project, else the projects inside it and the innermost one that contains it."""
        if folder in self._name_by_folder:
            return (folder,)
        containing_folder = self._containing_project(folder)
        return (
            *self._project_folders_by_outer_folder.get(folder, ()),
            *([] if containing_folder is None else [containing_folder]),
        )

    def _containing_project(self, folder: str) -> str | None:
        """Return the folder of the innermost project that contains a folder, or None."""
        return next((outer for outer in ancestors(folder) if outer in self._name_by_folder), None)

    def reachable(self, folders: Iterable[str], *, includes_start: bool) -> frozenset[str]:
        """Return all folders in which a change affects one of these project folders: what `search` could find."""
        reached_nodes = [_SearchNode(folder, includes_start) for folder in folders if folder in self._links_by_folder]
        visited = set(reached_nodes)
        for node in reached_nodes:  # grows during the loop
            for link in self._links_by_folder[node.folder]:
                target = _SearchNode(link.folder, node.is_dependency or link.kind == DEPENDS)
                if target not in visited:
                    visited.add(target)
                    reached_nodes.append(target)
        return frozenset(node.folder for node in visited if node.is_dependency)

    def search(self, changed_path_by_folder: Mapping[str, str]) -> DependencySearch:
        """Return a search for the shortest paths to changed folders, which are the keys."""
        return DependencySearch(self._links_by_folder, changed_path_by_folder)


class DependencySearch:
    """The shortest path from each folder to a changed folder.

    The constructor computes all distances by one breadth-first search, backwards from all changed folders.
    """

    def __init__(
        self, links_by_folder: Mapping[str, Sequence[Link]], changed_path_by_folder: Mapping[str, str]
    ) -> None:
        self._links_by_folder = links_by_folder
        predecessors_by_node: dict[_SearchNode, list[_SearchNode]] = {}
        for folder, outgoing_links in links_by_folder.items():
            for link in outgoing_links:
                for is_dependency in (False, True):
                    target_node = _SearchNode(link.folder, is_dependency or link.kind == DEPENDS)
                    predecessors_by_node.setdefault(target_node, []).append(_SearchNode(folder, is_dependency))
        self._distance_by_node = {
            _SearchNode(folder, True): 0 for folder in links_by_folder if folder in changed_path_by_folder
        }
        frontier = list(self._distance_by_node)
        while frontier:
            next_frontier = []
            for node in frontier:
                for predecessor in predecessors_by_node.get(node, ()):
                    if predecessor not in self._distance_by_node:
                        self._distance_by_node[predecessor] = self._distance_by_node[node] + 1
                        next_frontier.append(predecessor)
            frontier = next_frontier

    def find(self, folders: Iterable[str], *, includes_own_files: bool) -> DependencyPath | None:
        """Return the shortest path from one of the folders to a changed folder, or None.

        Changes in the folders themselves count only if `includes_own_files`. Otherwise the path must contain a
        dependency.
        """
        nodes = [
            node for folder in folders if (node := _SearchNode(folder, includes_own_files)) in self._distance_by_node
        ]
        if not nodes:
            return None
        node = start_node = min(nodes, key=lambda node: (self._distance_by_node[node], node))
        path_links = []
        while self._distance_by_node[node]:
            node, link = min(
                (target_node, link)
                for link in self._links_by_folder[node.folder]
                if (target_node := _SearchNode(link.folder, node.is_dependency or link.kind == DEPENDS))
                in self._distance_by_node
                and self._distance_by_node[target_node] == self._distance_by_node[node] - 1
            )
            path_links.append(link)
        return DependencyPath(start_node.folder, tuple(path_links))


def normalize_folder(path: str, subject: str) -> str:
    """Return a folder without `./` and outer slashes, "" for the root.

    Raise `Refused`, naming `subject`, if invalid.
    """
    folder = path.removeprefix("./").strip("/")
    folder = "" if folder == "." else folder
    names = folder.split("/") if folder else []
    if not path or any(name in ("", ".", "..") for name in names) or set(folder) & set("*?[]{}\\"):
        raise Refused(
            "bad_spec",
            f"{subject} is {path!r}; write a folder relative to the root of the repository, without wildcards",
        )
    if len(folder) > MAX_FOLDER_LENGTH:
        raise Refused("too_large", f"{subject} has {len(folder)} characters, at most {MAX_FOLDER_LENGTH}")
    return folder


def ancestors(path: str) -> Iterator[str]:
    """Yield the folders that contain a path, from the nearest to the root, which is empty."""
    while path:
        path = path.rpartition("/")[0]
        yield path
