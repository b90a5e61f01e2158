"""Sign-in by OIDC: the authorization code flow with PKCE, bound to the browser that started it.

The state of the flow is kept only in a sealed, short-lived cookie. A code is accepted only together with that cookie,
so that a link cannot sign somebody in as another person.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.server.auth.oidc import (
    OK,
    FetchError,
    IssuerClient,
    bad_token,
    check_installed,
    check_url,
    is_loopback,
    quote_value,
)
from deltaci.server.web import layout
from deltaci.server.web.auth.oidc_grants import GroupGrants, OidcSettings, settings_in
from deltaci.server.web.auth.sessions import VOUCHED_SECONDS, SessionGrant, cookie_of, set_cookie
from deltaci.server.web.page_request import PageResponse, Redirect
from deltaci.server.web.page_route import AnonymousRequest, PageRoute
from deltaci.storage.port import Unavailable

LOGGER: Final = logging.getLogger(__name__)
START: Final = "/sign-in/oidc"
BACK: Final = "/sign-in/oidc/back"
COOKIE: Final = "deltaci_oidc"
FLOW_SECONDS: Final = 600
MAX_CODE_CHARS: Final = 4000
AT_ONCE: Final = 8  # Exchanges: whoever comes with made-up codes must not make us a burden to the issuer.
AGAIN: Final = "try again, or sign in with an API key"


class SignInFlow(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sign-in that this browser started."""

    state: str
    nonce: str
    verifier: str
    to: str
    redirect: str
    expires_at: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SignInFlow).decode


