"""How a runner comes in, and what it is told when it cannot: against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deltaci.app import KEY_FILE
from deltaci.core import worker
from deltaci.core.errors import Refused, Unreachable
from deltaci.core.worker import Worker
from deltaci.protocol.messages import Registered
from deltaci.runner.registration import CREDENTIAL_FILE, REQUEST_FILE, CredentialProvider, NoCredential, read_token
from deltaci.runner.tls import TlsConfig
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.server.auth.oidc import OidcIssuer
from deltaci.server.tls import server_context
from tests.contract.backends import on_loop
from tests.server.live import LiveServer, run_server
from tests.support.certificates import HERE, Authority, uri
from tests.support.oidc_issuer import AUDIENCE, tiny_issuer


async def enter(live: LiveServer, folder: Path, **options: Any) -> Registered:
    """Start a runner here, as far as its first credential."""
    folder.mkdir(exist_ok=True)
    entrance = CredentialProvider(options.pop("url", live.url), folder, **options)
    return await asyncio.to_thread(entrance.obtain)


async def why(live: LiveServer, folder: Path, **options: Any) -> str:
    """Why it cannot start."""
    with pytest.raises(NoCredential) as caught:
        await enter(live, folder, **options)
    return str(caught.value)


def keep(live: LiveServer, folder: Path, seconds: float) -> None:
    """A credential from another day lies in the runner's folder."""
    signer = Signer(load_server_key(live.folder / KEY_FILE), time.time)
    kept = Registered(runner_id="w1", credential=signer.sign("run", "w1", "default", seconds), expires_in_seconds=900)
    folder.mkdir(exist_ok=True)
    (folder / CREDENTIAL_FILE).write_bytes(msgspec.json.encode(kept))


async def known(live: LiveServer) -> Worker:
    """The runner, as the server sees it."""
    record = await live.record("w1")
    assert isinstance(record, Worker)
    return record


