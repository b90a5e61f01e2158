"""The HTTP client for forges: which addresses it allows, and what it reads of a response."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest
import trustme

from deltaci.core.errors import Unreachable
from deltaci.forges.http import ForgeHttpClient, NotAllowed, retry_after_seconds
from deltaci.forges.status_decisions import ForgeRequest, ForgeResponse
from tests.contract.backends import on_loop
from tests.forges.fake_forge import FakeForge, PlannedResponse


def request_for(url: str) -> ForgeRequest:
    return ForgeRequest("POST", f"{url}/x", {"Authorization": "Bearer hush"}, {"a": 1})


async def send(outlet: ForgeHttpClient, url: str) -> ForgeResponse:
    try:
        return await outlet.send(request_for(url))
    finally:
        await outlet.close()


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1",
        "https://localhost",
        "https://[::1]",
        "https://169.254.169.254",
        "https://2130706433",
        "http://93.184.216.34",
        "ftp://example.org",
        "https://user:password@93.184.216.34",
        "https://",
        "https://" + "a" * 70 + ".example",
    ],
)
@on_loop
async def test_private_addresses_and_plain_http_are_refused(url: str) -> None:
    with pytest.raises((NotAllowed, Unreachable)) as caught:
        await send(ForgeHttpClient(), url)

    assert isinstance(caught.value, NotAllowed) or "no address" in str(caught.value) or "URL" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "password" not in str(caught.value)


@on_loop
async def test_a_host_may_be_allowed_for_one_port_only() -> None:
    async with FakeForge() as forge, FakeForge() as other:
        assert (await send(ForgeHttpClient([forge.host]), forge.url)).status == 201
        with pytest.raises(NotAllowed):
            await send(ForgeHttpClient([other.host]), forge.url)


@on_loop
async def test_a_redirect_is_not_followed() -> None:
    async with FakeForge() as inside, FakeForge() as forge:
        forge.default = PlannedResponse(302, {"Location": inside.url})

        assert (await send(ForgeHttpClient([forge.host, inside.host]), forge.url)).status == 302
        assert not inside.received


@on_loop
async def test_the_connection_goes_to_the_resolved_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS could return a public address for the check and a private one for the connection."""
    async with FakeForge() as forge:
        port = int(forge.url.rpartition(":")[2])
        asked: list[str] = []

        async def getaddrinfo(_self: Any, host: str, port: int, **_: Any) -> list[Any]:
            asked.append(host)
            address = "127.0.0.1" if len(asked) == 1 else "127.0.0.9"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)

        answer = await send(ForgeHttpClient([f"forge.example:{port}"]), f"http://forge.example:{port}")

        assert answer.status == 201
        assert forge.received[0].headers["host"] == f"forge.example:{port}"
        assert asked[0] == "forge.example"


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


async def _tls_forge(context: ssl.SSLContext) -> tuple[asyncio.Server, int, list[bytes]]:
    received: list[bytes] = []

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 201 So\r\nContent-Length: 8\r\nConnection: close\r\n\r\n" + b'{"id":7}')
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0, ssl=context)
    return server, server.sockets[0].getsockname()[1], received


@pytest.mark.parametrize(("name", "is_trusted"), [("localhost", True), ("another.example", False)])
@on_loop
async def test_the_certificate_must_be_valid_for_the_host_name(
    authority: trustme.CA, name: str, is_trusted: bool
) -> None:
    """Though the connection goes to an IP address."""
    ours, theirs = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(ours)
    authority.issue_cert(name).configure_cert(theirs)
    server, port, received = await _tls_forge(theirs)
    try:
        outlet = ForgeHttpClient([f"localhost:{port}"], tls=ours)
        if is_trusted:
            assert await send(outlet, f"https://localhost:{port}") == ForgeResponse(201, '{"id":7}', 0.0, "7")
        else:
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await send(outlet, f"https://localhost:{port}")
            assert not received
    finally:
        server.close()
        await server.wait_closed()


@on_loop
async def test_a_certificate_of_an_unknown_authority_is_refused(authority: trustme.CA) -> None:
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(theirs)
    server, port, received = await _tls_forge(theirs)
    try:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await send(ForgeHttpClient([f"localhost:{port}"]), f"https://localhost:{port}")
        assert not received
    finally:
        server.close()
        await server.wait_closed()


@on_loop
async def test_only_the_beginning_of_a_long_response_is_read() -> None:
    async with FakeForge() as forge:
        forge.default = PlannedResponse(201, body={"id": 3, "filler": "x" * 1_000_000})

        answer = await send(ForgeHttpClient([forge.host]), forge.url)

        assert (answer.status, len(answer.text), answer.id) == (201, 200, "")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "9" * 400}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "90"}, 30.0),
        ({"x-ratelimit-remaining": "1", "x-ratelimit-reset": "90"}, 0.0),
    ],
)
def test_retry_after_is_read_from_the_headers(headers: dict[str, str], seconds: float) -> None:
    assert retry_after_seconds(headers, 60.0) == seconds


@pytest.mark.parametrize("token", ["hush\n", "hüsh", "hush\x00"])
@on_loop
async def test_an_invalid_token_is_not_shown(token: str) -> None:
    """HTTP libraries quote header values that they cannot send."""
    async with FakeForge() as forge:
        outlet = ForgeHttpClient([forge.host])
        with pytest.raises(NotAllowed) as caught:
            await outlet.send(ForgeRequest("POST", forge.url, {"Authorization": f"Bearer {token}"}, {}))
        await outlet.close()

        assert "sh" not in str(caught.value).replace("perhaps", "")


def test_the_repr_of_a_request_has_no_token() -> None:
    assert "hush" not in repr(request_for("https://example.org"))
