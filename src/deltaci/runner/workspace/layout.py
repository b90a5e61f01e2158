"""Where a job's things are, inside of what its cell shows it.

A job of a pipeline has four folders: its workspace, a home of its own, so that what tools keep there is not between
the sources, a folder for what only lives as long as the job, and one for tools. Any other job has one, for everything.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec

INTERNAL_FOLDER: Final = ".deltaci"
MAX_NAME: Final = 100
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Folders of one job, all below `root`; but a workspace that is a tree is elsewhere."""

    root: Path
    workspace: Path
    home: Path
    temp: Path
    tools: Path

    def relative(self, path: Path) -> str:
        """A path of ours, from the root on."""
        return path.relative_to(self.root).as_posix()

    @property
    def is_single_folder(self) -> bool:
        """Whether everything is in one folder."""
        return self.workspace == self.root

    def create(self) -> None:
        """Make those that are not there; a tree is made by whoever knows what is in it."""
        for folder in (self.workspace, self.home, self.temp, self.tools):
            if folder.is_relative_to(self.root):
                folder.mkdir(parents=True, exist_ok=True)

    def resolve(self, path: str) -> str:
        """Where a path leads that somebody wrote, from the root on: `~` is the home, anything else the workspace's."""
        if path == "~" or path.startswith("~/"):
            start: Path | None = self.home
            rest = path[2:]
        elif path.startswith("/"):
            found = Path(path)
            start = next((each for each in (self.workspace, self.root) if found.is_relative_to(each)), None)
            rest = str(found.relative_to(start)) if start is not None else ""
        else:
            start, rest = self.workspace, path
        names = [name for name in rest.split("/") if name not in ("", ".")]
        if start is not None and not start.is_relative_to(self.root):
            raise Refused("bad_spec", f"the path {path[:80]!r} is in the job's tree, which stays; name one in its home")
        is_all = start == self.root and not names and not self.is_single_folder
        if start is None or is_all or ".." in names or "\0" in path:
            raise Refused("bad_spec", f"the path {path[:80]!r} is not in the job's workspace or home; name one that is")
        return "/".join((*start.relative_to(self.root).parts, *names))


def is_pipeline_job(spec: JobSpec) -> bool:
    """Whether a job belongs to a pipeline: it has sources, expressions, or to do with other jobs."""
    is_one = spec.contexts is not None or spec.source or spec.needs or spec.condition or spec.outputs
    return bool(is_one or spec.tree)


def layout_for(spec: JobSpec, root: Path, tree: Path | None = None) -> Layout:
    """The folders of this job; nothing is made yet. One that has a tree works there."""
    if not is_pipeline_job(spec):
        return Layout(
            root=root,
            workspace=root,
            home=root,
            temp=root / INTERNAL_FOLDER / "temp",
            tools=root / INTERNAL_FOLDER / "tools",
        )
    return Layout(
        root=root,
        workspace=tree
        or root / "work" / _name(spec.contexts or {}, spec.source.url if spec.source is not None else ""),
        home=root / "home",
        temp=root / "temp",
        tools=root / "tools",
    )


def _name(contexts: dict[str, Any], url: str) -> str:
    """What the repository is called: some tools name things after the folder that they are in."""
    github = contexts.get("github")
    told = github.get("repository") if isinstance(github, dict) else None
    last = re.split(r"[/:]", (told if isinstance(told, str) and told else url).rstrip("/"))[-1]
    return _ODD.sub("-", last.removesuffix(".git")).strip(".-")[:MAX_NAME] or "workspace"


def resolve_workdir(workspace: Path, workdir: str) -> Path:
    """The folder in which a step runs; never one outside."""
    if "\0" in workdir:
        raise Refused("bad_spec", f"workdir {workdir!r} has a NUL character, which no folder can have")
    try:
        found = (workspace / workdir).resolve()
        is_there = found.is_dir()
    except (OSError, RuntimeError, ValueError):  # Too long, a link in a circle: no folder is called so.
        found, is_there = workspace, False
    if not found.is_relative_to(workspace.resolve()):
        raise Refused("bad_spec", f"workdir {workdir!r} leads outside of the workspace; name a folder inside")
    if not is_there:
        raise Refused("bad_spec", f"workdir {workdir!r} does not exist in the workspace")
    return found
