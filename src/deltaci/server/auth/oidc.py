"""OIDC: an external issuer (a cluster, a cloud, another CI system) vouches for runners or people with signed tokens.

The issuer's keys are fetched, cached, and fetched again when a token names an unknown key, but with a minimum interval:
invalid tokens must not make this server a burden to the issuer.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import ssl
import time
import urllib.request
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.certificates import load_authorities
from deltaci.server.auth.credentials import is_runner_name, is_tenant_name
from deltaci.server.runner_api.message_handlers import Runner
from deltaci.storage.port import Unavailable

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
LEEWAY_SECONDS: Final = 30
CACHE_SECONDS: Final = 3600.0
REFRESH_SECONDS: Final = 10.0
FETCH_SECONDS: Final = 5.0
MAX_FETCH_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 100
MAX_QUOTED_CHARS: Final = 100
OK: Final = 200

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class FetchError(Exception):
    """The issuer could not be reached or sent an invalid response."""


class OidcIssuer:
    """Verifies the tokens of an issuer that vouches for runners, and reads tenant and runner from two of their claims.

    A claim is given by name or by a path like `/kubernetes.io/pod/name`.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        tenant_claim: str = "",
        runner_claim: str = "sub",
        ca: Path | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_installed("--oidc-issuer")
        if not audience:
            raise ValueError("--oidc-issuer needs --oidc-audience: the name by which tokens are meant for this server")
        self._client = IssuerClient(issuer, ca=ca, clock=clock, monotonic=monotonic)
        self._audience = audience
        self._tenant_claim = tenant_claim
        self._runner_claim = runner_claim

    async def runner(self, token: str) -> Runner:
        """Return the runner that a valid token for this server names. Raises `Refused` otherwise."""
        claims = await self._client.claims(token)
        if claims.get("aud") not in (self._audience, [self._audience]):
            raise bad_token(
                f"aud is {quote_value(claims.get('aud'))}; ask the issuer for a token for {self._audience!r} alone"
            )
        tenant = claim(claims, self._tenant_claim) if self._tenant_claim else "default"
        runner_name = claim(claims, self._runner_claim)
        if not is_tenant_name(tenant):
            raise bad_token(
                f"claim {self._tenant_claim!r} is {quote_value(tenant)}; expected a tenant of 1 to 200 printable ASCII"
            )
        if not is_runner_name(runner_name):
            raise bad_token(
                f"claim {self._runner_claim!r} is {quote_value(runner_name)}; expected a runner's name of 1 to 100 "
                "printable ASCII characters without a slash; choose another claim with --oidc-runner-claim"
            )
        return Runner(runner_name, tenant)


def check_installed(option: str) -> None:
    """Raise `ValueError` that names this option if the optional library for OIDC is not installed."""
    if find_spec("joserfc") is None:
        raise ValueError(f"{option} needs the extra 'oidc'; install it with: pip install 'deltaci[oidc]'")


def claim(claims: dict[str, Any], name: str) -> Any:
    """Return the claim with this name or at this path, or None if it is missing."""
    if not name.startswith("/"):
        return claims.get(name)
    claim_value: Any = claims
    for path_part in name[1:].split("/"):
        claim_value = claim_value.get(path_part) if isinstance(claim_value, dict) else None
    return claim_value


