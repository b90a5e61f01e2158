"""TLS for the runner: whom it trusts, what it shows, and what went wrong, in words that help.

The files are looked at whenever something is said, so that a certificate that was renewed on the disk is shown from
then on. One that is half written is not taken: what was good before stays until the files are whole.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deltaci.protocol.certificates import load_authorities, load_certificate

LOGGER: Final = logging.getLogger(__name__)

# What OpenSSL finds wrong with the server's certificate.
_VERIFY: Final = {
    9: "is not good yet; set this machine's clock right",
    10: "has expired; renew it on the server",
    18: "is signed by itself, and is not one that this runner trusts; give it, or who signs it, with --ca FILE",
    19: "is signed by somebody whom this runner does not trust; give the right authority with --ca FILE",
    20: "is signed by somebody whom this runner does not trust; give the right authority with --ca FILE",
    62: "is for another name; use the name that is in it as the server's address, or have it made for this one",
    64: "is for another address; use the one that is in it, or have it made for this one",
}
# What the server says about ours.
_ALERTS: Final = {
    "UNKNOWN_CA": "refuses the client certificate: its --client-ca did not sign it",
    "CERTIFICATE_EXPIRED": "refuses the client certificate: it has expired; renew it",
    "CERTIFICATE_REQUIRED": "wants a client certificate; give --client-cert FILE and --client-key FILE",
    "BAD_CERTIFICATE": "refuses the client certificate",
    "CERTIFICATE_UNKNOWN": "refuses the client certificate",
    "UNSUPPORTED_CERTIFICATE": "refuses the client certificate: it is not meant for clients",
    "PROTOCOL_VERSION": "speaks no version of TLS that this runner speaks (1.2 or newer)",
    "WRONG_VERSION_NUMBER": "does not speak TLS; use http:// in its address, or start it with --tls-cert",
}

_Stamp = tuple[tuple[int, int, int], ...]


class InvalidTlsFiles(Exception):
    """A file of TLS is missing, or is not what it should be."""


class TlsConfig:
    """The context for the next connection, made anew when a file has changed."""

    def __init__(self, ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> None:
        if (cert is None) != (key is None):
            raise InvalidTlsFiles(
                "a client certificate needs its key; give both --client-cert FILE and --client-key FILE"
            )
        self._ca, self._cert, self._key = ca, cert, key
        self._lock = threading.Lock()
        self._made: ssl.SSLContext | None = None
        self._stamp: _Stamp = ()

    @classmethod
    def of(cls, files: Sequence[str]) -> TlsConfig:
        """From what `files` gives."""
        return cls(*(Path(file) if file else None for file in files))

    @property
    def files(self) -> tuple[str, str, str]:
        """Where everything is, for another process."""
        ca, cert, key = (str(path.absolute()) if path is not None else "" for path in (self._ca, self._cert, self._key))
        return ca, cert, key

    @property
    def has_certificate(self) -> bool:
        """Whether this runner shows who it is."""
        return self._cert is not None

    def context(self) -> ssl.SSLContext:
        """The newest that can be made. Raises `BadFiles` only if none ever could."""
        with self._lock:
            stamp = self._looked()
            if self._made is None or stamp != self._stamp:
                try:
                    self._made = self._make()
                except ValueError as error:
                    if self._made is None:
                        raise InvalidTlsFiles(str(error)) from None
                    if stamp != self._stamp:
                        LOGGER.warning("the renewed certificate cannot be used, the old one stays: %s", error)
                self._stamp = stamp
            return self._made

    def _looked(self) -> _Stamp:
        return tuple(_stat(path) for path in (self._ca, self._cert, self._key) if path is not None)

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Checks the name, and demands a certificate.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._ca is not None:
            load_authorities(context, self._ca)
        else:
            context.load_default_certs()
        if self._cert is not None and self._key is not None:
            load_certificate(context, self._cert, self._key)
        return context


def _stat(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def explained(error: Exception, tls: TlsConfig | None, *, is_fresh: bool) -> str:
    """What went wrong on the way to the server, over a connection that was made just now or before, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _VERIFY.get(error.verify_code)
        return f"its certificate {known}" if known else f"its certificate is not good: {error.verify_message}"
    if is_fresh and isinstance(error, ConnectionResetError | BrokenPipeError | ssl.SSLEOFError):
        # Most servers hang up without a word when they do not like what was shown to them.
        if tls is None:
            return "it hung up at once; if it speaks TLS, use https:// in its address"
        if not tls.has_certificate:
            return "it hung up at once; if it wants a client certificate, give --client-cert FILE and --client-key FILE"
        return "it hung up at once; see that its --client-ca signed the client certificate, and that it has not expired"
    if isinstance(error, ssl.SSLError):
        for name, meaning in _ALERTS.items():
            if name in (error.reason or ""):
                return f"it {meaning}"
    return str(error) if isinstance(error, InvalidTlsFiles) else f"{type(error).__name__}: {error}"
