"""Folders of a workspace as one file and back: tar, compressed by gzip, both of the standard library.

Packing goes by names in order, and keeps files, folders, modes, times, and links that lead to a place inside; nothing
is followed. Unpacking believes nothing: an archive may come from anybody who could write one. Only names below the
root, only files, folders and links that can never lead out of it, and only so many and so much of it. The first thing
that is not so ends it.

A link is safe when it climbs first, no higher than the root, and has no `..` after a name: whatever links it passes on
its way are of the same kind, so wherever it leads is inside.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.workspace.folders import FOLDER_FLAGS, open_folder, open_parent

COMPRESSION: Final = 3  # Beyond that it costs more time than it saves on the way.
MAX_READ_BYTES: Final = 16 * 1024**2  # More than that at once is only ever asked for by a forged header.
MAX_PATH_BYTES: Final = 2000  # Where it is unpacked, a path begins with that of the workspace.
MAX_SECONDS: Final = 2**33
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PART: Final = 1024 * 1024


class ArchiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one archive may hold, unpacked."""

    entries: int = 500_000
    bytes: int = 20 * 1024**3
    depth: int = 64


class ArchiveSize(msgspec.Struct, frozen=True, kw_only=True):
    """What went into an archive, or came out of it."""

    entries: int
    bytes: int


_DEFAULT: Final = ArchiveLimits()


def inner_path(path: str) -> str:
    """The path of a cache, from the workspace on; `~` is the workspace, as HOME is for every step."""
    names = [name for name in path.removeprefix("~/").split("/") if name not in ("", ".")]
    if path.startswith("/") or ".." in names or "\0" in path or not names or path == "~":
        raise Refused("bad_request", f"the path {path[:80]!r} is none inside the workspace; name a folder in it")
    return "/".join(names)


# -- packing


class _Packer:
    def __init__(self, tar: tarfile.TarFile, bounds: ArchiveLimits) -> None:
        self._tar = tar
        self._bounds = bounds
        self.entries = 0
        self.bytes = 0

    def add(self, folder: int, name: str, path: str) -> None:
        """Whatever has this name in the folder, with everything in it. What cannot be kept is left out."""
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        info = tarfile.TarInfo(path)
        info.mode, info.mtime = status.st_mode & 0o777, int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            try:
                self._count(path, 0)
                self._tar.addfile(info)
                for each in sorted(os.listdir(inner), key=os.fsencode):
                    self.add(inner, each, f"{path}/{each}")
            finally:
                os.close(inner)
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
            if _is_safe_link(path, info.linkname):
                self._count(path, 0)
                self._tar.addfile(info)
        elif stat.S_ISREG(status.st_mode):
            with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                self._count(path, info.size)
                self._tar.addfile(info, file)

    def _count(self, path: str, size: int) -> None:
        self.entries += 1
        self.bytes += size
        if self.entries > self._bounds.entries or self.bytes > self._bounds.bytes:
            raise Refused("too_large", f"more than fits in a cache, up to {path[:80]!r}; cache less")
        if path.count("/") > self._bounds.depth or len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise Refused("too_large", f"{path[:80]!r}… is too deep for a cache; cache something above it")


def pack(root: Path, paths: list[str], out: BinaryIO, bounds: ArchiveLimits = _DEFAULT) -> ArchiveSize:
    """Write these folders and files of the root as an archive. One that is not there is left out."""
    with (
        open_folder(root) as top,
        gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=COMPRESSION, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
    ):
        packer = _Packer(tar, bounds)
        for path in sorted(set(paths)):
            try:
                with open_parent(top, path) as (folder, name):
                    packer.add(folder, name, path)
            except (FileNotFoundError, NotADirectoryError):
                continue
    return ArchiveSize(entries=packer.entries, bytes=packer.bytes)


# -- unpacking


