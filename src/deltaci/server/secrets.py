"""Secrets by name: sealed with a key that follows from the server's own, kept in the store of blobs.

Whoever can read the store but not `server.key` learns the names and nothing else. A seal is bound to its tenant and its
name: moved elsewhere, it does not open. What is sealed here is only ever opened for a lease that is live.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import msgspec

from deltaci.blobs.keys import secret_key, secret_names
from deltaci.blobs.store import Blobs
from deltaci.core.errors import Refused

MIN_CHARACTERS: Final = 4  # What is shorter cannot be masked in a log.
MAX_BYTES: Final = 64 * 1024  # The kernel takes no variable of more than 128 KiB.
NONCE_BYTES: Final = 12
VERSION: Final = b"\x01"
PURPOSE: Final = b"deltaci secrets 1"
MISSING: Final = "secrets need a part that is not installed; run: pip install 'deltaci[secrets]'"


class Secrets:
    """One deployment's secrets."""

    def __init__(self, blobs: Blobs, server_key: bytes) -> None:
        self._blobs = blobs
        self._server_key = server_key

    def set(self, tenant: str, name: str, value: str) -> None:
        """Keep it, in place of what was there."""
        key = secret_key(tenant, name)
        if len(value.strip()) < MIN_CHARACTERS:
            raise Refused(
                "bad_request", f"a secret has at least {MIN_CHARACTERS} characters: shorter ones cannot be masked"
            )
        raw = value.encode("utf-8", "surrogatepass")
        if len(raw) > MAX_BYTES or "\0" in value or not _is_unicode(value):
            raise Refused("bad_request", f"a secret is a text of at most {MAX_BYTES} bytes without NUL; encode it")
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher().encrypt(nonce, raw, _bound_to(tenant, name))
        self._blobs.put(key, VERSION + nonce + sealed)

    def names(self, tenant: str) -> list[str]:
        """Which there are."""
        return secret_names(self._blobs, tenant)

    def remove(self, tenant: str, name: str) -> bool:
        """Forget it; whether it was there."""
        return self._blobs.delete(secret_key(tenant, name))

    def opened(self, tenant: str, names: Iterable[str]) -> dict[str, str]:
        """The values of exactly these. One that is not there, or does not open, is refused by its name."""
        return {name: self._open(tenant, name) for name in names}

    def _open(self, tenant: str, name: str) -> str:
        try:
            sealed = self._blobs.get(secret_key(tenant, name))
        except Refused:
            raise Refused(
                "no_secret", f"there is no secret {name[:80]!r}; set it with: deltaci secret set NAME"
            ) from None
        if sealed[:1] == VERSION:
            nonce, body = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
            try:
                value: bytes = self._cipher().decrypt(nonce, body, _bound_to(tenant, name))
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


def _bound_to(tenant: str, name: str) -> bytes:
    return msgspec.json.encode([tenant, name])


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
