"""A stream's repository on this runner, with objects from the project's repository and from the server.

Objects of the runner's mirror are hard-linked, so the repository does not depend on the mirror. A commit counts as
present only if a ref marks it, which is written last: an interrupted fetch is repeated.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltaci.git.command import GitRemote
from deltaci.git.repository import BareRepository
from deltaci.protocol.job_spec import Source
from deltaci.runner.workspace.mirrors import GIT, Mirror, use_mirror
from deltaci.runner.workspace.source_policy import check_commit

COMMIT_REFS: Final = "refs/deltaci/had"
INDEX_FOLDER: Final = "trees"  # Contains the runner's own git index of each tree.
_PACK: Final = "pack"


class StreamRepository:
    """The runner's repository of one stream. Hold `WorktreePool.repository_lock` to change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._repository = BareRepository(GIT, path)

    def has_commit(self, commit: str) -> bool:
        """Return whether the commit was fetched with all of its objects."""
        return (self.path / COMMIT_REFS / check_commit(commit)).is_file()

    def index_path(self, tree_name: str) -> Path:
        """Return the runner's own git index of the tree with this name."""
        return self.path / INDEX_FOLDER / f"{tree_name}.index"

    async def create(self) -> None:
        """Create the repository unless a valid one exists, and remove stale lock files."""
        if not self._is_valid():
            await asyncio.to_thread(_remove_path, self.path)
            await self._repository.create(INDEX_FOLDER, mode=0o755)  # Jobs read the objects.
        self._repository.remove_lock_files()

    def _is_valid(self) -> bool:
        """Return whether the folder has the files of a repository: `HEAD`, objects and the folder of packs."""
        try:
            folders = (self.path, self.path / "objects", self.path / INDEX_FOLDER)
            return all(stat.S_ISDIR(folder.lstat().st_mode) for folder in folders) and (self.path / "HEAD").is_file()
        except OSError:
            return False

    async def fetch_base(
        self, mirrors_folder: Path, remote: GitRemote, source: Source, log: Callable[[str], None]
    ) -> None:
        """Fetch the source's commit, with history up to the source's depth, and link its objects here."""

        async def fetch_and_link(mirror: Mirror) -> None:
            await mirror.fetch_commit(check_commit(source.commit), source.ref, source.depth, has_tags=False)
            await asyncio.to_thread(self._hard_link_objects, mirror.folder)
            await self._mark_complete(source.commit)

        await use_mirror(mirrors_folder, remote, log, fetch_and_link)

    def _hard_link_objects(self, mirror_folder: Path) -> None:
        """Hard-link all objects of a mirror. The index of a pack is linked last, because git then uses the pack."""
        objects_folder = self.path / "objects"
        for object_folder in (mirror_folder / "objects").iterdir():
            if len(object_folder.name) != 2 and object_folder.name != _PACK:
                continue
            target_folder = objects_folder / object_folder.name
            target_folder.mkdir(exist_ok=True)
            existing_names = set(os.listdir(target_folder))
            for file in sorted(object_folder.iterdir(), key=lambda file: (file.suffix == ".idx", file.name)):
                if file.name not in existing_names and not file.name.startswith("tmp_"):
                    _hard_link(file, target_folder / file.name)
        shallow_file = mirror_folder / "shallow"
        if shallow_file.exists():
            shutil.copyfile(shallow_file, self.path / "shallow")
        else:
            (self.path / "shallow").unlink(missing_ok=True)

    async def import_bundle(self, bundle_path: Path, tip_commit: str) -> None:
        """Import a bundle from the server, and mark its last commit, `tip_commit`, as completely fetched."""
        await self._repository.run("bundle", "unbundle", str(bundle_path))
        await self._mark_complete(tip_commit)

    async def _mark_complete(self, commit: str) -> None:
        """Write the ref that marks a commit as completely fetched. Raise `GitFailed` if the commit is missing."""
        await self._repository.run("cat-file", "-e", f"{commit}^{{commit}}")
        await self._repository.run("update-ref", f"{COMMIT_REFS}/{commit}", commit)


def _hard_link(source_path: Path, target_path: Path) -> None:
    """Make `target_path` a hard link to the file `source_path`, or a copy if the file system does not allow a link.

    Do nothing if `target_path` exists.
    """
    try:
        os.link(source_path, target_path)
    except FileExistsError:
        return
    except OSError:  # Another file system, or one without hard links.
        temporary_path = target_path.with_name(f"tmp_{secrets.token_hex(8)}")
        try:
            shutil.copyfile(source_path, temporary_path)
            os.replace(temporary_path, target_path)
        finally:
            temporary_path.unlink(missing_ok=True)


def _remove_path(path: Path) -> None:
    """Remove a file, link or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
