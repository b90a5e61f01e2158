"""Makes a tree exactly a commit, whatever a job left in it, without reading anything of the job's as a program would.

Every file that differs is written anew: the index says what we wrote and when, by times that a job cannot set. What is
not tracked is removed, but not what is ignored: build outputs stay warm.
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
from deltaci.runner.workspace.git import check_ref, git
from deltaci.runner.workspace.mirrors import LOCAL_SECONDS
from deltaci.runner.workspace.safe_fs import remove_entry, write_file
from deltaci.runner.workspace.worktrees.repository import StreamRepository
from deltaci.runner.workspace.worktrees.worktree_pool import WorktreeSlot

MAX_ROUNDS: Final = 10  # What ignores something may be removed itself; then that is looked at again.
MAX_LISTED_BYTES: Final = 512 * 1024**2
ATTRIBUTES: Final = ".gitattributes"
SUBMODULE: Final = "160000"
NAME: Final = "Delta CI"
EMAIL: Final = "deltaci@localhost"
# No conversion of any kind, whatever the tree says: only what is the same byte by byte counts as the same.
_RAW: Final = "* -text !eol -ident -filter !working-tree-encoding\n"


Run = Callable[..., Awaitable[str]]
"""Calls git with our repository, our index and the tree."""


async def check_out_exactly(
    repository: StreamRepository, spot: WorktreeSlot, tip: str, *, is_next: bool = True
) -> None:
    """The tree has this commit, and nothing that is not ignored beside it.

    `is_next`: the commit is likely to be what the job before made in this tree.
    """
    await asyncio.to_thread(_prepare, repository, spot)
    index = repository.index_path(spot.name)
    env = {"GIT_DIR": str(repository.path), "GIT_WORK_TREE": str(spot.path), "GIT_INDEX_FILE": str(index)}

    async def run(*words: str) -> str:
        return await git(*words, folder=spot.path, timeout_seconds=LOCAL_SECONDS, env=env, max_bytes=MAX_LISTED_BYTES)

    listed = [entry.partition("\t") for entry in (await run("ls-tree", "-r", "-z", "--full-tree", tip)).split("\0")]
    modes = {path: mode[:6] for mode, _, path in listed if path}
    await asyncio.to_thread(_remove_between, spot.path, modes, ATTRIBUTES)
    if is_next and index.exists():
        await _recognize(repository, run, tip)
    await run("read-tree", "--reset", "-u", tip)
    for _ in range(MAX_ROUNDS):
        if not await run("clean", "-ffd"):
            break
    else:
        raise GitFailed("there is no end of what is to be removed")
    if wrong := await run("diff-files", "--name-only"):
        # Folders that became links to themselves elsewhere, e.g.; git does not look at those.
        raise GitFailed(f"{wrong.splitlines()[0]!r} is not what it was made")
    await asyncio.to_thread(_remove_between, spot.path, modes, ".git")
    await asyncio.to_thread(_empty, spot.path, [path for path, mode in modes.items() if mode == SUBMODULE])


async def _recognize(repository: StreamRepository, run: Run, tip: str) -> None:
    """Leave files alone that the job before changed to what they are to be: whoever builds by their times is glad."""
    if await run("diff-index", "--cached", "--name-only", "--diff-filter=A", tip):
        return  # Some are to go, and only the index knows which.
    attributes = repository.path / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    await run("read-tree", "--reset", tip)
    if await run("ls-files", "--", f":(glob)**/{ATTRIBUTES}"):
        return  # What is in a file may be something else than what is committed.
    attributes.write_text(_RAW)
    try:
        await run("update-index", "-q", "--refresh")
    finally:
        attributes.unlink()


def _prepare(repository: StreamRepository, spot: WorktreeSlot) -> None:
    """A folder, without what a job calls its repository."""
    repository.index_path(spot.name).with_name(f"{spot.name}.index.lock").unlink(missing_ok=True)
    (repository.path / "info" / "attributes").unlink(missing_ok=True)
    with suppress(FileExistsError):
        spot.path.mkdir()
    with open_folder(spot.path) as top:
        remove_entry(top, ".git")


def _remove_between(tree: Path, tracked: Collection[str], name: str) -> None:
    """Remove what has this name between the files that are tracked, and is not tracked itself.

    Repositories, which git does not look at; and what says how files are written, which git would heed if it is there.
    """
    folders = {""}
    for path in tracked:
        above = path.rpartition("/")[0]
        while above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    with open_folder(tree) as top:
        for folder in folders:
            inner = f"{folder}/{name}" if folder else name
            if inner not in tracked and os.path.lexists(tree / inner):
                with suppress(NotADirectoryError, FileNotFoundError), open_parent(top, inner) as (there, last):
                    remove_entry(there, last)  # Behind a link it is not: git replaces that by a folder.


def _empty(tree: Path, paths: Iterable[str]) -> None:
    """Empty the places of submodules, which git does not look into."""
    with open_folder(tree) as top:
        for path in paths:
            with open_parent(top, path) as (there, name):
                remove_entry(there, name)
                os.mkdir(name, 0o755, dir_fd=there)


# -- what the job calls its repository


def create_git_dir(repository: StreamRepository, spot: WorktreeSlot, tree: Worktree, base: str, tip: str) -> None:
    """A repository of the job's own, at the tip of its branch; it sees the objects of ours. What was there is gone."""
    branch = check_ref(f"refs/heads/{tree.branch}")
    name, email = parse_author(tree.author)
    made = spot.git_dir
    for folder in ("objects/info", "objects/pack", "refs/tags", "refs/remotes"):
        (made / folder).mkdir(parents=True)
    (made / "HEAD").write_text(f"ref: {branch}\n")
    _ref(made, branch, tip)
    if tree.source.ref.startswith("refs/heads/"):
        _ref(made, check_ref(f"refs/remotes/origin/{tree.source.ref.removeprefix('refs/heads/')}"), base)
    (made / "objects" / "info" / "alternates").write_text(f"{repository.path / 'objects'}\n")
    (made / "config").write_text(
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
        f"[user]\n\tname = {_quoted(name)}\n\temail = {_quoted(email)}\n"
        f'[remote "origin"]\n\turl = {_quoted(tree.source.url)}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
        "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
    )
    if (repository.path / "shallow").exists():
        shutil.copyfile(repository.path / "shallow", made / "shallow")
    shutil.copy2(repository.index_path(spot.name), made / "index")
    write_file(spot.path, ".git", f"gitdir: {made}\n", mode=0o644)


def parse_author(author: str) -> tuple[str, str]:
    """The name and the address of `Name <address>`; ours where there is none."""
    name, _, rest = author.partition("<")
    email = rest.partition(">")[0]
    plain = [" ".join("".join(c for c in each if c.isprintable() and c not in "<>").split()) for each in (name, email)]
    return (plain[0], plain[1]) if all(plain) else (NAME, EMAIL)


def _ref(made: Path, name: str, commit: str) -> None:
    path = made / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{commit}\n")


def _quoted(text: str) -> str:
    """A value of a configuration file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
