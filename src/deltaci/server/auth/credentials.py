"""Tokens that this server signs: a registration token, valid once, is exchanged for short-lived credentials.

A token is a signed statement and is not stored: the server has only one key. A registration token can be used only once
because the worker record that it names can be created only once; a token that is issued to register a runner `again`
must be newer than the runner's last registration.
"""

from __future__ import annotations

import hmac
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from deltaci.core.errors import Refused

KEY_BYTES: Final = 32
CREDENTIAL_SECONDS: Final = 15 * 60
REGISTRATION_SECONDS: Final = 24 * 3600
MAX_CACHED: Final = 1000  # Verified tokens: their contents cannot change, they can only expire.
PREFIX: Final = "dci_"  # Lets secret scanners recognise a leaked token.
MAX_RUNNER_NAME: Final = 100
MAX_TENANT_NAME: Final = 200

Use = Literal["register", "run", "operate", "enter"]


class Claims(msgspec.Struct, frozen=True):
    """The contents of a token. `use` is the only purpose that it may serve.

    `runner_id` is the person in a token of the operator. With `again`, a registration token may register a runner that
    is registered already.
    """

    use: Use
    runner_id: str
    tenant: str
    expires_at: float
    issued_at: float = 0.0
    again: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Claims).decode


class Signer:
    """Signs tokens and verifies them."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        self._key = key
        self._clock = clock
        self._cache: dict[str, Claims] = {}

    def now(self) -> float:
        """Return the present time in Unix seconds, by the clock that decides when tokens expire."""
        return self._clock()

    def sign(self, use: Use, runner_id: str, tenant: str, seconds: float, *, again: bool = False) -> str:
        """Return a signed token for one use that is valid for this many seconds."""
        now = self._clock()
        claims_json = _encode(Claims(use, runner_id, tenant, now + seconds, now, again))
        return PREFIX + ".".join(
            urlsafe_b64encode(token_part).decode().rstrip("=") for token_part in (claims_json, self._mac(claims_json))
        )

    def read(self, token: str, use: Use) -> Claims:
        """Return the contents of a valid token that this server signed for this use. Raises `Refused` otherwise."""
        claims = self._cache.get(token)
        if claims is None:
            claims = self._verify(token)
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[token] = claims
        if claims.use != use:
            raise Refused("bad_credential", f"that token is for {claims.use!r}; here one for {use!r} is expected")
        if claims.expires_at <= self._clock():
            raise Refused("expired_credential", "the token is too old; renew it in time, or register with a new one")
        return claims

    def _verify(self, token: str) -> Claims:
        try:
            claims_json, mac = (
                urlsafe_b64decode(token_part + "==") for token_part in token.removeprefix(PREFIX).split(".")
            )
        except ValueError:
            claims_json, mac = b"", b""
        if not hmac.compare_digest(mac, self._mac(claims_json)):
            raise Refused(
                "bad_credential", "this token was not signed by this server; register the runner with a new one"
            )
        return _decode(claims_json)

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")


def is_runner_name(name: object) -> bool:
    """Return whether this is a valid name of a runner: 1 to 100 printable ASCII characters without a slash.

    A slash separates the runner's name from its slot in the id of a worker.
    """
    return _is_name(name, MAX_RUNNER_NAME) and "/" not in str(name)


def is_tenant_name(name: object) -> bool:
    """Return whether this is a valid name of a tenant: 1 to 200 printable ASCII characters."""
    return _is_name(name, MAX_TENANT_NAME)


def _is_name(name: object, max_chars: int) -> bool:
    return isinstance(name, str) and 0 < len(name) <= max_chars and name.isascii() and name.isprintable()


def load_server_key(path: Path) -> bytes:
    """Return the server's signing key from this file, which is created with a random key if it is missing.

    Raises `ValueError` if the key is too short to be safe.
    """
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = _create_key(path)
    if len(key) < KEY_BYTES:
        raise ValueError(
            f"the key in {path} has {len(key)} bytes, not {KEY_BYTES}; "
            "restore it, or remove it and register every runner anew"
        )
    return key


def _create_key(path: Path) -> bytes:
    """Create the file with a random key and return its contents; keep the file if another process was faster.

    The file appears at once with its full contents, even after a crash.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_path = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # Another process was faster: use its key.
            os.link(temporary_path, path)
    finally:
        temporary_path.unlink(missing_ok=True)
    return path.read_bytes()
