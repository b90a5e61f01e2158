"""Named secrets, encrypted with a key derived from the server's key, in the blob store.

A reader of the blob store without `server.key` learns names, scopes, and who set a secret and when, but no value. The
encryption is bound to tenant, name, scope and metadata (as associated data), so that a value that was moved elsewhere
cannot be decrypted. Values are decrypted only for a job with a live lease and for the server's own use.

A secret's scope is a tenant, a project, or the branches of a project that match a pattern. The narrowest scope that
matches a job wins; if its value cannot be decrypted, no other one is used instead.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.run import Origin
from deltaci.protocol.patterns.path_patterns import BadPattern, branch_filter
from deltaci.storage.blobs.keys import (
    ANY_BRANCH,
    all_keys,
    project_secret_prefix,
    scoped_secret_prefix,
    secret_key,
    secret_names,
    secret_prefix,
)
from deltaci.storage.blobs.store import BlobStore

MIN_CHARACTERS: Final = 4  # A shorter value cannot be masked in a log.
MAX_BYTES: Final = 64 * 1024  # The kernel limits an environment variable to 128 KiB.
MAX_SECRETS: Final = 1000  # The limit for a tenant, in all scopes.
MAX_PROJECT: Final = 200
MAX_BRANCH: Final = 200
NONCE_BYTES: Final = 12
SIZE_BYTES: Final = 4
LEGACY_VERSION: Final = b"\x01"  # The format of an earlier version: tenant-wide, without metadata.
VERSION: Final = b"\x02"
PURPOSE: Final = b"deltaci secrets 1"
PULL_REQUEST: Final = "pull_request"
WILDCARDS: Final = frozenset("*?+[]!\\")
MISSING: Final = "secrets need an optional dependency that is not installed; run: pip install 'deltaci[secrets]'"


class SecretScope(msgspec.Struct, frozen=True, order=True):
    """The scope of a secret: the whole tenant, a project, or the branches of a project that match a pattern."""

    project: str = ""
    branch: str = ""

    def check(self) -> None:
        """Raise `Refused` if this is not a valid scope."""
        if self.branch and not self.project:
            raise Refused("bad_request", "a branch needs a project; name the project, too")
        for scope_text, max_chars in ((self.project, MAX_PROJECT), (self.branch, MAX_BRANCH)):
            if len(scope_text) > max_chars or not scope_text.isprintable():
                raise Refused(
                    "bad_request",
                    f"{scope_text[:80]!r} is not a valid name: give at most {max_chars} printable characters",
                )
        if self.branch:
            try:
                branch_filter([self.branch])
            except BadPattern as bad:
                raise Refused("bad_request", f"the pattern {self.branch[:80]!r}: {bad}") from None

    def matches_branch(self, branch: str) -> bool:
        """Return whether the scope covers a job on this branch. An empty branch is in no scope with a branch."""
        return not self.branch or (bool(branch) and branch_filter([self.branch]).matches(branch))

    def rank(self) -> tuple[int, int, str]:
        """Return a sort key that is greater for narrower scopes.

        An exact branch is narrower than a pattern, and a pattern with more literal characters is narrower than another.
        """
        literal_char_count = sum(char not in WILDCARDS for char in self.branch)
        return (not WILDCARDS & set(self.branch) if self.branch else -1, literal_char_count, self.branch)


class JobScope(msgspec.Struct, frozen=True):
    """The project and the branch of a job. The branch is empty if the job is not on one."""

    project: str = ""
    branch: str = ""


TENANT_WIDE: Final = SecretScope()
NO_PROJECT: Final = JobScope()


class SecretMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a secret, readable without decryption. `at` is in microseconds, 0 if unknown."""

    name: str
    scope: SecretScope = TENANT_WIDE
    version: int = 1
    at: int = 0
    by: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SecretMetadata).decode


def job_scope_of(origin: Origin) -> JobScope:
    """Return the project and branch whose secrets the jobs of a run may use.

    The branch is empty unless the server knows that the commit is on it: a pull request names its target branch, and a
    person who starts a run may name any branch.
    """
    is_branch_known = origin.is_on_branch and origin.event != PULL_REQUEST
    return JobScope(origin.project, origin.branch if is_branch_known else "")


def is_from_fork(origin: Origin) -> bool:
    """Return whether the run's code comes from a fork, whose authors may not write to the repository."""
    return origin.is_fork


class SealedSecret(msgspec.Struct, frozen=True):
    """An encrypted secret that is not stored yet."""

    metadata: SecretMetadata
    blob_key: str
    blob: bytes


