"""Make a tree exactly equal to a commit, without executing or trusting anything that a job left in it.

Every file that differs is rewritten: the runner's own index records each write, with ctimes that a job cannot
set. Untracked files are removed, but ignored files stay, so that build outputs remain warm.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from deltaci.git.command import GitFailed
from deltaci.protocol.job_spec import Worktree
from deltaci.runner.workspace.folders import open_folder, open_parent
from deltaci.runner.workspace.mirrors import GIT
from deltaci.runner.workspace.safe_fs import remove_entry, write_file
from deltaci.runner.workspace.source_policy import check_ref
from deltaci.runner.workspace.worktrees.repository import StreamRepository
from deltaci.runner.workspace.worktrees.worktree_pool import WorktreeSlot

MAX_ROUNDS: Final = 10  # Removing an untracked .gitignore file makes more files untracked.
MAX_OUTPUT_BYTES: Final = 512 * 1024**2
ATTRIBUTES: Final = ".gitattributes"
SUBMODULE: Final = "160000"
NAME: Final = "Delta CI"
EMAIL: Final = "deltaci@localhost"
# Without conversions, whatever the tree's attributes say: files must be equal byte by byte.
_NO_CONVERSION: Final = "* -text !eol -ident -filter !working-tree-encoding\n"


RunGit = Callable[..., Awaitable[str]]
"""Runs git with the runner's repository and index, and the tree."""


async def check_out_exactly(
    repository: StreamRepository, slot: WorktreeSlot, target_commit: str, *, is_warm: bool = True
) -> None:
    """Make the tree equal to this commit. Only ignored files remain besides its files.

    `is_warm`: the commit is probably what the previous job made in this tree.
    """
    await asyncio.to_thread(_prepare, repository, slot)
    index_path = repository.index_path(slot.name)
    env = {"GIT_DIR": str(repository.path), "GIT_WORK_TREE": str(slot.path), "GIT_INDEX_FILE": str(index_path)}

    async def run_git(*arguments: str) -> str:
        git_output = await GIT.run(arguments, folder=slot.path, env=env, max_output_bytes=MAX_OUTPUT_BYTES)
        return git_output.decode("utf-8", "surrogateescape")

    tree_entries = [
        tree_entry.partition("\t")
        for tree_entry in (await run_git("ls-tree", "-r", "-z", "--full-tree", target_commit)).split("\0")
    ]
    mode_by_path = {path: mode[:6] for mode, _, path in tree_entries if path}
    await asyncio.to_thread(_remove_untracked, slot.path, mode_by_path, ATTRIBUTES)
    if is_warm and index_path.exists():
        await _accept_equal_files(repository, run_git, target_commit)
    await run_git("read-tree", "--reset", "-u", target_commit)
    for _ in range(MAX_ROUNDS):
        if not await run_git("clean", "-ffd"):
            break
    else:
        raise GitFailed("untracked files remain after repeated removal")
    if differing_paths := await run_git("diff-files", "--name-only"):
        # E.g. a folder was replaced by a link to a copy, which git does not detect.
        raise GitFailed(f"{differing_paths.splitlines()[0]!r} differs from the commit after the checkout")
    await asyncio.to_thread(_remove_untracked, slot.path, mode_by_path, ".git")
    await asyncio.to_thread(
        _empty_submodules, slot.path, [path for path, mode in mode_by_path.items() if mode == SUBMODULE]
    )


async def _accept_equal_files(repository: StreamRepository, run_git: RunGit, target_commit: str) -> None:
    """Update the index for files that already equal the new commit, so that the checkout does not rewrite them.

    They keep their modification times, which build tools compare.
    """
    if await run_git("diff-index", "--cached", "--name-only", "--diff-filter=A", target_commit):
        return  # Files must be deleted, and only the old index lists them.
    attributes_path = repository.path / "info" / "attributes"
    attributes_path.parent.mkdir(exist_ok=True)
    await run_git("read-tree", "--reset", target_commit)
    if await run_git("ls-files", "--", f":(glob)**/{ATTRIBUTES}"):
        return  # Attributes may make a file differ from its blob.
    attributes_path.write_text(_NO_CONVERSION)
    try:
        await run_git("update-index", "-q", "--refresh")
    finally:
        attributes_path.unlink()


