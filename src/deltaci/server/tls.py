"""TLS for the server: the context, and whom a client's certificate names.

A certificate names its runner by one URI among its alternative names, `deltaci:TENANT/RUNNER` with both parts
percent-encoded. Its common name means nothing: people put anything there.
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
SAY_SECONDS: Final = 1.0

LOGGER: Final = logging.getLogger(__name__)


class Peer(msgspec.Struct, frozen=True):
    """What a client's certificate says, after it was verified."""

    uris: tuple[str, ...]
    expires_at: float

    def runner(self, now: float) -> tuple[str, str] | None:
        """The tenant and the runner that it names; None if it names none."""
        ours = [uri for uri in self.uris if uri.startswith(SCHEME)]
        if not ours:
            return None
        # A connection may outlive the certificate that it was opened with.
        if self.expires_at <= now:
            raise Refused("expired_credential", "the client certificate has expired; connect with a new one")
        tenant, slash, runner = (unquote(part) for part in ours[0].removeprefix(SCHEME).partition("/"))
        if len(ours) > 1 or not slash or not is_tenant_name(tenant) or not is_runner_name(runner):
            raise Refused(
                "bad_credential",
                "the client certificate does not name one runner; give it exactly one URI deltaci:TENANT/RUNNER, "
                "percent-encoded, the runner with 1 to 100 printable ASCII characters and no slash",
            )
        return tenant, runner


def peer_of(ssl_object: Any) -> Peer | None:
    """Who is on the other end of a connection, if it showed a certificate."""
    shown = ssl_object.getpeercert() if ssl_object is not None else None
    if not shown:
        return None
    uris = tuple(value for kind, value in shown.get("subjectAltName", ()) if kind == "URI")
    return Peer(uris, ssl.cert_time_to_seconds(shown["notAfter"]))


class _Watched(ssl.SSLObject):
    """Says why a handshake failed: the event loop hangs up without a word, and the client learns nothing."""

    _said_at = float("-inf")

    def do_handshake(self) -> None:
        """As ever; a certificate that is not believed is worth a line, but not one for each of thousands."""
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            _tell(f"a client's certificate is refused: {error.verify_message}")
            raise
        except ssl.SSLError as error:
            if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                _tell("a client showed no certificate; it needs one that --client-ca signed")
            raise


def _tell(what: str) -> None:
    now = time.monotonic()
    if now - _Watched._said_at >= SAY_SECONDS:
        _Watched._said_at = now
        LOGGER.warning("%s", what)


def server_context(
    cert: Path, key: Path, client_ca: Path | None = None, *, require_client_cert: bool = False
) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate. Raises `ValueError` that says which file is wrong, and how."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _Watched
    load_certificate(context, cert, key)
    if client_ca is not None:
        load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if require_client_cert else ssl.CERT_OPTIONAL
    elif require_client_cert:
        raise ValueError("--require-client-cert needs to know who signs them; give --client-ca FILE")
    return context