class Secrets:
    """Encrypts, stores and decrypts the secrets of all tenants."""

    def __init__(self, blobs: BlobStore, server_key: bytes) -> None:
        self._blobs = blobs
        self._server_key = server_key

    def set(
        self, tenant: str, name: str, value: str, scope: SecretScope = TENANT_WIDE, *, by: str = "", at: int = 0
    ) -> SecretMetadata:
        """Encrypt and store a secret, in place of one with the same name and scope. Return its metadata.

        `by` and `at` are for display. Raises `Refused` for an invalid value or scope.
        """
        sealed_secret = self.seal(tenant, name, value, scope, by=by, at=at)
        self.put(sealed_secret)
        return sealed_secret.metadata

    def put(self, sealed_secret: SealedSecret) -> None:
        """Store an encrypted secret."""
        self._blobs.put(sealed_secret.blob_key, sealed_secret.blob)

    def seal(self, tenant: str, name: str, value: str, scope: SecretScope, *, by: str, at: int) -> SealedSecret:
        """Return an encrypted secret, which `put` stores. Raises `Refused` for an invalid value or scope."""
        blob_key = secret_key(tenant, name, scope.project, scope.branch)
        scope.check()
        if len(value.strip()) < MIN_CHARACTERS:
            raise Refused(
                "bad_request", f"a secret has at least {MIN_CHARACTERS} characters: shorter ones cannot be masked"
            )
        plaintext = value.encode("utf-8", "surrogatepass")
        if len(plaintext) > MAX_BYTES or "\0" in value or not _is_unicode(value):
            raise Refused("bad_request", f"a secret is a text of at most {MAX_BYTES} bytes without NUL; encode it")
        existing_metadata = self._read_metadata(tenant, blob_key)
        if existing_metadata is None and sum(1 for _ in self._blob_keys(tenant)) >= MAX_SECRETS:
            raise Refused("bad_request", f"the tenant has {MAX_SECRETS} secrets already; remove some")
        metadata = SecretMetadata(
            name=name,
            scope=scope,
            version=existing_metadata.version + 1 if existing_metadata is not None else 1,
            at=at,
            by=by,
        )
        metadata_json, nonce = _encode(metadata), secrets.token_bytes(NONCE_BYTES)
        ciphertext = self._cipher().encrypt(nonce, plaintext, _associated_data(tenant, name, scope) + metadata_json)
        header = VERSION + len(metadata_json).to_bytes(SIZE_BYTES, "big") + metadata_json
        return SealedSecret(metadata, blob_key, header + nonce + ciphertext)

    def names(self, tenant: str) -> list[str]:
        """Return the names of the tenant-wide secrets."""
        return secret_names(self._blobs, tenant)

    def list_all(self, tenant: str) -> list[SecretMetadata]:
        """Return the metadata of all secrets, sorted by name, project and branch.

        An empty project or branch comes first.
        """
        metadata_list = [
            metadata
            for blob_key in self._blob_keys(tenant)
            if (metadata := self._read_metadata(tenant, blob_key)) is not None
        ]
        return sorted(metadata_list, key=lambda secret: (secret.name, secret.scope))

    def remove(self, tenant: str, name: str, scope: SecretScope = TENANT_WIDE) -> bool:
        """Delete a secret. Return whether it existed."""
        scope.check()
        return self._blobs.delete(secret_key(tenant, name, scope.project, scope.branch))

    def find(self, tenant: str, name: str, scope: SecretScope = TENANT_WIDE) -> SecretMetadata | None:
        """Return the metadata of the secret with exactly this scope, or None if it does not exist."""
        return self._read_metadata(tenant, secret_key(tenant, name, scope.project, scope.branch))

    def decrypt(self, tenant: str, names: Iterable[str], scope: JobScope = NO_PROJECT) -> dict[str, str]:
        """Return the values of these secrets for a job, each from the narrowest scope that matches the job.

        Raises `Refused` if one is missing or cannot be decrypted.
        """
        required_names = list(names)
        narrowest_scopes = self._narrowest_scopes(tenant, scope) if scope.project and required_names else {}
        return {name: self._decrypt(tenant, name, narrowest_scopes.get(name, TENANT_WIDE)) for name in required_names}

    def decrypt_existing(self, tenant: str, names: Iterable[str], scope: JobScope = NO_PROJECT) -> dict[str, str]:
        """Return the values of these secrets for a job. Leave out missing ones and undecryptable ones."""
        requested_names, value_by_name = list(names), dict[str, str]()
        narrowest_scopes = self._narrowest_scopes(tenant, scope) if scope.project and requested_names else {}
        for name in requested_names:
            try:
                value_by_name[name] = self._decrypt(tenant, name, narrowest_scopes.get(name, TENANT_WIDE))
            except Refused as refused:
                if refused.code not in ("no_secret", "bad_request"):
                    raise
        return value_by_name

    def _narrowest_scopes(self, tenant: str, job_scope: JobScope) -> dict[str, SecretScope]:
        """Return the narrowest scope that matches the job, by secret name, of the secrets of the job's project."""
        scope_by_name: dict[str, SecretScope] = {}
        for blob_key in all_keys(self._blobs, project_secret_prefix(tenant, job_scope.project)):
            if blob_key.endswith(f"/{ANY_BRANCH}"):
                secret_name, scope = blob_key.split("/")[-2], SecretScope(job_scope.project)
            elif (
                job_scope.branch
                and (metadata := self._read_metadata(tenant, blob_key)) is not None
                and metadata.scope.matches_branch(job_scope.branch)
            ):
                secret_name, scope = metadata.name, metadata.scope
            else:
                continue
            if secret_name not in scope_by_name or scope.rank() > scope_by_name[secret_name].rank():
                scope_by_name[secret_name] = scope
        return scope_by_name

    def _blob_keys(self, tenant: str) -> Iterator[str]:
        for key_prefix in (secret_prefix(tenant), scoped_secret_prefix(tenant)):
            yield from all_keys(self._blobs, key_prefix)

    def _read_metadata(self, tenant: str, blob_key: str) -> SecretMetadata | None:
        """Return the metadata stored under this key, or None if there is none or it belongs to another key.

        Thus a blob that was moved to another key is ignored. The metadata is unverified until the value was decrypted
        with it.
        """
        try:
            blob = self._blobs.get(blob_key)
        except Refused:
            return None
        try:
            metadata = _decode(_split(blob)[0])
            expected_key = secret_key(tenant, metadata.name, metadata.scope.project, metadata.scope.branch)
        except (
            ValueError,
            Refused,
        ):  # A secret of an earlier version, or a corrupt one: list it, so that it can be removed.
            return (
                SecretMetadata(name=blob_key.removeprefix(secret_prefix(tenant)))
                if blob_key.startswith(secret_prefix(tenant))
                else None
            )
        return metadata if expected_key == blob_key else None

    def _decrypt(self, tenant: str, secret_name: str, scope: SecretScope) -> str:
        try:
            blob = self._blobs.get(secret_key(tenant, secret_name, scope.project, scope.branch))
        except Refused:
            raise Refused(
                "no_secret",
                f"there is no secret {secret_name[:80]!r} for this job; set it with: deltaci secret set NAME",
            ) from None
        try:
            if blob[:1] == LEGACY_VERSION and scope == TENANT_WIDE:
                metadata_json, nonce_and_ciphertext, associated_data = (
                    b"",
                    blob[1:],
                    msgspec.json.encode([tenant, secret_name]),
                )
            else:
                metadata_json, nonce_and_ciphertext = _split(blob)
                associated_data = _associated_data(tenant, secret_name, scope)
            decrypted_value: bytes = self._cipher().decrypt(
                nonce_and_ciphertext[:NONCE_BYTES], nonce_and_ciphertext[NONCE_BYTES:], associated_data + metadata_json
            )
            return decrypted_value.decode()
        except (_optional_module("cryptography.exceptions").InvalidTag, ValueError):
            pass
        raise Refused(
            "no_secret", f"the secret {secret_name[:80]!r} was not encrypted with this server's key; set it again"
        ) from None

    def _cipher(self) -> Any:
        """Return an AES-GCM cipher with a key derived from the server's key."""
        hkdf = _optional_module("cryptography.hazmat.primitives.kdf.hkdf").HKDF
        sha256 = _optional_module("cryptography.hazmat.primitives.hashes").SHA256
        cipher_key = hkdf(algorithm=sha256(), length=32, salt=None, info=PURPOSE).derive(self._server_key)
        return _optional_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM(cipher_key)


def _split(blob: bytes) -> tuple[bytes, bytes]:
    """Split a stored blob into the metadata and the nonce with the ciphertext.

    Raises `ValueError` for another format.
    """
    if blob[:1] != VERSION:
        raise ValueError("not a secret of this version")
    metadata_start = 1 + SIZE_BYTES
    metadata_end = metadata_start + int.from_bytes(blob[1:metadata_start], "big")
    return blob[metadata_start:metadata_end], blob[metadata_end:]


def _associated_data(tenant: str, secret_name: str, scope: SecretScope) -> bytes:
    return msgspec.json.encode([tenant, secret_name, scope.project, scope.branch])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _optional_module(module_name: str) -> ModuleType:
    """Return a module of the optional cryptography library. Raises `Refused` if it is not installed."""
    try:
        return import_module(module_name)
    except ModuleNotFoundError:
        raise Refused("no_secret", MISSING) from None
