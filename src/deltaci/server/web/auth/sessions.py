"""Browser sessions: a signed cookie that names API keys, never their secrets.

A session contains the tenants that the browser is signed in to, and which one is current. Its grants are checked on
every request: a revoked key, a group without grants or a signed-out session ends access at once.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from deltaci.api.schemas.inputs import SCOPES
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.server.auth.callers import ApiKeys, Caller
from deltaci.server.request import Request
from deltaci.server.web.auth.revoked_sessions import RevokedSessions

COOKIE: Final = "deltaci_session"
SESSION_SECONDS: Final = 7 * 24 * 3600  # Of keys, which can be revoked; everything else ends sooner by itself.
VOUCHED_SECONDS: Final = 12 * 3600  # For so long the word of an issuer, or a link of the operator, lets somebody in.
MAX_GRANTS: Final = 40
MAX_COOKIE_CHARS: Final = 3800  # Browsers keep 4096, with the name.


class SessionGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tenant that the browser is signed in to, authenticated by an API key id, OIDC groups, or as the operator.

    Field names are short in the cookie, so that many tenants fit.
    """

    tenant: str = msgspec.field(name="t")
    person: str = msgspec.field(name="p")
    key_id: str = msgspec.field(name="k", default="")
    issuer: str = msgspec.field(name="i", default="")  # Which one, shortened: another one's groups say nothing.
    groups: tuple[str, ...] = msgspec.field(name="g", default=())
    expires_at: int = msgspec.field(name="e", default=0)
    is_operator: bool = msgspec.field(name="o", default=False)


