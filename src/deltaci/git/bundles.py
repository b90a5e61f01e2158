"""Bundles that come from jobs: nothing of one is believed.

What it holds is unpacked beside the mirror, where every object is checked, and gets into the mirror only as a whole:
when the commit that was promised is in it and stands where it should. Names of branches in it mean nothing.
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
from deltaci.protocol.messages import MAX_TREE_BYTES

MAX_BUNDLE_BYTES: Final = MAX_TREE_BYTES
MAX_HEAD_BYTES: Final = 256 * 1024
MAX_MEMORY_BYTES: Final = 4 * 1024**3  # A few bytes of a pack can stand for as many as they like.
LEFT_SECONDS: Final = 24 * 3600.0  # What is older was left by a server that was killed.
PREFIX: Final = ".taking-"
VERSIONS: Final = (b"# v2 git bundle\n", b"# v3 git bundle\n")
# So that what git maps of its own packs fits into its memory, however large the mirror is.
_SMALL: Final = "[core]\n\tpackedGitLimit = 512m\n\tpackedGitWindowSize = 32m\n[pack]\n\tthreads = 1\n"


def pack_at(file: BinaryIO) -> int:
    """Where the pack of a bundle begins; `GitFailed` if it is none that we take."""
    head = file.readline(MAX_HEAD_BYTES)
    if head not in VERSIONS:
        raise GitFailed("what was sent is no bundle of git")
    size = len(head)
    while True:
        line = file.readline(MAX_HEAD_BYTES)
        size += len(line)
        if not line.endswith(b"\n") or size > MAX_HEAD_BYTES:
            raise GitFailed("the bundle has no end of its head")
        if line == b"\n":
            return size
        if line.startswith(b"@") and not line.startswith(b"@object-format="):
            raise GitFailed("the bundle leaves objects out; send all of them")


async def take_in(mirror: Mirror, file: Path, commit: str, start: str, limit: int = MAX_BUNDLE_BYTES) -> None:
    """Bring what a bundle holds into the mirror, if the commit is in it, and stands on `start`."""
    size = file.stat().st_size
    if size > limit:
        raise GitFailed(f"the bundle has {size:,} bytes; at most {limit:,} are taken")
    async with _beside(mirror) as draft:
        words = ("index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={limit}")
        with file.open("rb", buffering=0) as source:
            source.seek(pack_at_of(file))
            await mirror.git.run(words, folder=draft, input=source, seconds=FETCH_SECONDS, memory=MAX_MEMORY_BYTES)
        try:
            await mirror.git.run(["cat-file", "-e", f"{commit}^{{commit}}"], folder=draft)
        except GitFailed:
            raise GitFailed(f"the bundle does not have the commit {commit}") from None
        if not await mirror.git.succeeds(["merge-base", "--is-ancestor", start, commit], folder=draft):
            raise elsewhere(commit, start)
        await asyncio.to_thread(_move, draft / "objects" / "pack", mirror.folder / "objects" / "pack")


def elsewhere(commit: str, start: str) -> GitFailed:
    """Why a commit is not taken that stands elsewhere."""
    return GitFailed(f"the commit {commit} does not stand on {start}, where it began")


def pack_at_of(file: Path) -> int:
    """The same, of a file that is not open."""
    with file.open("rb") as opened:
        return pack_at(opened)


@asynccontextmanager
async def _beside(mirror: Mirror) -> AsyncIterator[Path]:
    """An empty repository that sees the objects of the mirror, for as long as it is needed."""
    folder = mirror.folder.parent
    folder.mkdir(parents=True, exist_ok=True)  # Where nothing was fetched yet, the pack fails for what it stands on.
    await asyncio.to_thread(_sweep, folder)
    draft = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    try:
        await mirror.git.run(["init", "--quiet", "--bare", "--template=", str(draft)])
        with (draft / "config").open("a", encoding="utf-8") as config:
            config.write(_SMALL)
        seen = draft / "objects" / "info" / "alternates"
        seen.parent.mkdir(exist_ok=True)
        seen.write_text(f"{mirror.folder / 'objects'}\n", encoding="utf-8")
        yield draft
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """All packs. A pack is there as soon as its index is, so that comes last."""
    target.mkdir(parents=True, exist_ok=True)
    for each in sorted(source.glob("pack-*"), key=lambda path: path.suffix == ".idx"):
        os.replace(each, target / each.name)


def _sweep(folder: Path) -> None:
    """Remove what servers left that were killed."""
    for left in folder.glob(f"{PREFIX}*"):
        try:
            is_old = left.stat().st_mtime < time.time() - LEFT_SECONDS
        except OSError:
            continue
        if is_old and left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif is_old:
            left.unlink(missing_ok=True)
