"""Import git bundles that jobs send. Nothing in a bundle is trusted.

The pack of a bundle is unpacked into a quarantine repository beside the mirror, where git checks every object. It is
moved into the mirror as a whole, and only if it contains the promised commit and that commit descends from the
expected one. The names of branches in a bundle are ignored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final

from deltaci.git.command import FETCH_SECONDS, GitFailed
from deltaci.git.mirrors import Mirror

MAX_BUNDLE_BYTES: Final = 2 * 1024**3
MAX_HEADER_BYTES: Final = 256 * 1024
MAX_MEMORY_BYTES: Final = 4 * 1024**3  # A few bytes of a pack can expand to any size.
LEFTOVER_SECONDS: Final = 24 * 3600.0  # An older quarantine was left behind by a server that was killed.
QUARANTINE_PREFIX: Final = ".taking-"
SIGNATURES: Final = (b"# v2 git bundle\n", b"# v3 git bundle\n")
# Bound how much of its packs git maps, so that the memory limit suffices however large the mirror is.
_LOW_MEMORY_CONFIG: Final = "[core]\n\tpackedGitLimit = 512m\n\tpackedGitWindowSize = 32m\n[pack]\n\tthreads = 1\n"


def pack_offset(bundle_file: BinaryIO) -> int:
    """Return the number of bytes before the pack in an open bundle.

    Raises `GitFailed` for another format, an endless header, or a bundle that leaves objects out.
    """
    signature = bundle_file.readline(MAX_HEADER_BYTES)
    if signature not in SIGNATURES:
        raise GitFailed("the file is not a git bundle of version 2 or 3")
    header_bytes = len(signature)
    while True:
        header_line = bundle_file.readline(MAX_HEADER_BYTES)
        header_bytes += len(header_line)
        if not header_line.endswith(b"\n") or header_bytes > MAX_HEADER_BYTES:
            raise GitFailed("the header of the bundle has no end")
        if header_line == b"\n":
            return header_bytes
        if header_line.startswith(b"@") and not header_line.startswith(b"@object-format="):
            raise GitFailed("the bundle leaves objects out; send all of them")


async def import_bundle(
    mirror: Mirror, bundle_path: Path, commit: str, start_commit: str, max_bytes: int = MAX_BUNDLE_BYTES
) -> None:
    """Move the objects of a bundle into the mirror if they include the commit and it descends from `start_commit`.

    Raises `GitFailed` otherwise, or if the bundle has more than `max_bytes`, and then leaves the mirror unchanged.
    """
    bundle_bytes = bundle_path.stat().st_size
    if bundle_bytes > max_bytes:
        raise GitFailed(f"the bundle has {bundle_bytes:,} bytes; expected at most {max_bytes:,}")
    async with _quarantine(mirror) as quarantine_folder:
        index_arguments = ("index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={max_bytes}")
        with bundle_path.open("rb", buffering=0) as pack:
            pack.seek(_pack_offset_of_file(bundle_path))
            await mirror.git.run(
                index_arguments,
                git_dir=quarantine_folder,
                input=pack,
                timeout_seconds=FETCH_SECONDS,
                max_memory_bytes=MAX_MEMORY_BYTES,
            )
        try:
            await mirror.git.run(["cat-file", "-e", f"{commit}^{{commit}}"], git_dir=quarantine_folder)
        except GitFailed:
            raise GitFailed(f"the bundle does not contain the commit {commit}") from None
        if not await mirror.git.succeeds(
            ["merge-base", "--is-ancestor", start_commit, commit], git_dir=quarantine_folder
        ):
            raise not_a_descendant(commit, start_commit)
        await asyncio.to_thread(_move_packs, quarantine_folder / "objects" / "pack", mirror.folder / "objects" / "pack")


def not_a_descendant(commit: str, start_commit: str) -> GitFailed:
    """Return the error for a commit that does not descend from the commit where its task started."""
    return GitFailed(f"the commit {commit} does not descend from {start_commit}, where its task started")


def _pack_offset_of_file(bundle_path: Path) -> int:
    with bundle_path.open("rb") as bundle_file:
        return pack_offset(bundle_file)


@asynccontextmanager
async def _quarantine(mirror: Mirror) -> AsyncIterator[Path]:
    """Create an empty repository that can read the mirror's objects; remove it at the end of the context."""
    mirrors_folder = mirror.folder.parent
    mirrors_folder.mkdir(
        parents=True, exist_ok=True
    )  # Without a mirror, index-pack fails for the missing base objects.
    await asyncio.to_thread(_remove_leftovers, mirrors_folder)
    quarantine_folder = Path(tempfile.mkdtemp(prefix=QUARANTINE_PREFIX, dir=mirrors_folder))
    try:
        await mirror.git.run(["init", "--quiet", "--bare", "--template=", str(quarantine_folder)])
        with (quarantine_folder / "config").open("a", encoding="utf-8") as config_file:
            config_file.write(_LOW_MEMORY_CONFIG)
        alternates_file = quarantine_folder / "objects" / "info" / "alternates"
        alternates_file.parent.mkdir(exist_ok=True)
        alternates_file.write_text(f"{mirror.folder / 'objects'}\n", encoding="utf-8")
        yield quarantine_folder
    finally:
        await asyncio.to_thread(shutil.rmtree, quarantine_folder, ignore_errors=True)


def _move_packs(source_folder: Path, target_folder: Path) -> None:
    """Move all packs with their indexes. Git uses a pack as soon as its index exists, so the index is moved last."""
    target_folder.mkdir(parents=True, exist_ok=True)
    for pack_file in sorted(source_folder.glob("pack-*"), key=lambda path: path.suffix == ".idx"):
        os.replace(pack_file, target_folder / pack_file.name)


def _remove_leftovers(folder: Path) -> None:
    """Remove the quarantines and bundles that servers left in the folder when they were killed."""
    for leftover_path in folder.glob(f"{QUARANTINE_PREFIX}*"):
        try:
            is_old = leftover_path.stat().st_mtime < time.time() - LEFTOVER_SECONDS
        except OSError:
            continue
        if is_old and leftover_path.is_dir():
            shutil.rmtree(leftover_path, ignore_errors=True)
        elif is_old:
            leftover_path.unlink(missing_ok=True)
