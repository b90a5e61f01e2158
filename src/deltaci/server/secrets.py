"""Secrets by name: sealed with a key that follows from the server's own, kept in the store of blobs.

Whoever can read the store but not `server.key` learns names, scopes and who set what when, and nothing else. A seal is
bound to its tenant, its name, its whole scope and what is written beside it: moved elsewhere, it does not open. What is
sealed here is only ever opened for a lease that is live.

A secret is for all jobs of a tenant, for those of a project, or for those of a project on branches that fit a pattern.
The narrowest one that fits is the one that is given; should it not open, none is given in its place.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.run import Origin
from deltaci.protocol.path_patterns import BadPattern, branch_filter
from deltaci.storage.blobs.keys import (
    ANY_BRANCH,
    all_keys,
    project_secrets,
    scoped_secrets,
    secret_key,
    secret_names,
    secrets_of,
)
from deltaci.storage.blobs.store import BlobStore

MIN_CHARACTERS: Final = 4  # What is shorter cannot be masked in a log.
MAX_BYTES: Final = 64 * 1024  # The kernel takes no variable of more than 128 KiB.
MAX_SECRETS: Final = 1000  # Of a tenant, in all scopes.
MAX_PROJECT: Final = 200
MAX_BRANCH: Final = 200
NONCE_BYTES: Final = 12
SIZE_BYTES: Final = 4
BARE: Final = b"\x01"  # For all jobs of a tenant, by an earlier version: nothing is written beside the seal.
VERSION: Final = b"\x02"
PURPOSE: Final = b"deltaci secrets 1"
PULL_REQUEST: Final = "pull_request"
WILD: Final = frozenset("*?+[]!\\")
MISSING: Final = "secrets need a part that is not installed; run: pip install 'deltaci[secrets]'"


class SecretScope(msgspec.Struct, frozen=True, order=True):
    """For whom a secret is: everybody, a project, or the branches of a project that fit a pattern."""

    project: str = ""
    branch: str = ""

    def check(self) -> None:
        """Refuse what can be no scope."""
        if self.branch and not self.project:
            raise Refused("bad_request", "a branch is one of a project; say which project, too")
        for text, most in ((self.project, MAX_PROJECT), (self.branch, MAX_BRANCH)):
            if len(text) > most or not text.isprintable():
                raise Refused("bad_request", f"{text[:80]!r} is no name: give at most {most} printable characters")
        if self.branch:
            try:
                branch_filter([self.branch])
            except BadPattern as bad:
                raise Refused("bad_request", f"the pattern {self.branch[:80]!r}: {bad}") from None

    def fits(self, branch: str) -> bool:
        """Whether a job of the project on this branch is meant; without a branch only the whole project's fits."""
        return not self.branch or (bool(branch) and branch_filter([self.branch]).matches(branch))

    def rank(self) -> tuple[int, int, str]:
        """The greater, the narrower: a name before patterns, then more letters that are no wildcards."""
        letters = sum(sign not in WILD for sign in self.branch)
        return (not WILD & set(self.branch) if self.branch else -1, letters, self.branch)


class Where(msgspec.Struct, frozen=True):
    """What a job belongs to: its project, and the branch that it is on, empty if it is on none."""

    project: str = ""
    branch: str = ""


