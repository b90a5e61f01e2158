"""TLS, and certificates that say who a runner is: real sockets, real certificates, both of uvicorn's parsers."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvicorn.protocols.http.auto as chosen
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deltaci.core import worker
from deltaci.core.errors import Refused, Unreachable
from deltaci.core.worker import Worker
from deltaci.protocol import messages as wire
from deltaci.runner.tls import InvalidTlsFiles, TlsConfig
from deltaci.server.tls import Peer, server_context
from tests.contract.backends import on_loop
from tests.server.live import LiveServer, run_server
from tests.support.certificates import HERE, Authority, Pair, uri

RUNNER = "deltaci:default/build-1"


class Town:
    """Who signs for the server, who signs for runners, and somebody whom nobody knows."""

    def __init__(self, folder: Path) -> None:
        self.servers = Authority(folder / "certificates", "servers")
        self.runners = Authority(folder / "certificates", "runners")
        self.stranger = Authority(folder / "certificates", "stranger")
        self.here = self.servers.issue(HERE)

    def context(self, *, require_client_cert: bool = False) -> ssl.SSLContext:
        """What the server uses; it believes certificates of runners."""
        return server_context(*self.here, self.runners.pem, require_client_cert=require_client_cert)

    def tls(self, *names: str, by: Authority | None = None, days: float = 1) -> TlsConfig:
        """What a runner with a certificate for these names uses."""
        return TlsConfig(self.servers.pem, *(by or self.runners).issue(*map(uri, names), days=days))


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of those that uvicorn may choose."""
    monkeypatch.setattr(chosen, "AutoHTTPProtocol", request.param)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    """Authorities and certificates."""
    return Town(tmp_path)


async def trouble(live: LiveServer, tls: TlsConfig, url: str = "") -> str:
    """Why the server cannot be reached like this."""
    async with live.client(tls, url=url) as caller:
        with pytest.raises(Unreachable) as caught:
            await caller.run(caller.client.renew)
    return str(caught.value)


async def refusal(live: LiveServer, tls: TlsConfig, token: str = "") -> Refused:
    """Why the server does not let somebody in who reaches it."""
    before = await live.log()
    async with live.client(tls, token) as caller:
        with pytest.raises(Refused) as caught:
            await caller.run(caller.client.renew)
    assert await live.log() == before
    return caught.value


# -- the server's own certificate


@on_loop
async def test_a_runner_sends_nothing_to_a_server_without_a_trusted_certificate(town: Town, tmp_path: Path) -> None:
    """A man in the middle would get the token."""
    elsewhere = town.servers.issue(uri("https://127.0.0.1"))
    for pair, ca, said in (
        (town.here, town.stranger.pem, "signed by an authority that this runner does not trust; give the right"),
        (town.here, None, "signed by an authority that this runner does not trust"),
        (elsewhere, town.servers.pem, "is for another"),
        (town.servers.issue(HERE, days=-1), town.servers.pem, "has expired; renew it on the server"),
    ):
        async with run_server(tmp_path / "server", server_context(*pair)) as live:
            assert said in await trouble(live, TlsConfig(ca))
            assert await live.log() == []


@on_loop
async def test_a_mix_up_of_http_and_https_is_reported_as_that(town: Town, tmp_path: Path) -> None:
    """This is the most common mistake in a URL."""
    async with run_server(tmp_path / "server") as live:
        assert live.url.startswith("http://")
        secure = live.url.replace("http://", "https://")
        assert "does not speak TLS; use http://" in await trouble(live, TlsConfig(), secure)
    async with run_server(tmp_path / "server", town.context()) as live:
        assert live.url.startswith("https://")
        plain = live.url.replace("https://", "http://")
        assert "if it speaks TLS, use https://" in await trouble(live, TlsConfig(), plain)


@on_loop
async def test_old_versions_of_tls_are_refused(town: Town, tmp_path: Path) -> None:
    """They are insecure."""
    assert town.context().minimum_version == ssl.TLSVersion.TLSv1_2
    assert TlsConfig(town.servers.pem).context().minimum_version == ssl.TLSVersion.TLSv1_2
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(town.servers.pem)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1

    async with run_server(tmp_path / "server", town.context()) as live, live.client() as caller:

        def connect() -> None:
            with socket.create_connection(("127.0.0.1", live.port), 10) as bare:
                old.wrap_socket(bare, server_hostname="127.0.0.1").close()

        with pytest.raises(ssl.SSLError):
            await caller.run(connect)


