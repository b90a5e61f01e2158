"""Where things are kept in the store of blobs, and how to find them again.

    artifacts/TENANT/ATTEMPT/LEASE/PATH     what a job left behind, under the lease that it ran by
    caches/TENANT/trusted/KEY               what trusted runs bring along
    caches/TENANT/of-SCOPE/KEY              what the runs of another scope do
    recent/TENANT/SCOPE/KEY!TIME            when a cache was kept, to find the newest by the beginning of its key
    secrets/TENANT/NAME                     sealed, for all jobs of the tenant
    scoped-secrets/TENANT/PROJECT/NAME/any  sealed, for those of a project
    scoped-secrets/TENANT/PROJECT/NAME/of-BRANCH    and for those on branches that fit a pattern

Every part but PATH is one name, however odd the text is that it was made from; no two texts give the same one. So no
text can lead into another tenant, another lease or another scope.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from deltaci.core.errors import Refused
from deltaci.storage.blobs.store import MAX_LISTED, BlobStore, parse_key

MAX_PATH_BYTES: Final = 600
PART_BYTES: Final = 512 * 1024  # Whoever reads slowly keeps one or two of them in memory.
MAX_SAFE: Final = 100
TRUSTED: Final = "trusted"
ANY_BRANCH: Final = "any"
SHARED: Final = "@"  # Before the name of an artifact that other jobs of the run ask for by it.
PACKED: Final = ".tar.gz"
MAX_RECENT: Final = 10_000  # So many keys are looked at for the newest,
MAX_TRIED: Final = 20  # and so many of them are tried: caches may be removed.
SECRET_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_SAFE - 1}}}")


class Artifact(msgspec.Struct, frozen=True):
    """An artifact, by its path in the job's workspace."""

    path: str
    bytes: int


def safe_name(text: str) -> str:
    """One name of printable characters for any text; another for every other text."""
    name = quote(text, safe="", errors="surrogatepass")
    if name.startswith((".", "_")) or not 0 < len(name) <= MAX_SAFE:
        return f"_{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return name


# -- artifacts


def artifacts_of(tenant: str, attempt_id: str, number: int | None = None) -> str:
    """What the keys of a lease's artifacts begin with; without a number, of all leases of an attempt."""
    lease = "" if number is None else f"{number}/"
    return f"artifacts/{safe_name(tenant)}/{safe_name(attempt_id)}/{lease}"


def artifact_key(tenant: str, attempt_id: str, number: int, path: str) -> str:
    """Where one artifact is. A path that cannot be one is refused."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_PATH_BYTES:
        raise Refused("bad_request", f"the path {path[:80]!r} is not one of 1 to {MAX_PATH_BYTES} bytes; rename it")
    parse_key(path)
    return artifacts_of(tenant, attempt_id, number) + path


def artifact_uri(attempt_id: str, number: int, path: str) -> str:
    """How records refer to it. Its tenant is the record's own, so a URI leads nowhere else."""
    return f"artifact:{safe_name(attempt_id)}/{number}/{path}"


def key_of_uri(tenant: str, uri: str) -> str:
    """Where an artifact is that a record of this tenant refers to."""
    return f"artifacts/{safe_name(tenant)}/{uri.removeprefix('artifact:')}"


def shared_path(name: str) -> str:
    """The path of an artifact that has a name; no file of a workspace is kept under it."""
    return f"{SHARED}{quote(name, safe=' ')}{PACKED}"


def shared_name(path: str) -> str:
    """The name of an artifact that has one; empty for all others."""
    is_one = path.startswith(SHARED) and path.endswith(PACKED) and "/" not in path
    return unquote(path[len(SHARED) : -len(PACKED)]) if is_one else ""


def artifacts(blobs: BlobStore, tenant: str, attempt_id: str, number: int) -> list[Artifact]:
    """What a lease left behind, by path. There are never more than one listing holds."""
    prefix = artifacts_of(tenant, attempt_id, number)
    return [Artifact(each.key.removeprefix(prefix), each.bytes) for each in blobs.list(prefix, limit=MAX_LISTED)]


def read_artifact(blobs: BlobStore, tenant: str, attempt_id: str, number: int, path: str) -> Iterator[bytes]:
    """All of it, part by part. Refused `not_found` if there is none."""
    return read_all(blobs, artifact_key(tenant, attempt_id, number, path))