FOR_ALL: Final = SecretScope()
NOWHERE: Final = Where()


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a secret without opening it. `at` is in microseconds, 0 if nobody wrote it down."""

    name: str
    scope: SecretScope = FOR_ALL
    version: int = 1
    at: int = 0
    by: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Known).decode


def where(origin: Origin) -> Where:
    """Where the jobs of such a run are.

    The branch of a pull request is the one that it wants to get to: it is not there yet. And whoever starts a run may
    say any branch. Neither need be allowed to push there; so a run is on a branch only if the server knows that it is.
    """
    is_there = origin.is_on_branch and origin.event != PULL_REQUEST
    return Where(origin.project, origin.branch if is_there else "")


def is_foreign(origin: Origin) -> bool:
    """Whether somebody wrote it who may not write to the repository."""
    return origin.is_fork


class Secrets:
    """One deployment's secrets."""

    def __init__(self, blobs: BlobStore, server_key: bytes) -> None:
        self._blobs = blobs
        self._server_key = server_key

    def set(
        self, tenant: str, name: str, value: str, scope: SecretScope = FOR_ALL, *, by: str = "", at: int = 0
    ) -> Known:
        """Keep it, in place of what was there for the same scope. `by` and `at` are for people."""
        key = secret_key(tenant, name, scope.project, scope.branch)
        scope.check()
        if len(value.strip()) < MIN_CHARACTERS:
            raise Refused(
                "bad_request", f"a secret has at least {MIN_CHARACTERS} characters: shorter ones cannot be masked"
            )
        raw = value.encode("utf-8", "surrogatepass")
        if len(raw) > MAX_BYTES or "\0" in value or not _is_unicode(value):
            raise Refused("bad_request", f"a secret is a text of at most {MAX_BYTES} bytes without NUL; encode it")
        before = self._known(tenant, key)
        if before is None and sum(1 for _ in self._keys(tenant)) >= MAX_SECRETS:
            raise Refused("bad_request", f"the tenant has {MAX_SECRETS} secrets already; remove some")
        known = Known(name=name, scope=scope, version=before.version + 1 if before is not None else 1, at=at, by=by)
        head, nonce = _encode(known), secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher().encrypt(nonce, raw, _bound_to(tenant, name, scope) + head)
        self._blobs.put(key, VERSION + len(head).to_bytes(SIZE_BYTES, "big") + head + nonce + sealed)
        return known

    def names(self, tenant: str) -> list[str]:
        """Which there are for all jobs of the tenant."""
        return secret_names(self._blobs, tenant)

    def listed(self, tenant: str) -> list[Known]:
        """All that there are, by name, the widest scope first."""
        found = [known for key in self._keys(tenant) if (known := self._known(tenant, key)) is not None]
        return sorted(found, key=lambda each: (each.name, each.scope))

    def remove(self, tenant: str, name: str, scope: SecretScope = FOR_ALL) -> bool:
        """Forget it; whether it was there."""
        scope.check()
        return self._blobs.delete(secret_key(tenant, name, scope.project, scope.branch))

    def find(self, tenant: str, name: str, scope: SecretScope = FOR_ALL) -> Known | None:
        """What is known of the one with exactly this scope."""
        return self._known(tenant, secret_key(tenant, name, scope.project, scope.branch))

    def opened(self, tenant: str, names: Iterable[str], of: Where = NOWHERE) -> dict[str, str]:
        """The values of exactly these for a job there. One that is not there, or does not open, is refused by name."""
        wanted = list(names)
        narrow = self._narrowest(tenant, of) if of.project and wanted else {}
        return {name: self._open(tenant, name, narrow.get(name, FOR_ALL)) for name in wanted}

    def there(self, tenant: str, names: Iterable[str], of: Where = NOWHERE) -> dict[str, str]:
        """The values of those of these that there are for a job there, and that open."""
        wanted, found = list(names), dict[str, str]()
        narrow = self._narrowest(tenant, of) if of.project and wanted else {}
        for name in wanted:
            try:
                found[name] = self._open(tenant, name, narrow.get(name, FOR_ALL))
            except Refused as refused:
                if refused.code not in ("no_secret", "bad_request"):
                    raise
        return found

    def _narrowest(self, tenant: str, of: Where) -> dict[str, SecretScope]:
        """For each name that the project has a secret of: the narrowest scope that fits."""
        found: dict[str, SecretScope] = {}
        for key in all_keys(self._blobs, project_secrets(tenant, of.project)):
            if key.endswith(f"/{ANY_BRANCH}"):
                name, scope = key.split("/")[-2], SecretScope(of.project)
            elif of.branch and (known := self._known(tenant, key)) is not None and known.scope.fits(of.branch):
                name, scope = known.name, known.scope
            else:
                continue
            if name not in found or scope.rank() > found[name].rank():
                found[name] = scope
        return found

    def _keys(self, tenant: str) -> Iterator[str]:
        for prefix in (secrets_of(tenant), scoped_secrets(tenant)):
            yield from all_keys(self._blobs, prefix)

    def _known(self, tenant: str, key: str) -> Known | None:
        """What is written beside a seal, if it is about what is kept there: a seal that was moved is as good as none.

        It is believed only once the seal was opened with it.
        """
        try:
            kept = self._blobs.get(key)
        except Refused:
            return None
        try:
            known = _decode(_parts(kept)[0])
            own = secret_key(tenant, known.name, known.scope.project, known.scope.branch)
        except (ValueError, Refused):  # Of an earlier version, or no seal at all: it can at least be removed.
            return Known(name=key.removeprefix(secrets_of(tenant))) if key.startswith(secrets_of(tenant)) else None
        return known if own == key else None

    def _open(self, tenant: str, name: str, scope: SecretScope) -> str:
        try:
            kept = self._blobs.get(secret_key(tenant, name, scope.project, scope.branch))
        except Refused:
            raise Refused(
                "no_secret",
                f"there is no secret {name[:80]!r} for this job; set it with: deltaci secret set NAME",
            ) from None
        try:
            if kept[:1] == BARE and scope == FOR_ALL:
                head, body, bound = b"", kept[1:], msgspec.json.encode([tenant, name])
            else:
                head, body = _parts(kept)
                bound = _bound_to(tenant, name, scope)
            value: bytes = self._cipher().decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], bound + head)
            return value.decode()
        except (_library("cryptography.exceptions").InvalidTag, ValueError):
            pass
        raise Refused(
            "no_secret", f"the secret {name[:80]!r} was not sealed with this server's key; set it again"
        ) from None

    def _cipher(self) -> Any:
        """The cipher with the derived key."""
        hkdf = _library("cryptography.hazmat.primitives.kdf.hkdf").HKDF
        sha256 = _library("cryptography.hazmat.primitives.hashes").SHA256
        key = hkdf(algorithm=sha256(), length=32, salt=None, info=PURPOSE).derive(self._server_key)
        return _library("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)


def _parts(kept: bytes) -> tuple[bytes, bytes]:
    """What is written beside the seal, and the seal; a ValueError if it is none."""
    if kept[:1] != VERSION:
        raise ValueError("not a seal of this version")
    begin = 1 + SIZE_BYTES
    end = begin + int.from_bytes(kept[1:begin], "big")
    return kept[begin:end], kept[end:]


def _bound_to(tenant: str, name: str, scope: SecretScope) -> bytes:
    return msgspec.json.encode([tenant, name, scope.project, scope.branch])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _library(name: str) -> ModuleType:
    """A part of the library that seals, which is needed only by those who have secrets."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise Refused("no_secret", MISSING) from None
