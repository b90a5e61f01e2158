"""Runners with a token of an OIDC issuer: which tokens are accepted, for which runners, and for how long."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaci.core import worker
from deltaci.core.errors import Refused
from deltaci.core.worker import Worker
from deltaci.protocol import messages as wire
from deltaci.server.auth.oidc import CACHE_SECONDS, MAX_FETCH_BYTES, REFRESH_SECONDS, OidcIssuer
from deltaci.server.runner_api.message_handlers import Runner
from deltaci.storage.port import Unavailable
from tests.contract.backends import on_loop
from tests.server.live import run_server
from tests.support.oidc_issuer import AUDIENCE, CONFIGURATION, TinyIssuer, made, tiny_issuer


@pytest.fixture
def tiny() -> Iterator[TinyIssuer]:
    """An issuer."""
    with tiny_issuer() as issuer:
        yield issuer


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def trusted(tiny: TinyIssuer, clock: Clock | None = None, **options: Any) -> OidcIssuer:
    """The server's side of it."""
    return OidcIssuer(tiny.url, AUDIENCE, monotonic=clock or time.monotonic, **options)


async def why(issuer: OidcIssuer, token: str) -> str:
    """Why the token is refused; the token itself is in no message."""
    with pytest.raises(Refused) as caught:
        await issuer.runner(token)
    assert caught.value.code == "bad_credential"
    assert len(token) < 20 or token not in str(caught.value)
    return caught.value.message


def plain(part: dict[str, Any]) -> str:
    """A part of a token, as it is written."""
    return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


# -- what is no proof


@on_loop
async def test_what_the_issuer_did_not_sign_is_refused(tiny: TinyIssuer) -> None:
    """Altered, unsigned, signed with the public key as if it were a secret, or by a namesake of the issuer's key."""
    issuer = trusted(tiny)
    good = tiny.token()
    assert await issuer.runner(good) == Runner("build-1", "default")
    head, body, seal = good.split(".")
    public = tiny.keys["k1"].as_pem(private=False)
    confused = f"{plain({'alg': 'HS256', 'kid': 'k1'})}.{body}"
    sealed = hmac.new(public, confused.encode(), "sha256").digest()
    confused += "." + urlsafe_b64encode(sealed).decode().rstrip("=")

    for forged in (
        f"{head}.{plain(tiny.claims(sub='build-2'))}.{seal}",
        f"{head}.{body}.{seal[:-4]}AAAA",
        f"{head}.{body}.",
        tiny.token(key=made("ES256", "k1")),
    ):
        assert "its signature or form is wrong" in await why(issuer, forged)
    for alg in ("none", "None", "NONE", None, "HS256", "ES256K", "XS256", 5):
        unsigned = f"{plain({'alg': alg, 'kid': 'k1'})}.{body}."
        assert "expected one of RS256" in await why(issuer, unsigned)
    assert "expected one of RS256" in await why(issuer, confused)


@pytest.mark.parametrize(
    "token", ["", "x", "a.b", "a.b.c", "..", "eyJ.eyJ.x", "ÿ.ÿ.ÿ", "W10.W10.x", "a.b.c.d.e", plain({}) + ".x."]
)
@on_loop
async def test_an_invalid_token_is_refused_without_a_request_to_the_issuer(tiny: TinyIssuer, token: str) -> None:
    """Invalid input must cost nothing."""
    assert "refused" in await why(trusted(tiny), token)
    assert tiny.asked == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"iss": "https://elsewhere.example.org"}, "this server trusts"),
        ({"iss": None}, "this server trusts"),
        ({"aud": "https://other.example.org"}, "aud is"),
        ({"aud": AUDIENCE + "/"}, "aud is"),
        ({"aud": [AUDIENCE, "https://other.example.org"]}, "aud is"),
        ({"aud": []}, "aud is"),
        ({"aud": None}, "aud is"),
        ({"exp": None}, "exp is"),
        ({"exp": "tomorrow"}, "exp is"),
        ({"exp": True}, "exp is"),
        ({"iat": None}, "iat is"),
        ({"iat": 1e12}, "from the future"),
        ({"nbf": 1e12}, "from the future"),
        ({"nbf": "now"}, "nbf is"),
        ({"sub": None}, "'sub' is None"),
        ({"sub": ""}, "'sub' is ''"),
        ({"sub": 7}, "'sub' is 7"),
        ({"sub": "repo:a/b"}, "choose another claim with --oidc-runner-claim"),
        ({"sub": "a\nb"}, "without a slash"),
        ({"sub": "ä"}, "without a slash"),
        ({"sub": "a" * 101}, "without a slash"),
    ],
)
@on_loop
async def test_a_token_for_another_subject_or_audience_is_refused(
    tiny: TinyIssuer, changed: dict[str, Any], said: str
) -> None:
    """A signature of the right issuer is not enough."""
    assert said in await why(trusted(tiny), tiny.token(**changed))