def _prepare(repository: StreamRepository, slot: WorktreeSlot) -> None:
    """Create the folder of the tree, and remove stale lock and attribute files and the `.git` file of the last job."""
    repository.index_path(slot.name).with_name(f"{slot.name}.index.lock").unlink(missing_ok=True)
    (repository.path / "info" / "attributes").unlink(missing_ok=True)
    with suppress(FileExistsError):
        slot.path.mkdir()
    with open_folder(slot.path) as root_fd:
        remove_entry(root_fd, ".git")


def _remove_untracked(tree_folder: Path, tracked_paths: Collection[str], removed_name: str) -> None:
    """Remove untracked entries with this name from every folder that has tracked files.

    Used for nested repositories, which git ignores, and for attribute files, which would change how git writes files.
    """
    folders = {""}
    for path in tracked_paths:
        parent_path = path.rpartition("/")[0]
        while parent_path not in folders:
            folders.add(parent_path)
            parent_path = parent_path.rpartition("/")[0]
    with open_folder(tree_folder) as root_fd:
        for folder in folders:
            untracked_path = f"{folder}/{removed_name}" if folder else removed_name
            if untracked_path not in tracked_paths and os.path.lexists(tree_folder / untracked_path):
                with (
                    suppress(NotADirectoryError, FileNotFoundError),
                    open_parent(root_fd, untracked_path) as (folder_fd, entry_name),
                ):
                    # Suppressed: a link in the path, which git replaces by a folder.
                    remove_entry(folder_fd, entry_name)


def _empty_submodules(tree_folder: Path, submodule_paths: Iterable[str]) -> None:
    """Replace the folders of submodules, which git does not inspect, by empty ones."""
    with open_folder(tree_folder) as root_fd:
        for path in submodule_paths:
            with open_parent(root_fd, path) as (folder_fd, folder_name):
                remove_entry(folder_fd, folder_name)
                os.mkdir(folder_name, 0o755, dir_fd=folder_fd)


# -- the job's git directory


def create_git_dir(
    repository: StreamRepository, slot: WorktreeSlot, tree: Worktree, base_commit: str, tip_commit: str
) -> None:
    """Create the job's own git directory, with HEAD at the tip, which uses the objects of the runner's repository."""
    branch = check_ref(f"refs/heads/{tree.branch}")
    author_name, email = parse_author(tree.author)
    git_dir = slot.git_dir
    for subfolder in ("objects/info", "objects/pack", "refs/tags", "refs/remotes"):
        (git_dir / subfolder).mkdir(parents=True)
    (git_dir / "HEAD").write_text(f"ref: {branch}\n")
    _write_ref(git_dir, branch, tip_commit)
    if tree.source.ref.startswith("refs/heads/"):
        _write_ref(
            git_dir, check_ref(f"refs/remotes/origin/{tree.source.ref.removeprefix('refs/heads/')}"), base_commit
        )
    (git_dir / "objects" / "info" / "alternates").write_text(f"{repository.path / 'objects'}\n")
    (git_dir / "config").write_text(
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
        f"[user]\n\tname = {_quoted(author_name)}\n\temail = {_quoted(email)}\n"
        f'[remote "origin"]\n\turl = {_quoted(tree.source.url)}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
        "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
    )
    if (repository.path / "shallow").exists():
        shutil.copyfile(repository.path / "shallow", git_dir / "shallow")
    shutil.copy2(repository.index_path(slot.name), git_dir / "index")
    write_file(slot.path, ".git", f"gitdir: {git_dir}\n", mode=0o644)


def parse_author(author: str) -> tuple[str, str]:
    """Return the name and the email address of `Name <address>`; the defaults if either is missing."""
    name, _, address_part = author.partition("<")
    email = address_part.partition(">")[0]
    cleaned_parts = [
        " ".join(
            "".join(character for character in author_part if character.isprintable() and character not in "<>").split()
        )
        for author_part in (name, email)
    ]
    return (cleaned_parts[0], cleaned_parts[1]) if all(cleaned_parts) else (NAME, EMAIL)


def _write_ref(git_dir: Path, ref_name: str, commit: str) -> None:
    """Write a ref that points to this commit."""
    ref_path = git_dir / ref_name
    ref_path.parent.mkdir(parents=True, exist_ok=True)
    ref_path.write_text(f"{commit}\n")


def _quoted(text: str) -> str:
    """Return a text in quotes, as a value in a git configuration file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