class OidcSignIn:
    """The issuer, the grants of its groups, and the two steps of the flow."""

    def __init__(
        self,
        settings: OidcSettings,
        secret: str = "",
        *,
        public_url: str = "",
        ca: Path | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_installed("--web-oidc")
        self.trust = IssuerClient(settings.issuer, ca=ca, **({"clock": clock} if clock is not None else {}))
        self.grants = GroupGrants(settings)
        self.name = settings.name or urlsplit(settings.issuer).hostname or "the issuer"
        self._settings = settings
        self._secret = secret
        self._public_url = public_url.rstrip("/")
        self._turns = asyncio.Semaphore(AT_ONCE)

    @classmethod
    def of(cls, file: Path, public_url: str) -> OidcSignIn:
        """As the file says; a ValueError that says what is wrong otherwise."""
        settings, secret = settings_in(file)
        parts = urlsplit(public_url)
        if public_url and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError(f"--public-url is {public_url!r}; --web-oidc requires https://…")
        return cls(settings, secret, public_url=public_url, ca=file.parent / settings.ca if settings.ca else None)

    def address(self, to: str) -> str:
        """Where somebody begins: at the address to which the issuer sends them back, for the cookie is of there."""
        return f"{self._public_url}{START}" + (f"?{urlencode({'to': to})}" if to else "")

    # -- there

    async def begin(self, door: AnonymousRequest) -> Redirect:
        """To the issuer, with what binds its answer to this browser."""
        about = await self.trust.metadata()
        flow = SignInFlow(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            to=door.safe(door.query.get("to", "")),
            redirect=f"{self._public_url or _own_address(door)}{BACK}",
            expires_at=door.sessions.now() + FLOW_SECONDS,
        )
        challenge = urlsafe_b64encode(sha256(flow.verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": flow.redirect,
            "scope": " ".join(self._settings.scopes),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = str(about.get("authorization_endpoint"))
        path, _, before = endpoint.partition("?")
        check_url(path, self.trust.issuer)
        cookie = set_cookie(COOKIE, door.sessions.sealed("oidc", _encode(flow)), FLOW_SECONDS, is_secure=door.is_secure)
        return Redirect(to=f"{path}?{before + '&' if before else ''}{urlencode(asked)}", cookies=(cookie,))

    # -- and back

    async def back(self, door: AnonymousRequest) -> tuple[list[SessionGrant], str]:
        """What somebody who comes back is granted, and where they wanted to go."""
        flow = self._flow(door)
        about = await self.trust.metadata()
        told = door.query.get("iss", "")
        if (told or about.get("authorization_response_iss_parameter_supported") is True) and told != self.trust.issuer:
            raise bad_token(f"the answer is of the issuer {quote_value(told)}, not of {self.trust.issuer}")  # RFC 9207.
        if error := door.query.get("error", ""):
            raise Refused("not_allowed", f"{self.name} refused the sign-in: {quote_value(error)}")
        code = door.query.get("code", "")
        if not 0 < len(code) <= MAX_CODE_CHARS:
            raise Refused("bad_request", f"{self.name} sent no code; {AGAIN}")
        claims = await self._exchanged(str(about.get("token_endpoint")), about, code, flow)
        self._check_is_ours(claims, flow)
        person = self.grants.person(claims)
        expires_at = int((door.sessions.now() + VOUCHED_SECONDS) * SECOND)
        granted = self.grants.granted(claims, person, expires_at)
        if not granted:
            raise Refused(
                "not_allowed",
                f"you are {person}, but none of your groups has access here; ask an administrator of this server",
            )
        return granted, flow.to

    def _flow(self, door: AnonymousRequest) -> SignInFlow:
        body = door.sessions.opened("oidc", cookie_of(door.request, COOKIE, is_secure=door.is_secure))
        try:
            flow = _decode(body) if body is not None else None
        except msgspec.DecodeError:
            flow = None
        state = door.query.get("state", "")
        if flow is None or flow.expires_at <= door.sessions.now():
            raise Refused("not_allowed", f"this browser did not start this sign-in, or it has expired; {AGAIN}")
        if not hmac.compare_digest(state.encode(), flow.state.encode()):
            raise Refused("not_allowed", f"the response belongs to a different sign-in of this browser; {AGAIN}")
        return flow

    async def _exchanged(self, endpoint: str, about: dict[str, Any], code: str, flow: SignInFlow) -> dict[str, Any]:
        """The claims of the token that the code is good for."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.redirect,
            "client_id": self._settings.client_id,
            "code_verifier": flow.verifier,
        }
        headers: dict[str, str] = {}
        ways = about.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if self._secret and isinstance(ways, list) and "client_secret_basic" not in ways:
            form["client_secret"] = self._secret
        elif self._secret:
            both = f"{quote(self._settings.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {b64encode(both.encode()).decode()}"
        async with self._turns:
            status, answer = await self.trust.post(endpoint, form, headers)
        token = answer.get("id_token")
        if status != OK or not isinstance(token, str):
            LOGGER.warning("signing in: %s answers %d %s", endpoint, status, quote_value(answer.get("error")))
            raise Refused(
                "bad_credential", f"{self.name} did not accept the code: {quote_value(answer.get('error'))}; {AGAIN}"
            )
        return await self.trust.claims(token)

    def _check_is_ours(self, claims: dict[str, Any], flow: SignInFlow) -> None:
        ours = self._settings.client_id
        audience = claims.get("aud")
        listed = audience if isinstance(audience, list) else [audience]
        if ours not in listed or (len(listed) > 1 and claims.get("azp") != ours) or claims.get("azp", ours) != ours:
            raise bad_token(
                f"it is for {quote_value(audience)}, by {quote_value(claims.get('azp'))}; expected it for {ours!r}"
            )
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), flow.nonce.encode()):
            raise bad_token("it was not made for this browser")


def _own_address(door: AnonymousRequest) -> str:
    """Where we are, on this machine; elsewhere the name in a request proves nothing."""
    host = door.request.header(b"host")
    if not is_loopback(urlsplit(f"//{host}").hostname or ""):
        raise Refused(
            "not_allowed", "the server does not know its public address; start it with --public-url https://…"
        )
    return f"{'https' if door.is_secure else 'http'}://{host}"


# -- the pages


async def start(door: AnonymousRequest) -> PageResponse:
    """Somebody wants to sign in by the issuer."""
    if door.oidc is None:
        raise Refused("not_found", "this server trusts no issuer; sign in with an API key")
    try:
        return await door.oidc.begin(door)
    except (FetchError, Unavailable, ValueError) as error:
        return _not_now(door.oidc, error)


async def back(door: AnonymousRequest) -> PageResponse:
    """The issuer sends somebody back. Whatever it sent is gone from the address before anything is shown."""
    if door.oidc is None:
        raise Refused("not_found", "this server trusts no issuer; sign in with an API key")
    gone = set_cookie(COOKIE, "", 0, is_secure=door.is_secure)
    try:
        granted, to = await door.oidc.back(door)
    except Refused as refused:
        return Redirect(to="/sign-in", said=layout.sentence(refused.message), is_bad=True, cookies=(gone,))
    except (FetchError, Unavailable, ValueError) as error:
        return msgspec.structs.replace(_not_now(door.oidc, error), cookies=(gone,))
    session = await door.sessions.begin(granted, door.session)
    kept = sum(each in granted for each in session.grants)
    said = f"You are signed in to {kept} of your {len(granted)} tenants." if kept < len(granted) else ""
    cookie = door.sessions.cookie(session, is_secure=door.is_secure)
    return Redirect(to=to or "/runs", said=said, cookies=(gone, cookie))


def _not_now(oidc: OidcSignIn, error: Exception) -> Redirect:
    LOGGER.warning("signing in by %s: %s", oidc.trust.issuer, error)
    return Redirect(to="/sign-in", said=layout.sentence(f"{oidc.name} cannot be reached now; {AGAIN}"), is_bad=True)


PAGES: Final = (PageRoute(path=START, enter=start), PageRoute(path=BACK, enter=back))
