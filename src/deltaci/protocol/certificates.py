"""Load TLS certificates and keys from files, for server and runner. Errors name the file and the cause."""

from __future__ import annotations

import ssl
from pathlib import Path


def load_certificate(context: ssl.SSLContext, certificate_path: Path, key_path: Path) -> None:
    """Load a certificate and its key from PEM files into a TLS context.

    Raise `ValueError` that names the unreadable file, or both files if they are not a valid pair.
    """
    for pem_path in (certificate_path, key_path):
        _check_readable(pem_path)
    try:
        context.load_cert_chain(certificate_path, key_path, password=lambda: "")  # Never prompt for a password.
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(
                f"the key in {key_path} does not belong to the certificate in {certificate_path}; give the pair"
            ) from None
        raise ValueError(
            f"{certificate_path} and {key_path} are not a certificate and its key in PEM without a password "
            f"({_reason(error)}); "
            "the certificate comes first in its file, then those that signed it"
        ) from None


def load_authorities(context: ssl.SSLContext, authorities_path: Path) -> None:
    """Make a TLS context trust the certificate authorities in a PEM file. Raise `ValueError` if it cannot be used."""
    _check_readable(authorities_path)
    try:
        context.load_verify_locations(cafile=authorities_path)
    except ssl.SSLError as error:
        raise ValueError(
            f"{authorities_path} has no certificate in PEM ({_reason(error)}); give the authority's own"
        ) from None


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
