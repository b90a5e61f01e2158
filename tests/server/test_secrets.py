"""Secrets by name: sealed where they are kept, opened for exactly the jobs that name them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from deltaci.blobs.keys import secret_key
from deltaci.blobs.memory import MemoryBlobs
from deltaci.core.errors import Refused
from deltaci.runner.disguises import MIN_SECRET_CHARACTERS
from deltaci.server.secrets import MAX_BYTES, MIN_CHARACTERS, Secrets
from tests.contract.places import on_loop
from tests.lab import TENANT
from tests.server.site import KEY, Held, OpenSite, Reply, Site

VALUE = "hunter2 and\nmore ü"


async def held_lease(site: Site, id: str = "q1", runner: str = "w1", **spec: Any) -> Held:
    """A runner with a lease for a job of this kind."""
    await site.server.enqueue(id, spec=spec)
    return await (await site.runner(runner)).take()


async def secrets(held: Held) -> Reply:
    """Ask for what the job needs."""
    reply = await held.runner.ask("GET", "secrets", delta_lease=held.id)
    if reply.status == 200:
        held.runner.site.secrets.update(reply.body.values())
    return reply


# -- refusals


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "../x", "a/b", "ä", "x" * 101, "A\n"])
def test_a_name_that_no_variable_could_have_is_refused(name: str) -> None:
    """It becomes one, and a key in the store."""
    with pytest.raises(Refused, match="no name for a secret"):
        Secrets(MemoryBlobs(), KEY).set(TENANT, name, VALUE)


@pytest.mark.parametrize("value", ["", "abc", "  abc\n", "a\0bcd", "\ud800abc", "x" * (MAX_BYTES + 1)])
def test_a_value_that_cannot_be_masked_or_passed_on_is_refused(value: str) -> None:
    """And the refusal does not repeat it."""
    with pytest.raises(Refused) as refused:
        Secrets(MemoryBlobs(), KEY).set(TENANT, "A", value)

    assert refused.value.code == "bad_request"
    assert not value.strip() or value not in refused.value.message
    assert MIN_CHARACTERS == MIN_SECRET_CHARACTERS


def test_a_seal_opens_only_where_it_was_made_for_and_with_the_servers_key() -> None:
    """Whoever can write to the store must not be able to move a secret to a job of their own."""
    blobs = MemoryBlobs()
    sealed = Secrets(blobs, KEY)
    sealed.set(TENANT, "A", VALUE)
    seal = blobs.get(secret_key(TENANT, "A"))
    blobs.put(secret_key(TENANT, "B"), seal)
    blobs.put(secret_key("other", "A"), seal)
    blobs.put(secret_key(TENANT, "C"), seal[:-1] + bytes([seal[-1] ^ 1]))
    blobs.put(secret_key(TENANT, "D"), b"")
    blobs.put(secret_key(TENANT, "E"), b"\x02" + seal[1:])

    for tenant, name in ((TENANT, "B"), ("other", "A"), (TENANT, "C"), (TENANT, "D"), (TENANT, "E")):
        with pytest.raises(Refused, match=f"'{name}' was not sealed with this server's key"):
            sealed.opened(tenant, [name])
    with pytest.raises(Refused, match="was not sealed with this server's key"):
        Secrets(blobs, b"o" * 32).opened(TENANT, ["A"])
    assert sealed.opened(TENANT, ["A"]) == {"A": VALUE}


def test_a_part_that_is_not_installed_is_named() -> None:
    """Only who has secrets needs it."""
    code = (
        "import sys; sys.modules['cryptography.hazmat.primitives.kdf.hkdf'] = None\n"
        "from deltaci.blobs.memory import MemoryBlobs\nfrom deltaci.server.secrets import Secrets\n"
        "held = Secrets(MemoryBlobs(), b'k' * 32)\nprint(held.opened('t', []))\nheld.set('t', 'A', 'value')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert done.stdout == "{}\n"
    assert "deltaci[secrets]" in done.stderr


@on_loop
async def test_an_unknown_secret_is_told_by_its_name(site: OpenSite) -> None:
    """With what to do; and none of the others is given instead."""
    async with site() as here:
        here.sealed.set(TENANT, "A", VALUE)
        here.sealed.set("other", "B", VALUE)
        held = await held_lease(here, secrets=["A", "B"])

        reply = await here.refused(lambda: secrets(held))

        assert (reply.status, reply.code) == (409, "no_secret")
        assert "no secret 'B'" in reply.message
        assert "deltaci secret set" in reply.message


@on_loop
async def test_an_untrusted_run_gets_no_secret(site: OpenSite) -> None:
    """Whatever its specification says: anybody may have written it."""
    async with site() as here:
        here.sealed.set(TENANT, "A", VALUE)
        held = await held_lease(here, secrets=["A"], cache_scope="fork")

        reply = await here.refused(lambda: secrets(held))

        assert (reply.status, reply.code) == (403, "untrusted")


# -- what is given


@on_loop
async def test_a_job_gets_exactly_the_secrets_that_it_names(site: OpenSite) -> None:
    """Neither those of others nor all that there are."""
    async with site() as here:
        for name in ("A", "B", "C"):
            here.sealed.set(TENANT, name, f"{VALUE} {name}")
        some = await held_lease(here, "q1", secrets=["A", "C"])
        none = await held_lease(here, "q2", "w2")

        assert (await secrets(some)).body == {"A": f"{VALUE} A", "C": f"{VALUE} C"}
        assert (await secrets(none)).body == {}


def test_what_is_kept_tells_nothing() -> None:
    """The same value gives another seal each time."""
    blobs = MemoryBlobs()
    sealed = Secrets(blobs, KEY)
    seals = []
    for _ in range(2):
        sealed.set(TENANT, "_A1", VALUE)
        seals.append(blobs.get(secret_key(TENANT, "_A1")))

    assert seals[0] != seals[1]
    assert not [seal for seal in seals if b"hunter2" in seal]
    assert sealed.names(TENANT) == ["_A1"]
    assert (sealed.remove(TENANT, "_A1"), sealed.remove(TENANT, "_A1"), sealed.names(TENANT)) == (True, False, [])
