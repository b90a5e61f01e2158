"""Caches: folders that a job brings along from earlier ones. Never a reason to fail: trouble is a line in the log.

Before the first step each cache is fetched by its key and unpacked beside the workspace; then the paths that its rule
names, and nothing else, are moved into it. After a success, what was not found under its key is packed and sent.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.messages import MAX_CACHE_BYTES, CacheRule
from deltaci.runner.client import Unreachable
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.transfers import Transfers
from deltaci.runner.workspace.archive import inner_path, move_if_absent, pack, unpack
from deltaci.runner.workspace.cache_keys import cache_key
from deltaci.runner.workspace.layout import Layout

PATIENCE_SECONDS: Final = 20.0  # A cache is not worth more: the job can do without.


class _Missing(msgspec.Struct, frozen=True):
    """A cache to be made."""

    key: str
    paths: list[str]


class Caches:
    """One job's caches."""

    def __init__(self, transfers: Transfers, layout: Layout, folder: Path, log: JobLog) -> None:
        self._transfers = transfers
        self._layout = layout
        self._folder = folder  # Beside the workspace: the job does not see it.
        self._log = log
        self._missing: list[_Missing] = []

    @property
    def has_unsaved(self) -> bool:
        """Whether something is to be kept when the job succeeded."""
        return bool(self._missing)

    async def restore(self, rules: list[CacheRule]) -> None:
        """Bring along what there is."""
        for rule in rules:
            try:
                found = await self._transfers.run_in_thread(cache_key, self._layout.workspace, rule)
                if found.note:
                    self._log.write_line(found.note)
                await self._restore(found.key, [self._inner(path) for path in rule.paths])
            except (Refused, Unreachable, OSError) as error:
                self._log.write_line(f"cache {rule.key!r}: {_why(error)}; going on without it")

    async def restore_one(self, key: str, prefixes: list[str], paths: list[str], *, is_kept: bool) -> str:
        """Bring along the cache of this key, or the newest that begins with one of these; the key that was found.

        What is not found under its own key is made when the job succeeds, if it is to be kept.
        """
        try:
            inner = [self._inner(path) for path in paths]
            if await self._restore(key, inner, is_kept=is_kept):
                return key
            for prefix in prefixes:
                found = await self._newest(prefix)
                if found and await self._restore(found, inner, is_kept=False):
                    return found
        except (Refused, Unreachable, OSError) as error:
            self._log.write_line(f"cache {key!r}: {_why(error)}; going on without it")
        return ""

    async def _newest(self, prefix: str) -> str:
        """The key of the newest cache that begins so; empty if there is none."""
        try:
            return await self._transfers.call(
                lambda client, lease_id: client.newest_cache(lease_id, prefix), PATIENCE_SECONDS
            )
        except Refused as refused:
            if refused.code != "not_found":
                raise
            return ""

    def _inner(self, path: str) -> str:
        return inner_path(path) if self._layout.is_single_folder else self._layout.resolve(path)

    async def _restore(self, key: str, paths: list[str], *, is_kept: bool = True) -> bool:
        """Whether there was one."""
        with self._file() as file:
            try:
                size = await self._transfers.download(_address(key), file, MAX_CACHE_BYTES, PATIENCE_SECONDS)
            except Refused as refused:
                if refused.code != "not_found":
                    raise
                if is_kept:
                    self._missing.append(_Missing(key, paths))
                then = "it is made when the job succeeds" if is_kept else "going on without it"
                self._log.write_line(f"cache {key!r}: not found; {then}")
                return False
            moved = await self._transfers.run_in_thread(self._unpack, file, paths)
        self._log.write_line(f"cache {key!r}: {size} bytes, {', '.join(moved) or 'nothing that the job asks for'}")
        return True

    def _unpack(self, file: BinaryIO, paths: list[str]) -> list[str]:
        staged = Path(tempfile.mkdtemp(dir=self._folder, prefix="cache-"))
        try:
            file.seek(0)
            unpack(staged, file)
            return [path for path in paths if move_if_absent(staged, self._layout.root, path)]
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    async def save(self) -> int:
        """Keep what was missing; how many bytes were sent. Only after a success: what failed may be half made."""
        sent = 0
        for each in self._missing:
            try:
                sent += await self._save(each)
            except (Refused, Unreachable, OSError) as error:
                self._log.write_line(f"cache {each.key!r}: {_why(error)}; not kept")
        return sent

    async def _save(self, missing: _Missing) -> int:
        with self._file() as file:
            packed = await self._transfers.run_in_thread(pack, self._layout.root, missing.paths, file)
            size = file.tell()
            if not packed.entries:
                self._log.write_line(
                    f"cache {missing.key!r}: none of {', '.join(missing.paths)} exists; nothing to keep"
                )
                return 0
            if size > MAX_CACHE_BYTES:
                raise Refused("too_large", f"it has {size} bytes, at most {MAX_CACHE_BYTES}")
            kept = await self._transfers.upload(_address(missing.key), lambda: _again(file), size, PATIENCE_SECONDS)
        told = "kept" if kept.stored else "another job was faster, and its own is kept"
        self._log.write_line(f"cache {missing.key!r}: {packed.entries} entries, {size} bytes, {told}")
        return size if kept.stored else 0

    def _file(self) -> BinaryIO:
        return tempfile.TemporaryFile(dir=self._folder)


@contextmanager
def _again(file: BinaryIO) -> Iterator[BinaryIO]:
    """The file from its beginning; it stays open for another try."""
    file.seek(0)
    yield file


def _address(key: str) -> str:
    return f"caches/{quote(key, safe='')}"


def _why(error: Exception) -> str:
    return error.message if isinstance(error, Refused) else str(error)
