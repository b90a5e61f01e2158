"""The keys of artifacts, caches and secrets in the blob store, and functions to read them.

    artifacts/TENANT/ATTEMPT/LEASE/PATH     an artifact of a job, under the lease that it ran with
    caches/TENANT/trusted/KEY               a cache of trusted runs
    caches/TENANT/of-SCOPE/KEY              a cache of the runs of another scope
    recent/TENANT/SCOPE/KEY!TIME            when a cache was stored, to find the newest by key prefix
    secrets/TENANT/NAME                     encrypted, for all jobs of the tenant
    scoped-secrets/TENANT/PROJECT/NAME/any  encrypted, for the jobs of a project
    scoped-secrets/TENANT/PROJECT/NAME/of-BRANCH    and for those on branches that match a pattern

Every part but PATH is one name, derived from any text; different texts give different names. So no text can lead into
another tenant, another lease or another scope.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import msgspec

from deltaci.core.errors import Refused
from deltaci.storage.blobs.store import MAX_LISTED, BlobStore, parse_key

MAX_PATH_BYTES: Final = 600
PART_BYTES: Final = 512 * 1024  # A slow reader keeps one or two of them in memory.
MAX_NAME_LENGTH: Final = 100
TRUSTED: Final = "trusted"
ANY_BRANCH: Final = "any"
MAX_RECENT_KEYS: Final = 10_000  # Keys that are compared to find the newest cache.
MAX_CHECKED_CACHES: Final = 20  # Newest caches that are checked for existence: they may have been deleted.
SECRET_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_NAME_LENGTH - 1}}}")


class Artifact(msgspec.Struct, frozen=True):
    """An artifact: its path in the job's workspace and its size."""

    path: str
    bytes: int


def safe_name(text: str) -> str:
    """Return the text in a form that is one part of a key. Different texts give different names.

    It is percent-encoded, or replaced by its hash if that is too long or begins with `.` or `_`.
    """
    quoted_text = quote(text, safe="", errors="surrogatepass")
    if quoted_text.startswith((".", "_")) or not 0 < len(quoted_text) <= MAX_NAME_LENGTH:
        return f"_{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return quoted_text


# -- artifacts


def artifact_prefix(tenant: str, attempt_id: str, lease_number: int | None = None) -> str:
    """Return the key prefix of the artifacts of one lease or, without a number, of all leases of an attempt."""
    lease_folder = "" if lease_number is None else f"{lease_number}/"
    return f"artifacts/{safe_name(tenant)}/{safe_name(attempt_id)}/{lease_folder}"


def artifact_key(tenant: str, attempt_id: str, lease_number: int, path: str) -> str:
    """Return the key of an artifact. `lease_number` is that of its lease. Raises `Refused` for an invalid path."""
    try:
        path_bytes = len(path.encode())
    except UnicodeEncodeError:
        path_bytes = 0
    if not 0 < path_bytes <= MAX_PATH_BYTES:
        raise Refused("bad_request", f"the path {path[:80]!r} is not one of 1 to {MAX_PATH_BYTES} bytes; rename it")
    parse_key(path)
    return artifact_prefix(tenant, attempt_id, lease_number) + path


def artifact_uri(attempt_id: str, lease_number: int, path: str) -> str:
    """Return the URI by which a record refers to an artifact. It has no tenant: the tenant of the record applies."""
    return f"artifact:{safe_name(attempt_id)}/{lease_number}/{path}"


def key_of_uri(tenant: str, uri: str) -> str:
    """Return the key of an artifact, given its URI in a record of this tenant."""
    return f"artifacts/{safe_name(tenant)}/{uri.removeprefix('artifact:')}"


def artifacts(blobs: BlobStore, tenant: str, attempt_id: str, lease_number: int) -> list[Artifact]:
    """Return the artifacts of a lease, sorted by path: at most MAX_LISTED."""
    prefix = artifact_prefix(tenant, attempt_id, lease_number)
    return [Artifact(entry.key.removeprefix(prefix), entry.bytes) for entry in blobs.list(prefix, limit=MAX_LISTED)]


def read_artifact(blobs: BlobStore, tenant: str, attempt_id: str, lease_number: int, path: str) -> Iterator[bytes]:
    """Yield the content of an artifact in chunks. Refuse with `not_found` if there is none."""
    return read_all(blobs, artifact_key(tenant, attempt_id, lease_number, path))


def remove_lost_artifacts(blobs: BlobStore, tenant: str, attempt_id: str, lease_number: int) -> int:
    """Delete the artifacts of all leases of an attempt but the lease with this number. Return how many.

    Nothing refers to the artifacts of lost leases.
    """
    prefix, current_prefix = artifact_prefix(tenant, attempt_id), artifact_prefix(tenant, attempt_id, lease_number)
    removed_count, last_key = 0, ""
    while blob_entries := blobs.list(prefix, last_key):
        last_key = blob_entries[-1].key
        removed_count += sum(
            blobs.delete(entry.key) for entry in blob_entries if not entry.key.startswith(current_prefix)
        )
    return removed_count


