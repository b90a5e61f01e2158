"""Artifacts over the API: listed, read whole or in ranges, and never shown as a page of this server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import pytest

from deltaci.server.rest import files
from deltaci.server.rest.http.streaming import content_disposition
from deltaci.storage.blobs import keys
from tests.contract.backends import Backend, on_loop
from tests.server.rest.following import open_response
from tests.server.rest.site import ApiSite, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]

DATA = bytes(range(256)) * 10


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    """Return the SQLite store: artifacts do not depend on the store."""
    from deltaci.storage.port import wall_clock
    from deltaci.storage.sqlite import SqliteStore

    return Backend(
        "sqlite", lambda backend: SqliteStore(str(tmp_path / "api.db"), clock=backend.now), origin=wall_clock
    )


# -- refusals


@on_loop
async def test_missing_artifacts_and_those_of_other_tenants_get_the_same_response(site: Opened) -> None:
    """No response reveals what another tenant has, and no path leads out of an attempt."""
    async with site() as here:
        ada, eve, runner = await here.key(), await here.key("eve", tenant="other"), await here.register_runner()
        id = await ada.start(task("build"))
        await runner.upload_artifact(await runner.take(), "out/a.bin", DATA)
        attempt = "jobs/build/attempts/1/artifacts"

        for path in ("artifacts", attempt, f"{attempt}/out/a.bin"):
            theirs, never = await eve.get(f"/runs/{id}/{path}"), await eve.get(f"/runs/never/{path}")
            assert theirs.status == never.status == 404
            assert theirs.body["message"].replace(id, "never") == never.body["message"]
        for path in (f"{attempt}/out", f"{attempt}/a.bin", "jobs/build/attempts/2/artifacts/out/a.bin"):
            assert (await ada.get(f"/runs/{id}/{path}")).code == "not_found", path
        for path in ("a/%2e%2e/b", "a//b", "a%00b", "x" * 599 + "%C3%A9"):
            assert (await ada.get(f"/runs/{id}/{attempt}/{path}")).status in (400, 404), path


@on_loop
async def test_a_range_outside_the_file_is_refused(site: Opened) -> None:
    """The response has the size of the file."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        await runner.upload_artifact(await runner.take(), "a.bin", DATA)

        reply = await ada.get(f"/runs/{id}/jobs/build/attempts/1/artifacts/a.bin", range=f"bytes={len(DATA)}-")

        assert (reply.status, reply.code) == (416, "bad_range")
        assert reply.headers["content-range"] == f"bytes */{len(DATA)}"


# -- what is there


@on_loop
async def test_artifacts_are_listed_by_attempt_and_by_run(site: Opened) -> None:
    """Only the artifacts of the last lease of each attempt count, not those of a lost lease."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"), task("test"), task("never"))
        first = await runner.take()
        await runner.upload_artifact(first, "lost.txt", b"lost")
        await runner.hand_back(first)
        second = await runner.take()
        for path, data in (("b/c.txt", b"12345"), ("a.txt", b"1")):
            assert (await runner.upload_artifact(second, path, data)).status_code == 200
        await runner.finish(second)
        await runner.upload_artifact(await runner.take(), "t.txt", b"")

        build = [
            {"job": "build", "attempt": 1, "path": "a.txt", "bytes": 1},
            {"job": "build", "attempt": 1, "path": "b/c.txt", "bytes": 5},
        ]
        assert (await ada.get(f"/runs/{id}/jobs/build/attempts/1/artifacts")).body == {"artifacts": build}
        test = [{"job": "test", "attempt": 1, "path": "t.txt", "bytes": 0}]
        assert (await ada.get(f"/runs/{id}/artifacts")).body == {"artifacts": [*build, *test]}


@on_loop
async def test_a_run_with_too_many_artifacts_for_one_list_is_refused(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncated list would look like a complete one."""
    monkeypatch.setattr(files, "MAX_LISTED", 1)
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        lease = await runner.take()
        for name in ("a", "b"):
            await runner.upload_artifact(lease, name, b"x")

        assert (await ada.get(f"/runs/{id}/artifacts")).code == "too_large"
        assert len((await ada.get(f"/runs/{id}/jobs/build/attempts/1/artifacts")).body["artifacts"]) == 2


@on_loop
async def test_an_artifact_is_read_whole_and_in_ranges(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent as a download, with its checksum if the response has the whole file."""
    monkeypatch.setattr(keys, "PART_BYTES", 100)
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        name = 'ünï "x".html'
        assert (await runner.upload_artifact(await runner.take(), f"out/{quote(name)}", DATA)).status_code == 200
        path = f"/runs/{id}/jobs/build/attempts/1/artifacts/out/{quote(name)}"

        whole = await ada.get(path)
        assert (whole.status, whole.body) == (200, DATA)
        assert whole.headers["delta-sha256"] == sha256(DATA).hexdigest()
        assert whole.headers["content-disposition"] == content_disposition(name)
        assert whole.headers["content-type"] == "application/octet-stream"
        assert whole.headers["content-security-policy"] == "sandbox"
        assert whole.headers["x-content-type-options"] == "nosniff"

        part = await ada.get(path, range="bytes=1000-1250")
        assert (part.status, part.body) == (206, DATA[1000:1251])
        assert part.headers["content-range"] == f"bytes 1000-1250/{len(DATA)}"
        assert "delta-sha256" not in part.headers
        assert (await ada.get(path, range="bytes=-300")).body == DATA[-300:]
        assert (await ada.get(path, range="bytes=-1", if_range=whole.headers["etag"])).body == DATA[-1:]
        assert (await ada.get(path, range="bytes=-1", if_range='"another"')).body == DATA


@on_loop
async def test_an_artifact_is_not_read_further_after_the_client_disconnects(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download of gigabytes must not continue without a client."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("build"))
        await runner.upload_artifact(await runner.take(), "large", b"x" * 30_000_000)
        read: list[int] = []
        get = here.service.blobs.get

        def counted(key: str, offset: int = 0, limit: int = 0) -> bytes:
            read.append(offset)
            return get(key, offset, limit)

        monkeypatch.setattr(here.service.blobs, "get", counted)
        async with open_response(
            here.url, f"/runs/{id}/jobs/build/attempts/1/artifacts/large", ada.token, buffer=4096
        ) as answer:
            assert answer.status == 200
        before = -1
        async with asyncio.timeout(30):
            while before < len(read):
                before = len(read)
                for _ in range(10):
                    await ada.get("/me")

        assert len(read) < 30  # Of 58 parts; the buffers on the way hold some.


def test_a_download_name_is_safe() -> None:
    """Names from jobs may have quotes, line breaks and folders; none of them gets into the header."""
    assert content_disposition("a.txt") == "attachment; filename=\"a.txt\"; filename*=UTF-8''a.txt"
    assert content_disposition('a"\\é\n') == "attachment; filename=\"a____\"; filename*=UTF-8''a%22%5C%C3%A9%0A"
