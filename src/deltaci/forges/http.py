"""The only way out to forges: HTTP, without redirects, with TLS, and to no address inside that nobody allowed.

An address that a project names is looked up here, and the connection goes to exactly what was looked up: a name that
means something else a moment later changes nothing. Private addresses, and connections without TLS, are only for hosts
that the server's own configuration allows. What is logged or kept never has a header in it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

import httpx
import msgspec

from deltaci import __version__
from deltaci.core.text import plain_line
from deltaci.forges.status_state import Answer, Call

SECONDS: Final = 10.0  # For all of one request.
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_SHOWN: Final = 200
MAX_CONNECTIONS: Final = 64


class NotAllowed(Exception):
    """The address is not one that may be spoken to."""


class Unreachable(Exception):
    """There was no answer, or none that makes sense. Whether it was heard is unknown."""


class _Made(msgspec.Struct, frozen=True):
    """What is read of an answer."""

    id: int | str = ""


class Outlet:
    """Speaks to forges. `allowed` are hosts, with `:port` where one is meant, that may be inside and without TLS."""

    def __init__(self, allowed: Collection[str] = (), *, seconds: float = SECONDS, verify: Any = True) -> None:
        self._allowed = frozenset(each.lower() for each in allowed)
        self._seconds = seconds
        self._http = httpx.AsyncClient(
            verify=verify,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(seconds),
            # No connection is used twice: two names may share an address, and not a certificate.
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0),
            headers={"User-Agent": f"deltaci/{__version__}"},
        )

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def say(self, call: Call) -> Answer:
        """One request. Raises `NotAllowed` or `Unreachable`."""
        return (await self.ask(call))[0]

    async def ask(self, call: Call) -> tuple[Answer, bytes]:
        """One request whose answer has something in it: the bytes, as many as anybody reads."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._ask(call)
        except TimeoutError:
            raise Unreachable(f"no answer within {self._seconds:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Unreachable(plain_line(f"{type(error).__name__}: {error}", MAX_SHOWN)) from None

    async def _ask(self, call: Call) -> tuple[Answer, bytes]:
        if not all(value.isascii() and value.isprintable() for value in call.headers.values()):
            raise NotAllowed("the token has characters that no token has, perhaps a newline; set it again")
        url = httpx.URL(call.url)
        address = await self._address(url)
        has_body = call.method not in ("GET", "DELETE")
        headers = {**call.headers, "Host": url.netloc.decode("ascii")}
        # The certificate must be the name's, wherever the connection goes.
        told = {"sni_hostname": url.raw_host.decode("ascii")} if url.scheme == "https" else {}
        request = self._http.build_request(
            call.method,
            url.copy_with(host=address),
            content=msgspec.json.encode(call.body) if has_body else None,
            headers={**headers, "Content-Type": "application/json"} if has_body else headers,
            extensions=told,
        )
        answer = await self._http.send(request, stream=True)
        try:
            text = await _beginning(answer)
        finally:
            await answer.aclose()
        wait = wait_seconds(answer.headers, time.time())
        return Answer(answer.status_code, _shown(text), wait, _id(text)), text

    async def _address(self, url: httpx.URL) -> str:
        """Where the name leads, if that is allowed."""
        host = url.raw_host.decode("ascii").lower()
        if url.scheme not in ("https", "http") or not host or url.userinfo:
            raise NotAllowed(f"{plain_line(str(url.copy_with(userinfo=b'')), MAX_SHOWN)!r} is no address of a forge")
        port = url.port or (443 if url.scheme == "https" else 80)
        is_allowed = host in self._allowed or f"{host}:{port}" in self._allowed
        if url.scheme != "https" and not is_allowed:
            raise NotAllowed(f"{host} would be told without TLS; use https, or let the server allow {host}:{port}")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unreachable(
                f"{plain_line(host, MAX_SHOWN)} has no address: {getattr(error, 'strerror', '') or error}"
            ) from None
        addresses = [str(each[4][0]) for each in found]
        if not addresses:
            raise Unreachable(f"{host} has no address")
        if not is_allowed and not all(map(is_public, addresses)):
            raise NotAllowed(f"{host} is inside; let the server allow {host}:{port} if that is meant")
        return addresses[0]


def is_public(address: str) -> bool:
    """Whether it is somebody else's, out there. One that hides another in it is judged by that one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if found in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


def wait_seconds(headers: Mapping[str, str], now: float) -> float:
    """How long the forge wants to be left alone; GitHub also says so when its limit is used up."""
    told = headers.get("retry-after", "").strip()
    if told.isascii() and told.isdecimal() and len(told) < 10:
        return float(told)
    if told:
        return _until(told, now)
    if headers.get("x-ratelimit-remaining") == "0":
        reset = headers.get("x-ratelimit-reset", "")
        if reset.isascii() and reset.isdecimal() and len(reset) < 12:
            return max(0.0, int(reset) - now)
    return 0.0


def _until(told: str, now: float) -> float:
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


async def _beginning(answer: httpx.Response) -> bytes:
    """As much of the answer as anybody reads."""
    text = b""
    async for part in answer.aiter_bytes():
        text += part
        if len(text) >= MAX_ANSWER_BYTES:
            break
    return text[:MAX_ANSWER_BYTES]


def _shown(text: bytes) -> str:
    return plain_line(text[: 4 * MAX_SHOWN].decode("utf-8", "replace"), MAX_SHOWN)


def _id(text: bytes) -> str:
    try:
        return str(msgspec.json.decode(text, type=_Made).id)[:MAX_SHOWN]
    except msgspec.DecodeError:
        return ""