@on_loop
async def test_times_have_a_little_leeway_and_no_more(tiny: TinyIssuer) -> None:
    """Clocks differ by seconds, not by minutes."""
    issuer, now = trusted(tiny), time.time()

    for changed in ({"exp": now - 20}, {"iat": now + 20}, {"nbf": now + 20}, {"nbf": None}):
        assert await issuer.runner(tiny.token(**changed)) == Runner("build-1", "default")
    assert "from the future" in await why(issuer, tiny.token(nbf=now + 60))
    with pytest.raises(Refused) as caught:
        await issuer.runner(tiny.token(exp=now - 40))
    assert caught.value.code == "expired_credential"


# -- what is


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "ES384", "Ed25519"])
@on_loop
async def test_every_kind_of_key_is_understood(tiny: TinyIssuer, alg: str) -> None:
    """Issuers differ."""
    tiny.keys = {"k2": made(alg, "k2")}

    assert await trusted(tiny).runner(tiny.token("k2", aud=[AUDIENCE])) == Runner("build-1", "default")
    unnamed = tiny.token("k2", header={"kid": None})
    assert await trusted(tiny).runner(unnamed) == Runner("build-1", "default")
    tiny.keys["k3"] = made(alg, "k3")
    assert "has no key ''" in await why(trusted(tiny), unnamed)


@on_loop
async def test_claims_name_the_tenant_and_the_runner(tiny: TinyIssuer) -> None:
    """As a cluster writes them: the pod is the runner, the namespace is the tenant."""
    issuer = trusted(tiny, tenant_claim="/kubernetes.io/namespace", runner_claim="/kubernetes.io/pod/name")

    def pod(**told: Any) -> str:
        return tiny.token(claims={**tiny.claims(), "kubernetes.io": told})

    assert await issuer.runner(pod(namespace="team-a", pod={"name": "runner-7"})) == Runner("runner-7", "team-a")
    assert "pod/name' is None" in await why(issuer, pod(namespace="team-a", pod=3))
    assert "expected a tenant" in await why(issuer, pod(namespace="", pod={"name": "runner-7"}))


# -- the issuer's keys


@on_loop
async def test_keys_are_fetched_once_and_again_when_they_changed(tiny: TinyIssuer) -> None:
    """A rotation is noticed with its first token; invented key ids do not cause a request each."""
    clock = Clock()
    issuer = trusted(tiny, clock)
    await asyncio.gather(*(issuer.runner(tiny.token()) for _ in range(20)))
    assert tiny.asked == [CONFIGURATION, "/keys"]

    old = tiny.token()
    tiny.keys = {"k2": made("ES256", "k2")}
    clock.now += REFRESH_SECONDS + 1
    answers = await asyncio.gather(*(issuer.runner(tiny.token("k2")) for _ in range(20)))

    assert set(answers) == {Runner("build-1", "default")}
    assert len(tiny.asked) == 4
    for _ in range(50):
        with pytest.raises(Unavailable):
            await issuer.runner(tiny.token("k2", header={"kid": "made up"}))
    with pytest.raises(Unavailable):
        await issuer.runner(old)
    assert len(tiny.asked) == 4
    clock.now += REFRESH_SECONDS + 1
    assert "has no key 'k1'" in await why(issuer, old)
    assert len(tiny.asked) == 6


@on_loop
async def test_a_revoked_key_is_forgotten_in_time(tiny: TinyIssuer) -> None:
    """Also by a server that receives no token with a new key."""
    clock = Clock()
    issuer = trusted(tiny, clock)
    old = tiny.token()
    assert await issuer.runner(old) == Runner("build-1", "default")

    tiny.keys = {"k2": made("ES256", "k2")}
    clock.now += CACHE_SECONDS + 1

    assert "has no key 'k1'" in await why(issuer, old)


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        (CONFIGURATION, (404, {}, b"{}"), "answers 404"),
        (CONFIGURATION, (302, {"Location": "http://127.0.0.1:1/"}, b""), "answers 302"),
        (CONFIGURATION, (200, {}, b"<html>"), "malformed"),
        (CONFIGURATION, (200, {}, b"[]"), "Expected `object`"),
        (CONFIGURATION, (200, {}, b'{"issuer": "https://elsewhere.example.org"}'), "is of issuer"),
        (CONFIGURATION, (200, {}, b" " * (MAX_FETCH_BYTES + 1)), "more than"),
        ("/keys", (500, {}, b""), "answers 500"),
        ("/keys", (307, {"Location": "/other"}, b""), "answers 307"),
        ("/keys", (200, {}, b'{"keys": 5}'), "has no 'keys'"),
        (
            "/keys",
            (200, {}, b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "k1"}, 5, {"kty": "EC"}]}'),
            "no public key",
        ),
    ],
)
@on_loop
async def test_an_issuer_that_answers_nonsense_is_no_issuer(
    tiny: TinyIssuer, path: str, answer: tuple[int, dict[str, str], bytes], said: str
) -> None:
    """It is never followed elsewhere, and it may come to its senses."""
    clock = Clock()
    issuer = trusted(tiny, clock)
    tiny.answers[path] = answer

    with pytest.raises(Unavailable, match="cannot be fetched") as caught:
        await issuer.runner(tiny.token())

    assert said in str(caught.value)
    assert "/other" not in tiny.asked
    tiny.answers.clear()
    clock.now += REFRESH_SECONDS + 1
    assert await issuer.runner(tiny.token()) == Runner("build-1", "default")


