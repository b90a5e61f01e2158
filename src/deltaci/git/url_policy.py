"""Where repositories may be: which protocols, and no hosts of the server's own network unless that is allowed.

A host is looked up once, and git is told to use exactly what was found: a name that changes its mind between the look
and the fetch leads nowhere else.
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
PRIVATE: Final = "private"  # Hosts that are not reachable from everywhere.
ALLOWABLE: Final = (HTTP, FILE, PRIVATE)
PORTS: Final = {HTTPS: 443, HTTP: 80, SSH: 22}
MAX_URL: Final = 500
RESOLVE_SECONDS: Final = 10.0

_NAT64: Final = IPv6Network("64:ff9b::/96")
_SHORT: Final = re.compile(r"(?:(?P<user>[A-Za-z0-9._-]+)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^/:-][^:]*)")
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9a-f:.]{2,45}", re.IGNORECASE)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class Rules(msgspec.Struct, frozen=True):
    """What whoever started the server allows beside https and ssh to hosts that everybody can reach."""

    allowed: frozenset[str] = frozenset()

    @property
    def protocols(self) -> tuple[str, ...]:
        """Which git may use."""
        return (HTTPS, SSH, *(each for each in (HTTP, FILE) if each in self.allowed))


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A repository's address that makes sense. `host` is empty for a folder of this machine."""

    url: str
    protocol: str
    host: str = ""
    port: int = 0


class Resolved(msgspec.Struct, frozen=True):
    """The addresses of a host, as they were when they were looked at."""

    host: str
    port: int
    ips: tuple[str, ...]


def read(url: str, rules: Rules) -> Address:
    """The address, or a refusal that says what is wrong with it. Nothing is asked of the network."""
    if not 0 < len(url) <= MAX_URL or not url.isprintable() or " " in url:
        raise _bad(url, f"it has 1 to {MAX_URL} printable characters without spaces")
    if url.startswith("/"):
        return _local(f"file://{url}", url, rules)
    if (short := _SHORT.fullmatch(url)) is not None and "://" not in url:
        return Address(url=url, protocol=SSH, host=short["host"].lower(), port=PORTS[SSH])
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad(url, "expected one like https://host/owner/name.git") from None
    if parts.scheme == FILE:
        return _local(url, parts.path, rules)
    _check_protocol(url, parts.scheme, rules)
    return _remote(url, parts, port)


def _local(url: str, path: str, rules: Rules) -> Address:
    _check_protocol(url, FILE, rules)
    if not path.startswith("/") or urlsplit(url).netloc or ".." in path.split("/"):
        raise _bad(url, "a folder is named by its whole path, e.g. file:///srv/git/name.git")
    return Address(url=f"file://{path}", protocol=FILE)


def _remote(url: str, parts: SplitResult, port: int | None) -> Address:
    host = (parts.hostname or "").lower()
    if not _HOST.fullmatch(host):
        raise _bad(url, "its host makes no sense")
    if parts.password is not None or (parts.username is not None and parts.scheme != SSH):
        raise _bad(url, "it has a user or a password in it; keep that as a secret, and name it as the credential")
    if parts.username is not None and not _USER.fullmatch(parts.username):
        raise _bad(url, "its user makes no sense")
    if len(parts.path) < 2 or parts.path.startswith("/-") or parts.query or parts.fragment:
        raise _bad(url, "expected the path of a repository behind the host, and nothing else")
    return Address(url=url, protocol=parts.scheme, host=host, port=port or PORTS[parts.scheme])


def _check_protocol(url: str, protocol: str, rules: Rules) -> None:
    if protocol in rules.protocols:
        return
    if protocol in ALLOWABLE:
        raise _bad(url, f"this server does not allow it; start it with --allow-repositories {protocol}")
    raise _bad(url, f"expected one that begins with {' or '.join(rules.protocols)}")


def _bad(url: str, why: str) -> Refused:
    return Refused("bad_request", f"{url[:200]!r} is no address of a repository: {why}")


async def resolved(address: Address, rules: Rules) -> Resolved | None:
    """Where the host is now, if one may go there; None for a folder. Refused when one of its addresses is private."""
    if not address.host:
        return None
    found = await _looked_up(address)
    if PRIVATE not in rules.allowed:
        for each in found:
            if not is_public(each):
                raise Refused(
                    "not_allowed",
                    f"{address.host} is at {each}, which is not for everybody; nothing was sent there. "
                    f"If it should be, start the server with --allow-repositories {PRIVATE}",
                )
    return Resolved(address.host, address.port, tuple(found))


async def _looked_up(address: Address) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            rows = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise Unresolved(f"{address.host} cannot be found: {str(error) or 'no answer'}") from None
    return list(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows))


class Unresolved(Exception):
    """Nobody knows the host now."""


def is_public(text: str) -> bool:
    """Whether the whole world means the same machine by it, and none of our own."""
    return all(each.is_global and not each.is_multicast for each in _meant(ip_address(text)))


def _meant(ip: IPv4Address | IPv6Address) -> Iterable[IPv4Address | IPv6Address]:
    """An address, and the one that is written inside it."""
    if isinstance(ip, IPv6Address):
        inside = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if ip in _NAT64:
            inside.append(IPv4Address(int(ip) & 0xFFFFFFFF))
        found = [each for each in inside if each is not None]
        # Of one that is only another way to write an address of the old kind, that one is meant.
        return found if ip.ipv4_mapped is not None else [ip, *found]
    return [ip]