@on_loop
async def test_a_token_authenticates_over_tls_without_a_client_certificate(
    town: Town, tmp_path: Path, parser: None
) -> None:
    """The server may request client certificates without requiring them."""
    async with (
        run_server(tmp_path / "server", town.context()) as live,
        live.client(TlsConfig(town.servers.pem)) as caller,
    ):
        entered = await caller.run(caller.client.register, live.token("w1"), ["linux"], 2)
        caller.client.token = entered.credential

        assert (await caller.run(caller.client.renew)).runner_id == "w1"
        assert await caller.run(caller.client.lease, wire.LeaseRequest(runner_id="w1")) == []
        caller.client.token = ""
        with pytest.raises(Refused, match="no credential"):
            await caller.run(caller.client.renew)


# -- a runner's certificate


@pytest.mark.parametrize("is_required", [False, True])
@on_loop
async def test_an_untrusted_client_certificate_opens_no_connection(
    town: Town, tmp_path: Path, is_required: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends before the request is read. The server's log has the reason, the client says what to do."""
    monkeypatch.setattr("deltaci.server.tls.LOG_SECONDS", 0.0)
    async with run_server(tmp_path / "server", town.context(require_client_cert=is_required)) as live:
        unknown = await trouble(live, town.tls(RUNNER, by=town.stranger))
        expired = await trouble(live, town.tls(RUNNER, days=-1))

        for said in (unknown, expired):
            assert "check that its --client-ca signed the client certificate, and that the certificate has not" in said
        if is_required:
            assert "give --client-cert FILE" in await trouble(live, TlsConfig(town.servers.pem))
        assert "a client certificate was refused: unable to get local issuer certificate" in caplog.text
        assert await live.log() == []


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("https://example.org/build-1",),
        ("spiffe://default/build-1",),
    ],
)
@on_loop
async def test_a_certificate_that_names_no_runner_only_allows_to_connect(
    town: Town, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """With one certificate for all machines, a token identifies the runner. The common name is ignored."""
    pair = town.runners.issue(*map(uri, names), common="deltaci:default/build-1")
    tls = TlsConfig(town.servers.pem, *pair)
    async with run_server(tmp_path / "server", town.context(require_client_cert=True)) as live:
        refused = await refusal(live, tls)
        assert refused.code == "bad_credential"
        assert "give it the URI deltaci:TENANT/RUNNER" in refused.message
        async with live.client(tls) as caller:
            assert (await caller.run(caller.client.register, live.token("w1"), [], 1)).runner_id == "w1"


@pytest.mark.parametrize(
    "names",
    [
        (RUNNER, "deltaci:default/build-2"),
        ("deltaci:build-1",),
        ("deltaci:/build-1",),
        ("deltaci:default/",),
        ("deltaci:default/a/b",),
        ("deltaci:default/a%2Fb",),
        ("deltaci:default/a%0Ab",),
        ("deltaci:default/a%FF",),
        ("deltaci:default/" + "a" * 101,),
        ("deltaci:" + "t" * 201 + "/a",),
    ],
)
@on_loop
async def test_a_certificate_with_a_malformed_runner_name_is_refused(
    town: Town, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """The server does not guess the runner, and a token does not override the certificate."""
    async with run_server(tmp_path / "server", town.context()) as live:
        for token in ("", "dci_anything"):
            refused = await refusal(live, town.tls(*names), token)
            assert refused.code == "bad_credential"
            assert "does not name one runner" in refused.message


@pytest.mark.proves("PRO-X3")
@on_loop
async def test_a_certificate_is_enough(town: Town, tmp_path: Path, parser: None) -> None:
    """A runner with a certificate of the authority is registered by its first request and needs no token."""
    tls = town.tls("https://example.org/", "deltaci:team%20a/build-1")
    async with run_server(tmp_path / "server", town.context()) as live, live.client(tls) as caller:
        assert await caller.run(caller.client.lease, wire.LeaseRequest(runner_id="build-1")) == []
        known = await live.record("build-1")
        assert isinstance(known, Worker)
        assert (known.tenant, known.labels, known.state) == ("team a", (), worker.IDLE)

        entered = await caller.run(caller.client.renew, ["linux"], 3)

        assert (entered.runner_id, entered.credential) == ("build-1", "")
        known = await live.record("build-1")
        assert isinstance(known, Worker)
        assert (known.labels, known.max_concurrent_tasks) == (("linux",), 3)
        with pytest.raises(Refused, match="wrong_runner"):
            await caller.run(caller.client.lease, wire.LeaseRequest(runner_id="build-2"))
        before = await live.log()
        assert await caller.run(caller.client.lease, wire.LeaseRequest(runner_id="build-1")) == []
        assert await live.log() == before


@on_loop
async def test_a_certificate_and_a_token_must_name_the_same_runner(town: Town, tmp_path: Path) -> None:
    """One connection belongs to one runner."""
    async with run_server(tmp_path / "server", town.context()) as live:
        async with live.client(TlsConfig(town.servers.pem)) as caller:
            entered = await caller.run(caller.client.register, live.token("build-1"), [], 1)
        for other in ("deltaci:default/build-2", "deltaci:another/build-1"):
            refused = await refusal(live, town.tls(other), entered.credential)
            assert refused.code == "wrong_runner"
        assert (await refusal(live, town.tls(RUNNER), "dci_nonsense")).code == "bad_credential"

        async with live.client(town.tls(RUNNER), entered.credential) as caller:
            assert (await caller.run(caller.client.renew)).credential.startswith("dci_")


@on_loop
async def test_a_certificate_admits_no_removed_runner_and_no_runner_of_another_tenant(
    town: Town, tmp_path: Path
) -> None:
    """The worker record decides, and it belongs to one tenant."""
    async with run_server(tmp_path / "server", town.context()) as live:
        async with live.client(town.tls(RUNNER)) as caller:
            await caller.run(caller.client.renew)
            await live.server.engine.do(worker.Shutdown(id="build-1"))
            with pytest.raises(Refused, match="was shut down"):
                await caller.run(caller.client.renew)
        assert (await refusal(live, town.tls("deltaci:another/build-1"))).code == "bad_credential"


def test_a_connection_does_not_outlive_its_certificate() -> None:
    """Authorities that issue short-lived certificates rely on expiry in place of revocation."""
    peer = Peer((RUNNER,), expires_at=1000.0)

    assert peer.runner(999.0) == ("default", "build-1")
    with pytest.raises(Refused) as caught:
        peer.runner(1000.0)
    assert caught.value.code == "expired_credential"


@on_loop
async def test_a_renewed_certificate_is_used_without_a_restart(
    town: Town, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the file is written while the runner reads it, and when it names another runner."""
    pair, renewed = town.runners.issue(uri(RUNNER)), town.runners.issue(uri("deltaci:default/build-2"))
    tls = TlsConfig(town.servers.pem, *pair)
    async with run_server(tmp_path / "server", town.context()) as live, live.client(tls) as caller:
        assert (await caller.run(caller.client.renew)).runner_id == "build-1"

        pair.cert.write_bytes(renewed.cert.read_bytes())  # Its key is not there yet.
        assert (await caller.run(caller.client.renew)).runner_id == "build-1"
        pair.key.unlink()
        assert (await caller.run(caller.client.renew)).runner_id == "build-1"
        assert "keeping the previous one" in caplog.text
        pair.become(renewed)

        assert (await caller.run(caller.client.renew)).runner_id == "build-2"


# -- files


def _missing(town: Town, pair: Pair) -> Pair:
    return Pair(pair.cert, pair.key.with_name("nowhere.pem"))


def _mixed(town: Town, pair: Pair) -> Pair:
    return Pair(pair.cert, town.runners.issue().key)


def _locked(town: Town, pair: Pair) -> Pair:
    return town.runners.issue(HERE, password=b"secret")


def _swapped(town: Town, pair: Pair) -> Pair:
    return Pair(pair.key, pair.cert)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_missing, "nowhere.pem cannot be read: No such file"),
        (_mixed, "does not belong to the certificate"),
        (_locked, "without a password"),
        (_swapped, "are not a certificate and its key"),
    ],
)
def test_an_invalid_file_is_named(town: Town, spoil: Callable[[Town, Pair], Pair], said: str) -> None:
    """By server and runner, before anything is started."""
    pair = spoil(town, town.here)

    with pytest.raises(ValueError, match=said):
        server_context(*pair)
    with pytest.raises(InvalidTlsFiles, match=said):
        TlsConfig(town.servers.pem, *pair).context()


def test_an_invalid_authority_file_is_named(town: Town, tmp_path: Path) -> None:
    """A missing file is named, too."""
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")

    for ca, said in ((empty, "has no certificate in PEM"), (tmp_path / "nowhere.pem", "cannot be read")):
        with pytest.raises(ValueError, match=said):
            server_context(*town.here, ca)
        with pytest.raises(InvalidTlsFiles, match=said):
            TlsConfig(ca).context()
    with pytest.raises(ValueError, match="give --client-ca FILE"):
        server_context(*town.here, require_client_cert=True)
    with pytest.raises(InvalidTlsFiles, match="both --client-cert FILE and --client-key FILE"):
        TlsConfig(town.servers.pem, town.here.cert)
