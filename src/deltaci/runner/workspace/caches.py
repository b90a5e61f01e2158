"""Restore and save the caches of a job: folders that are reused by later jobs.

A cache never fails a job: errors are lines in its log. Before the first step each cache is downloaded by its key and
unpacked beside the workspace; then only the paths that its rule names are moved into it. After a success, caches whose
key was not found are packed and uploaded.
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

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import MAX_CACHE_BYTES, CacheRule
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.transfers import Transfers
from deltaci.runner.workspace.archive import move_if_absent, pack, unpack, workspace_relative_path
from deltaci.runner.workspace.cache_keys import cache_key
from deltaci.runner.workspace.layout import Layout

TIMEOUT_SECONDS: Final = 20.0  # Short, as the job can run without the cache.


class _UnsavedCache(msgspec.Struct, frozen=True):
    """The key and the paths of a cache to save if the job succeeds."""

    key: str
    paths: list[str]


class Caches:
    """Restores and saves the caches of one job."""

    def __init__(self, transfers: Transfers, layout: Layout, folder: Path, log: JobLog) -> None:
        self._transfers = transfers
        self._layout = layout
        self._folder = folder  # Outside the workspace, where the job cannot reach it.
        self._log = log
        self._unsaved_caches: list[_UnsavedCache] = []

    @property
    def has_unsaved(self) -> bool:
        """Whether there are caches to save if the job succeeds."""
        return bool(self._unsaved_caches)

    async def restore(self, rules: list[CacheRule]) -> None:
        """Restore the caches of these rules, and log the errors.

        Caches that are not found are saved after a success.
        """
        for rule in rules:
            try:
                computed_key = await self._transfers.run_in_thread(cache_key, self._layout.workspace, rule)
                if computed_key.note:
                    self._log.write_line(computed_key.note)
                await self._restore(computed_key.key, [self._path_from_root(path) for path in rule.paths])
            except (Refused, Unreachable, OSError) as error:
                self._log.write_line(f"cache {rule.key!r}: {_reason(error)}; continuing without it")

    async def restore_one(
        self, cache_key: str, prefixes: list[str], cached_paths: list[str], *, is_saved_on_miss: bool
    ) -> str:
        """Restore the cache with this key, or else the newest one with one of the prefixes.

        Return the key of the restored cache; empty if there is none. If `is_saved_on_miss` and there is none with this
        key, the paths are saved under it when the job succeeds.
        """
        try:
            relative_paths = [self._path_from_root(path) for path in cached_paths]
            if await self._restore(cache_key, relative_paths, is_saved_on_miss=is_saved_on_miss):
                return cache_key
            for prefix in prefixes:
                restored_key = await self._newest(prefix)
                if restored_key and await self._restore(restored_key, relative_paths, is_saved_on_miss=False):
                    return restored_key
        except (Refused, Unreachable, OSError) as error:
            self._log.write_line(f"cache {cache_key!r}: {_reason(error)}; continuing without it")
        return ""

    async def _newest(self, key_prefix: str) -> str:
        """Return the key of the newest cache whose key has this prefix; empty if there is none."""
        try:
            return await self._transfers.call(
                lambda client, lease_id: client.newest_cache(lease_id, key_prefix), TIMEOUT_SECONDS
            )
        except Refused as refused:
            if refused.code != "not_found":
                raise
            return ""

    def _path_from_root(self, path_from_workspace: str) -> str:
        """Return a path that starts at the workspace as a path that starts at the root of the job's folders."""
        return (
            workspace_relative_path(path_from_workspace)
            if self._layout.is_single_folder
            else self._layout.resolve(path_from_workspace)
        )

    async def _restore(self, cache_key: str, cached_paths: list[str], *, is_saved_on_miss: bool = True) -> bool:
        """Download a cache and move these paths of it into the job's folders. Return whether the cache exists.

        If it does not and `is_saved_on_miss`, remember to save it after a success.
        """
        with self._temporary_file() as archive_file:
            try:
                archive_bytes = await self._transfers.download(
                    _transfer_path(cache_key), archive_file, MAX_CACHE_BYTES, TIMEOUT_SECONDS
                )
            except Refused as refused:
                if refused.code != "not_found":
                    raise
                if is_saved_on_miss:
                    self._unsaved_caches.append(_UnsavedCache(cache_key, cached_paths))
                consequence = "it is saved when the job succeeds" if is_saved_on_miss else "continuing without it"
                self._log.write_line(f"cache {cache_key!r}: not found; {consequence}")
                return False
            moved_paths = await self._transfers.run_in_thread(self._unpack, archive_file, cached_paths)
        self._log.write_line(
            f"cache {cache_key!r}: {archive_bytes} bytes, {', '.join(moved_paths) or 'none of the requested paths'}"
        )
        return True

    def _unpack(self, archive_file: BinaryIO, cached_paths: list[str]) -> list[str]:
        """Move those of the paths that the archive has, and the job has not, into the job's folders. Return them."""
        staging_folder = Path(tempfile.mkdtemp(dir=self._folder, prefix="cache-"))
        try:
            archive_file.seek(0)
            unpack(staging_folder, archive_file)
            return [path for path in cached_paths if move_if_absent(staging_folder, self._layout.root, path)]
        finally:
            shutil.rmtree(staging_folder, ignore_errors=True)

    async def save(self) -> int:
        """Save the caches that were not found. Return how many bytes were sent. Call it only after a success."""
        sent_bytes = 0
        for unsaved_cache in self._unsaved_caches:
            try:
                sent_bytes += await self._save_cache(unsaved_cache)
            except (Refused, Unreachable, OSError) as error:
                self._log.write_line(f"cache {unsaved_cache.key!r}: {_reason(error)}; not kept")
        return sent_bytes

    async def _save_cache(self, unsaved_cache: _UnsavedCache) -> int:
        """Pack and upload one cache. Return how many bytes the server stored."""
        with self._temporary_file() as archive_file:
            archive_size = await self._transfers.run_in_thread(
                pack, self._layout.root, unsaved_cache.paths, archive_file
            )
            archive_bytes = archive_file.tell()
            if not archive_size.entries:
                self._log.write_line(
                    f"cache {unsaved_cache.key!r}: none of {', '.join(unsaved_cache.paths)} exists; nothing to keep"
                )
                return 0
            if archive_bytes > MAX_CACHE_BYTES:
                raise Refused("too_large", f"it has {archive_bytes} bytes, at most {MAX_CACHE_BYTES}")
            uploaded = await self._transfers.upload(
                _transfer_path(unsaved_cache.key), lambda: _rewound(archive_file), archive_bytes, TIMEOUT_SECONDS
            )
        outcome = "kept" if uploaded.stored else "not kept: another job saved this key first"
        self._log.write_line(
            f"cache {unsaved_cache.key!r}: {archive_size.entries} entries, {archive_bytes} bytes, {outcome}"
        )
        return archive_bytes if uploaded.stored else 0

    def _temporary_file(self) -> BinaryIO:
        return tempfile.TemporaryFile(dir=self._folder)


@contextmanager
def _rewound(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the file at its beginning, and leave it open for a retry."""
    file.seek(0)
    yield file


def _transfer_path(cache_key: str) -> str:
    """Return the path of the runner protocol for the cache entry with this key."""
    return f"caches/{quote(cache_key, safe='')}"


def _reason(error: Exception) -> str:
    """Return the message of an error."""
    return error.message if isinstance(error, Refused) else str(error)