@asynccontextmanager
async def deaf(live: LiveServer) -> AsyncIterator[str]:
    """The address of somebody who passes on what is asked and never what is answered."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server, asking = await asyncio.open_connection("127.0.0.1", live.port)
        asking.write(await reader.readuntil(b"}"))
        await server.readuntil(b"}")
        for each in (asking, writer):
            each.close()
            await each.wait_closed()

    between = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with between:
        yield f"http://127.0.0.1:{between.sockets[0].getsockname()[1]}"


@on_loop
async def test_a_runner_with_nothing_to_show_is_told_what_to_bring(tmp_path: Path) -> None:
    """Each way in is named, and what was kept is judged."""
    async with run_server(tmp_path / "server") as live:
        folder = tmp_path / "runner"
        assert "make a token with 'deltaci token NAME'" in await why(live, folder)
        await enter(live, tmp_path / "other", token=live.token("w1"))

        keep(live, folder, -1)
        expired = await why(live, folder)
        (folder / CREDENTIAL_FILE).write_text("{")
        broken = await why(live, folder)
        keep(live, folder, 900)
        await live.server.engine.do(worker.Shutdown(id="w1"))
        gone = await why(live, folder)

        assert "has expired, because this runner was away for too long" in expired
        assert "'deltaci token NAME --again'" in expired
        assert "cannot be read; make a token" in broken
        assert "was shut down; to register it again, make a token with 'deltaci token w1 --again'" in gone
        assert "dci_" not in expired + broken + gone


@on_loop
async def test_a_registration_whose_answer_was_lost_is_made_again(tmp_path: Path) -> None:
    """The token is not used up, and what the runner asked with is gone when it is in."""
    async with run_server(tmp_path / "server") as live:
        token, folder = live.token("w1"), tmp_path / "runner"
        async with deaf(live) as url:
            with pytest.raises(Unreachable):
                await enter(live, folder, token=token, url=url)
        assert (await known(live)).state == worker.IDLE
        assert (folder / REQUEST_FILE).stat().st_mode & 0o777 == 0o600
        with pytest.raises(Refused, match="has registered already"):
            await enter(live, tmp_path / "thief", token=token)

        entered = await enter(live, folder, token=token)

        assert entered.runner_id == "w1"
        assert sorted(path.name for path in folder.iterdir()) == [CREDENTIAL_FILE]
        assert (folder / CREDENTIAL_FILE).stat().st_mode & 0o777 == 0o600
        assert (await enter(live, folder)).runner_id == "w1"


@on_loop
async def test_a_runner_that_was_away_for_too_long_comes_in_again_with_a_new_token(tmp_path: Path) -> None:
    """Under its own name, and with what it offers now."""
    async with run_server(tmp_path / "server") as live:
        folder = tmp_path / "runner"
        await enter(live, folder, token=live.token("w1"), labels=["linux"])
        keep(live, folder, -1)

        await enter(live, folder, token=live.token("w1", again=True), labels=["gpu"], slots=2)

        assert ((await known(live)).labels, (await known(live)).max_concurrent_tasks) == (("gpu",), 2)


@on_loop
async def test_a_restart_tells_what_changed(tmp_path: Path) -> None:
    """With the credential of before; the fleet must not believe what was true once."""
    async with run_server(tmp_path / "server") as live:
        folder = tmp_path / "runner"
        await enter(live, folder, token=live.token("w1"), labels=["linux"], slots=1)

        await enter(live, folder, labels=["linux", "gpu"], slots=4)

        assert ((await known(live)).labels, (await known(live)).max_concurrent_tasks) == (("linux", "gpu"), 4)


@on_loop
async def test_an_oidc_token_is_read_when_it_is_needed(tmp_path: Path) -> None:
    """Whoever put it there replaces it long before it ends; the one of the start is worth nothing by then."""
    with tiny_issuer() as tiny:
        async with run_server(tmp_path / "server", issuer=OidcIssuer(tiny.url, AUDIENCE)) as live:
            folder, file = tmp_path / "runner", tmp_path / "token"
            folder.mkdir()
            entrance = CredentialProvider(live.url, folder, fetch_oidc_token=lambda: read_token(file))
            with pytest.raises(Refused, match="cannot be read"):
                await asyncio.to_thread(entrance.obtain)
            file.write_text(tiny.token(sub="w1") + "\n")
            await asyncio.to_thread(entrance.obtain)

            file.write_text(tiny.token(sub="w1", aud="somebody else"))
            assert (await asyncio.to_thread(entrance.renew)).runner_id == "w1"  # Its credential is still good.
            keep(live, folder, -1)
            with pytest.raises(Refused, match="aud is"):
                await enter(live, folder, fetch_oidc_token=lambda: read_token(file))
            file.write_text(tiny.token(sub="w1"))
            assert (await enter(live, folder, fetch_oidc_token=lambda: read_token(file))).runner_id == "w1"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"two\nlines", b"x" * 20_000])
def test_a_file_without_a_token_is_told_apart_from_a_bad_token(tmp_path: Path, content: bytes) -> None:
    """It is somebody else who writes it."""
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(Refused, match="contains no token"):
        read_token(file)


@on_loop
async def test_a_certificate_is_all_that_a_runner_needs(tmp_path: Path) -> None:
    """Nothing is written to its disk; there is no secret to keep beside its key."""
    authority = Authority(tmp_path / "certificates", "ours")
    context = server_context(*authority.issue(HERE), authority.pem, require_client_cert=True)
    tls = TlsConfig(authority.pem, *authority.issue(uri("deltaci:default/w1")))
    async with run_server(tmp_path / "server", context) as live:
        entered = await enter(live, tmp_path / "runner", tls=tls, labels=["linux"], slots=2)

        assert (entered.runner_id, entered.credential) == ("w1", "")
        assert list((tmp_path / "runner").iterdir()) == []
        assert ((await known(live)).labels, (await known(live)).max_concurrent_tasks) == (("linux",), 2)
