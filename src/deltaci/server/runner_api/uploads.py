"""Artifacts, caches and secrets over HTTP, each under a live lease.

Where something is kept, whose cache it is and which secrets a job gets follow from the attempt's own record; what the
request says is only a name within that. A body is taken into a file first. The lease is checked before that, when the
body is whole, and once more when it is kept: what was written for a lease that was lost meanwhile is removed again.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from typing import Protocol as Protocol_

import msgspec

from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused, StaleLease
from deltaci.engine.requests import Overloaded
from deltaci.protocol import messages as wire
from deltaci.protocol.responses import StoredArtifact, StoredCache
from deltaci.protocol.routes import MAX_CACHE_KEY, SHA256_HEADER
from deltaci.server.disk import Disk
from deltaci.server.runner_api.message_handlers import Protocol, Runner, job_spec
from deltaci.server.runner_api.needs import NAMES as SHARED
from deltaci.server.runner_api.needs import Shared, number_of
from deltaci.server.secrets import Secrets, is_foreign, where
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.disk_reserve import check_free_space
from deltaci.storage.blobs.store import BlobStat, BlobStore, BlobStoreUnavailable

if TYPE_CHECKING:
    from deltaci.server.request import Request

NAMES: Final = frozenset({"artifacts", "caches", "secrets"}) | SHARED
AT_ONCE: Final = 64  # So many bodies are taken at a time, each in a file of its own.
STALL_SECONDS: Final = 60.0
BUFFER_BYTES: Final = 1024 * 1024

T = TypeVar("T")
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be kept."""

    files: int = wire.MAX_ARTIFACTS
    file_bytes: int = wire.MAX_ARTIFACT_BYTES
    lease_bytes: int = wire.MAX_LEASE_BYTES
    cache_bytes: int = wire.MAX_CACHE_BYTES


