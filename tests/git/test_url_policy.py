"""The URL policy: allowed repository URLs, and hosts to which nothing is sent."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core.errors import Refused
from deltaci.git import url_policy
from deltaci.git.url_policy import ALLOWABLE, RepositoryUrl, UrlPolicy, is_public
from tests.contract.backends import on_loop

PUBLIC = UrlPolicy()
ALL = UrlPolicy(frozenset(ALLOWABLE))


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://github.com/acme/shop.git", "github.com", 443),
        ("https://git.example.org:8443/shop", "git.example.org", 8443),
        ("ssh://git@git.example.org/acme/shop.git", "git.example.org", 22),
        ("ssh://git@git.example.org:2222/acme/shop.git", "git.example.org", 2222),
        ("git@github.com:acme/shop.git", "github.com", 22),
        ("https://[2606:50c0::1]/shop", "2606:50c0::1", 443),
    ],
)
def test_valid_urls(url: str, host: str, port: int) -> None:
    """Host and port are parsed; the URL itself is unchanged."""
    address = url_policy.parse_url(url, PUBLIC)

    assert (address.url, address.host, address.port) == (url, host, port)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "printable"),
        ("https://github.com/a b", "spaces"),
        ("https://github.com/a\nb", "printable"),
        ("https://github.com", "path"),
        ("https://github.com/", "path"),
        ("https://user@github.com/a/b", "secret"),
        ("https://user:pass@github.com/a/b", "secret"),
        ("ssh://git:pass@github.com/a/b", "secret"),
        ("ssh://-oProxyCommand=evil/a", "host"),
        ("ssh://-oProxyCommand=evil@github.com/a", "user"),
        ("-oProxyCommand=evil@github.com:a", "begins with"),
        ("git@github.com:-evil", "begins with"),
        ("https://github.com:0x50/a", "like"),
        ("https://github.com/a?b", "nothing else"),
        ("https://github.com/a#b", "nothing else"),
        ("https:///a", "host"),
        ("ext::sh -c evil", "spaces"),
        ("ext::evil", "begins with"),
        ("fd::17/foo", "begins with"),
        ("git://github.com/a/b", "begins with"),
        ("ftp://github.com/a/b", "begins with"),
        ("http://github.com/a/b", "--allow-repositories http"),
        ("file:///srv/git/a", "--allow-repositories file"),
        ("/srv/git/a", "--allow-repositories file"),
        ("../a", "begins with"),
    ],
)
def test_invalid_urls(url: str, reason: str) -> None:
    """Refused with the reason, without using the network."""
    with pytest.raises(Refused) as refused:
        url_policy.parse_url(url, PUBLIC)

    assert reason in refused.value.message


def test_the_operator_may_allow_http_and_local_folders() -> None:
    """A folder needs an absolute path."""
    assert url_policy.parse_url("http://git.example.org/a", ALL).protocol == "http"
    assert url_policy.parse_url("/srv/git/a.git", ALL) == RepositoryUrl(url="file:///srv/git/a.git", protocol="file")
    assert url_policy.parse_url("file:///srv/git/a.git", ALL).url == "file:///srv/git/a.git"
    for url in ("file://host/srv/a", "file:///srv/../etc", "/srv/../etc"):
        with pytest.raises(Refused):
            url_policy.parse_url(url, ALL)


@pytest.mark.parametrize(
    "ip",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "240.0.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:a00:1::"),
    ],
)
def test_private_addresses(ip: str) -> None:
    """Also embedded in an IPv6 address."""
    assert not is_public(ip)


@pytest.mark.parametrize("ip", ["140.82.121.4", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public_addresses(ip: str) -> None:
    assert is_public(ip)


@on_loop
async def test_a_private_host_is_refused() -> None:
    """A host name counts by its IP addresses."""
    for url in ("https://127.0.0.1/a", "https://localhost/a", "ssh://git@[::1]/a", "git@localhost:a"):
        with pytest.raises(Refused) as refused:
            await url_policy.resolve_host(url_policy.parse_url(url, PUBLIC), PUBLIC)
        assert refused.value.code == "not_allowed"
        assert "nothing was sent" in refused.value.message
    resolved = await url_policy.resolve_host(url_policy.parse_url("https://localhost/a", ALL), ALL)
    assert resolved is not None
    assert resolved.port == 443


@on_loop
async def test_nothing_is_sent_to_a_refused_host() -> None:
    """A server at that address gets no connection."""
    is_connected = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_connected.set()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        policy = UrlPolicy(frozenset({"http"}))
        with pytest.raises(Refused):
            await url_policy.resolve_host(url_policy.parse_url(f"http://127.0.0.1:{port}/a", policy), policy)
        assert not is_connected.is_set()
