"""A runner at work keeps its credential fresh, and gets another when it slept past the end of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from deltaci.app import KEY_FILE
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.errors import Refused
from deltaci.protocol.messages import Registered
from deltaci.runner.agent import Agent
from deltaci.runner.registration import CREDENTIAL_FILE, CredentialProvider
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.server.auth.oidc import OidcIssuer
from tests.contract.backends import on_loop
from tests.server.live import LiveServer, run_server
from tests.support.oidc_issuer import AUDIENCE, tiny_issuer


def credential(live: LiveServer, seconds: float, lasts: int) -> Registered:
    """One that ends then, whatever its runner believes."""
    token = Signer(load_server_key(live.folder / KEY_FILE), time.time).sign("run", "w1", "default", seconds)
    return Registered(runner_id="w1", credential=token, expires_in_seconds=lasts)


async def enqueue(live: LiveServer, *steps: str) -> None:
    """A job for it."""
    spec = {"steps": list(steps), "executor": "process"}
    await live.server.engine.do(NewRecord(id="q1", record=Attempt(id="q1", tenant="default", spec=spec)))


async def register(live: LiveServer) -> None:
    """The server knows the runner from before."""
    async with live.client() as caller:
        await caller.run(caller.client.register, live.token("w1"), [], 1)


@on_loop
async def test_a_runner_that_slept_too_long_and_has_nothing_else_ends_and_says_why(tmp_path: Path) -> None:
    """It would wait for work forever, and nobody would know."""
    async with run_server(tmp_path / "server") as live:
        await register(live)
        entrance = CredentialProvider(live.url, tmp_path)
        agent = Agent(entrance, credential(live, -1, 900), labels=[], slots=1, folder=tmp_path / "work")

        with pytest.raises(Refused) as caught:
            await agent.run()

        assert caught.value.code in ("bad_credential", "expired_credential")


@on_loop
async def test_a_runner_that_slept_too_long_shows_its_oidc_token_again_and_goes_on(tmp_path: Path) -> None:
    """A laptop that was closed, a machine that was paused."""
    with tiny_issuer() as tiny:
        async with run_server(tmp_path / "server", issuer=OidcIssuer(tiny.url, AUDIENCE)) as live:
            await register(live)
            await enqueue(live, "true")
            entrance = CredentialProvider(live.url, tmp_path, fetch_oidc_token=lambda: tiny.token(sub="w1"))
            old = credential(live, -1, 900)
            agent = Agent(entrance, old, labels=[], slots=1, folder=tmp_path / "work", once=True)

            await agent.run()

            record = await live.server.store.find("q1")
            assert record is not None
            assert record.state == "SUCCEEDED"
            kept = msgspec.json.decode((tmp_path / CREDENTIAL_FILE).read_bytes(), type=Registered)
            assert kept.credential != old.credential


@on_loop
async def test_a_credential_is_renewed_long_before_its_end(tmp_path: Path) -> None:
    """While a job runs: its keeper and its log need the new one too."""
    async with run_server(tmp_path / "server") as live:
        await enqueue(live, f"while ! test -e {tmp_path / CREDENTIAL_FILE}.seen; do sleep 0.05; done", "true")
        entrance = CredentialProvider(live.url, tmp_path, token=live.token("w1"))
        short = msgspec.structs.replace(await asyncio.to_thread(entrance.obtain), expires_in_seconds=1)
        renewed = entrance.renew

        def renew() -> Registered:
            fresh = renewed()
            (tmp_path / f"{CREDENTIAL_FILE}.seen").touch()
            return fresh

        entrance.renew = renew  # type: ignore[method-assign]
        agent = Agent(entrance, short, labels=[], slots=1, folder=tmp_path / "work", once=True)

        await agent.run()

        record = await live.record("q1")
        assert record is not None
        assert record.state == "SUCCEEDED"
