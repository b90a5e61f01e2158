"""Secrets by name: sealed where they are kept, opened for exactly the jobs that name them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from deltaci.core.errors import Refused
from deltaci.core.run import Origin
from deltaci.runner.log.secret_encodings import MIN_SECRET_CHARACTERS
from deltaci.server import secrets as sealing
from deltaci.server.secrets import MAX_BYTES, MIN_CHARACTERS, JobScope, Secrets, SecretScope, is_from_fork, job_scope_of
from deltaci.storage.blobs.keys import secret_key
from deltaci.storage.blobs.memory import MemoryBlobStore
from tests.contract.backends import on_loop
from tests.server.site import KEY, OpenSite, Reply, RunnerLease, Site
from tests.support.lab import TENANT

VALUE = "hunter2 and\nmore ü"


async def held_lease(site: Site, id: str = "q1", runner: str = "w1", **spec: Any) -> RunnerLease:
    """A runner with a lease for a job of this kind."""
    await site.server.enqueue(id, spec=spec)
    return await (await site.runner(runner)).take()


async def secrets(held: RunnerLease) -> Reply:
    """Ask for what the job needs."""
    reply = await held.runner.request("GET", "secrets", delta_lease=held.id)
    if reply.status == 200:
        held.runner.site.secrets.update(reply.body.values())
    return reply


# -- refusals


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "../x", "a/b", "ä", "x" * 101, "A\n"])
def test_a_name_that_is_no_valid_variable_name_is_refused(name: str) -> None:
    """The name becomes an environment variable and part of a blob key."""
    with pytest.raises(Refused, match="no name for a secret"):
        Secrets(MemoryBlobStore(), KEY).set(TENANT, name, VALUE)


@pytest.mark.parametrize("value", ["", "abc", "  abc\n", "a\0bcd", "\ud800abc", "x" * (MAX_BYTES + 1)])
def test_a_value_that_cannot_be_masked_or_put_in_the_environment_is_refused(value: str) -> None:
    """The error does not contain the value."""
    with pytest.raises(Refused) as refused:
        Secrets(MemoryBlobStore(), KEY).set(TENANT, "A", value)

    assert refused.value.code == "bad_request"
    assert not value.strip() or value not in refused.value.message
    assert MIN_CHARACTERS == MIN_SECRET_CHARACTERS


def test_a_secret_decrypts_only_under_its_own_name_and_with_the_servers_key() -> None:
    """Write access to the blob store must not allow moving a secret to another tenant or name."""
    blobs = MemoryBlobStore()
    sealed = Secrets(blobs, KEY)
    sealed.set(TENANT, "A", VALUE)
    seal = blobs.get(secret_key(TENANT, "A"))
    blobs.put(secret_key(TENANT, "B"), seal)
    blobs.put(secret_key("other", "A"), seal)
    blobs.put(secret_key(TENANT, "C"), seal[:-1] + bytes([seal[-1] ^ 1]))
    blobs.put(secret_key(TENANT, "D"), b"")
    blobs.put(secret_key(TENANT, "E"), b"\x03" + seal[1:])

    for tenant, name in ((TENANT, "B"), ("other", "A"), (TENANT, "C"), (TENANT, "D"), (TENANT, "E")):
        with pytest.raises(Refused, match=f"'{name}' was not encrypted with this server's key"):
            sealed.decrypt(tenant, [name])
    with pytest.raises(Refused, match="was not encrypted with this server's key"):
        Secrets(blobs, b"o" * 32).decrypt(TENANT, ["A"])
    assert sealed.decrypt(TENANT, ["A"]) == {"A": VALUE}


def test_a_missing_optional_dependency_is_named() -> None:
    """It is needed only if there are secrets."""
    code = (
        "import sys; sys.modules['cryptography.hazmat.primitives.kdf.hkdf'] = None\n"
        "from deltaci.storage.blobs.memory import MemoryBlobStore\nfrom deltaci.server.secrets import Secrets\n"
        "held = Secrets(MemoryBlobStore(), b'k' * 32)\nprint(held.decrypt('t', []))\nheld.set('t', 'A', 'value')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert done.stdout == "{}\n"
    assert "deltaci[secrets]" in done.stderr


@on_loop
async def test_an_unknown_secret_is_named_in_the_error(site: OpenSite) -> None:
    """The error says what to do, and no other secret is returned."""
    async with site() as here:
        here.sealed.set(TENANT, "A", VALUE)
        here.sealed.set("other", "B", VALUE)
        lease = await held_lease(here, secrets=["A", "B"])

        reply = await here.refused(lambda: secrets(lease))

        assert (reply.status, reply.code) == (409, "no_secret")
        assert "no secret 'B' for this job" in reply.message
        assert "deltaci secret set" in reply.message


@on_loop
async def test_an_untrusted_run_gets_no_secret(site: OpenSite) -> None:
    """Whatever its job spec names: anybody may have written it."""
    async with site() as here:
        here.sealed.set(TENANT, "A", VALUE)
        lease = await held_lease(here, secrets=["A"], cache_scope="fork")

        reply = await here.refused(lambda: secrets(lease))

        assert (reply.status, reply.code) == (403, "untrusted")


# -- what is given


@on_loop
async def test_a_job_gets_exactly_the_secrets_that_it_names(site: OpenSite) -> None:
    """It gets no secrets of other tenants and no others of its own."""
    async with site() as here:
        for name in ("A", "B", "C"):
            here.sealed.set(TENANT, name, f"{VALUE} {name}")
        some = await held_lease(here, "q1", secrets=["A", "C"])
        none = await held_lease(here, "q2", "w2")

        assert (await secrets(some)).body == {"A": f"{VALUE} A", "C": f"{VALUE} C"}
        assert (await secrets(none)).body == {}


def test_a_stored_secret_reveals_nothing() -> None:
    """Encrypting the same value twice gives different bytes."""
    blobs = MemoryBlobStore()
    sealed = Secrets(blobs, KEY)
    seals = []
    for _ in range(2):
        sealed.set(TENANT, "_A1", VALUE)
        seals.append(blobs.get(secret_key(TENANT, "_A1")))

    assert seals[0] != seals[1]
    assert not [seal for seal in seals if b"hunter2" in seal]
    assert sealed.names(TENANT) == ["_A1"]
    assert (sealed.remove(TENANT, "_A1"), sealed.remove(TENANT, "_A1"), sealed.names(TENANT)) == (True, False, [])


# -- for whom a secret is


def scoped(blobs: MemoryBlobStore | None = None) -> Secrets:
    """The same name in every scope; each value says which."""
    sealed = Secrets(blobs if blobs is not None else MemoryBlobStore(), KEY)
    sealed.set(TENANT, "A", "of the tenant")
    sealed.set(TENANT, "A", "of the shop", SecretScope("shop"))
    for branch in ("main", "release/*", "release/2.*", "release/2.0"):
        sealed.set(TENANT, "A", f"of {branch}", SecretScope("shop", branch))
    sealed.set(TENANT, "B", "of another project", SecretScope("other"))
    sealed.set(TENANT, "C", "of one branch only", SecretScope("shop", "main"))
    return sealed


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (JobScope(), "of the tenant"),
        (JobScope("other"), "of the tenant"),
        (JobScope("", "main"), "of the tenant"),
        (JobScope("Shop"), "of the tenant"),
        (JobScope("shop"), "of the shop"),
        (JobScope("shop", "feature"), "of the shop"),
        (JobScope("shop", "main2"), "of the shop"),
        (JobScope("shop", "release/a/b"), "of the shop"),
        (JobScope("shop", "main"), "of main"),
        (JobScope("shop", "release/1"), "of release/*"),
        (JobScope("shop", "release/2.1"), "of release/2.*"),
        (JobScope("shop", "release/2.0"), "of release/2.0"),
    ],
)
def test_the_secret_with_the_narrowest_matching_scope_wins(at: JobScope, value: str) -> None:
    """Branches precede projects, projects the tenant.

    An exact branch name precedes a pattern, and a longer pattern a shorter one.
    """
    assert scoped().decrypt(TENANT, ["A"], at) == {"A": value}


@pytest.mark.parametrize(("name", "at"), [("B", JobScope("shop")), ("B", JobScope()), ("C", JobScope("shop", "x"))])
def test_a_secret_of_another_scope_is_reported_as_missing(name: str, at: JobScope) -> None:
    """The error is the same as for a secret that does not exist."""
    with pytest.raises(Refused, match=f"no secret '{name}' for this job"):
        scoped().decrypt(TENANT, [name], at)


def test_a_run_is_on_a_branch_only_if_the_server_knows_that() -> None:
    """A person who names `main`, or opens a pull request for it, may not be allowed to push there."""
    sealed = scoped()
    pushed = Origin(project="shop", branch="main", event="push", is_on_branch=True)
    claimed = Origin(project="shop", branch="main")
    proposed = Origin(project="shop", branch="main", event="pull_request", is_on_branch=True)

    assert sealed.decrypt(TENANT, ["A", "C"], job_scope_of(pushed)) == {"A": "of main", "C": "of one branch only"}
    for asked in (claimed, proposed):
        assert sealed.decrypt(TENANT, ["A"], job_scope_of(asked)) == {"A": "of the shop"}
        with pytest.raises(Refused, match="no secret 'C'"):
            sealed.decrypt(TENANT, ["C"], job_scope_of(asked))
    assert (is_from_fork(pushed), is_from_fork(Origin(is_fork=True))) == (False, True)


def test_optional_secrets_are_those_that_exist_for_the_job() -> None:
    """The same scopes apply; a missing secret is left out."""
    sealed = scoped()

    assert sealed.decrypt_existing(TENANT, ["A", "B", "C", "D", "a-b"], JobScope("shop", "main")) == {
        "A": "of main",
        "C": "of one branch only",
    }
    assert sealed.decrypt_existing(TENANT, ["A", "C"], JobScope("shop")) == {"A": "of the shop"}
    assert sealed.decrypt_existing(TENANT, ["A", "B"]) == {"A": "of the tenant"}


def test_a_secret_decrypts_only_in_its_own_scope() -> None:
    """Write access to the blob store must not allow widening a secret's scope or moving it to another project."""
    blobs = MemoryBlobStore()
    sealed = scoped(blobs)
    seal = blobs.get(secret_key(TENANT, "C", "shop", "main"))
    places = [("", ""), ("shop", ""), ("other", ""), ("other", "main"), ("shop", "feature")]
    for project, branch in places:
        blobs.put(secret_key(TENANT, "C", project, branch), seal)

    for at in (JobScope(), JobScope("shop"), JobScope("other"), JobScope("other", "main"), JobScope("shop", "feature")):
        with pytest.raises(Refused, match="'C'"):
            sealed.decrypt(TENANT, ["C"], at)
    assert sealed.decrypt(TENANT, ["C"], JobScope("shop", "main")) == {"C": "of one branch only"}


