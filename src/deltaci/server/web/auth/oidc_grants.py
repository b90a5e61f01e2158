"""What members of OIDC groups may do: read from a file when the server starts, and checked on every request.

    issuer = "https://login.example.org/realms/main"
    client_id = "deltaci"
    client_secret_file = "client.secret"

    [[grant]]
    group = "developers"
    tenant = "default"
    scopes = ["run"]

A session cookie contains only groups that have grants. Removing a grant from the file therefore also revokes it for
signed-in people, from the next start of the server on.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from deltaci.api.schemas.inputs import Person, Scope, Tag
from deltaci.core.errors import Refused
from deltaci.server.auth.callers import INCLUDED, Caller
from deltaci.server.auth.credentials import is_tenant_name
from deltaci.server.auth.oidc import bad_token, check_url, claim, quote_value
from deltaci.server.web.auth.sessions import SessionGrant

SECRET_VARIABLE: Final = "DELTACI_WEB_OIDC_SECRET"
ANYBODY: Final = "*"
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_SECRET_CHARS: Final = 1000
MAX_GROUPS: Final = 10_000

Name = Annotated[str, Meta(min_length=1, max_length=500)]


class GrantRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gives a group scopes and roles in a tenant. The group `*` matches everybody whom the issuer authenticates."""

    group: Name
    tenant: Name
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)]
    roles: tuple[Tag, ...] = ()


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of sign-in by OIDC."""

    issuer: Name
    client_id: Name
    grant: Annotated[tuple[GrantRule, ...], Meta(min_length=1)]
    client_secret_file: str = ""
    name: Annotated[str, Meta(max_length=100)] = ""  # What the button says.
    person_claim: Name = "email"
    groups_claim: Name = "groups"
    scopes: Annotated[tuple[Tag, ...], Meta(min_length=1)] = ("openid", "profile", "email")
    ca: str = ""

    @property
    def short(self) -> str:
        """Names the issuer, and us before it, in cookies."""
        return sha256(f"{self.issuer}\0{self.client_id}\0{self.person_claim}".encode()).hexdigest()[:12]


def settings_in(file: Path) -> tuple[OidcSettings, str]:
    """What the file says, and the client's secret, if there is one; a ValueError that says what is wrong otherwise."""
    with file.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES)
    try:
        found = msgspec.convert(tomllib.loads(content.decode()), OidcSettings)
        check_url(found.issuer, found.issuer)
    except (ValueError, RecursionError) as error:  # TOML's, UTF-8's and msgspec's errors are values too.
        raise ValueError(f"{file}: {error}; see docs/web.md for the format") from None
    if "openid" not in found.scopes:
        raise ValueError(f"{file}: scopes are {list(found.scopes)}; 'openid' must be one of them")
    for rule in found.grant:
        if not is_tenant_name(rule.tenant):
            raise ValueError(
                f"{file}: {quote_value(rule.tenant)} is not a tenant name; expected 1 to 200 printable ASCII characters"
            )
    return found, _secret(file.parent, found.client_secret_file)


def _secret(folder: Path, name: str) -> str:
    """From the file, or else from the variable; without any the client is a public one, which PKCE protects."""
    given = os.environ.get(SECRET_VARIABLE, "")
    if name:
        given = (folder / name).read_text("utf-8")
        if not given.strip():
            raise ValueError(f"{folder / name} is empty; expected the client secret in it")
    secret = given.strip()
    if len(secret) > MAX_SECRET_CHARS or not secret.isprintable():
        raise ValueError(f"the client secret must be one line of at most {MAX_SECRET_CHARS} characters")
    return secret


class GroupGrants:
    """Resolves groups to tenants, scopes and roles."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._groups: Final = frozenset(rule.group for rule in settings.grant)
        self.issuer: Final = settings.issuer
        self.by_tenant: Final[dict[str, list[GrantRule]]] = {}
        for rule in settings.grant:
            self.by_tenant.setdefault(rule.tenant, []).append(rule)

    def person(self, claims: Mapping[str, Any]) -> str:
        """Who the claims say that somebody is; refused if that is nobody's name here, or nobody looked."""
        told = dict(claims)
        name = self._settings.person_claim
        if name == "email" and told.get("email_verified") is not True:
            raise bad_token("its email is not verified; verify it at the issuer, or choose another person_claim")
        found = claim(told, name)
        try:
            return msgspec.convert(found, Person)
        except msgspec.ValidationError:
            raise bad_token(
                f"claim {name!r} is {quote_value(found)}; expected a name of 1 to 100 of A-Z a-z 0-9 _ . @ + -; "
                "choose another person_claim"
            ) from None

    def granted(self, claims: Mapping[str, Any], person: str, expires_at: int) -> list[SessionGrant]:
        """One for each tenant, in the order of the file. Only groups that count here are kept."""
        told = claim(dict(claims), self._settings.groups_claim)
        listed = told if isinstance(told, list) else [told]
        groups = {ANYBODY, *(each for each in listed[:MAX_GROUPS] if isinstance(each, str))} & self._groups
        found: list[SessionGrant] = []
        for tenant, rules in self.by_tenant.items():
            if counting := tuple(dict.fromkeys(rule.group for rule in rules if rule.group in groups)):
                found.append(
                    SessionGrant(
                        tenant=tenant,
                        person=person,
                        issuer=self._settings.short,
                        groups=counting,
                        expires_at=expires_at,
                    )
                )
        return found

    def caller(self, grant: SessionGrant) -> Caller:
        """Who that is, and what they may do now."""
        if grant.issuer != self._settings.short:
            raise Refused("bad_credential", "this server now trusts a different issuer; sign in again")
        rules = _fitting(self.by_tenant.get(grant.tenant, []), grant.groups)
        if not rules:
            raise Refused("bad_credential", f"your groups no longer give you access to {grant.tenant!r}; sign in again")
        scopes = {included for rule in rules for scope in rule.scopes for included in INCLUDED[scope]}
        return Caller(
            tenant=grant.tenant,
            person=grant.person,
            scopes=frozenset(scopes),
            roles=tuple(dict.fromkeys(role for rule in rules for role in rule.roles)),
            expires_at=grant.expires_at,
        )


def _fitting(rules: list[GrantRule], groups: Collection[str]) -> list[GrantRule]:
    return [rule for rule in rules if rule.group in groups]
