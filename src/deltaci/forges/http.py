"""HTTP client for forges: no redirects, TLS required, and no private addresses unless the operator allows the host.

The host of a URL is resolved here and the connection goes to exactly that IP address, so a DNS record that changes
after the check has no effect. Log lines and stored problems never contain a header, because headers contain tokens.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from typing import Final

import httpx
import msgspec

from deltaci import __version__
from deltaci.core.errors import Unreachable
from deltaci.core.text import plain_line
from deltaci.forges.status_decisions import ForgeRequest, ForgeResponse
from deltaci.git.url_policy import is_public

REQUEST_SECONDS: Final = 10.0  # The longest time for a request and its response.
MAX_RESPONSE_BYTES: Final = 64 * 1024
MAX_EXCERPT: Final = 200
MAX_CONNECTIONS: Final = 64


class NotAllowed(Exception):
    """The request must not be sent: its address is not allowed, or its token is malformed."""


class _CreatedResource(msgspec.Struct, frozen=True):
    """The part of a response that is decoded: the id of the created resource."""

    id: int | str = ""


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    """Return a TLS context that trusts the public certificate authorities. Reading them takes 20 ms of CPU."""
    return httpx.create_ssl_context(trust_env=False)


class ForgeHttpClient:
    """Sends requests to forges.

    `trusted_hosts`, each with an optional `:port`, may have private addresses and need no TLS.
    """

    def __init__(
        self,
        trusted_hosts: Collection[str] = (),
        *,
        timeout_seconds: float = REQUEST_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._trusted_hosts = frozenset(host.lower() for host in trusted_hosts)
        self._timeout_seconds = timeout_seconds
        self._http = httpx.AsyncClient(
            verify=tls or _public_authorities(),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(timeout_seconds),
            # No connection is reused: two host names may share an IP address but not a certificate.
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0),
            headers={"User-Agent": f"deltaci/{__version__}"},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(self, request: ForgeRequest) -> ForgeResponse:
        """Send a request and return the response of any status.

        Raise `NotAllowed` if it must not be sent, `Unreachable` if there is no response.
        """
        return (await self.send_and_read(request))[0]

    async def send_and_read(self, request: ForgeRequest) -> tuple[ForgeResponse, bytes]:
        """Send a request and return the response of any status with the first `MAX_RESPONSE_BYTES` of its body.

        Raise `NotAllowed` if it must not be sent, `Unreachable` if there is no response.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._send_request(request)
        except TimeoutError:
            raise Unreachable(f"no answer within {self._timeout_seconds:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Unreachable(plain_line(f"{type(error).__name__}: {error}", MAX_EXCERPT)) from None

    async def _send_request(self, request: ForgeRequest) -> tuple[ForgeResponse, bytes]:
        """Send a request to an address that the policy allows. Return the response and its body."""
        if not all(value.isascii() and value.isprintable() for value in request.headers.values()):
            raise NotAllowed("the token contains invalid characters, perhaps a newline; set it again")
        url = httpx.URL(request.url)
        host_ip = await self._resolve_host(url)
        has_body = request.method not in ("GET", "DELETE")
        request_headers = {**request.headers, "Host": url.netloc.decode("ascii")}
        # The certificate must be valid for the host name, though the connection goes to an IP address.
        extensions = {"sni_hostname": url.raw_host.decode("ascii")} if url.scheme == "https" else {}
        http_request = self._http.build_request(
            request.method,
            url.copy_with(host=host_ip),
            content=msgspec.json.encode(request.body) if has_body else None,
            headers={**request_headers, "Content-Type": "application/json"} if has_body else request_headers,
            extensions=extensions,
        )
        response = await self._http.send(http_request, stream=True)
        try:
            response_body = await _read_limited(response)
        finally:
            await response.aclose()
        retry_after = retry_after_seconds(response.headers, time.time())
        return ForgeResponse(
            response.status_code, _excerpt(response_body), retry_after, _resource_id(response_body)
        ), response_body

    async def _resolve_host(self, url: httpx.URL) -> str:
        """Return an IP address of the URL's host. Raises `NotAllowed` if no request may be sent there."""
        host = url.raw_host.decode("ascii").lower()
        if url.scheme not in ("https", "http") or not host or url.userinfo:
            raise NotAllowed(f"{plain_line(str(url.copy_with(userinfo=b'')), MAX_EXCERPT)!r} is not a valid forge URL")
        port = url.port or (443 if url.scheme == "https" else 80)
        is_trusted_host = host in self._trusted_hosts or f"{host}:{port}" in self._trusted_hosts
        if url.scheme != "https" and not is_trusted_host:
            raise NotAllowed(
                f"requests to {host} would be sent without TLS; use https, or let the server allow {host}:{port}"
            )
        try:
            address_infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unreachable(
                f"{plain_line(host, MAX_EXCERPT)} has no address: {getattr(error, 'strerror', '') or error}"
            ) from None
        ip_texts = [str(address_info[4][0]) for address_info in address_infos]
        if not ip_texts:
            raise Unreachable(f"{host} has no address")
        if not is_trusted_host and not all(map(is_public, ip_texts)):
            raise NotAllowed(f"{host} is in a private network; let the server allow {host}:{port} if that is intended")
        return ip_texts[0]


def retry_after_seconds(response_headers: Mapping[str, str], now: float) -> float:
    """Return for how many seconds the forge asks for no further request, or 0 if it does not ask.

    The value is that of `Retry-After`, or else the time until GitHub's exhausted rate limit is reset.
    """
    retry_after = response_headers.get("retry-after", "").strip()
    if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10:
        return float(retry_after)
    if retry_after:
        return _seconds_until(retry_after, now)
    if response_headers.get("x-ratelimit-remaining") == "0":
        reset_at_text = response_headers.get("x-ratelimit-reset", "")
        if reset_at_text.isascii() and reset_at_text.isdecimal() and len(reset_at_text) < 12:
            return max(0.0, int(reset_at_text) - now)
    return 0.0


def _seconds_until(http_date: str, now: float) -> float:
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(http_date).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


async def _read_limited(response: httpx.Response) -> bytes:
    """Read at most `MAX_RESPONSE_BYTES` of the body."""
    body_bytes = b""
    async for chunk in response.aiter_bytes():
        body_bytes += chunk
        if len(body_bytes) >= MAX_RESPONSE_BYTES:
            break
    return body_bytes[:MAX_RESPONSE_BYTES]


def _excerpt(response_body: bytes) -> str:
    return plain_line(response_body[: 4 * MAX_EXCERPT].decode("utf-8", "replace"), MAX_EXCERPT)


def _resource_id(response_body: bytes) -> str:
    try:
        return str(msgspec.json.decode(response_body, type=_CreatedResource).id)[:MAX_EXCERPT]
    except msgspec.DecodeError:
        return ""
