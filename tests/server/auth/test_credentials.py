"""Authentication of runners: registration, credentials, and forged ones."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltaci.core.worker import IDLE, Worker
from deltaci.server.auth.credentials import CREDENTIAL_SECONDS, REGISTRATION_SECONDS, Signer, load_server_key
from tests.contract.backends import on_loop
from tests.server.site import OpenSite, RegisteredRunner, Site
from tests.support.lab import TENANT


async def knocks(site: Site, token: str) -> tuple[int, str]:
    """How a token is answered that is shown as a credential."""
    reply = await site.refused(lambda: RegisteredRunner(site, "w1", token).request("POST", "renew"))
    return reply.status, reply.code


@pytest.mark.proves("PRO-X3")
@on_loop
async def test_a_request_without_a_credential_of_this_server_is_refused(site: OpenSite) -> None:
    """A forged runner could read every secret of every job."""
    async with site() as here:
        good = (await here.runner()).credential
        head, _, seal = good.removeprefix("dci_").partition(".")
        claims = urlsafe_b64decode(head + "==")
        other = urlsafe_b64encode(claims.replace(b'"w1"', b'"w2"')).decode().rstrip("=")

        for forged in (
            "",
            "x",
            "dci_",
            "dci_.",
            "dci_" + "ÿ" * 40,
            f"dci_{head}",
            f"dci_{head}.",
            f"dci_{head}.{seal[:-2]}",
            f"dci_{other}.{seal}",
            f"dci_{head}.{seal}.{seal}",
            Signer(b"another key", lambda: 0.0).sign("run", "w1", TENANT, 1e12),
        ):
            assert await knocks(here, forged) == (401, "bad_credential"), forged
        for name in ("renew", "lease", "messages", "batch", "log"):
            nobody = await here.refused(lambda name=name: here.request("POST", name))  # type: ignore[misc]
            assert (nobody.status, nobody.code) == (401, "bad_credential")
        basic = await here.request("POST", "renew", headers=[("Authorization", f"Basic {good}")])
        assert basic.status == 401


@on_loop
async def test_a_token_is_good_for_its_own_use_only(site: OpenSite) -> None:
    """A registration token lies around in files; a credential travels with every request."""
    async with site() as here:
        runner = await here.runner()

        assert await knocks(here, here.token("w2")) == (401, "bad_credential")
        other_way = await here.refused(lambda: here.register(runner.credential))
        assert (other_way.status, other_way.code) == (401, "bad_credential")
        assert "'run'" in other_way.message


@on_loop
async def test_tokens_end(site: OpenSite) -> None:
    """What was copied from a disk long ago must be worth nothing."""
    async with site() as here:
        runner, token = await here.runner(), here.token("w2")
        here.backend.after(CREDENTIAL_SECONDS - 60)
        fresh = await runner.request("POST", "renew")
        here.secrets.add(fresh.body["credential"])

        here.backend.after(61)

        assert await knocks(here, runner.credential) == (401, "expired_credential")
        assert (await RegisteredRunner(here, "w1", fresh.body["credential"]).request("POST", "renew")).status == 200
        here.backend.after(REGISTRATION_SECONDS)
        late = await here.refused(lambda: here.register(token))
        assert (late.status, late.code) == (401, "expired_credential")


@on_loop
async def test_a_registration_token_is_good_once(site: OpenSite) -> None:
    """The second one who shows it is either a thief or was robbed."""
    async with site() as here:
        token = here.token("w1")
        first = await here.register(token, capabilities=["linux"], slots=3)
        here.secrets.add(first.body["credential"])

        again = await here.refused(lambda: here.register(token))

        assert (again.status, again.code) == (401, "bad_credential")
        assert "has registered already" in again.message
        known = await here.server.find("w1", Worker)
        assert (known.state, known.labels, known.max_concurrent_tasks) == (IDLE, ("linux",), 3)
        assert known.tenant == TENANT


@on_loop
async def test_the_longest_names_fit(site: OpenSite) -> None:
    """What the server signs it must also take back."""
    async with site() as here:
        runner = await here.runner("w" * 200, tenant="t" * 200)

        assert (await runner.request("POST", "renew")).body["runner_id"] == runner.id
        assert await runner.lease() == []


@pytest.mark.parametrize("size", [0, 31])
def test_a_truncated_key_is_refused(tmp_path: Path, size: int) -> None:
    """A server that signs with an empty key would accept any credential."""
    path = tmp_path / "key"
    path.write_bytes(b"k" * size)

    with pytest.raises(ValueError, match=f"has {size} bytes, not 32"):
        load_server_key(path)


def test_the_servers_key_is_created_once_and_readable_only_by_its_user(tmp_path: Path) -> None:
    """The key can sign anything; servers that start at the same time must agree on it."""
    path = tmp_path / "state" / "key"

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_server_key(path), range(64)))

    assert keys == {load_server_key(path)}
    assert {len(key) for key in keys} == {32}
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
