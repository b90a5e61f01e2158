"""Caches come and go with their keys, and no trouble with one is ever the job's; against a real server."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deltaci.runner.client import Unreachable
from deltaci.runner.workspace import caches as module
from deltaci.runner.workspace.caches import Caches
from deltaci.runner.workspace.layout import layout_for
from deltaci.storage.blobs import keys
from tests.contract.places import on_loop
from tests.runner.desk import TENANT, Desk, opened

RULE = {"key": "deps", "paths": ["~/deps", "tool"]}


def of(desk: Desk) -> Caches:
    """The job's caches."""
    return Caches(desk.transfers, layout_for(desk.spec, desk.workspace), desk.folder, desk.log)


async def made(desk: Desk, content: str = "x") -> None:
    """A job that finds nothing, makes it, and keeps it."""
    mine = of(desk)
    await mine.restore(desk.spec.caches)
    (desk.workspace / "deps" / "inner").mkdir(parents=True)
    (desk.workspace / "deps" / "inner" / "lib").write_text(content)
    (desk.workspace / "tool").write_text(content)
    (desk.workspace / "tool").chmod(0o755)
    await mine.save()


def hostile() -> bytes:
    """An archive with a way out, after something harmless."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("deps", "../escaped"):
            tar.addfile(tarfile.TarInfo(name))
    return gzip.compress(out.getvalue())


@pytest.mark.parametrize(
    "content",
    [hostile(), b"", b"no archive", gzip.compress(b"no tar")],
    ids=["hostile", "empty", "no archive", "no tar"],
)
@on_loop
async def test_what_is_no_cache_is_a_line_and_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    """Not even the harmless half of it."""
    async with opened(tmp_path) as office:
        desk = await office.desk(caches=[RULE])
        desk.service.blobs.put(keys.cache_key(TENANT, "", "deps"), content)

        mine = of(desk)
        await mine.restore(desk.spec.caches)
        await mine.save()

        assert list(desk.workspace.iterdir()) == []
        assert sorted(path.name for path in desk.folder.iterdir()) == ["log", "workspace"]
        [line] = desk.said
        assert line.startswith("cache 'deps': ")


@on_loop
async def test_every_trouble_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path outside, a server that is away, nothing to keep, too much to keep: the job goes on."""

    def away(*_: Any) -> Any:
        raise Unreachable("away")

    async with opened(tmp_path) as office:
        desk = await office.desk(
            caches=[
                {"key": "a", "paths": ["../outside"]},
                {"key": "b", "paths": ["missing"]},
                {"key": "c:{lock_hash}", "paths": ["deps"], "lock_files": ["no.lock"]},
            ]
        )
        mine = of(desk)
        await mine.restore(desk.spec.caches)
        (desk.workspace / "deps").mkdir()
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", -1.0)
        monkeypatch.setattr(office.client, "upload", away)
        await mine.save()
        monkeypatch.setattr(office.client, "download", away)
        await of(desk).restore(desk.spec.caches[1:2])

        told = [line.partition(": ")[2] for line in desk.said if line.startswith("cache")]
        assert "not inside the workspace" in told[0]
        assert "not found" in told[1]
        assert "no file matches no.lock" in desk.said[2]
        assert "nothing to keep" in told[4]
        assert told[5] == "away; not kept"
        assert told[6] == "away; continuing without it"
        assert desk.service.blobs.list() == []


@on_loop
async def test_what_one_job_made_the_next_one_finds(tmp_path: Path) -> None:
    """With its modes; only the paths that its own rule names; and nothing that is there is overwritten."""
    async with opened(tmp_path) as office:
        await made(await office.desk(caches=[RULE]))
        same = await office.desk(caches=[RULE])
        fewer = await office.desk(caches=[{"key": "deps", "paths": ["tool", "deps/inner"]}])
        (fewer.workspace / "tool").write_text("mine")

        for desk in (same, fewer):
            await of(desk).restore(desk.spec.caches)

        assert (same.workspace / "deps" / "inner" / "lib").read_text() == "x"
        assert (same.workspace / "tool").stat().st_mode & 0o777 == 0o755
        assert same.said[0].endswith("bytes, deps, tool")
        assert (fewer.workspace / "tool").read_text() == "mine"
        assert fewer.said[0].endswith("bytes, deps/inner")


@on_loop
async def test_the_first_cache_of_a_key_stays(tmp_path: Path) -> None:
    """Whoever is later is told so, and has lost nothing."""
    async with opened(tmp_path) as office:
        first, second = await office.desk(caches=[RULE]), await office.desk(caches=[RULE])
        late = of(second)
        await late.restore(second.spec.caches)
        await made(first, "first")
        (second.workspace / "deps").mkdir()
        await late.save()
        third = await office.desk(caches=[RULE])
        await of(third).restore(third.spec.caches)

        assert "another job saved this key first" in second.said[-1]
        assert (third.workspace / "deps" / "inner" / "lib").read_text() == "first"


@on_loop
async def test_a_key_follows_the_lock_files(tmp_path: Path) -> None:
    """Another lock file, another cache."""
    async with opened(tmp_path) as office:
        found = []
        for content in ("one", "two", "one"):
            desk = await office.desk(caches=[{"key": "d:{lock_hash}", "paths": ["deps"]}])
            (desk.workspace / "uv.lock").write_text(content)
            mine = of(desk)
            await mine.restore(desk.spec.caches)
            found.append((desk.workspace / "deps").exists())
            (desk.workspace / "deps").mkdir(exist_ok=True)
            await mine.save()

        assert found == [False, False, True]
        assert len(desk.service.blobs.list("caches/")) == 2
