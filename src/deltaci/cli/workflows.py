"""Find and read the workflow files of a repository on disk, with the actions they use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deltaci.pipeline.github import WORKFLOW_FOLDER, ParsedWorkflow, parse_workflow
from deltaci.pipeline.parse.yaml import MAX_BYTES

SUFFIXES: Final = (".yml", ".yaml")


class RepositoryFiles(Mapping[str, str]):
    """Files of a repository by path, read on demand. Paths outside of the repository are not found."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def __getitem__(self, path: str) -> str:
        try:
            found = (self._root / path).resolve()
            if not found.is_relative_to(self._root) or found.stat().st_size > MAX_BYTES:
                raise KeyError(path)
            return found.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise KeyError(path) from error

    def __iter__(self) -> Iterator[str]:
        return iter(())  # Nobody needs them all.

    def __len__(self) -> int:
        return 0


def repository_of(path: Path) -> Path:
    """Return the folder that contains `.github` for a workflow in it, else the folder of the file."""
    folder = path.resolve().parent
    return folder.parent.parent if folder.as_posix().endswith(f"/{WORKFLOW_FOLDER}") else folder


def read_workflow(content: bytes, name: str) -> ParsedWorkflow:
    """Parse a workflow with the local actions that it uses."""
    return parse_workflow(content, name, RepositoryFiles(repository_of(Path(name))))


def workflows_in(folder: Path) -> list[Path]:
    """Return the workflow files of a repository, or of a folder of workflow files, sorted by path."""
    inside = folder / WORKFLOW_FOLDER
    where = inside if inside.is_dir() else folder
    return sorted(path for path in where.iterdir() if path.suffix in SUFFIXES and path.is_file())
