"""Pack folders of a workspace into a compressed tar file, and unpack such files safely.

Packing follows no links, is ordered by name, and keeps files, folders, modes, times, and links that lead to a place
inside. Unpacking trusts nothing, as anyone who can write a cache may have made the archive: it accepts only names below
the root, only files, folders and safe links, and only a limited number and size. The first bad entry ends it.

A link is safe when its `..` parts come first and climb no higher than the root. As all links in the tree are of this
kind, following any of them stays inside.
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

COMPRESSION: Final = 3  # Higher levels cost more time than the transfer saves.
MAX_READ_BYTES: Final = 16 * 1024**2  # Only a forged header makes the library read more at once.
MAX_PATH_BYTES: Final = 2000  # Leaves room for the path of the workspace before it.
MAX_SECONDS: Final = 2**33
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES: Final = 1024 * 1024


class ArchiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum number, total size and depth of the entries of one archive."""

    entries: int = 500_000
    bytes: int = 20 * 1024**3
    depth: int = 64


class ArchiveSize(msgspec.Struct, frozen=True, kw_only=True):
    """The number and the total size of the entries of an archive."""

    entries: int
    bytes: int


_DEFAULT: Final = ArchiveLimits()


def workspace_relative_path(cached_folder: str) -> str:
    """Return the path of a cached folder relative to the workspace. Raise `Refused` if it is not inside.

    `~` stands for the workspace, which is the HOME of every step.
    """
    path_parts = [path_part for path_part in cached_folder.removeprefix("~/").split("/") if path_part not in ("", ".")]
    if (
        cached_folder.startswith("/")
        or ".." in path_parts
        or "\0" in cached_folder
        or not path_parts
        or cached_folder == "~"
    ):
        raise Refused(
            "bad_request", f"the path {cached_folder[:80]!r} is not inside the workspace; name a folder in it"
        )
    return "/".join(path_parts)


# -- packing


class _Packer:
    def __init__(self, tar: tarfile.TarFile, limits: ArchiveLimits) -> None:
        self._tar = tar
        self._limits = limits
        self.entries = 0
        self.bytes = 0

    def add(self, parent_fd: int, entry_name: str, path: str) -> None:
        """Add this entry of the folder, with everything in it. Skip sockets, devices and unsafe links."""
        entry_status = os.stat(entry_name, dir_fd=parent_fd, follow_symlinks=False)
        tar_info = tarfile.TarInfo(path)
        tar_info.mode, tar_info.mtime = entry_status.st_mode & 0o777, int(entry_status.st_mtime)
        if stat.S_ISDIR(entry_status.st_mode):
            tar_info.type = tarfile.DIRTYPE
            folder_fd = os.open(entry_name, FOLDER_FLAGS, dir_fd=parent_fd)
            try:
                self._count_entry(path, 0)
                self._tar.addfile(tar_info)
                for child_name in sorted(os.listdir(folder_fd), key=os.fsencode):
                    self.add(folder_fd, child_name, f"{path}/{child_name}")
            finally:
                os.close(folder_fd)
        elif stat.S_ISLNK(entry_status.st_mode):
            tar_info.type, tar_info.linkname = tarfile.SYMTYPE, os.readlink(entry_name, dir_fd=parent_fd)
            if _is_safe_link(path, tar_info.linkname):
                self._count_entry(path, 0)
                self._tar.addfile(tar_info)
        elif stat.S_ISREG(entry_status.st_mode):
            with os.fdopen(os.open(entry_name, _FILE, dir_fd=parent_fd), "rb") as opened_file:
                tar_info.size = os.fstat(opened_file.fileno()).st_size
                self._count_entry(path, tar_info.size)
                self._tar.addfile(tar_info, opened_file)

    def _count_entry(self, path: str, size: int) -> None:
        """Count an entry. Raise `Refused` if the archive then exceeds its limits."""
        self.entries += 1
        self.bytes += size
        if self.entries > self._limits.entries or self.bytes > self._limits.bytes:
            raise Refused("too_large", f"more than fits in a cache, up to {path[:80]!r}; cache less")
        if path.count("/") > self._limits.depth or len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise Refused("too_large", f"{path[:80]!r}… is too deep for a cache; cache something above it")


