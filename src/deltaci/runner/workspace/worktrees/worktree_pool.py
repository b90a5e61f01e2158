"""Where trees are, who has which, and when they go. Nothing outside of one folder is ever touched."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.job_spec import Name, Worktree
from deltaci.protocol.messages import MAX_STREAMS
from deltaci.runner.client import Unreachable
from deltaci.runner.sandbox.cell import BindMount, CellFailed
from deltaci.runner.workspace.folders import open_folder
from deltaci.runner.workspace.safe_fs import remove_entry

FOLDER: Final = "workstreams"
REPOSITORY: Final = "repository.git"
ABOUT: Final = "about.json"
TRASH: Final = ".trash-"
BUSY_SECONDS: Final = 600.0  # So long a job waits until the one before it has left the tree.
LINE_SECONDS: Final = 86400.0  # Trees for tests of merges go when nobody used them for so long,
KEPT_SECONDS: Final = 30 * 86400.0  # and all others, those of what failed too, after so long.
TIDY_SECONDS: Final = 180.0
SOON_SECONDS: Final = 10.0
REMOVE_SECONDS: Final = 600.0
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

LOGGER: Final = logging.getLogger(__name__)

FinishedQuery = Callable[[list[str]], Awaitable[list[str]]]
"""Which of these streams are over and need no tree, as the server says."""


class StreamRecord(msgspec.Struct, frozen=True):
    """What a stream's folder is for. A line of merges is no run: nobody says when it is over."""

    id: Name
    is_line: bool


def folder_name(text: str) -> str:
    """One name for a folder, another for every other text."""
    if _SAFE.fullmatch(text) and not text.endswith((".git", ".lock", ".")):
        return text
    return f"_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


class WorktreeSlot:
    """One tree's place, for one job."""

    def __init__(self, stream: Path, name: str, about: StreamRecord) -> None:
        self.stream = stream
        self.name = name
        self.about = about
        self.is_held = False

    @property
    def path(self) -> Path:
        """The tree itself."""
        return self.stream / self.name

    @property
    def git_dir(self) -> Path:
        """What its job calls its repository."""
        return self.stream / f"{self.name}.git"

    @property
    def repository(self) -> Path:
        """Ours."""
        return self.stream / REPOSITORY

    def bind_mounts(self) -> tuple[BindMount, ...]:
        """What a cell shows of it. Of other trees, and of other streams, nothing."""
        return (
            BindMount(path=self.path, is_writable=True),
            BindMount(path=self.git_dir, is_writable=True),
            BindMount(path=self.repository, is_writable=False),
        )


