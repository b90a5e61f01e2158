"""Which repository URLs may be fetched: allowed protocols, and no hosts in private networks unless that is configured.

A host name is resolved once, and git is told to connect to exactly these IP addresses. So a DNS record that changes
between the check and the fetch cannot redirect the fetch to another host.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from deltaci.core.errors import Refused

HTTPS, SSH, HTTP, FILE = "https", "ssh", "http", "file"
PRIVATE: Final = "private"  # Hosts with an address in a private network.
ALLOWABLE: Final = (HTTP, FILE, PRIVATE)
DEFAULT_PORTS: Final = {HTTPS: 443, HTTP: 80, SSH: 22}
MAX_URL_CHARS: Final = 500
RESOLVE_SECONDS: Final = 10.0

_NAT64: Final = IPv6Network("64:ff9b::/96")
_SCP_URL: Final = re.compile(
    r"(?:(?P<user>[A-Za-z0-9._-]+)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^/:-][^:]*)"
)
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9a-f:.]{2,45}", re.IGNORECASE)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class UrlPolicy(msgspec.Struct, frozen=True):
    """The protocols and private hosts that the operator allows in addition to https and ssh to public hosts."""

    allowed: frozenset[str] = frozenset()

    @property
    def protocols(self) -> tuple[str, ...]:
        """Return the protocols that git may use."""
        return (HTTPS, SSH, *(protocol for protocol in (HTTP, FILE) if protocol in self.allowed))


class RepositoryUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A valid repository URL and its parts. `host` is empty for a local folder."""

    url: str
    protocol: str
    host: str = ""
    port: int = 0


class ResolvedHost(msgspec.Struct, frozen=True):
    """A host and port, and the IP addresses that DNS returned for the host."""

    host: str
    port: int
    ips: tuple[str, ...]


class UnresolvedHostError(Exception):
    """DNS returned no address for the host, or did not answer."""


def parse_url(url: str, policy: UrlPolicy) -> RepositoryUrl:
    """Parse a repository URL. Raise `Refused` with the reason if it is invalid or not allowed. Uses no network."""
    if not 0 < len(url) <= MAX_URL_CHARS or not url.isprintable() or " " in url:
        raise _refused_url(url, f"it must have 1 to {MAX_URL_CHARS} printable characters without spaces")
    if url.startswith("/"):
        return _parse_local(f"file://{url}", url, policy)
    if (scp_url := _SCP_URL.fullmatch(url)) is not None and "://" not in url:
        return RepositoryUrl(url=url, protocol=SSH, host=scp_url["host"].lower(), port=DEFAULT_PORTS[SSH])
    try:
        url_parts = urlsplit(url)
        port = url_parts.port
    except ValueError:
        raise _refused_url(url, "expected one like https://host/owner/name.git") from None
    if url_parts.scheme == FILE:
        return _parse_local(url, url_parts.path, policy)
    _check_protocol(url, url_parts.scheme, policy)
    return _parse_remote(url, url_parts, port)


def _parse_local(url: str, folder_path: str, policy: UrlPolicy) -> RepositoryUrl:
    _check_protocol(url, FILE, policy)
    if not folder_path.startswith("/") or urlsplit(url).netloc or ".." in folder_path.split("/"):
        raise _refused_url(url, "expected the absolute path of a folder, e.g. file:///srv/git/name.git")
    return RepositoryUrl(url=f"file://{folder_path}", protocol=FILE)


def _parse_remote(url: str, url_parts: SplitResult, port: int | None) -> RepositoryUrl:
    """Return the parsed URL of a remote repository. Raise `Refused` if a part of it is not allowed."""
    host = (url_parts.hostname or "").lower()
    if not _HOST.fullmatch(host):
        raise _refused_url(url, "its host is not a valid host name")
    if url_parts.password is not None or (url_parts.username is not None and url_parts.scheme != SSH):
        raise _refused_url(
            url, "it contains a user or a password; store that as a secret, and name it as the credential"
        )
    if url_parts.username is not None and not _USER.fullmatch(url_parts.username):
        raise _refused_url(url, "its user is not a valid user name")
    if len(url_parts.path) < 2 or url_parts.path.startswith("/-") or url_parts.query or url_parts.fragment:
        raise _refused_url(url, "expected the path of a repository after the host, and nothing else")
    return RepositoryUrl(url=url, protocol=url_parts.scheme, host=host, port=port or DEFAULT_PORTS[url_parts.scheme])


def _check_protocol(url: str, protocol: str, policy: UrlPolicy) -> None:
    if protocol in policy.protocols:
        return
    if protocol in ALLOWABLE:
        raise _refused_url(url, f"this server does not allow it; start it with --allow-repositories {protocol}")
    raise _refused_url(url, f"expected one that begins with {' or '.join(policy.protocols)}")


def _refused_url(url: str, reason: str) -> Refused:
    return Refused("bad_request", f"{url[:200]!r} is not a valid repository URL: {reason}")


async def resolve_host(repository_url: RepositoryUrl, policy: UrlPolicy) -> ResolvedHost | None:
    """Return the IP addresses of a repository URL's host, or None for a local folder.

    Raises `Refused` if one of them is private and the policy does not allow private hosts, and `UnresolvedHostError`.
    """
    if not repository_url.host:
        return None
    ips = await _resolve_ips(repository_url)
    if PRIVATE not in policy.allowed:
        for ip in ips:
            if not is_public(ip):
                raise Refused(
                    "not_allowed",
                    f"{repository_url.host} resolves to {ip}, which is not a public address; nothing was sent there. "
                    f"If it should be allowed, start the server with --allow-repositories {PRIVATE}",
                )
    return ResolvedHost(repository_url.host, repository_url.port, tuple(ips))


async def _resolve_ips(repository_url: RepositoryUrl) -> list[str]:
    """Return the IP addresses of the URL's host. Raise `UnresolvedHostError` if it has none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            address_infos = await loop.getaddrinfo(repository_url.host, repository_url.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise UnresolvedHostError(f"{repository_url.host} cannot be resolved: {str(error) or 'no answer'}") from None
    return list(dict.fromkeys(str(address_info[4][0]).partition("%")[0] for address_info in address_infos))


def is_public(ip: str) -> bool:
    """Return whether the IP address, and every address embedded in it, is globally routable and not multicast."""
    return all(address.is_global and not address.is_multicast for address in _effective_addresses(ip_address(ip)))


def _effective_addresses(ip: IPv4Address | IPv6Address) -> Iterable[IPv4Address | IPv6Address]:
    """Return the addresses that packets to `ip` can reach: `ip` itself and the IPv4 addresses that it embeds.

    An IPv4-mapped address is only another notation: its IPv4 address alone is returned.
    """
    if isinstance(ip, IPv6Address):
        candidate_addresses = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if ip in _NAT64:
            candidate_addresses.append(IPv4Address(int(ip) & 0xFFFFFFFF))
        embedded_addresses = [address for address in candidate_addresses if address is not None]
        # A mapped address is only another notation for its IPv4 address.
        return embedded_addresses if ip.ipv4_mapped is not None else [ip, *embedded_addresses]
    return [ip]
