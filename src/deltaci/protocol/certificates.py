"""Load TLS certificates and keys from files, for server and runner. Errors name the file and the cause."""

from __future__ import annotations

import ssl
from pathlib import Path


def load_certificate(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Load a certificate and its key from PEM files into a TLS context.

    Raise `ValueError` that names the unreadable file, or both files if they are not a valid pair.
    """
    for pem_path in (cert, key):
        _check_readable(pem_path)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # Never prompt for a password.
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"the key in {key} does not belong to the certificate in {cert}; give the pair") from None
        raise ValueError(
            f"{cert} and {key} are not a certificate and its key in PEM without a password ({_reason(error)}); "
            "the certificate comes first in its file, then those that signed it"
        ) from None


def load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    """Make a TLS context trust the certificate authorities in a PEM file. Raise `ValueError` if it cannot be used."""
    _check_readable(ca)
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError as error:
        raise ValueError(f"{ca} has no certificate in PEM ({_reason(error)}); give the authority's own") from None


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; give a file in PEM that this user may read"
        ) from None


def _reason(error: ssl.SSLError) -> str:
    return error.reason.replace("_", " ").lower() if error.reason else "unreadable"
