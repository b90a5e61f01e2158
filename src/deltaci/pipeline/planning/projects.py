"""Projects: folders that depend on other folders, and how a change in one of them reaches another.

Only folders are compared here, never patterns. A project may depend on another by its name, or on any folder. The
needs of projects inside a needed folder count too, and those of the project around it: unsure means affected.
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
# Behind the folder of a project: just what it depends on, without its files. No path has such a name.
NEEDS_SUFFIX: Final = "//"


class Project(Struct, frozen=True, kw_only=True):
    """A folder with a name, and what it depends on: names of projects, or folders."""

    name: str
    path: str
    needs: tuple[str, ...] = ()


class _Spot(NamedTuple):
    """A folder, and whether the way to it went over a dependency already."""

    folder: str
    is_dependency: bool


class Link(NamedTuple):
    """One step from folder to folder."""

    kind: str
    folder: str


class DependencyPath(NamedTuple):
    """How a change reaches a folder: the links to where something changed."""

    start: str
    links: tuple[Link, ...]

    @property
    def end(self) -> str:
        """The folder where something changed."""
        return self.links[-1].folder if self.links else self.start


class Projects:
    """All projects, as a graph of folders."""

    def __init__(self, projects: Iterable[Project]) -> None:
        known = sorted(projects, key=lambda project: project.name)
        self._check(known)
        self.folders = {project.name: normalize_folder(project.path, f"project {project.name!r}") for project in known}
        self._names: dict[str, str] = {}
        for name, folder in self.folders.items():
            self._names.setdefault(folder, name)
        self._inside: dict[str, list[str]] = {}  # for every folder around projects, theirs
        for folder in sorted(self._names):
            for outer in ancestors(folder):
                self._inside.setdefault(outer, []).append(folder)
        links: dict[str, set[Link]] = {folder: set() for folder in self._names}
        for project in known:
            links[self.folders[project.name]].update(Link(DEPENDS, there) for there in self._needed_by(project))
        for folder in {link.folder for found in links.values() for link in found} - set(links):
            links[folder] = set()
            around = self._around(folder)
            if around is not None:
                needs_of = around + NEEDS_SUFFIX
                links[folder].add(Link(INSIDE, needs_of))
                if needs_of not in links:
                    links[needs_of] = {*links[around]}
        for folder, found in links.items():
            found.update(Link(CONTAINS, inner) for inner in self._inside.get(folder, ()))
        self._links = {folder: tuple(sorted(found)) for folder, found in links.items()}

    def _needed_by(self, project: Project) -> Iterator[str]:
        for need in project.needs:
            there = self.folders.get(need)
            yield normalize_folder(need, f"a need of project {project.name!r}") if there is None else there

    @staticmethod
    def _check(known: Sequence[Project]) -> None:
        if len(known) > MAX_PROJECTS:
            raise Refused("too_large", f"{len(known)} projects, at most {MAX_PROJECTS}; declare larger folders")
        if (needs := sum(len(project.needs) for project in known)) > MAX_NEEDS:
            raise Refused("too_large", f"projects have {needs} needs, at most {MAX_NEEDS}; declare larger folders")
        for one, following in pairwise(known):
            if one.name == following.name:
                raise Refused("bad_spec", f"project {one.name!r} is there twice; give each its own name")

    @property
    def watched(self) -> Iterable[str]:
        """Every folder in which a change matters."""
        return self._links

    def shown(self, folder: str) -> str:
        """A folder as people call it."""
        folder = folder.removesuffix(NEEDS_SUFFIX)
        return self._names.get(folder) or folder or "the repository"

    def of_folder(self, folder: str) -> tuple[str, ...]:
        """The folders of the projects that somebody speaks of who names this folder."""
        if folder in self._names:
            return (folder,)
        around = self._around(folder)
        return (*self._inside.get(folder, ()), *([] if around is None else [around]))

    def _around(self, folder: str) -> str | None:
        """The innermost project that this folder is part of."""
        return next((outer for outer in ancestors(folder) if outer in self._names), None)

    def ways(self, changed: Mapping[str, str]) -> DependencySearch:
        """How the changes in these folders reach the others."""
        return DependencySearch(self._links, changed)


class DependencySearch:
    """For every folder the shortest way to one that changed, found once for all, backwards from the changes."""

    def __init__(self, links: Mapping[str, Sequence[Link]], changed: Mapping[str, str]) -> None:
        self._links = links
        back: dict[_Spot, list[_Spot]] = {}
        for folder, found in links.items():
            for link in found:
                for is_dependency in (False, True):
                    there = _Spot(link.folder, is_dependency or link.kind == DEPENDS)
                    back.setdefault(there, []).append(_Spot(folder, is_dependency))
        self._far = {_Spot(folder, True): 0 for folder in links if folder in changed}
        front = list(self._far)
        while front:
            following = []
            for spot in front:
                for before in back.get(spot, ()):
                    if before not in self._far:
                        self._far[before] = self._far[spot] + 1
                        following.append(before)
            front = following

    def find(self, folders: Iterable[str], *, is_counted: bool) -> DependencyPath | None:
        """The shortest way from one of these to a change: in itself, where that counts, or in what it depends on."""
        spots = [spot for folder in folders if (spot := _Spot(folder, is_counted)) in self._far]
        if not spots:
            return None
        spot = start = min(spots, key=lambda spot: (self._far[spot], spot))
        taken = []
        while self._far[spot]:
            spot, link = min(
                (there, link)
                for link in self._links[spot.folder]
                if (there := _Spot(link.folder, spot.is_dependency or link.kind == DEPENDS)) in self._far
                and self._far[there] == self._far[spot] - 1
            )
            taken.append(link)
        return DependencyPath(start.folder, tuple(taken))


def normalize_folder(text: str, whose: str) -> str:
    """A folder in one way of writing: without `./` and slashes around it. The root is empty."""
    folder = text.removeprefix("./").strip("/")
    folder = "" if folder == "." else folder
    names = folder.split("/") if folder else []
    if not text or any(name in ("", ".", "..") for name in names) or set(folder) & set("*?[]{}\\"):
        raise Refused(
            "bad_spec", f"{whose} is {text!r}; write a folder from the root of the repository on, without wildcards"
        )
    if len(folder) > MAX_FOLDER_LENGTH:
        raise Refused("too_large", f"{whose} has {len(folder)} characters, at most {MAX_FOLDER_LENGTH}")
    return folder


def ancestors(path: str) -> Iterator[str]:
    """The folders around a path, the nearest first; the last one is the root."""
    while path:
        path = path.rpartition("/")[0]
        yield path
