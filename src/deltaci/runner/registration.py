"""Registration: how a runner gets a credential from the server, and renews it.

In this order: with its client certificate, with the credential stored by an earlier process, with a registration token,
with an OIDC token. No secret is passed in a command line or written to a log.
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

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import Registered
from deltaci.runner.runtime import Runtime
from deltaci.runner.tls import TlsConfig

CREDENTIAL_FILE: Final = "credential.json"
REQUEST_FILE: Final = "registration"
MAX_TOKEN_BYTES: Final = 16_000
TRIES: Final = 5
RETRY_SECONDS: Final = 1.0

LOGGER: Final = logging.getLogger(__name__)

_decode_credential = wire.decoder(Registered)


class NoCredential(Exception):
    """Raised when the runner has no certificate, stored credential or token to register with."""


class CredentialProvider:
    """Obtains and renews the credential of one runner.

    `fetch_oidc_token` is called each time that an OIDC token is needed.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        labels: Sequence[str] = (),
        slots: int = 1,
        tls: TlsConfig | None = None,
        token: str = "",
        fetch_oidc_token: Callable[[], str] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.url = url
        self.runtime = runtime or Runtime(url, tls)
        self._has_certificate = tls is not None and tls.has_certificate
        self._folder = folder
        self._labels = list(labels)
        self._slots = slots
        self._token = token
        self._fetch_oidc_token = fetch_oidc_token
        self._client = self.runtime.connect()
        self._lock = threading.Lock()  # All calls write the same file.

    def obtain(self) -> Registered:
        """Return the first credential of this process. Retry for a few seconds while the server is unreachable."""
        with self._lock, closing(self._client):
            for tries_left in reversed(range(TRIES)):
                try:
                    return self._renew_or_register()
                except Unreachable as error:
                    if not tries_left:
                        raise
                    LOGGER.warning("%s; retrying", error)
                    self.runtime.sleep(RETRY_SECONDS)
        raise AssertionError("not reached")

    def renew(self) -> Registered:
        """Exchange the current credential for a new one.

        With an OIDC token this works even if the old one has expired.
        """
        with self._lock, closing(self._client):  # The next renewal is long from now: keep no connection.
            return self._renew()

    def _renew_or_register(self) -> Registered:
        """Return a credential from the first possible source: certificate, stored credential, token or OIDC token."""
        if self._has_certificate:
            return self._renew()
        credential_path = self._folder / CREDENTIAL_FILE
        stored_problem = ""
        if credential_path.exists():
            try:
                stored_registration = _decode_credential(credential_path.read_bytes())
                self._client.token = stored_registration.credential
                return self._renew()
            except (Refused, msgspec.DecodeError) as error:
                stored_problem = _describe_problem(error, credential_path)
        if self._token:
            return self._register(self._token)
        if self._fetch_oidc_token is not None:
            return self._register(self._fetch_oidc_token())
        raise NoCredential(
            stored_problem
            or "no credential yet; make a token with 'deltaci token NAME' and give it in DELTACI_TOKEN or with "
            "--token-file, or use --client-cert or --oidc-token-file"
        )

    def _renew(self) -> Registered:
        """Renew the credential. If the server refuses, register again with an OIDC token, if possible."""
        try:
            new_registration = self._client.renew(self._labels, self._slots)
        except Refused:
            if self._fetch_oidc_token is None or self._has_certificate:
                raise
            return self._register(self._fetch_oidc_token())
        return self._store_credential(new_registration)

    def _register(self, token: str) -> Registered:
        """Register with a token and return the credential.

        If the response is lost, a later call repeats the request with the same id.
        """
        request_path = self._folder / REQUEST_FILE
        if not request_path.exists():
            _write_private(request_path, self.runtime.nonce().encode())
        self._client.token = ""
        registration = self._client.register(
            token, self._labels, self._slots, request_path.read_text(encoding="ascii", errors="replace")
        )
        self._store_credential(registration)
        request_path.unlink(missing_ok=True)
        return registration

    def _store_credential(self, registration: Registered) -> Registered:
        """Use the credential from now on and write it to a file. Return it."""
        self._client.token = registration.credential
        if registration.credential:
            try:
                _write_private(self._folder / CREDENTIAL_FILE, msgspec.json.encode(registration))
            except OSError as error:
                LOGGER.warning("cannot store the credential: %s; a restarted runner has to register again", error)
        return registration


def read_token(token_path: Path) -> str:
    """Return the token in a file, which another program may replace at any time. Raise `Refused` if it has none."""
    try:
        with token_path.open("rb") as file:
            content = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise Refused("bad_credential", f"{token_path} cannot be read: {error.strerror}; put a token into it") from None
    token_text = content.decode("ascii", "replace").strip()
    if not token_text or len(content) > MAX_TOKEN_BYTES or not token_text.isascii() or not token_text.isprintable():
        raise Refused("bad_credential", f"{token_path} contains no token; put one there, and nothing else")
    return token_text


def _describe_problem(error: Exception, path: Path) -> str:
    """Return why the stored credential cannot be used, and what the user can do."""
    remedy = "make a token with 'deltaci token NAME --again' and give it in DELTACI_TOKEN or with --token-file"
    if not isinstance(error, Refused):
        return f"the credential in {path} cannot be read; {remedy}"
    if error.code == "expired_credential":
        return f"the credential in {path} has expired, because this runner was away for too long; {remedy}"
    return f"the credential in {path} is no longer valid: {error.message}"


def _write_private(file_path: Path, content: bytes) -> None:
    """Write a file atomically so that only this user can read it."""
    new_path = file_path.with_name(f"{file_path.name}.new")
    new_path.unlink(missing_ok=True)
    with os.fdopen(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new_path.replace(file_path)
