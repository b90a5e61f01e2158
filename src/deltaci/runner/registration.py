"""How a runner comes in, and comes in again: by its certificate, by what it kept, by an OIDC token, or by a token.

Nothing that proves who it is ever stands in a command line or in a log.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import Registered
from deltaci.runner.client import Unreachable
from deltaci.runner.runtime import Runtime
from deltaci.runner.tls import TlsConfig

CREDENTIAL_FILE: Final = "credential.json"
REQUEST_FILE: Final = "registration"
MAX_TOKEN_BYTES: Final = 16_000
TRIES: Final = 5
RETRY_SECONDS: Final = 1.0

LOGGER: Final = logging.getLogger(__name__)

_decode_kept = wire.decoder(Registered)


class NoCredential(Exception):
    """The runner has nothing to show."""


class CredentialProvider:
    """Gets credentials for one runner. `token` and `oidc` are read when they are needed, and not before."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        labels: Sequence[str] = (),
        slots: int = 1,
        tls: TlsConfig | None = None,
        token: str = "",
        oidc: Callable[[], str] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.url = url
        self.runtime = runtime or Runtime(url, tls)
        self._has_certificate = tls is not None and tls.has_certificate
        self._folder = folder
        self._labels = list(labels)
        self._slots = slots
        self._token = token
        self._oidc = oidc
        self._client = self.runtime.connect()
        self._lock = threading.Lock()  # One at a time: they keep what they get in the same file.

    def obtain(self) -> Registered:
        """The first credential of this process. A server that is about to come up is waited for."""
        with self._lock, closing(self._client):
            for left in reversed(range(TRIES)):
                try:
                    return self._entered()
                except Unreachable as error:
                    if not left:
                        raise
                    LOGGER.warning("%s; trying again", error)
                    self.runtime.sleep(RETRY_SECONDS)
        raise AssertionError("not reached")

    def renew(self) -> Registered:
        """A fresh credential for the one that is good; by an OIDC token also for one that was."""
        with self._lock, closing(self._client):  # The next time is long from now.
            return self._renewed()

    def _entered(self) -> Registered:
        if self._has_certificate:
            return self._renewed()
        path = self._folder / CREDENTIAL_FILE
        trouble = ""
        if path.exists():
            try:
                kept = _decode_kept(path.read_bytes())
                self._client.token = kept.credential
                return self._renewed()
            except (Refused, msgspec.DecodeError) as error:
                trouble = _why(error, path)
        if self._token:
            return self._register(self._token)
        if self._oidc is not None:
            return self._register(self._oidc())
        raise NoCredential(
            trouble
            or "no credential yet; make a token with 'deltaci token NAME' and give it in DELTACI_TOKEN or with "
            "--token-file, or come with --client-cert or --oidc-token-file"
        )

    def _renewed(self) -> Registered:
        try:
            fresh = self._client.renew(self._labels, self._slots)
        except Refused:
            if self._oidc is None or self._has_certificate:
                raise
            return self._register(self._oidc())
        return self._kept(fresh)

    def _register(self, token: str) -> Registered:
        """With an answer that was lost, the same request is made again, and not a new one."""
        path = self._folder / REQUEST_FILE
        if not path.exists():
            _write(path, self.runtime.nonce().encode())
        self._client.token = ""
        fresh = self._client.register(
            token, self._labels, self._slots, path.read_text(encoding="ascii", errors="replace")
        )
        self._kept(fresh)
        path.unlink(missing_ok=True)
        return fresh

    def _kept(self, fresh: Registered) -> Registered:
        self._client.token = fresh.credential
        if fresh.credential:
            try:
                _write(self._folder / CREDENTIAL_FILE, msgspec.json.encode(fresh))
            except OSError as error:
                LOGGER.warning(
                    "the credential cannot be kept: %s; after a restart the runner needs another way in", error
                )
        return fresh


def read_token(path: Path) -> str:
    """The token in this file, as it is now: whoever put it there may have put a fresh one."""
    try:
        with path.open("rb") as file:
            found = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise Refused("bad_credential", f"{path} cannot be read: {error.strerror}; put a token into it") from None
    text = found.decode("ascii", "replace").strip()
    if not text or len(found) > MAX_TOKEN_BYTES or not text.isascii() or not text.isprintable():
        raise Refused("bad_credential", f"{path} has no token in it; put one there, and nothing else")
    return text


def _why(refusal: Exception, path: Path) -> str:
    """What is wrong with what was kept, and what to do about it."""
    again = "make a token with 'deltaci token NAME --again' and give it in DELTACI_TOKEN or with --token-file"
    if not isinstance(refusal, Refused):
        return f"the credential in {path} cannot be read; {again}"
    if refusal.code == "expired_credential":
        return f"the credential in {path} has expired, because this runner was away for too long; {again}"
    return f"the credential in {path} is not good any more: {refusal.message}"


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and only this user may read it."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    fresh.replace(path)