def test_an_unreadable_secret_is_not_replaced_by_one_of_a_wider_scope() -> None:
    """After a change of `server.key`, a deployment must not get the key that is meant for tests."""
    blobs = MemoryBlobStore()
    scoped(blobs)
    renewed = Secrets(blobs, b"n" * 32)
    renewed.set(TENANT, "A", "of the tenant, anew")

    with pytest.raises(Refused, match="'A' was not encrypted with this server's key; set it again"):
        renewed.decrypt(TENANT, ["A"], JobScope("shop", "main"))
    assert renewed.decrypt(TENANT, ["A"], JobScope("elsewhere")) == {"A": "of the tenant, anew"}
    assert len(renewed.list_all(TENANT)) == 8


def test_a_secret_of_the_legacy_format_still_decrypts() -> None:
    """It was bound to tenant and name only and has no metadata."""
    blobs = MemoryBlobStore()
    sealed = Secrets(blobs, KEY)
    nonce = b"n" * sealing.NONCE_BYTES
    old = sealed._cipher().encrypt(nonce, VALUE.encode(), b'["%s","A"]' % TENANT.encode())
    blobs.put(secret_key(TENANT, "A"), b"\x01" + nonce + old)
    blobs.put(secret_key(TENANT, "A", "shop"), b"\x01" + nonce + old)

    assert sealed.decrypt(TENANT, ["A"]) == {"A": VALUE}
    assert [(each.name, each.version, each.at) for each in sealed.list_all(TENANT)] == [("A", 1, 0)]
    with pytest.raises(Refused, match="not encrypted"):
        sealed.decrypt(TENANT, ["A"], JobScope("shop"))
    assert sealed.set(TENANT, "A", "another one", by="ada", at=7).version == 2


