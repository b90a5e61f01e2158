"""Certificates and keys from files, for both ends of a connection. What is wrong with a file is said at once."""

from __future__ import annotations

import ssl
from pathlib import Path


def load_certificate(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Take a certificate and its key, or say which file is wrong."""
    for path in (cert, key):
        _check_readable(path)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # Never ask a terminal for it.
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"the key in {key} does not belong to the certificate in {cert}; give the pair") from None
        raise ValueError(
            f"{cert} and {key} are not a certificate and its key in PEM without a password ({_reason(error)}); "
            "the certificate comes first in its file, then those that signed it"
        ) from None


def load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    """Trust who is in this file, or say what is wrong with it."""
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
