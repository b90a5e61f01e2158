"""Who a runner is: a registration token, good once, is exchanged for credentials that are short-lived and renewed.

A token is a signed statement, not a secret that is stored: the server keeps one key and nothing else. That a
registration token is good only once follows from the record of the runner that it names, which can be made only once;
one that lets a runner in `again` must be younger than the last time that it came in.
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
MAX_KNOWN: Final = 1000  # Tokens that were verified: what they say cannot change, only their time can run out.
PREFIX: Final = "dci_"  # So that a scanner for secrets recognises one that got out.
MAX_RUNNER_NAME: Final = 100
MAX_TENANT_NAME: Final = 200

Use = Literal["register", "run", "operate", "enter"]


class Claims(msgspec.Struct, frozen=True):
    """What a token says."""

    use: Use
    runner_id: str
    tenant: str
    expires_at: float
    issued_at: float = 0.0
    again: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Claims).decode


class Signer:
    """Makes tokens and knows its own again."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        self._key = key
        self._clock = clock
        self._known: dict[str, Claims] = {}

    def now(self) -> float:
        """The time by which tokens end."""
        return self._clock()

    def sign(self, use: Use, runner_id: str, tenant: str, seconds: float, *, again: bool = False) -> str:
        """A token that is good for so long."""
        now = self._clock()
        body = _encode(Claims(use, runner_id, tenant, now + seconds, now, again))
        return PREFIX + ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in (body, self._seal(body)))

    def read(self, token: str, use: Use) -> Claims:
        """What the token says, if it is ours, for this use, and still good."""
        claims = self._known.get(token)
        if claims is None:
            claims = self._verified(token)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[token] = claims
        if claims.use != use:
            raise Refused("bad_credential", f"that token is for {claims.use!r}; here one for {use!r} is expected")
        if claims.expires_at <= self._clock():
            raise Refused("expired_credential", "the token is too old; renew it in time, or register with a new one")
        return claims

    def _verified(self, token: str) -> Claims:
        try:
            body, seal = (urlsafe_b64decode(part + "==") for part in token.removeprefix(PREFIX).split("."))
        except ValueError:
            body, seal = b"", b""
        if not hmac.compare_digest(seal, self._seal(body)):
            raise Refused("bad_credential", "that is no token of this server; register the runner with a new one")
        return _decode(body)

    def _seal(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def is_runner_name(name: object) -> bool:
    """Whether a runner can be called so. What follows a slash is the runner's own business."""
    return _is_name(name, MAX_RUNNER_NAME) and "/" not in str(name)


def is_tenant_name(name: object) -> bool:
    """Whether a tenant can be called so."""
    return _is_name(name, MAX_TENANT_NAME)


def _is_name(name: object, longest: int) -> bool:
    return isinstance(name, str) and 0 < len(name) <= longest and name.isascii() and name.isprintable()


def server_key(path: Path) -> bytes:
    """The server's key: made once, readable by its owner only. One that is too short could be guessed: refused."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = _made(path)
    if len(key) < KEY_BYTES:
        raise ValueError(
            f"the key in {path} has {len(key)} bytes, not {KEY_BYTES}; "
            "restore it, or remove it and register every runner anew"
        )
    return key


def _made(path: Path) -> bytes:
    """A new key, whole or not at all: whoever starts beside us, or after a crash, must never find half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # Somebody was faster: theirs is the key.
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path.read_bytes()