def pack(root: Path, paths: list[str], target_file: BinaryIO, limits: ArchiveLimits = _DEFAULT) -> ArchiveSize:
    """Write these files and folders below the root to a gzipped tar file, without missing ones. Return its size."""
    with (
        open_folder(root) as root_fd,
        gzip.GzipFile(filename="", mode="wb", fileobj=target_file, compresslevel=COMPRESSION, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
    ):
        packer = _Packer(tar, limits)
        for path in sorted(set(paths)):
            try:
                with open_parent(root_fd, path) as (parent_fd, entry_name):
                    packer.add(parent_fd, entry_name, path)
            except (FileNotFoundError, NotADirectoryError):
                continue
    return ArchiveSize(entries=packer.entries, bytes=packer.bytes)


# -- unpacking


class _BoundedReader:
    """A file-like object that decompresses a file, forwards only, and refuses more than a maximum size."""

    def __init__(self, limited_file: BinaryIO, max_bytes: int) -> None:
        self._decompressed_file = gzip.GzipFile(fileobj=limited_file, mode="rb")
        self._remaining_bytes = max_bytes
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise Refused("too_large", "the archive has a header that is too large")
        chunk = self._decompressed_file.read(size)
        self._position += len(chunk)
        self._remaining_bytes -= len(chunk)
        if self._remaining_bytes < 0:
            raise Refused("too_large", "the archive holds more than a cache may")
        return chunk

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        """Skip forwards to this position, or to the end of the stream if that comes first; return the new position.

        Raise `Refused` if the position was passed before.
        """
        if position < self._position:
            raise Refused("unreadable", "the archive is not in order")
        while self._position < position and self.read(min(_CHUNK_BYTES, position - self._position)):
            pass
        return self._position


def unpack(root: Path, archive_file: BinaryIO, limits: ArchiveLimits = _DEFAULT) -> ArchiveSize:
    """Unpack an archive into the root, which must be empty and private, and return its size.

    Raise `Refused` at the first invalid entry.
    """
    entry_count = content_bytes = 0
    # Besides their content, entries have headers: 512 bytes, and more for a long name.
    max_bytes = limits.bytes + limits.entries * 4096
    try:
        with (
            open_folder(root) as root_fd,
            tarfile.open(
                fileobj=cast(BinaryIO, _BoundedReader(archive_file, max_bytes)), mode="r:", encoding="utf-8"
            ) as tar,
        ):
            while (entry := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # Otherwise it keeps all entries in memory.
                entry_count += 1
                content_bytes += max(0, entry.size)
                if entry_count > limits.entries or content_bytes > limits.bytes:
                    raise Refused("too_large", "the archive holds more than a cache may")
                _create_entry(tar, entry, root_fd, limits)
    except Refused:
        raise
    except Exception as error:  # A forged header can make the standard library raise any exception.
        raise Refused("unreadable", f"the archive cannot be unpacked: {type(error).__name__}: {error}") from None
    return ArchiveSize(entries=entry_count, bytes=content_bytes)


def _create_entry(tar: tarfile.TarFile, entry: tarfile.TarInfo, root_fd: int, limits: ArchiveLimits) -> None:
    """Check one entry of an archive and create it below the root. Raise `Refused` if it is not allowed."""
    path_parts = entry.name.removesuffix("/").split("/")
    if len(entry.name.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise Refused("unreadable", f"the archive has an entry {entry.name[:80]!r} with a path that is too long")
    if (
        any(entry_name in ("", ".", "..") or "\0" in entry_name for entry_name in path_parts)
        or len(path_parts) > limits.depth + 1
    ):
        raise Refused("unreadable", f"the archive has an entry {entry.name[:80]!r}, which leads elsewhere")
    if entry.issparse() or entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
        raise Refused("unreadable", f"the archive has an entry {entry.name[:80]!r} that is no file, folder or link")
    if entry.issym() and not _is_safe_link("/".join(path_parts), entry.linkname):
        raise Refused("unreadable", f"the archive has a link {entry.name[:80]!r} that leads elsewhere")
    with _open_parent_of_entry(root_fd, path_parts) as (parent_fd, entry_name):
        if entry.issym():
            os.symlink(entry.linkname, entry_name, dir_fd=parent_fd)
            return
        if entry.isdir():
            os.mkdir(entry_name, 0o700, dir_fd=parent_fd)
            entry_fd = os.open(entry_name, FOLDER_FLAGS, dir_fd=parent_fd)
        else:
            entry_fd = os.open(entry_name, _NEW_FILE, 0o600, dir_fd=parent_fd)
        try:
            if entry.isreg():
                _copy(tar, entry, entry_fd)
            os.fchmod(entry_fd, entry.mode & 0o777 | (0o700 if entry.isdir() else 0o600))
            mtime = min(max(0, int(entry.mtime)), MAX_SECONDS)
            os.utime(entry_fd, (mtime, mtime))
        finally:
            os.close(entry_fd)


@contextmanager
def _open_parent_of_entry(root_fd: int, path_parts: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the opened parent folder of an entry and its name. Missing folders are created.

    An archive of the path `a/b` has no entry `a`.
    """
    entry_path = "/".join(path_parts)
    with ExitStack() as stack:
        try:
            parent_and_name = stack.enter_context(open_parent(root_fd, entry_path))
        except FileNotFoundError:
            for depth in range(1, len(path_parts)):
                with (
                    open_parent(root_fd, "/".join(path_parts[:depth])) as (parent_fd, folder_name),
                    suppress(FileExistsError),
                ):
                    os.mkdir(folder_name, 0o755, dir_fd=parent_fd)
            parent_and_name = stack.enter_context(open_parent(root_fd, entry_path))
        yield parent_and_name


def _copy(tar: tarfile.TarFile, entry: tarfile.TarInfo, target_fd: int) -> None:
    """Write the content of an entry to an opened file."""
    entry_file = tar.extractfile(entry)
    remaining = entry.size
    while entry_file is not None and remaining:
        chunk = entry_file.read(min(_CHUNK_BYTES, remaining))
        if not chunk:
            raise EOFError("it ends in the middle of a file")
        remaining -= len(chunk)
        while chunk:
            chunk = chunk[os.write(target_fd, chunk) :]


def _is_safe_link(link_path: str, target: str) -> bool:
    """Return whether a link's `..` parts come first and climb no higher than the root."""
    target_parts = target.split("/")
    climb_count = next((index for index, path_part in enumerate(target_parts) if path_part != ".."), len(target_parts))
    is_plain = (
        bool(target) and not target.startswith("/") and "\0" not in target and ".." not in target_parts[climb_count:]
    )
    return is_plain and climb_count <= link_path.count("/")


def move_if_absent(source_root: Path, root: Path, path: str) -> bool:
    """Move an entry to the same path below the root, if nothing exists there. Return whether it was moved."""
    *folders, name = path.split("/")
    with open_folder(source_root) as source_root_fd, open_folder(root) as target_root_fd:
        parent_prefix = ""
        for folder in folders:
            with (
                open_parent(target_root_fd, f"{parent_prefix}{folder}") as (above_fd, folder_name),
                suppress(FileExistsError),
            ):
                os.mkdir(folder_name, dir_fd=above_fd)
            parent_prefix += f"{folder}/"
        try:
            with (
                open_parent(source_root_fd, path) as (source_parent_fd, _),
                open_parent(target_root_fd, path) as (target_parent_fd, _),
            ):
                try:
                    os.stat(name, dir_fd=target_parent_fd, follow_symlinks=False)
                except FileNotFoundError:
                    os.rename(name, name, src_dir_fd=source_parent_fd, dst_dir_fd=target_parent_fd)
                    return True
                return False
        except FileNotFoundError:
            return False
