"""OIDC: an issuer that runs anyway (a cluster, a cloud, another CI) vouches for runners with tokens of its own.

The issuer's keys are fetched from it, kept for a while, and fetched anew when a token names one that is not known, but
never often: whoever shows nonsense must not be able to make this server a burden to the issuer.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import ssl
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64decode
from collections.abc import Callable
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from deltaci.core.errors import Refused
from deltaci.server.credentials import is_runner_name, is_tenant_name
from deltaci.server.protocol import Runner
from deltaci.store.port import Unavailable
from deltaci.wire.certificates import load_authorities

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
        if find_spec("joserfc") is None:
            raise ValueError("--oidc-issuer needs the extra 'oidc'; install it with: pip install 'deltaci[oidc]'")
        if not audience:
            raise ValueError("--oidc-issuer needs --oidc-audience: the name by which tokens are meant for this server")
        _check_url(issuer, issuer)
        self._issuer = issuer
        self._audience = audience
        self._tenant_claim = tenant_claim
        self._runner_claim = runner_claim
        self._clock = clock
        self._monotonic = monotonic
        self._keys: dict[str, Any] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._tls = ssl.create_default_context() if urlsplit(issuer).scheme == "https" else None
        if self._tls is not None and ca is not None:
            load_authorities(self._tls, ca)

    async def runner(self, token: str) -> Runner:
        """Whom the token names, if the issuer signed it, for this server, and it is good now."""
        kid = self._look(token)
        key = await self._key(kid)
        claims = self._verified(token, key)
        tenant = self._claim(claims, self._tenant_claim) if self._tenant_claim else "default"
        runner = self._claim(claims, self._runner_claim)
        if not is_tenant_name(tenant):
            raise _bad(
                f"claim {self._tenant_claim!r} is {_shown(tenant)}; expected a tenant of 1 to 200 printable ASCII"
            )
        if not is_runner_name(runner):
            raise _bad(
                f"claim {self._runner_claim!r} is {_shown(runner)}; expected a runner's name of 1 to 100 printable "
                "ASCII characters without a slash; choose another claim with --oidc-runner-claim"
            )
        return Runner(runner, tenant)

    def _look(self, token: str) -> str:
        """The key that it claims to be signed with. What cannot be good is refused before anything is fetched."""
        try:
            head, claims, _ = token.split(".")
            header, told = (_decode(urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in (head, claims))
        except (ValueError, RecursionError):  # msgspec's errors are values too.
            raise _bad("the token is neither one of this server nor a signed JWT") from None
        kid = header.get("kid", "")
        if header.get("alg") not in ALGORITHMS or not isinstance(kid, str):
            raise _bad(f"alg is {_shown(header.get('alg'))}; expected one of {', '.join(ALGORITHMS)}")
        if told.get("iss") != self._issuer:
            raise _bad(f"iss is {_shown(told.get('iss'))}; this server trusts {self._issuer}")
        return kid

    def _verified(self, token: str, key: Any) -> dict[str, Any]:
        from joserfc import errors, jwt

        try:
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=ALGORITHMS).claims
        except (errors.JoseError, ValueError, TypeError) as error:
            raise _bad(f"its signature or form is wrong ({type(error).__name__})") from None
        if claims.get("iss") != self._issuer:
            raise _bad(f"iss is {_shown(claims.get('iss'))}; this server trusts {self._issuer}")
        if claims.get("aud") not in (self._audience, [self._audience]):
            raise _bad(f"aud is {_shown(claims.get('aud'))}; ask the issuer for a token for {self._audience!r} alone")
        now = self._clock()
        if _time(claims, "exp") <= now - LEEWAY_SECONDS:
            raise Refused("expired_credential", "the OIDC token is too old; get a fresh one from the issuer")
        if max(_time(claims, "iat"), _time(claims, "nbf", missing=0.0)) > now + LEEWAY_SECONDS:
            raise _bad("it is from the future; set the clocks of the issuer and of this server right")
        return claims

    @staticmethod
    def _claim(claims: dict[str, Any], name: str) -> Any:
        if not name.startswith("/"):
            return claims.get(name)
        found: Any = claims
        for part in name[1:].split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    # -- the issuer's keys

    async def _key(self, kid: str) -> Any:
        if self._is_needed(kid):
            async with self._fetching:
                if self._is_needed(kid):  # Somebody may have fetched it meanwhile.
                    await self._refresh()
        key = self._known(kid)
        if key is None:
            raise _bad(f"the issuer has no key {_shown(kid)}; get a fresh token")
        return key

    def _is_needed(self, kid: str) -> bool:
        return self._monotonic() - self._fetched_at > KEEP_SECONDS or self._known(kid) is None

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
            self._keys = await asyncio.to_thread(self._fetch)
        except NotFetched as error:
            raise Unavailable(f"the keys of the OIDC issuer cannot be fetched: {error}") from error
        self._fetched_at = now

    def _fetch(self) -> dict[str, Any]:
        """Runs in a thread of its own."""
        from joserfc import errors
        from joserfc.jwk import ECKey, OKPKey, RSAKey

        about = self._get(self._issuer.rstrip("/") + "/.well-known/openid-configuration")
        if about.get("issuer") != self._issuer:
            raise NotFetched(f"its configuration is of issuer {_shown(about.get('issuer'))}, not of {self._issuer}")
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
        return found

    def _get(self, url: str) -> dict[str, Any]:
        _check_url(url, self._issuer)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if self._tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._tls))
        else:
            handlers.append(urllib.request.ProxyHandler({}))
        ends_at = time.monotonic() + 2 * FETCH_SECONDS
        try:
            asked = urllib.request.Request(url, headers={"Accept": "application/json"})
            with urllib.request.build_opener(*handlers).open(asked, timeout=FETCH_SECONDS) as answer:
                body = b""
                while part := answer.read1(64 * 1024):
                    body += part
                    if len(body) > MAX_FETCH_BYTES:
                        raise NotFetched(f"{url} has more than {MAX_FETCH_BYTES} bytes")
                    if time.monotonic() > ends_at:
                        raise NotFetched(f"{url} takes too long")
            return _decode(body)
        except urllib.error.HTTPError as error:
            error.close()
            raise NotFetched(f"{url} answers {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotFetched(f"{url}: {getattr(error, 'reason', None) or error}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An issuer is where it says it is. Following it elsewhere would let it send this server anywhere."""

    def redirect_request(self, *_: Any) -> None:
        """Nowhere: the redirect itself becomes the answer."""


def _check_url(url: str, issuer: str) -> None:
    """Keys that came over an open wire prove nothing. On one machine there is no wire."""
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and parts.username is None and not parts.query and not parts.fragment
        is_secure = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or ""))
        is_local = urlsplit(issuer).scheme == "http"
    except ValueError:
        is_good = is_secure = is_local = False
    if not is_good or not is_secure or (parts.scheme == "http" and not is_local):
        message = f"the OIDC address {_shown(url)} cannot be used; expected https://HOST/… (http only on this machine)"
        raise ValueError(message) if url == issuer else NotFetched(message)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _time(claims: dict[str, Any], name: str, missing: float | None = None) -> float:
    value = claims.get(name, missing)
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise _bad(f"{name} is {_shown(value)}; expected a time in seconds")
    return value


def _bad(found: str) -> Refused:
    return Refused("bad_credential", f"the OIDC token is refused: {found}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