@pytest.mark.parametrize(
    "where", ["http://example.org/keys", "file:///etc/passwd", "ftp://127.0.0.1/", "None", "http://["]
)
@on_loop
async def test_keys_come_over_tls_or_from_this_machine(tiny: TinyIssuer, where: str) -> None:
    """A configuration cannot send the server wherever it likes."""
    about = {"issuer": tiny.url, "jwks_uri": where}
    tiny.answers[CONFIGURATION] = (200, {}, json.dumps(about).encode())

    with pytest.raises(Unavailable, match="cannot be used; expected https"):
        await trusted(tiny).runner(tiny.token())


@pytest.mark.parametrize(
    "issuer",
    ["http://example.org", "", "example.org", "https://", "https://u:p@example.org", "https://e.org/?x=1", "http://["],
)
def test_an_issuer_without_tls_is_refused_at_the_start(issuer: str) -> None:
    """An attacker on the network could replace its keys."""
    with pytest.raises(ValueError, match="expected https"):
        OidcIssuer(issuer, AUDIENCE)


def test_what_the_issuer_needs_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audience, and the package that verifies."""
    with pytest.raises(ValueError, match="--oidc-audience"):
        OidcIssuer("https://example.org", "")
    monkeypatch.setattr("deltaci.server.auth.oidc.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'deltaci\[oidc\]'"):
        OidcIssuer("https://example.org", AUDIENCE)


# -- the whole way


@pytest.mark.proves("PRO-X3")
@on_loop
async def test_a_runner_comes_in_with_an_oidc_token_as_often_as_the_issuer_vouches(
    tiny: TinyIssuer, tmp_path: Path
) -> None:
    """What it gets is a credential like any other."""
    async with run_server(tmp_path, issuer=trusted(tiny)) as live, live.client() as caller:
        first = await caller.run(caller.client.register, tiny.token(), ["linux"], 1)
        again = await caller.run(caller.client.register, tiny.token(), ["linux", "gpu"], 2)

        assert (first.runner_id, again.runner_id) == ("build-1", "build-1")
        caller.client.token = again.credential
        assert await caller.run(caller.client.lease, wire.LeaseRequest(runner_id="build-1")) == []
        known = await live.record("build-1")
        assert isinstance(known, Worker)
        assert (known.labels, known.max_concurrent_tasks) == (("linux", "gpu"), 2)

        before = await live.log()
        for token in (tiny.token(aud="x"), "eyJ.x.y", first.credential):
            with pytest.raises(Refused, match="bad_credential"):
                await caller.run(caller.client.register, token, [], 1)
        await live.server.engine.do(worker.Shutdown(id="build-1"))
        with pytest.raises(Refused, match="was shut down"):
            await caller.run(caller.client.register, tiny.token(), [], 1)
        assert len(await live.log()) == len(before) + 1


@on_loop
async def test_an_issuer_speaks_for_its_own_tenant_only(tiny: TinyIssuer, tmp_path: Path) -> None:
    """A name that another tenant uses is not taken over."""
    async with run_server(tmp_path, issuer=trusted(tiny, tenant_claim="team")) as live, live.client() as caller:
        await caller.run(caller.client.register, live.token("build-1", "team-a"), [], 1)

        with pytest.raises(Refused, match="bad_credential"):
            await caller.run(caller.client.register, tiny.token(team="team-b"), [], 1)
        assert (await caller.run(caller.client.register, tiny.token(team="team-a"), [], 1)).runner_id == "build-1"


@on_loop
async def test_a_server_without_an_issuer_says_so(tiny: TinyIssuer, tmp_path: Path) -> None:
    """The runner's operator reads it first."""
    async with run_server(tmp_path) as live, live.client() as caller:
        with pytest.raises(Refused, match="trusts no OIDC issuer; start it with --oidc-issuer"):
            await caller.run(caller.client.register, tiny.token(), [], 1)
