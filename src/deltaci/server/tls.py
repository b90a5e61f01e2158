"""TLS for the server: the SSL context, and the runner that a client certificate names.

A certificate names its runner by one URI among its subject alternative names, `deltaci:TENANT/RUNNER` with both parts
percent-encoded. Its common name is ignored, because it has no fixed format.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.certificates import load_authorities, load_certificate
from deltaci.server.auth.credentials import is_runner_name, is_tenant_name

SCHEME: Final = "deltaci:"
LOG_SECONDS: Final = 1.0

LOGGER: Final = logging.getLogger(__name__)


class Peer(msgspec.Struct, frozen=True):
    """A verified client certificate: the URIs among its alternative names, and its end of validity in Unix seconds."""

    uris: tuple[str, ...]
    expires_at: float

    def runner(self, now: float) -> tuple[str, str] | None:
        """Return the tenant and the runner that the certificate names, or None if it has no `deltaci:` URI.

        Raises `Refused` if it has expired or does not name exactly one valid runner.
        """
        runner_uris = [uri for uri in self.uris if uri.startswith(SCHEME)]
        if not runner_uris:
            return None
        # A connection may outlive the certificate that it was opened with.
        if self.expires_at <= now:
            raise Refused("expired_credential", "the client certificate has expired; connect with a new one")
        tenant, separator, runner = (
            unquote(uri_part) for uri_part in runner_uris[0].removeprefix(SCHEME).partition("/")
        )
        if len(runner_uris) > 1 or not separator or not is_tenant_name(tenant) or not is_runner_name(runner):
            raise Refused(
                "bad_credential",
                "the client certificate does not name one runner; give it exactly one URI deltaci:TENANT/RUNNER, "
                "percent-encoded, the runner with 1 to 100 printable ASCII characters and no slash",
            )
        return tenant, runner


def peer_certificate(ssl_object: Any) -> Peer | None:
    """Return the client certificate of a connection, or None for a connection without one."""
    certificate = ssl_object.getpeercert() if ssl_object is not None else None
    if not certificate:
        return None
    uris = tuple(
        alternative_name for name_type, alternative_name in certificate.get("subjectAltName", ()) if name_type == "URI"
    )
    return Peer(uris, ssl.cert_time_to_seconds(certificate["notAfter"]))


class _LoggingSslObject(ssl.SSLObject):
    """An SSL object that logs why a handshake failed: the event loop closes the connection without a message."""

    _logged_at = float("-inf")

    def do_handshake(self) -> None:
        """Do the handshake.

        Logs a missing or rejected certificate, at most once per `LOG_SECONDS`, and raises the error.
        """
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            _log_rarely(f"a client certificate was refused: {error.verify_message}")
            raise
        except ssl.SSLError as error:
            if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                _log_rarely("a client sent no certificate; it needs one that --client-ca signed")
            raise


def _log_rarely(message: str) -> None:
    """Log a warning, unless another one was logged in the last `LOG_SECONDS`."""
    now = time.monotonic()
    if now - _LoggingSslObject._logged_at >= LOG_SECONDS:
        _LoggingSslObject._logged_at = now
        LOGGER.warning("%s", message)


def server_context(
    certificate_path: Path, key_path: Path, client_ca_path: Path | None = None, *, require_client_cert: bool = False
) -> ssl.SSLContext:
    """Return the server's context for TLS 1.2 or newer, which verifies client certificates with `client_ca_path`.

    Raises `ValueError` that says which file is wrong and why.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _LoggingSslObject
    load_certificate(context, certificate_path, key_path)
    if client_ca_path is not None:
        load_authorities(context, client_ca_path)
        context.verify_mode = ssl.CERT_REQUIRED if require_client_cert else ssl.CERT_OPTIONAL
    elif require_client_cert:
        raise ValueError("--require-client-cert needs the CA that signs client certificates; give --client-ca FILE")
    return context