def stored_bytes(blobs: BlobStore, tenant: str) -> int:
    """Return the total size of a tenant's artifacts and caches in bytes."""
    total_bytes = 0
    for prefix in (f"artifacts/{safe_name(tenant)}/", f"caches/{safe_name(tenant)}/"):
        last_key = ""
        while blob_entries := blobs.list(prefix, last_key):
            last_key = blob_entries[-1].key
            total_bytes += sum(entry.bytes for entry in blob_entries)
    return total_bytes


def read_all(blobs: BlobStore, key: str, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """Yield the content of a blob in chunks. Refuse with `not_found` if there is none."""
    offset = 0
    while chunk := blobs.get(key, offset, part_bytes):
        yield chunk
        offset += len(chunk)


# -- caches and secrets


def cache_key(tenant: str, scope: str, key: str) -> str:
    """Return the blob key of a cache.

    The empty scope is that of trusted runs: jobs of all scopes may read its caches, and only trusted runs write them.
    """
    return f"caches/{safe_name(tenant)}/{_scope_name(scope)}/{safe_name(key)}"


def _scope_name(scope: str) -> str:
    return f"of-{safe_name(scope)}" if scope else TRUSTED


def remember_cache(blobs: BlobStore, tenant: str, scope: str, key: str, at: int) -> None:
    """Record that a cache was stored at the time `at`, in milliseconds, so that `newest_cache` finds it."""
    quoted_key = quote(key, safe="", errors="surrogatepass")
    # A long key is found by its beginning; its hash distinguishes it from others with the same beginning.
    short_key = (
        quoted_key
        if len(quoted_key) <= MAX_NAME_LENGTH
        else f"{quoted_key[:MAX_NAME_LENGTH]}!{sha256(quoted_key.encode()).hexdigest()}"
    )
    recent_key = f"recent/{safe_name(tenant)}/{_scope_name(scope)}/k{short_key}!{max(0, at):013d}"
    blobs.put(recent_key, key.encode("utf-8", "surrogatepass"))


def newest_cache(blobs: BlobStore, tenant: str, scope: str, prefix: str) -> str:
    """Return the cache key of the newest existing cache whose cache key has this prefix; empty if there is none."""
    quoted_prefix = quote(prefix, safe="", errors="surrogatepass")[:MAX_NAME_LENGTH]
    recent_prefix, last_key, recent_keys = (
        f"recent/{safe_name(tenant)}/{_scope_name(scope)}/k{quoted_prefix}",
        "",
        list[str](),
    )
    while (blob_entries := blobs.list(recent_prefix, last_key)) and len(recent_keys) < MAX_RECENT_KEYS:
        last_key = blob_entries[-1].key
        recent_keys += [entry.key for entry in blob_entries]
    sorted_keys = sorted(recent_keys, key=lambda recent_key: recent_key.rpartition("!")[2], reverse=True)
    for recent_key in sorted_keys[:MAX_CHECKED_CACHES]:
        stored_key = blobs.get(recent_key).decode("utf-8", "surrogatepass")
        if stored_key.startswith(prefix) and blobs.stat(cache_key(tenant, scope, stored_key)) is not None:
            return stored_key
    return ""


def secret_prefix(tenant: str) -> str:
    """Return the key prefix of the secrets that all jobs of a tenant may read."""
    return f"secrets/{safe_name(tenant)}/"


def secret_key(tenant: str, name: str, project: str = "", branch: str = "") -> str:
    """Return the key of a secret of a tenant or, narrower, of a project or of branches that match the pattern `branch`.

    Raises `Refused` for an invalid name.
    """
    if not SECRET_NAME.fullmatch(name):
        raise Refused(
            "bad_request",
            f"{name[:80]!r} is no name for a secret; give letters, digits and '_', at most {MAX_NAME_LENGTH}",
        )
    if not project:
        return secret_prefix(tenant) + name
    return f"{project_secret_prefix(tenant, project)}{name}/{f'of-{safe_name(branch)}' if branch else ANY_BRANCH}"


def scoped_secret_prefix(tenant: str) -> str:
    """Return the key prefix of all secrets of a tenant that are restricted to a project."""
    return f"scoped-secrets/{safe_name(tenant)}/"


def project_secret_prefix(tenant: str, project: str) -> str:
    """Return the key prefix of the secrets that are restricted to this project."""
    return f"{scoped_secret_prefix(tenant)}{safe_name(project)}/"


def all_keys(blobs: BlobStore, prefix: str) -> Iterator[str]:
    """Yield all keys with this prefix."""
    last_key = ""
    while blob_entries := blobs.list(prefix, last_key):
        last_key = blob_entries[-1].key
        yield from (entry.key for entry in blob_entries)


def secret_names(blobs: BlobStore, tenant: str) -> list[str]:
    """Return the names of the secrets that all jobs of a tenant may read."""
    prefix = secret_prefix(tenant)
    return [blob_key.removeprefix(prefix) for blob_key in all_keys(blobs, prefix)]