class _Inflated:
    """A compressed file as what is in it: forwards only, and only so much."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._inner = gzip.GzipFile(fileobj=file, mode="rb")
        self._left = most
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        """Some bytes."""
        if not 0 <= size <= MAX_READ_BYTES:
            raise Refused("too_large", "the archive has a header that is too large")
        data = self._inner.read(size)
        self._at += len(data)
        self._left -= len(data)
        if self._left < 0:
            raise Refused("too_large", "the archive holds more than a cache may")
        return data

    def tell(self) -> int:
        """How far it was read."""
        return self._at

    def seek(self, to: int) -> int:
        """Skip what is before that."""
        if to < self._at:
            raise Refused("unreadable", "the archive is not in order")
        while self._at < to and self.read(min(_PART, to - self._at)):
            pass
        return self._at


def unpack(root: Path, source: BinaryIO, bounds: ArchiveLimits = _DEFAULT) -> ArchiveSize:
    """Write what the archive holds into the root, which is empty and nobody else's. Refused at the first bad entry."""
    entries = size = 0
    # Beside what they hold, entries have headers: 512 bytes, and a few more where a name is long.
    most = bounds.bytes + bounds.entries * 4096
    try:
        with (
            open_folder(root) as top,
            tarfile.open(fileobj=cast(BinaryIO, _Inflated(source, most)), mode="r:", encoding="utf-8") as tar,
        ):
            while (entry := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # Otherwise it remembers every one of them.
                entries += 1
                size += max(0, entry.size)
                if entries > bounds.entries or size > bounds.bytes:
                    raise Refused("too_large", "the archive holds more than a cache may")
                _restore(tar, entry, top, bounds)
    except Refused:
        raise
    except Exception as error:  # A forged header makes the standard library raise nearly anything.
        raise Refused("unreadable", f"the archive cannot be unpacked: {type(error).__name__}: {error}") from None
    return ArchiveSize(entries=entries, bytes=size)


def _restore(tar: tarfile.TarFile, entry: tarfile.TarInfo, top: int, bounds: ArchiveLimits) -> None:
    names = entry.name.removesuffix("/").split("/")
    if len(entry.name.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise Refused("unreadable", f"the archive has an entry {entry.name[:80]!r} with a path that is too long")
    if any(name in ("", ".", "..") or "\0" in name for name in names) or len(names) > bounds.depth + 1:
        raise Refused("unreadable", f"the archive has an entry {entry.name[:80]!r}, which leads elsewhere")
    if entry.issparse() or entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
        raise Refused("unreadable", f"the archive has an entry {entry.name[:80]!r} that is no file, folder or link")
    if entry.issym() and not _is_safe_link("/".join(names), entry.linkname):
        raise Refused("unreadable", f"the archive has a link {entry.name[:80]!r} that leads elsewhere")
    with _inside(top, names) as (folder, name):
        if entry.issym():
            os.symlink(entry.linkname, name, dir_fd=folder)
            return
        if entry.isdir():
            os.mkdir(name, 0o700, dir_fd=folder)
            made = os.open(name, FOLDER_FLAGS, dir_fd=folder)
        else:
            made = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            if entry.isreg():
                _copy(tar, entry, made)
            os.fchmod(made, entry.mode & 0o777 | (0o700 if entry.isdir() else 0o600))
            moment = min(max(0, int(entry.mtime)), MAX_SECONDS)
            os.utime(made, (moment, moment))
        finally:
            os.close(made)


@contextmanager
def _inside(top: int, names: list[str]) -> Iterator[tuple[int, str]]:
    """The folder that an entry is to be in; it is made where it is missing, since an archive of `a/b` has no `a`."""
    path = "/".join(names)
    with ExitStack() as stack:
        try:
            found = stack.enter_context(open_parent(top, path))
        except FileNotFoundError:
            for depth in range(1, len(names)):
                with open_parent(top, "/".join(names[:depth])) as (folder, name), suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            found = stack.enter_context(open_parent(top, path))
        yield found


def _copy(tar: tarfile.TarFile, entry: tarfile.TarInfo, made: int) -> None:
    source = tar.extractfile(entry)
    left = entry.size
    while source is not None and left:
        part = source.read(min(_PART, left))
        if not part:
            raise EOFError("it ends in the middle of a file")
        left -= len(part)
        while part:
            part = part[os.write(made, part) :]


def _is_safe_link(path: str, target: str) -> bool:
    names = target.split("/")
    climbs = next((at for at, name in enumerate(names) if name != ".."), len(names))
    is_plain = bool(target) and not target.startswith("/") and "\0" not in target and ".." not in names[climbs:]
    return is_plain and climbs <= path.count("/")


def move_if_absent(source: Path, root: Path, path: str) -> bool:
    """Move what has this path below the source to the same path below the root, unless something is there."""
    *folders, name = path.split("/")
    with open_folder(source) as old_top, open_folder(root) as new_top:
        at = ""
        for folder in folders:
            with open_parent(new_top, f"{at}{folder}") as (above, each), suppress(FileExistsError):
                os.mkdir(each, dir_fd=above)
            at += f"{folder}/"
        try:
            with open_parent(old_top, path) as (old, _), open_parent(new_top, path) as (new, _):
                try:
                    os.stat(name, dir_fd=new, follow_symlinks=False)
                except FileNotFoundError:
                    os.rename(name, name, src_dir_fd=old, dst_dir_fd=new)
                    return True
                return False
        except FileNotFoundError:
            return False
