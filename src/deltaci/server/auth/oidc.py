"""OIDC: an issuer that runs anyway (a cluster, a cloud, another CI) vouches for runners, or for people, with tokens.

The issuer's keys are fetched from it, kept for a while, and fetched anew when a token names one that is not known, but
never often: whoever shows nonsense must not be able to make this server a burden to the issuer.
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
KEEP_SECONDS: Final = 3600.0
REFRESH_SECONDS: Final = 10.0
FETCH_SECONDS: Final = 5.0
MAX_FETCH_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 100
MAX_SHOWN: Final = 100
OK: Final = 200

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class NotFetched(Exception):
    """The issuer did not give what it should."""


class OidcIssuer:
    """One issuer, and how its claims name a runner. A claim is a name, or a path like `/kubernetes.io/pod/name`."""

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
        self._trust = Trust(issuer, ca=ca, clock=clock, monotonic=monotonic)
        self._audience = audience
        self._tenant_claim = tenant_claim
        self._runner_claim = runner_claim

    async def runner(self, token: str) -> Runner:
        """Whom the token names, if the issuer signed it, for this server, and it is good now."""
        claims = await self._trust.claims(token)
        if claims.get("aud") not in (self._audience, [self._audience]):
            raise bad(f"aud is {shown(claims.get('aud'))}; ask the issuer for a token for {self._audience!r} alone")
        tenant = claim(claims, self._tenant_claim) if self._tenant_claim else "default"
        runner = claim(claims, self._runner_claim)
        if not is_tenant_name(tenant):
            raise bad(f"claim {self._tenant_claim!r} is {shown(tenant)}; expected a tenant of 1 to 200 printable ASCII")
        if not is_runner_name(runner):
            raise bad(
                f"claim {self._runner_claim!r} is {shown(runner)}; expected a runner's name of 1 to 100 printable "
                "ASCII characters without a slash; choose another claim with --oidc-runner-claim"
            )
        return Runner(runner, tenant)


def check_installed(option: str) -> None:
    """Refuse, at the start, what could not be done later."""
    if find_spec("joserfc") is None:
        raise ValueError(f"{option} needs the extra 'oidc'; install it with: pip install 'deltaci[oidc]'")


def claim(claims: dict[str, Any], name: str) -> Any:
    """What the claims say under this name, or at this path."""
    if not name.startswith("/"):
        return claims.get(name)
    found: Any = claims
    for part in name[1:].split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


class Trust:
    """One issuer: what it says of itself, its keys, and what it signed with them."""

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
        self._about: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._tls = ssl.create_default_context() if urlsplit(issuer).scheme == "https" else None
        if self._tls is not None and ca is not None:
            load_authorities(self._tls, ca)

    async def claims(self, token: str) -> dict[str, Any]:
        """What the token says, if the issuer signed it and it is good now. For whom it is, the caller looks at."""
        kid = self._look(token)
        key = await self._key(kid)
        return self._verified(token, key)

    async def about(self) -> dict[str, Any]:
        """What the issuer says of itself: where it is asked for what."""
        if self._is_old():
            async with self._fetching:
                if self._is_old():
                    await self._refresh()
        return self._about

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Send it a form: the status and what it answers, also when it refuses."""
        asked = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", **headers}
        return await asyncio.to_thread(self._ask, url, asked, urlencode(form).encode())

    def _look(self, token: str) -> str:
        """The key that it claims to be signed with. What cannot be good is refused before anything is fetched."""
        try:
            head, claims, _ = token.split(".")
            header, told = (_decode(urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in (head, claims))
        except (ValueError, RecursionError):  # msgspec's errors are values too.
            raise bad("the token is neither one of this server nor a signed JWT") from None
        kid = header.get("kid", "")
        if header.get("alg") not in ALGORITHMS or not isinstance(kid, str):
            raise bad(f"alg is {shown(header.get('alg'))}; expected one of {', '.join(ALGORITHMS)}")
        if told.get("iss") != self.issuer:
            raise bad(f"iss is {shown(told.get('iss'))}; this server trusts {self.issuer}")
        return kid

    def _verified(self, token: str, key: Any) -> dict[str, Any]:
        from joserfc import errors, jwt

        try:
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=ALGORITHMS).claims
        except (errors.JoseError, ValueError, TypeError) as error:
            raise bad(f"its signature or form is wrong ({type(error).__name__})") from None
        if claims.get("iss") != self.issuer:
            raise bad(f"iss is {shown(claims.get('iss'))}; this server trusts {self.issuer}")
        now = self._clock()
        if _time(claims, "exp") <= now - LEEWAY_SECONDS:
            raise Refused("expired_credential", "the OIDC token is too old; get a fresh one from the issuer")
        if max(_time(claims, "iat"), _time(claims, "nbf", missing=0.0)) > now + LEEWAY_SECONDS:
            raise bad("it is from the future; set the clocks of the issuer and of this server right")
        return claims

    # -- the issuer's keys

    async def _key(self, kid: str) -> Any:
        if self._is_needed(kid):
            async with self._fetching:
                if self._is_needed(kid):  # Somebody may have fetched it meanwhile.
                    await self._refresh()
        key = self._known(kid)
        if key is None:
            raise bad(f"the issuer has no key {shown(kid)}; get a fresh token")
        return key

    def _is_needed(self, kid: str) -> bool:
        return self._is_old() or self._known(kid) is None

    def _is_old(self) -> bool:
        return self._monotonic() - self._fetched_at > KEEP_SECONDS

    def _known(self, kid: str) -> Any:
        """The key of this name. A token without a name is signed with the only key there is."""
        if kid:
            return self._keys.get(kid)
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    async def _refresh(self) -> None:
        now = self._monotonic()
        if now - self._tried_at < REFRESH_SECONDS:
            raise Unavailable("the OIDC issuer's keys were asked for just now and did not fit")
        self._tried_at = now
        try:
            self._about, self._keys = await asyncio.to_thread(self._fetch)
        except NotFetched as error:
            raise Unavailable(f"the keys of the OIDC issuer cannot be fetched: {error}") from error
        self._fetched_at = now

    def _fetch(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Runs in a thread of its own."""
        from joserfc import errors
        from joserfc.jwk import ECKey, OKPKey, RSAKey

        about = self._get(self.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if about.get("issuer") != self.issuer:
            raise NotFetched(f"its configuration is of issuer {shown(about.get('issuer'))}, not of {self.issuer}")
        listed = self._get(str(about.get("jwks_uri"))).get("keys")
        if not isinstance(listed, list):
            raise NotFetched("its list of keys has no 'keys'")
        kinds: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
        found: dict[str, Any] = {}
        for each in listed[:MAX_KEYS]:
            # Keys for something else, or of a kind that we do not take, are none of ours.
            if isinstance(each, dict) and each.get("kty") in kinds and each.get("use", "sig") == "sig":
                try:
                    key = kinds[each["kty"]].import_key(each)
                except (errors.JoseError, ValueError, TypeError, KeyError):
                    continue
                found[str(each.get("kid", ""))] = key
        if not found:
            raise NotFetched("it lists no public key that can be used")
        return about, found

    def _get(self, url: str) -> dict[str, Any]:
        status, found = self._ask(url, {"Accept": "application/json"})
        if status != OK:
            raise NotFetched(f"{url} answers {status}")
        return found

    def _ask(self, url: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, dict[str, Any]]:
        check_url(url, self.issuer)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), _NoErrors()]
        if self._tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._tls))
        else:
            handlers.append(urllib.request.ProxyHandler({}))
        ends_at = time.monotonic() + 2 * FETCH_SECONDS
        try:
            asked = urllib.request.Request(url, body, headers)
            with urllib.request.build_opener(*handlers).open(asked, timeout=FETCH_SECONDS) as answer:
                read = b""
                while part := answer.read1(64 * 1024):
                    read += part
                    if len(read) > MAX_FETCH_BYTES:
                        raise NotFetched(f"{url} has more than {MAX_FETCH_BYTES} bytes")
                    if time.monotonic() > ends_at:
                        raise NotFetched(f"{url} takes too long")
                if body is None and answer.status != OK:
                    return answer.status, {}  # What it says then is for nobody.
                return answer.status, _decode(read)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotFetched(f"{url}: {getattr(error, 'reason', None) or error}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An issuer is where it says it is. Following it elsewhere would let it send this server anywhere."""

    def redirect_request(self, *_: Any) -> None:
        """Nowhere: the redirect itself becomes the answer."""


class _NoErrors(urllib.request.HTTPErrorProcessor):
    """Whatever the status is, it is an answer."""

    def http_response(self, request: Any, response: Any) -> Any:
        """As it came."""
        return response

    https_response = http_response


def check_url(url: str, issuer: str) -> None:
    """Keys that came over an open wire prove nothing. On one machine there is no wire."""
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and parts.username is None and not parts.query and not parts.fragment
        is_secure = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        is_local = urlsplit(issuer).scheme == "http"
    except ValueError:
        is_good = is_secure = is_local = False
    if not is_good or not is_secure or (parts.scheme == "http" and not is_local):
        message = f"the OIDC address {shown(url)} cannot be used; expected https://HOST/… (http only on this machine)"
        raise ValueError(message) if url == issuer else NotFetched(message)


def is_loopback(host: str) -> bool:
    """Whether it is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _time(claims: dict[str, Any], name: str, missing: float | None = None) -> float:
    value = claims.get(name, missing)
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise bad(f"{name} is {shown(value)}; expected a time in seconds")
    return value


def bad(found: str) -> Refused:
    """The refusal of a token."""
    return Refused("bad_credential", f"the OIDC token is refused: {found}")


def shown(value: object) -> str:
    """What was found, as far as somebody should read it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