class IssuerClient:
    """Fetches the metadata and keys of one issuer and verifies its tokens."""

    def __init__(
        self,
        issuer: str,
        *,
        ca: Path | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_url(issuer, issuer)
        self.issuer = issuer
        self._clock = clock
        self._monotonic = monotonic
        self._metadata: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}
        self._fetched_at = self._attempted_at = float("-inf")
        self._fetch_lock = asyncio.Lock()
        self._tls = ssl.create_default_context() if urlsplit(issuer).scheme == "https" else None
        if self._tls is not None and ca is not None:
            load_authorities(self._tls, ca)

    async def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that the issuer signed and that is valid now. Raises `Refused` otherwise.

        The caller checks the audience.
        """
        key_id = self._signing_key_id(token)
        key = await self._key(key_id)
        return self._verify(token, key)

    async def metadata(self) -> dict[str, Any]:
        """Return the issuer's metadata with its endpoints, cached for `CACHE_SECONDS`."""
        if self._is_expired():
            async with self._fetch_lock:
                if self._is_expired():
                    await self._refresh()
        return self._metadata

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Post a form to the issuer. Return the status and the decoded body, also for an error status."""
        all_headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", **headers}
        return await asyncio.to_thread(self._send_request, url, all_headers, urlencode(form).encode())

    def _signing_key_id(self, token: str) -> str:
        """Return the key id in the token's header, or an empty string.

        Raises `Refused` for a malformed token, algorithm or issuer, so that nothing is fetched for it.
        """
        try:
            header_base64, claims_base64, _ = token.split(".")
            token_header, token_claims = (
                _decode(urlsafe_b64decode(part_base64 + "=" * (-len(part_base64) % 4)))
                for part_base64 in (header_base64, claims_base64)
            )
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors.
            raise bad_token("the token is neither one of this server nor a signed JWT") from None
        key_id = token_header.get("kid", "")
        if token_header.get("alg") not in ALGORITHMS or not isinstance(key_id, str):
            raise bad_token(f"alg is {quote_value(token_header.get('alg'))}; expected one of {', '.join(ALGORITHMS)}")
        if token_claims.get("iss") != self.issuer:
            raise bad_token(f"iss is {quote_value(token_claims.get('iss'))}; this server trusts {self.issuer}")
        return key_id

    def _verify(self, token: str, key: Any) -> dict[str, Any]:
        from joserfc import errors, jwt

        try:
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=ALGORITHMS).claims
        except (errors.JoseError, ValueError, TypeError) as error:
            raise bad_token(f"its signature or form is wrong ({type(error).__name__})") from None
        if claims.get("iss") != self.issuer:
            raise bad_token(f"iss is {quote_value(claims.get('iss'))}; this server trusts {self.issuer}")
        now = self._clock()
        if _time_claim(claims, "exp") <= now - LEEWAY_SECONDS:
            raise Refused("expired_credential", "the OIDC token is too old; get a fresh one from the issuer")
        if max(_time_claim(claims, "iat"), _time_claim(claims, "nbf", default=0.0)) > now + LEEWAY_SECONDS:
            raise bad_token("it is from the future; set the clocks of the issuer and of this server right")
        return claims

    # -- the issuer's keys

    async def _key(self, key_id: str) -> Any:
        """Return the issuer's key with this id; fetch the keys if they have expired or lack it.

        Raises `Refused` if the issuer has no such key, and `Unavailable` if the keys cannot be fetched.
        """
        if self._must_refresh(key_id):
            async with self._fetch_lock:
                if self._must_refresh(key_id):  # Another request may have fetched it meanwhile.
                    await self._refresh()
        key = self._cached_key(key_id)
        if key is None:
            raise bad_token(f"the issuer has no key {quote_value(key_id)}; get a fresh token")
        return key

    def _must_refresh(self, key_id: str) -> bool:
        return self._is_expired() or self._cached_key(key_id) is None

    def _is_expired(self) -> bool:
        return self._monotonic() - self._fetched_at > CACHE_SECONDS

    def _cached_key(self, key_id: str) -> Any:
        """Return the issuer's key with this id, or None.

        Without an id, return its only key, or None if it has several.
        """
        if key_id:
            return self._keys.get(key_id)
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    async def _refresh(self) -> None:
        """Fetch metadata and keys. Raises `Unavailable` if that fails or the last try is too recent."""
        now = self._monotonic()
        if now - self._attempted_at < REFRESH_SECONDS:
            raise Unavailable("the OIDC issuer's keys were fetched just now and have no such key")
        self._attempted_at = now
        try:
            self._metadata, self._keys = await asyncio.to_thread(self._fetch)
        except FetchError as error:
            raise Unavailable(f"the keys of the OIDC issuer cannot be fetched: {error}") from error
        self._fetched_at = now

    def _fetch(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the issuer's metadata and its public keys by id. Blocks, so it runs in a thread."""
        from joserfc import errors
        from joserfc.jwk import ECKey, OKPKey, RSAKey

        metadata = self._get_json(self.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if metadata.get("issuer") != self.issuer:
            raise FetchError(
                f"its configuration is of issuer {quote_value(metadata.get('issuer'))}, not of {self.issuer}"
            )
        jwks = self._get_json(str(metadata.get("jwks_uri"))).get("keys")
        if not isinstance(jwks, list):
            raise FetchError("its list of keys has no 'keys'")
        key_types: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
        key_by_id: dict[str, Any] = {}
        for jwk in jwks[:MAX_KEYS]:
            # Skip keys for another use and of unsupported types.
            if isinstance(jwk, dict) and jwk.get("kty") in key_types and jwk.get("use", "sig") == "sig":
                try:
                    key = key_types[jwk["kty"]].import_key(jwk)
                except (errors.JoseError, ValueError, TypeError, KeyError):
                    continue
                key_by_id[str(jwk.get("kid", ""))] = key
        if not key_by_id:
            raise FetchError("it lists no public key that can be used")
        return metadata, key_by_id

    def _get_json(self, url: str) -> dict[str, Any]:
        status, json_document = self._send_request(url, {"Accept": "application/json"})
        if status != OK:
            raise FetchError(f"{url} answers {status}")
        return json_document

    def _send_request(self, url: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, dict[str, Any]]:
        check_url(url, self.issuer)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), _NoErrors()]
        if self._tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._tls))
        else:
            handlers.append(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + 2 * FETCH_SECONDS
        try:
            request = urllib.request.Request(url, body, headers)
            with urllib.request.build_opener(*handlers).open(request, timeout=FETCH_SECONDS) as response:
                received_bytes = b""
                while chunk := response.read1(64 * 1024):
                    received_bytes += chunk
                    if len(received_bytes) > MAX_FETCH_BYTES:
                        raise FetchError(f"{url} has more than {MAX_FETCH_BYTES} bytes")
                    if time.monotonic() > deadline:
                        raise FetchError(f"{url} takes too long")
                if body is None and response.status != OK:
                    return response.status, {}  # The body of an error is not needed.
                return response.status, _decode(received_bytes)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise FetchError(f"{url}: {getattr(error, 'reason', None) or error}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: an issuer could otherwise send this server's requests anywhere."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that the redirect itself is the response."""


class _NoErrors(urllib.request.HTTPErrorProcessor):
    """Returns a response with an error status like any other instead of raising."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def check_url(url: str, issuer: str) -> None:
    """Raise unless the URL is https, or http to a loopback address for an issuer that itself uses http.

    Keys that came over an unencrypted network connection prove nothing. Raises `ValueError` for the issuer's own URL,
    `FetchError` for any other.
    """
    try:
        url_parts = urlsplit(url)
        is_well_formed = (
            bool(url_parts.hostname) and url_parts.username is None and not url_parts.query and not url_parts.fragment
        )
        is_secure = url_parts.scheme == "https" or (
            url_parts.scheme == "http" and is_loopback(url_parts.hostname or "")
        )
        is_local = urlsplit(issuer).scheme == "http"
    except ValueError:
        is_well_formed = is_secure = is_local = False
    if not is_well_formed or not is_secure or (url_parts.scheme == "http" and not is_local):
        message = (
            f"the OIDC address {quote_value(url)} cannot be used; expected https://HOST/… (http only on this machine)"
        )
        raise ValueError(message) if url == issuer else FetchError(message)


def is_loopback(host: str) -> bool:
    """Return whether the host is `localhost` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _time_claim(claims: dict[str, Any], name: str, default: float | None = None) -> float:
    """Return a claim in Unix seconds, or the default if it is missing. Raises `Refused` if it is not a number."""
    claim_value = claims.get(name, default)
    if not isinstance(claim_value, int | float) or isinstance(claim_value, bool) or not isfinite(claim_value):
        raise bad_token(f"{name} is {quote_value(claim_value)}; expected a time in seconds")
    return claim_value


def bad_token(problem: str) -> Refused:
    """Return the error for an OIDC token that is not accepted."""
    return Refused("bad_credential", f"the OIDC token is refused: {problem}")


def quote_value(value: object) -> str:
    """Return `repr(value)`, shortened for an error message."""
    value_text = repr(value)
    return value_text if len(value_text) <= MAX_QUOTED_CHARS else f"{value_text[:MAX_QUOTED_CHARS]}…"
