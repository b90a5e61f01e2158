"""Caches are restored and saved by their keys and never fail a job; against a real server."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deltaci.core.errors import Unreachable
from deltaci.runner.workspace import caches as caches_module
from deltaci.runner.workspace.caches import Caches
from deltaci.runner.workspace.layout import layout_for
from deltaci.storage.blobs import keys
from tests.contract.backends import on_loop
from tests.runner.leased_job import TENANT, LeasedJob, running_server

RULE = {"key": "deps", "paths": ["~/deps", "tool"]}


def caches_of(leased_job: LeasedJob) -> Caches:
    """Return the caches of a job."""
    return Caches(
        leased_job.transfers, layout_for(leased_job.spec, leased_job.workspace), leased_job.folder, leased_job.log
    )


async def fill_cache(leased_job: LeasedJob, content: str = "x") -> None:
    """Run a job that does not find its cache, and saves it."""
    caches = caches_of(leased_job)
    await caches.restore(leased_job.spec.caches)
    (leased_job.workspace / "deps" / "inner").mkdir(parents=True)
    (leased_job.workspace / "deps" / "inner" / "lib").write_text(content)
    (leased_job.workspace / "tool").write_text(content)
    (leased_job.workspace / "tool").chmod(0o755)
    await caches.save()


def hostile_archive() -> bytes:
    """Return an archive with a harmless entry, then one that leads outside."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("deps", "../escaped"):
            tar.addfile(tarfile.TarInfo(name))
    return gzip.compress(out.getvalue())


@pytest.mark.parametrize(
    "content",
    [hostile_archive(), b"", b"no archive", gzip.compress(b"no tar")],
    ids=["hostile", "empty", "no archive", "no tar"],
)
@on_loop
async def test_an_invalid_cache_is_logged_and_leaves_no_files(tmp_path: Path, content: bytes) -> None:
    """Not even its harmless entries."""
    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(caches=[RULE])
        leased_job.service.blobs.put(keys.cache_key(TENANT, "", "deps"), content)

        caches = caches_of(leased_job)
        await caches.restore(leased_job.spec.caches)
        await caches.save()

        assert list(leased_job.workspace.iterdir()) == []
        assert sorted(path.name for path in leased_job.folder.iterdir()) == ["log", "workspace"]
        [line] = leased_job.log_lines
        assert line.startswith("cache 'deps': ")


@on_loop
async def test_every_error_is_logged_and_the_job_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path outside, an unreachable server, no files to save, and too large a cache."""

    def unreachable(*_: Any) -> Any:
        raise Unreachable("away")

    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(
            caches=[
                {"key": "a", "paths": ["../outside"]},
                {"key": "b", "paths": ["missing"]},
                {"key": "c:{lock_hash}", "paths": ["deps"], "lock_files": ["no.lock"]},
            ]
        )
        caches = caches_of(leased_job)
        await caches.restore(leased_job.spec.caches)
        (leased_job.workspace / "deps").mkdir()
        monkeypatch.setattr(caches_module, "TIMEOUT_SECONDS", -1.0)
        monkeypatch.setattr(job_server.client, "upload", unreachable)
        await caches.save()
        monkeypatch.setattr(job_server.client, "download", unreachable)
        await caches_of(leased_job).restore(leased_job.spec.caches[1:2])

        messages = [line.partition(": ")[2] for line in leased_job.log_lines if line.startswith("cache")]
        assert "not inside the workspace" in messages[0]
        assert "not found" in messages[1]
        assert "no file matches no.lock" in leased_job.log_lines[2]
        assert "nothing to keep" in messages[4]
        assert messages[5] == "away; not kept"
        assert messages[6] == "away; continuing without it"
        assert leased_job.service.blobs.list() == []


@on_loop
async def test_a_saved_cache_is_restored_by_the_next_job(tmp_path: Path) -> None:
    """With its modes, only the paths that its own rule names, and without overwriting files."""
    async with running_server(tmp_path) as job_server:
        await fill_cache(await job_server.lease_job(caches=[RULE]))
        same = await job_server.lease_job(caches=[RULE])
        fewer = await job_server.lease_job(caches=[{"key": "deps", "paths": ["tool", "deps/inner"]}])
        (fewer.workspace / "tool").write_text("mine")

        for leased_job in (same, fewer):
            await caches_of(leased_job).restore(leased_job.spec.caches)

        assert (same.workspace / "deps" / "inner" / "lib").read_text() == "x"
        assert (same.workspace / "tool").stat().st_mode & 0o777 == 0o755
        assert same.log_lines[0].endswith("bytes, deps, tool")
        assert (fewer.workspace / "tool").read_text() == "mine"
        assert fewer.log_lines[0].endswith("bytes, deps/inner")


@on_loop
async def test_the_first_cache_of_a_key_is_kept(tmp_path: Path) -> None:
    """A later job's log says so."""
    async with running_server(tmp_path) as job_server:
        first, second = await job_server.lease_job(caches=[RULE]), await job_server.lease_job(caches=[RULE])
        late = caches_of(second)
        await late.restore(second.spec.caches)
        await fill_cache(first, "first")
        (second.workspace / "deps").mkdir()
        await late.save()
        third = await job_server.lease_job(caches=[RULE])
        await caches_of(third).restore(third.spec.caches)

        assert "another job saved this key first" in second.log_lines[-1]
        assert (third.workspace / "deps" / "inner" / "lib").read_text() == "first"


@on_loop
async def test_a_key_changes_with_the_lock_files(tmp_path: Path) -> None:
    """Another lock file, another cache."""
    async with running_server(tmp_path) as job_server:
        found = []
        for content in ("one", "two", "one"):
            leased_job = await job_server.lease_job(caches=[{"key": "d:{lock_hash}", "paths": ["deps"]}])
            (leased_job.workspace / "uv.lock").write_text(content)
            caches = caches_of(leased_job)
            await caches.restore(leased_job.spec.caches)
            found.append((leased_job.workspace / "deps").exists())
            (leased_job.workspace / "deps").mkdir(exist_ok=True)
            await caches.save()

        assert found == [False, False, True]
        assert len(leased_job.service.blobs.list("caches/")) == 2