def test_the_metadata_of_a_secret_cannot_be_altered() -> None:
    """It is part of the associated data of the encryption."""
    blobs = MemoryBlobStore()
    sealed = Secrets(blobs, KEY)
    for _ in range(3):
        known = sealed.set(TENANT, "A", VALUE, SecretScope("shop", "release/*"), by="ada", at=5)
    key = secret_key(TENANT, "A", "shop", "release/*")

    assert (known.version, known.by, known.at) == (3, "ada", 5)
    assert sealed.list_all(TENANT) == [known] == [sealed.find(TENANT, "A", known.scope)]
    blobs.put(key, blobs.get(key).replace(b"ada", b"bob"))
    with pytest.raises(Refused, match="not encrypted"):
        sealed.decrypt(TENANT, ["A"], JobScope("shop", "release/1"))


@pytest.mark.parametrize(
    ("scope", "told"),
    [
        (SecretScope("", "main"), "name the project"),
        (SecretScope("p", "!main"), "only patterns with"),
        (SecretScope("p", "a//b"), "a folder without a name"),
        (SecretScope("p", "refs/heads/x"), "the short name"),
        (SecretScope("p" * 201), "at most 200"),
        (SecretScope("a\nb"), "printable"),
    ],
)
def test_a_scope_that_can_match_nothing_is_refused(scope: SecretScope, told: str) -> None:
    """A secret whose scope matches nothing would be noticed only when a job needs it."""
    sealed = Secrets(MemoryBlobStore(), KEY)
    with pytest.raises(Refused, match=told):
        sealed.set(TENANT, "A", VALUE, scope)
    assert sealed.list_all(TENANT) == []


def test_the_number_of_secrets_of_a_tenant_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit, an existing secret can still be replaced."""
    monkeypatch.setattr(sealing, "MAX_SECRETS", 2)
    sealed = Secrets(MemoryBlobStore(), KEY)
    sealed.set(TENANT, "A", VALUE)
    sealed.set(TENANT, "A", VALUE, SecretScope("p"))

    with pytest.raises(Refused, match="2 secrets already"):
        sealed.set(TENANT, "B", VALUE)
    assert sealed.set(TENANT, "A", VALUE).version == 2
    sealed.set("other", "B", VALUE)
