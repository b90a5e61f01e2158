"""The folders of a job, as its cell shows them.

A pipeline's job has four folders: the workspace; a home, so that files of tools do not mix with the sources; a folder
for temporary files; and one for installed tools. Any other job has a single folder.
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
_UNSAFE_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of one job. All are below `root`, except a workspace that is a worktree."""

    root: Path
    workspace: Path
    home: Path
    temp: Path
    tools: Path

    def relative(self, path: Path) -> str:
        """Return the path of one of the job's folders relative to the root."""
        return path.relative_to(self.root).as_posix()

    @property
    def is_single_folder(self) -> bool:
        """Whether workspace, home and root are the same folder."""
        return self.workspace == self.root

    def create(self) -> None:
        """Create the missing folders. A worktree is not created here."""
        for folder in (self.workspace, self.home, self.temp, self.tools):
            if folder.is_relative_to(self.root):
                folder.mkdir(parents=True, exist_ok=True)

    def resolve(self, path: str) -> str:
        """Return a path that the user wrote as a path relative to the root.

        `~` is the home; other relative paths start at the workspace. Raise `Refused` if it leads elsewhere.
        """
        if path == "~" or path.startswith("~/"):
            base_folder: Path | None = self.home
            relative_path = path[2:]
        elif path.startswith("/"):
            absolute_path = Path(path)
            base_folder = next(
                (folder for folder in (self.workspace, self.root) if absolute_path.is_relative_to(folder)), None
            )
            relative_path = str(absolute_path.relative_to(base_folder)) if base_folder is not None else ""
        else:
            base_folder, relative_path = self.workspace, path
        path_parts = [path_part for path_part in relative_path.split("/") if path_part not in ("", ".")]
        if base_folder is not None and not base_folder.is_relative_to(self.root):
            raise Refused(
                "bad_spec", f"the path {path[:80]!r} is in the job's worktree, which is reused; name one in its home"
            )
        is_root = base_folder == self.root and not path_parts and not self.is_single_folder
        if base_folder is None or is_root or ".." in path_parts or "\0" in path:
            raise Refused("bad_spec", f"the path {path[:80]!r} is not in the job's workspace or home; name one that is")
        return "/".join((*base_folder.relative_to(self.root).parts, *path_parts))


def is_pipeline_job(spec: JobSpec) -> bool:
    """Return whether the job spec has contexts, sources, needs, a condition, outputs or a worktree."""
    is_pipeline = spec.contexts is not None or spec.source or spec.needs or spec.condition or spec.outputs
    return bool(is_pipeline or spec.tree)


def layout_for(spec: JobSpec, root: Path, tree_path: Path | None = None) -> Layout:
    """Return the folders of this job without creating them. `tree_path` is the path of its worktree, if it has one."""
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
        workspace=tree_path
        or root / "work" / _repository_name(spec.contexts or {}, spec.source.url if spec.source is not None else ""),
        home=root / "home",
        temp=root / "temp",
        tools=root / "tools",
    )


def _repository_name(value_by_context: dict[str, Any], url: str) -> str:
    """Return the repository's name without its owner, as a safe folder name; some tools use the folder's name."""
    github = value_by_context.get("github")
    repository = github.get("repository") if isinstance(github, dict) else None
    last_part = re.split(r"[/:]", (repository if isinstance(repository, str) and repository else url).rstrip("/"))[-1]
    return _UNSAFE_CHARACTERS.sub("-", last_part.removesuffix(".git")).strip(".-")[:MAX_NAME] or "workspace"


def resolve_workdir(workspace: Path, workdir: str) -> Path:
    """Return the absolute folder in which a step runs. Raise `Refused` if it is missing or outside of the workspace."""
    if "\0" in workdir:
        raise Refused("bad_spec", f"workdir {workdir!r} has a NUL character, which paths cannot contain")
    try:
        step_folder = (workspace / workdir).resolve()
        exists = step_folder.is_dir()
    except (OSError, RuntimeError, ValueError):  # E.g. the path is too long or a link leads in a circle.
        step_folder, exists = workspace, False
    if not step_folder.is_relative_to(workspace.resolve()):
        raise Refused("bad_spec", f"workdir {workdir!r} leads outside of the workspace; name a folder inside")
    if not exists:
        raise Refused("bad_spec", f"workdir {workdir!r} does not exist in the workspace")
    return step_folder