def remove_lost(blobs: BlobStore, tenant: str, attempt_id: str, number: int) -> int:
    """Remove what earlier leases of an attempt left: they were lost, and nothing refers to it. How much it was."""
    prefix, own = artifacts_of(tenant, attempt_id), artifacts_of(tenant, attempt_id, number)
    removed, after = 0, ""
    while page := blobs.list(prefix, after):
        after = page[-1].key
        removed += sum(blobs.delete(each.key) for each in page if not each.key.startswith(own))
    return removed


def bytes_of(blobs: BlobStore, tenant: str) -> int:
    """How much a tenant keeps: artifacts and caches."""
    size = 0
    for prefix in (f"artifacts/{safe_name(tenant)}/", f"caches/{safe_name(tenant)}/"):
        after = ""
        while page := blobs.list(prefix, after):
            after = page[-1].key
            size += sum(each.bytes for each in page)
    return size


def read_all(blobs: BlobStore, key: str, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """A blob, part by part."""
    at = 0
    while part := blobs.get(key, at, part_bytes):
        yield part
        at += len(part)


# -- caches and secrets


def cache_key(tenant: str, scope: str, key: str) -> str:
    """Where a cache is. An empty scope is that of trusted runs, and no other scope has its name."""
    return f"caches/{safe_name(tenant)}/{_whose(scope)}/{safe_name(key)}"


def _whose(scope: str) -> str:
    return f"of-{safe_name(scope)}" if scope else TRUSTED


def remember_cache(blobs: BlobStore, tenant: str, scope: str, key: str, at: int) -> None:
    """A cache was kept at this moment, in milliseconds."""
    whole = quote(key, safe="", errors="surrogatepass")
    # A long key is found by its beginning, and told apart from others with the same one by its hash.
    name = whole if len(whole) <= MAX_SAFE else f"{whole[:MAX_SAFE]}!{sha256(whole.encode()).hexdigest()}"
    place = f"recent/{safe_name(tenant)}/{_whose(scope)}/k{name}!{max(0, at):013d}"
    blobs.put(place, key.encode("utf-8", "surrogatepass"))


def newest_cache(blobs: BlobStore, tenant: str, scope: str, prefix: str) -> str:
    """The key of the newest cache that is there and whose key begins so; empty if there is none."""
    begins = quote(prefix, safe="", errors="surrogatepass")[:MAX_SAFE]
    place, after, found = f"recent/{safe_name(tenant)}/{_whose(scope)}/k{begins}", "", list[str]()
    while (page := blobs.list(place, after)) and len(found) < MAX_RECENT:
        after = page[-1].key
        found += [each.key for each in page]
    for name in sorted(found, key=lambda each: each.rpartition("!")[2], reverse=True)[:MAX_TRIED]:
        key = blobs.get(name).decode("utf-8", "surrogatepass")
        if key.startswith(prefix) and blobs.stat(cache_key(tenant, scope, key)) is not None:
            return key
    return ""


def secrets_of(tenant: str) -> str:
    """What the keys of a tenant's secrets begin with."""
    return f"secrets/{safe_name(tenant)}/"


def secret_key(tenant: str, name: str, project: str = "", branch: str = "") -> str:
    """Where a secret is. Its name is that of a variable; a project and a pattern of branches make it narrower."""
    if not SECRET_NAME.fullmatch(name):
        raise Refused(
            "bad_request", f"{name[:80]!r} is no name for a secret; give letters, digits and '_', at most {MAX_SAFE}"
        )
    if not project:
        return secrets_of(tenant) + name
    return f"{project_secrets(tenant, project)}{name}/{f'of-{safe_name(branch)}' if branch else ANY_BRANCH}"


def scoped_secrets(tenant: str) -> str:
    """What the keys of those of a tenant's secrets begin with that are not for all of its jobs."""
    return f"scoped-secrets/{safe_name(tenant)}/"


def project_secrets(tenant: str, project: str) -> str:
    """The same for one project."""
    return f"{scoped_secrets(tenant)}{safe_name(project)}/"


def all_keys(blobs: BlobStore, prefix: str) -> Iterator[str]:
    """Every key that begins like this."""
    after = ""
    while page := blobs.list(prefix, after):
        after = page[-1].key
        yield from (each.key for each in page)


def secret_names(blobs: BlobStore, tenant: str) -> list[str]:
    """The names of a tenant's secrets that are for all of its jobs."""
    prefix = secrets_of(tenant)
    return [key.removeprefix(prefix) for key in all_keys(blobs, prefix)]