class WebSession(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the session cookie."""

    id: str
    grants: tuple[SessionGrant, ...]
    current: int
    expires_at: int

    @property
    def tenant(self) -> str:
        """Which one is looked at."""
        return self.grants[self.current].tenant


class GroupPolicy(Protocol):
    """Resolves the OIDC groups of a grant to a caller."""

    def caller(self, grant: SessionGrant) -> Caller:
        """Who that is; refused if the groups give nothing in this tenant."""
        ...


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WebSession).decode


class SessionManager:
    """Creates, signs, reads and ends sessions."""

    def __init__(
        self,
        key: bytes,
        keys: ApiKeys,
        clock: Callable[[], float],
        endings: RevokedSessions,
        trusted: GroupPolicy | None = None,
    ) -> None:
        self._key = key
        self._keys = keys
        self._clock = clock
        self._endings = endings
        self._trusted = trusted

    def now(self) -> float:
        """The time by which sessions end."""
        return self._clock()

    async def begin(self, grants: Sequence[SessionGrant], before: WebSession | None) -> WebSession:
        """Signed in, besides what the browser is signed in to already. The id is new: an old one may be known.

        What does not fit into a cookie is left out, the oldest first."""
        tenants = {each.tenant for each in grants}
        others = tuple(each for each in before.grants if each.tenant not in tenants) if before is not None else ()
        if before is not None:
            await self._endings.end(before.id, before.expires_at)
        session = WebSession(
            id=secrets.token_hex(16),
            grants=(*grants, *others)[:MAX_GRANTS],
            current=0,
            expires_at=int(self._clock()) + SESSION_SECONDS,
        )
        while len(self._written(session)) > MAX_COOKIE_CHARS and len(session.grants) > 1:
            session = msgspec.structs.replace(session, grants=session.grants[:-1])
        return session

    def switch(self, session: WebSession, tenant: str) -> WebSession:
        """The same browser, at another of its tenants; refused if it is not signed in to it."""
        for at, grant in enumerate(session.grants):
            if grant.tenant == tenant:
                return msgspec.structs.replace(session, current=at)
        raise Refused("not_allowed", f"you are not signed in to {tenant[:200]!r}; sign in to it first")

    async def end(self, session: WebSession) -> None:
        """Signed out, everywhere: a copy of the cookie is worth nothing from now on."""
        await self._endings.end(session.id, session.expires_at)

    def cookie(self, session: WebSession | None, *, is_secure: bool) -> str:
        """The header that sets it, or that takes it away."""
        if session is None:
            return set_cookie(COOKIE, "", 0, is_secure=is_secure)
        left = max(0, session.expires_at - int(self._clock()))
        return set_cookie(COOKIE, self._written(session), left, is_secure=is_secure)

    def read(self, request: Request, *, is_secure: bool) -> WebSession | None:
        """The session that the request shows, if it is one of ours and still good."""
        body = self.opened("session", cookie_of(request, COOKIE, is_secure=is_secure))
        try:
            session = _decode(body) if body is not None else None
        except msgspec.DecodeError:  # An earlier version of the server wrote it.
            return None
        if session is None or session.expires_at <= self._clock() or not 0 <= session.current < len(session.grants):
            return None
        return session

    async def caller(self, session: WebSession) -> Caller:
        """Who that is now; refused if what let them in is no longer good."""
        if await self._endings.is_ended(session.id):
            raise Refused("bad_credential", "you have signed out; sign in again")
        return await self._granted(session.grants[session.current])

    async def _granted(self, grant: SessionGrant) -> Caller:
        if grant.key_id:
            return await self._keys.caller_by_id(grant.key_id)
        if grant.expires_at <= self._clock() * SECOND:
            raise Refused("expired_credential", "your session has expired; sign in again")
        if grant.is_operator:
            return Caller(
                tenant=grant.tenant,
                person=grant.person,
                scopes=frozenset(SCOPES),
                expires_at=grant.expires_at,
                is_operator=True,
            )
        if self._trusted is None:
            raise Refused("bad_credential", "this server no longer trusts an issuer; sign in with an API key")
        return self._trusted.caller(grant)

    def csrf(self, session: WebSession, tenant: str = "") -> str:
        """What every form of this session carries, for the tenant that it was drawn for: no other site can know it."""
        told = f"{session.id} {tenant or session.tenant}"
        return hmac.digest(self._key, b"web form\0" + told.encode(), "sha256").hex()

    def check_form(self, session: WebSession, form: Sequence[str], *, is_any: bool = False) -> None:
        """Refuse a form of another session, or, unless any of the session's will do, of another tenant."""
        token = form[0] if len(form) == 1 else ""
        if hmac.compare_digest(token.encode(), self.csrf(session).encode()):
            return
        for grant in session.grants:
            if hmac.compare_digest(token.encode(), self.csrf(session, grant.tenant).encode()):
                if is_any:
                    return
                raise Refused(
                    "not_allowed",
                    f"nothing was done: the form belongs to the tenant {grant.tenant!r}, but this browser now shows "
                    f"{session.tenant!r}; switch back and submit it again",
                )
        raise Refused("not_allowed", "nothing was done: the form belongs to another session; reload the page")

    # -- what is sealed

    def sealed(self, use: str, body: bytes) -> str:
        """As text that only this server can have written, for this use."""
        return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in (body, self._seal(use, body)))

    def opened(self, use: str, text: str) -> bytes | None:
        """What was sealed; None for everything else."""
        if not text or len(text) > MAX_COOKIE_CHARS or not text.isascii():
            return None
        try:
            body, seal = (urlsafe_b64decode(part + "==") for part in text.split("."))
        except ValueError:
            return None
        return body if hmac.compare_digest(seal, self._seal(use, body)) else None

    def _written(self, session: WebSession) -> str:
        return self.sealed("session", _encode(session))

    def _seal(self, use: str, body: bytes) -> bytes:
        return hmac.digest(self._key, f"web {use}\0".encode() + body, "sha256")


def cookie_name(name: str, *, is_secure: bool) -> str:
    """Where there is TLS, one that no neighbour under the same domain can set."""
    return f"__Host-{name}" if is_secure else name


def set_cookie(name: str, value: str, seconds: int, *, is_secure: bool) -> str:
    """The header for a cookie that no script reads and no other site sends, except by a link to here."""
    secure = "; Secure" if is_secure else ""
    return (
        f"{cookie_name(name, is_secure=is_secure)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    )


def cookie_of(request: Request, name: str, *, is_secure: bool) -> str:
    """What a cookie says; empty when there is none."""
    wanted = cookie_name(name, is_secure=is_secure)
    for part in request.header(b"cookie").split(";"):
        found, _, value = part.strip().partition("=")
        if found == wanted:
            return value.strip('"')
    return ""
