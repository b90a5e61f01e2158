"""Certificate authorities and certificates for tests."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HERE: Final = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path

    def become(self, other: Pair) -> None:
        """Replace the files by another pair atomically, as a renewal does."""
        for own, new in zip(self, other, strict=True):
            fresh = own.with_suffix(".fresh")
            fresh.write_bytes(new.read_bytes())
            fresh.replace(own)


def _write(path: Path, key: ec.EllipticCurvePrivateKey, how: KeySerializationEncryption) -> None:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))


def uri(text: str) -> x509.GeneralName:
    """A name of this kind."""
    return x509.UniformResourceIdentifier(text)


class Authority:
    """Signs certificates; `pem` is its own."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._count = folder, name, 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pem = folder / f"{name}.pem"
        made = self._builder(self._subject, self._key, 30).add_extension(x509.BasicConstraints(True, None), True)
        self.pem.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: float) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
        )

    def issue(self, *names: x509.GeneralName, days: float = 1, password: bytes = b"", common: str = "anybody") -> Pair:
        """A certificate for these names, good for so many days; negative: over since then."""
        self._count += 1
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        made = self._builder(subject, key, days).add_extension(usage, False)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), False)
        pair = Pair(*(self._folder / f"{self._name}-{self._count}.{part}.pem" for part in ("cert", "key")))
        pair.cert.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        _write(pair.key, key, BestAvailableEncryption(password) if password else NoEncryption())
        return pair