class WorktreePool:
    """All of them on this runner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute() / FOLDER
        self._locks: dict[Path, asyncio.Lock] = {}
        self._streams: dict[Path, asyncio.Lock] = {}
        self._taken: dict[Path, int] = {}  # How many jobs have a tree, or wait for it.
        self._wake = asyncio.Event()
        self.is_used = self.folder.is_dir()

    # -- who has which

    def reserve(self, tree: Worktree) -> WorktreeSlot:
        """A place for this job. One that keeps nothing gets any tree that is free, warm if there is one."""
        stream = self.folder / folder_name(tree.stream)
        about = StreamRecord(tree.stream, bool(tree.commit))
        self.is_used = True
        self._wake.set()
        if tree.is_committed:
            spot = WorktreeSlot(stream, f"own-{folder_name(tree.private_name)}" if tree.private_name else "tree", about)
        else:
            number = 1
            while (stream / f"test-{number}") in self._taken:
                number += 1
            spot = WorktreeSlot(stream, f"test-{number}", about)
        self._taken[spot.path] = self._taken.get(spot.path, 0) + 1
        return spot

    async def acquire(self, spot: WorktreeSlot) -> None:
        """Have it alone: the job before may not have left it yet."""
        lock = self._locks.setdefault(spot.path, asyncio.Lock())
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                await lock.acquire()
        except TimeoutError:
            raise CellFailed(f"another job of this runner is in {spot.path} for {BUSY_SECONDS:.0f} s already") from None
        spot.is_held = True
        await asyncio.to_thread(self._make, spot, self.is_sole_user(spot))

    def is_sole_user(self, spot: WorktreeSlot) -> bool:
        """Whether no other job has a tree of this stream."""
        return all(path == spot.path or path.parent != spot.stream for path in self._taken)

    def repository_lock(self, spot: WorktreeSlot) -> asyncio.Lock:
        """Held by whoever brings something into the stream's repository."""
        return self._streams.setdefault(spot.stream, asyncio.Lock())

    async def release(self, spot: WorktreeSlot, *, is_empty: bool) -> None:
        """The job is over. Where somebody of it may still live, nobody else goes: the tree is put aside."""
        if spot.is_held:
            spot.is_held = False
            with suppress(OSError):
                await asyncio.to_thread(self._left, spot, is_empty)
            self._locks[spot.path].release()
        self.unreserve(spot)
        self._wake.set()

    def unreserve(self, spot: WorktreeSlot) -> None:
        """Nobody of the job that it was taken for will come."""
        count = self._taken.pop(spot.path, 1) - 1
        if count:
            self._taken[spot.path] = count
        else:
            self._locks.pop(spot.path, None)

    def _make(self, spot: WorktreeSlot, is_sole_user: bool) -> None:
        self._root()
        if is_sole_user and os.path.lexists(spot.stream) and not stat.S_ISDIR(spot.stream.lstat().st_mode):
            self.move_to_trash(spot.stream)  # A job without walls may have put a link there.
        _folder(spot.stream)
        if is_sole_user:
            for name in os.listdir(spot.stream):
                if name.startswith("."):  # Half made by a runner that was killed.
                    remove_tree(spot.stream, name)
        draft = spot.stream / f".{ABOUT}-{secrets.token_hex(4)}"
        draft.write_bytes(msgspec.json.encode(spot.about))
        os.replace(draft, spot.stream / ABOUT)
        os.utime(spot.stream)

    def _left(self, spot: WorktreeSlot, is_empty: bool) -> None:
        os.utime(spot.stream)
        if not is_empty:
            self.move_to_trash(spot.path)
            self.move_to_trash(spot.git_dir)

    def _root(self) -> None:
        try:
            _folder(self.folder)
        except OSError as error:
            raise CellFailed(f"{self.folder} cannot be a folder for trees: {error.strerror}") from error

    # -- when they go

    def move_to_trash(self, path: Path) -> None:
        """Whatever is there is there no more; it is removed when there is time. A link is not followed."""
        if os.path.lexists(path):
            os.rename(path, self.folder / f"{TRASH}{secrets.token_hex(8)}")

    async def remove_unneeded(self, ask: FinishedQuery) -> list[str]:
        """Remove what nobody needs any more: what the server says is over, and what was not used for long."""
        found = await asyncio.to_thread(self._found)
        runs = [about.id for path, about in found if about is not None and not about.is_line]
        over: set[str] = set()
        for at in range(0, len(runs), MAX_STREAMS):
            over.update(await ask(runs[at : at + MAX_STREAMS]))
        removed: list[str] = []
        for path, about in found:
            is_over = about is not None and about.id in over and not about.is_line
            if (is_over or self._is_old(path, about)) and not any(path in each.parents for each in self._taken):
                # Nobody is in it, and whoever comes now finds nothing: no await is in between.
                with suppress(OSError):
                    self.move_to_trash(path)
                    self._streams.pop(path, None)
                    removed.append(path.name)
        await asyncio.to_thread(self._empty_trash)
        return removed

    async def run_cleanup(self, ask: FinishedQuery) -> None:
        """Again and again, as long as this runner has any: when a job begins or is over, and every few minutes."""
        while True:
            if self.is_used:
                self._wake.clear()
                try:
                    for name in await self.remove_unneeded(ask):
                        LOGGER.info("the trees of stream %s are removed", name)
                except (Unreachable, Refused, OSError) as error:
                    LOGGER.warning("trees that are not needed cannot be removed now: %s", error)
                await asyncio.sleep(SOON_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(TIDY_SECONDS if self.is_used else None):
                    await self._wake.wait()

    def _found(self) -> list[tuple[Path, StreamRecord | None]]:
        """Every stream's folder. What is no folder is nobody's business."""
        try:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except OSError:
            return []
        found: list[tuple[Path, StreamRecord | None]] = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                path = self.folder / entry.name
                found.append((path, _about(path)))
        return found

    @staticmethod
    def _is_old(path: Path, about: StreamRecord | None) -> bool:
        try:
            unused = time.time() - path.lstat().st_mtime
        except OSError:
            return False
        return unused > (LINE_SECONDS if about is not None and about.is_line else KEPT_SECONDS)

    def _empty_trash(self) -> None:
        for name in self._trash():
            remove_tree(self.folder, name)

    def _trash(self) -> Iterator[str]:
        try:
            names = os.listdir(self.folder)
        except OSError:
            return
        yield from (name for name in names if name.startswith(TRASH))


def _folder(path: Path) -> None:
    """A real folder, made if nothing is there."""
    with suppress(FileExistsError):
        path.mkdir(parents=True, mode=0o755)
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(20, "something that is no folder has its name; remove it", str(path))


def _about(path: Path) -> StreamRecord | None:
    try:
        return msgspec.json.decode((path / ABOUT).read_bytes(), type=StreamRecord)
    except (OSError, msgspec.DecodeError):
        return None


def remove_tree(folder: Path, name: str) -> bool:
    """Remove something below a folder, whatever a job made of it; whether it is gone. No link is followed."""
    with suppress(OSError, RecursionError), open_folder(folder) as top:
        remove_entry(top, name)
    path = folder / name
    if os.path.lexists(path):  # Too deep for us, or folders that nobody may enter: others can.
        tool = shutil.which("rm")
        if tool is not None:
            for words in (["chmod", "-R", "u+rwx", "--", str(path)], [tool, "-rf", "--", str(path)]):
                with suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(words, check=False, capture_output=True, timeout=REMOVE_SECONDS)
    return not os.path.lexists(path)
