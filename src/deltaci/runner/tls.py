"""TLS of the runner: its trusted authorities, its client certificate, and explanations of failed handshakes.

Before each request the files are checked for changes, so that a renewed certificate is used from then on. While the new
files cannot be loaded, for example because they are half written, the previous certificate stays in use.
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

# OpenSSL's verification errors of the server's certificate.
_VERIFY_ERRORS: Final = {
    9: "is not valid yet; set this machine's clock right",
    10: "has expired; renew it on the server",
    18: "is self-signed and this runner does not trust it; give it, or the authority that signs it, with --ca FILE",
    19: "is signed by an authority that this runner does not trust; give the right authority with --ca FILE",
    20: "is signed by an authority that this runner does not trust; give the right authority with --ca FILE",
    62: "is for another name; use a name from the certificate as the server's address, or reissue it for this name",
    64: "is for another address; use an address from the certificate, or reissue it for this one",
}
# Alerts with which the server rejects the client certificate or the protocol.
_ALERTS: Final = {
    "UNKNOWN_CA": "refuses the client certificate: its --client-ca did not sign it",
    "CERTIFICATE_EXPIRED": "refuses the client certificate: it has expired; renew it",
    "CERTIFICATE_REQUIRED": "requires a client certificate; give --client-cert FILE and --client-key FILE",
    "BAD_CERTIFICATE": "refuses the client certificate",
    "CERTIFICATE_UNKNOWN": "refuses the client certificate",
    "UNSUPPORTED_CERTIFICATE": "refuses the client certificate: it is not meant for clients",
    "PROTOCOL_VERSION": "supports no version of TLS that this runner supports (1.2 or newer)",
    "WRONG_VERSION_NUMBER": "does not speak TLS; use http:// in its address, or start it with --tls-cert",
}

_FileStamps = tuple[tuple[int, int, int], ...]


class InvalidTlsFiles(Exception):
    """Raised when a TLS file is missing or invalid, or a certificate is configured without its key."""


class TlsConfig:
    """The TLS files of a runner. `context` loads them anew when one of them has changed."""

    def __init__(
        self, ca_path: Path | None = None, certificate_path: Path | None = None, key_path: Path | None = None
    ) -> None:
        if (certificate_path is None) != (key_path is None):
            raise InvalidTlsFiles(
                "a client certificate needs its key; give both --client-cert FILE and --client-key FILE"
            )
        self._ca_path, self._certificate_path, self._key_path = ca_path, certificate_path, key_path
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamps: _FileStamps = ()

    @classmethod
    def from_paths(cls, paths: Sequence[str]) -> TlsConfig:
        """Return the configuration with these files, in the form of the property `paths` of another process."""
        return cls(*(Path(path) if path else None for path in paths))

    @property
    def paths(self) -> tuple[str, str, str]:
        """The absolute paths of authorities, certificate and key, for another process; empty if not configured."""
        ca, cert, key = (
            str(path.absolute()) if path is not None else ""
            for path in (self._ca_path, self._certificate_path, self._key_path)
        )
        return ca, cert, key

    @property
    def has_certificate(self) -> bool:
        """Whether this runner has a client certificate."""
        return self._certificate_path is not None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context with the newest files that could be loaded.

        Raise `InvalidTlsFiles` if none could be.
        """
        with self._lock:
            stamps = self._stat_files()
            if self._context is None or stamps != self._stamps:
                try:
                    self._context = self._load_context()
                except ValueError as error:
                    if self._context is None:
                        raise InvalidTlsFiles(str(error)) from None
                    if stamps != self._stamps:
                        LOGGER.warning("cannot load the renewed certificate, keeping the previous one: %s", error)
                self._stamps = stamps
            return self._context

    def _stat_files(self) -> _FileStamps:
        """Return the stamps of all configured files, which differ when a file has changed."""
        return tuple(
            _stat(path) for path in (self._ca_path, self._certificate_path, self._key_path) if path is not None
        )

    def _load_context(self) -> ssl.SSLContext:
        """Return a new TLS context with the current content of the files."""
        tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Verifies the server's certificate and its name.
        tls_context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._ca_path is not None:
            load_authorities(tls_context, self._ca_path)
        else:
            tls_context.load_default_certs()
        if self._certificate_path is not None and self._key_path is not None:
            load_certificate(tls_context, self._certificate_path, self._key_path)
        return tls_context


def _stat(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time of a file; zeros if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def explain_error(error: Exception, tls: TlsConfig | None, *, is_new_connection: bool) -> str:
    """Return why a request failed and what the user can do about it.

    `is_new_connection`: whether the connection had just been opened.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = _VERIFY_ERRORS.get(error.verify_code)
        return f"its certificate {reason}" if reason else f"its certificate is not valid: {error.verify_message}"
    if is_new_connection and isinstance(error, ConnectionResetError | BrokenPipeError | ssl.SSLEOFError):
        # Most servers close the connection without an alert when they reject the client certificate.
        if tls is None:
            return "it closed the connection at once; if it speaks TLS, use https:// in its address"
        if not tls.has_certificate:
            return (
                "it closed the connection at once; if it requires a client certificate, give --client-cert FILE and "
                "--client-key FILE"
            )
        return (
            "it closed the connection at once; check that its --client-ca signed the client certificate, and that the "
            "certificate has not expired"
        )
    if isinstance(error, ssl.SSLError):
        for alert_name, meaning in _ALERTS.items():
            if alert_name in (error.reason or ""):
                return f"it {meaning}"
    return str(error) if isinstance(error, InvalidTlsFiles) else f"{type(error).__name__}: {error}"