class Streamed:
    """An answer that is too large to be one: bytes, part by part."""

    def __init__(self, stored: BlobStat, parts: AsyncIterator[bytes]) -> None:
        self._stored = stored
        self._parts = parts

    async def send(self, send: Send) -> None:
        """All of it. When the store fails on the way the connection breaks off, so nobody takes half for the whole."""
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(self._stored.bytes).encode()),
            (b"cache-control", b"no-store"),
            (SHA256_HEADER.lower().encode(), self._stored.sha256.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Storage(Protocol_):
    """Who knows how much a tenant may keep."""

    async def room(self, tenant: str) -> int | None:
        """How many bytes more; None: as many as it likes."""
        ...

    def kept(self, tenant: str, size: int) -> None:
        """So many were added."""
        ...


class Uploads:
    """What runners bring and fetch beside their messages."""

    def __init__(
        self,
        protocol: Protocol,
        blobs: BlobStore,
        secrets: Secrets,
        folder: Path,
        bounds: Bounds | None = None,
        storage: Storage | None = None,
    ) -> None:
        self._protocol = protocol
        self._blobs = blobs
        self._secrets = secrets
        self._folder = folder
        self._bounds = bounds or Bounds()
        self._storage = storage
        # Threads of their own: a slow store of blobs must not hold up those who write logs.
        self._disk = Disk("blobs")
        self._shared = Shared(protocol, blobs, secrets, self._disk)
        self._under_way = 0

    def close(self) -> None:
        """Wait for what is under way."""
        self._disk.close()

    async def answer(self, who: Runner, name: str, rest: str, request: Request) -> Any:
        """One request to one of `NAMES`."""
        request.digest()  # What is no request is refused as that, whatever the lease is.
        held = await self._protocol.held(who, request.lease_id())
        if name in SHARED:
            return await self._share(held, name, rest, number_of(request.lease_id()))
        if name == "secrets":
            return await self._open_secrets(held)
        if name == "artifacts":
            return await self._keep_artifact(who, held, rest, request)
        if len(rest) > MAX_CACHE_KEY:
            raise Refused("bad_request", f"the key has {len(rest)} characters; at most {MAX_CACHE_KEY}")
        if request.method == "GET":
            return await self._read_cache(held, rest)
        return await self._keep_cache(who, held, rest, request)

    async def _share(self, held: Attempt, name: str, rest: str, number: int) -> Any:
        """What jobs of a run have of each other."""
        match name:
            case "needs":
                return await self._shared.needs(held)
            case "run-artifacts":
                return await self._shared.artifacts(held, number)
            case "run-artifact":
                key, stored = await self._shared.artifact(held, number, rest)
                return Streamed(stored, self._read(key))
            case "cache-keys":
                return await self._shared.cache_key(held, rest)
            case "source-credential":
                return await self._shared.source_credential(held)
        return await self._shared.optional_secrets(held)

    async def forget_lost(self, who: Runner, lease_id: str) -> None:
        """The attempt has its result: what earlier leases of it left will never be referred to."""
        ref = ids.lease_ref(lease_id)
        if ref.number > 1:
            # The result stands, whether or not the store can be asked now.
            with suppress(BlobStoreUnavailable):
                await self._disk.do(lambda: keys.remove_lost(self._blobs, who.tenant, ref.attempt_id, ref.number))

    # -- secrets

    async def _open_secrets(self, held: Attempt) -> dict[str, str]:
        """What the job names, as far as its run may have it: where that comes from is in the run's own record."""
        spec = job_spec(held)
        origin = await self._protocol.origin(held)
        if spec.cache_scope or is_foreign(origin):
            raise Refused("untrusted", "a run that is not trusted gets no secrets; run the job from a trusted source")
        return await self._disk.do(lambda: self._secrets.opened(held.tenant, spec.secrets, where(origin)))

    # -- artifacts

    async def _keep_artifact(self, who: Runner, held: Attempt, path: str, request: Request) -> StoredArtifact:
        number = ids.lease_ref(request.lease_id()).number
        key = keys.artifact_key(held.tenant, held.id, number, path)
        limit = await self._disk.do(lambda: self._left(held, number, path))
        limit = await self._within_quota(held.tenant, limit, request)
        async with self._body(request, limit) as (file, stored):
            await self._protocol.held(who, request.lease_id())
            await self._disk.do(lambda: self._blobs.put(key, file))
        await self._check_still_held(who, request, key)
        self._keep_count(held.tenant, stored.bytes)
        uri = keys.artifact_uri(held.id, number, path)
        return StoredArtifact(uri=uri, bytes=stored.bytes, sha256=stored.sha256)

    def _left(self, held: Attempt, number: int, path: str) -> int:
        """How large this artifact may be. Of those that come at the same moment none counts for the others."""
        kept = keys.artifacts(self._blobs, held.tenant, held.id, number)
        if not kept and number > 1:
            keys.remove_lost(self._blobs, held.tenant, held.id, number)
        others = [each for each in kept if each.path != path]
        if len(others) >= self._bounds.files:
            raise Refused("too_large", f"a job keeps at most {self._bounds.files} files; pack them")
        left = self._bounds.lease_bytes - sum(each.bytes for each in others)
        return max(0, min(self._bounds.file_bytes, left))

    # -- caches

    async def _read_cache(self, held: Attempt, key: str) -> Streamed:
        """From its own scope, or else from that of trusted runs, which everybody of the tenant may read."""
        for scope in dict.fromkeys((job_spec(held).cache_scope, "")):
            found = keys.cache_key(held.tenant, scope, key)
            stored = await self._disk.do(lambda found=found: self._blobs.stat(found))  # type: ignore[misc]
            if stored is not None:
                return Streamed(stored, self._read(found))
        raise Refused("not_found", "there is no cache of this key; make it, and send it when the job succeeded")

    async def _keep_cache(self, who: Runner, held: Attempt, name: str, request: Request) -> StoredCache:
        key = keys.cache_key(held.tenant, job_spec(held).cache_scope, name)
        there = await self._disk.do(lambda: self._blobs.stat(key))
        if there is not None:
            async for _ in request.chunks(self._bounds.cache_bytes):
                pass  # Whoever sends a body must be able to send all of it before it hears an answer.
            return StoredCache(stored=False, bytes=there.bytes, sha256=there.sha256)
        limit = await self._within_quota(held.tenant, self._bounds.cache_bytes, request)
        async with self._body(request, limit) as (file, stored):
            await self._protocol.held(who, request.lease_id())
            is_first = await self._disk.do(lambda: self._blobs.put_if_absent(key, file)) is not None
        if is_first:
            await self._check_still_held(who, request, key)
            self._keep_count(held.tenant, stored.bytes)
            scope = job_spec(held).cache_scope
            await self._disk.do(lambda: self._shared.remember_cache(held.tenant, scope, name))
        return StoredCache(stored=is_first, bytes=stored.bytes, sha256=stored.sha256)

    # -- what they share

    async def _within_quota(self, tenant: str, limit: int, request: Request) -> int:
        """How many bytes may come: no more than the tenant may still keep."""
        room = await self._storage.room(tenant) if self._storage is not None else None
        if room is None:
            return limit
        told = request.header(b"content-length")
        if room == 0 or (told.isdecimal() and len(told) < 16 and room < int(told) <= limit):
            raise Refused("too_large", f"the tenant may keep {room} bytes more of artifacts and caches; remove some")
        return min(limit, room)

    def _keep_count(self, tenant: str, size: int) -> None:
        if self._storage is not None:
            self._storage.kept(tenant, size)

    async def _check_still_held(self, who: Runner, request: Request, key: str) -> None:
        try:
            await self._protocol.held(who, request.lease_id())
        except StaleLease:
            await self._disk.do(lambda: self._blobs.delete(key))
            raise

    @asynccontextmanager
    async def _body(self, request: Request, limit: int) -> AsyncIterator[tuple[BinaryIO, BlobStat]]:
        """All of the body in a file that nobody else can see, with what it is."""
        told = request.digest()
        if self._under_way >= AT_ONCE:
            raise Overloaded(f"{AT_ONCE} uploads are under way already; try again later")
        self._under_way += 1
        try:
            with await self._disk.do(self._file) as file:
                stored = await self._take(request, limit, file)
                if told is not None and told.lower() != stored.sha256:
                    raise Refused("bad_request", f"the body is not what {SHA256_HEADER} says; send it again")
                file.seek(0)
                yield file, stored
        finally:
            self._under_way -= 1

    def _file(self) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self._folder)

    async def _take(self, request: Request, limit: int, file: BinaryIO) -> BlobStat:
        digest, size = hashlib.sha256(), 0
        waiting: list[bytes] = []
        gathered = 0

        def write() -> None:
            check_free_space(self._folder, gathered)
            for part in waiting:
                digest.update(part)
                file.write(part)

        parts = request.chunks(limit)
        while (part := await _next(parts)) is not None:
            waiting.append(part)
            gathered += len(part)
            size += len(part)
            if gathered >= BUFFER_BYTES:
                await self._disk.do(write)
                waiting, gathered = [], 0
        await self._disk.do(write)
        return BlobStat(size, digest.hexdigest())

    async def _read(self, key: str) -> AsyncIterator[bytes]:
        parts: Iterator[bytes] = keys.read_all(self._blobs, key)
        while (part := await self._disk.do(lambda: next(parts, None))) is not None:
            yield part


async def _next(parts: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await anext(parts, None)
    except TimeoutError:
        raise Refused("bad_request", f"nothing came for {STALL_SECONDS:.0f} s; send the body at once") from None
