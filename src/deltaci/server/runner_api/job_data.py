"""What a job stores and reads over HTTP, each under a live lease: artifacts, caches, secrets and results of other jobs.

The blob key, the cache scope and the secrets follow from the record of the attempt; the request only gives a name
within them. A body is first received into a temporary file. The lease is checked before that, when the body is
complete, and once more after it was stored: a blob that was stored for a lease that was lost meanwhile is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, TypeVar

import msgspec

from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.ids import LeaseRef
from deltaci.engine.requests import Overloaded
from deltaci.protocol import messages as wire
from deltaci.protocol.responses import StoredArtifact, StoredCache
from deltaci.protocol.routes import MAX_CACHE_KEY, SHA256_HEADER
from deltaci.server.disk import DiskThreads
from deltaci.server.runner_api.job_inputs import ROUTE_NAMES as JOB_INPUT_ROUTES
from deltaci.server.runner_api.job_inputs import JobInputHandlers, lease_number
from deltaci.server.runner_api.message_handlers import MessageHandlers, Runner, job_spec
from deltaci.server.secrets import Secrets, is_from_fork, job_scope_of
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.disk_reserve import check_free_space
from deltaci.storage.blobs.store import BlobStat, BlobStore, BlobStoreUnavailable

if TYPE_CHECKING:
    from deltaci.server.request import Request

ROUTE_NAMES: Final = frozenset({"artifacts", "caches", "secrets"}) | JOB_INPUT_ROUTES
MAX_RUNNING: Final = 64  # Bodies received at the same time, each into its own file.
STALL_SECONDS: Final = 60.0
BUFFER_BYTES: Final = 1024 * 1024

T = TypeVar("T")
Send = Callable[[dict[str, Any]], Awaitable[None]]


class UploadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for the artifacts and caches that a job stores."""

    files: int = wire.MAX_ARTIFACTS
    file_bytes: int = wire.MAX_ARTIFACT_BYTES
    lease_bytes: int = wire.MAX_LEASE_BYTES
    cache_bytes: int = wire.MAX_CACHE_BYTES


class StreamedResponse:
    """A response whose body is sent in chunks, with its size and SHA-256 in the headers."""

    def __init__(self, blob_stat: BlobStat, chunks: AsyncIterator[bytes]) -> None:
        self._blob_stat = blob_stat
        self._chunks = chunks

    async def send(self, send: Send) -> None:
        """Send the response.

        If the blob store fails on the way, the connection is closed early, so that the client notices a truncated body.
        """
        response_headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(self._blob_stat.bytes).encode()),
            (b"cache-control", b"no-store"),
            (SHA256_HEADER.lower().encode(), self._blob_stat.sha256.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": response_headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class StorageQuota(Protocol):
    """Looks up how many bytes a tenant may still store, and counts newly stored ones."""

    async def remaining_bytes(self, tenant: str) -> int | None:
        """Return how many more bytes the tenant may store, or None for no limit."""
        ...

    def add_stored_bytes(self, tenant: str, stored_bytes: int) -> None:
        """Count bytes that the tenant has stored."""
        ...


class JobResourceHandlers:
    """Stores the artifacts and caches of a job, and answers its requests for caches, secrets and job inputs."""

    def __init__(
        self,
        message_handlers: MessageHandlers,
        blobs: BlobStore,
        secrets: Secrets,
        folder: Path,
        limits: UploadLimits | None = None,
        quota: StorageQuota | None = None,
    ) -> None:
        self._message_handlers = message_handlers
        self._blobs = blobs
        self._secrets = secrets
        self._folder = folder
        self._limits = limits or UploadLimits()
        self._quota = quota
        # Separate threads: a slow blob store must not delay log writes.
        self._disk = DiskThreads("blobs")
        self._job_inputs = JobInputHandlers(message_handlers, blobs, secrets, self._disk)
        self._upload_count = 0

    def close(self) -> None:
        """Wait for disk operations in progress, and end the threads."""
        self._disk.close()

    async def handle(self, runner: Runner, route_name: str, path_rest: str, request: Request) -> Any:
        """Answer one request to one of `ROUTE_NAMES`. `path_rest` is the path after the route's name."""
        request.digest()  # Refuse a malformed header before the lease is checked.
        attempt = await self._message_handlers.leased_attempt(runner, request.lease_id())
        if route_name in JOB_INPUT_ROUTES:
            return await self._answer_input_request(attempt, route_name, path_rest, lease_number(request.lease_id()))
        if route_name == "secrets":
            return await self._decrypt_secrets(attempt)
        if route_name == "artifacts":
            return await self._store_artifact(runner, attempt, path_rest, request)
        if len(path_rest) > MAX_CACHE_KEY:
            raise Refused("bad_request", f"the key has {len(path_rest)} characters; at most {MAX_CACHE_KEY}")
        if request.method == "GET":
            return await self._read_cache(attempt, path_rest)
        return await self._store_cache(runner, attempt, path_rest, request)

    async def _answer_input_request(
        self, attempt: Attempt, route_name: str, path_rest: str, current_lease_number: int
    ) -> Any:
        """Answer a request to one of the routes of `JobInputHandlers`."""
        match route_name:
            case "needs":
                return await self._job_inputs.needs(attempt)
            case "run-artifacts":
                return await self._job_inputs.artifacts(attempt, current_lease_number)
            case "run-artifact":
                blob_key, blob_stat = await self._job_inputs.artifact(attempt, current_lease_number, path_rest)
                return StreamedResponse(blob_stat, self._read_chunks(blob_key))
            case "cache-keys":
                return await self._job_inputs.cache_key(attempt, path_rest)
            case "source-credential":
                return await self._job_inputs.source_credential(attempt)
        return await self._job_inputs.optional_secrets(attempt)

    async def remove_lost_uploads(self, runner: Runner, lease_ref: LeaseRef) -> None:
        """Delete the artifacts that earlier leases of a completed attempt stored: no result refers to them."""
        # The attempt is complete even if the blob store is unavailable now.
        with suppress(BlobStoreUnavailable):
            await self._disk.run(
                lambda: keys.remove_lost_artifacts(self._blobs, runner.tenant, lease_ref.attempt_id, lease_ref.number)
            )

    # -- secrets

    async def _decrypt_secrets(self, attempt: Attempt) -> dict[str, str]:
        """Return the secrets that the job names. Raises `Refused` if its run is not trusted."""
        spec = job_spec(attempt)
        run_origin = await self._message_handlers.run_origin(attempt)
        if spec.cache_scope or is_from_fork(run_origin):
            raise Refused("untrusted", "a run that is not trusted gets no secrets; run the job from a trusted source")
        return await self._disk.run(
            lambda: self._secrets.decrypt(attempt.tenant, spec.secrets, job_scope_of(run_origin))
        )

    # -- artifacts

    async def _store_artifact(
        self, runner: Runner, attempt: Attempt, artifact_path: str, request: Request
    ) -> StoredArtifact:
        """Store the body as an artifact of the lease, unless the lease ends during the upload."""
        current_lease_number = ids.lease_ref(request.lease_id()).number
        blob_key = keys.artifact_key(attempt.tenant, attempt.id, current_lease_number, artifact_path)
        max_bytes = await self._disk.run(lambda: self._artifact_limit(attempt, current_lease_number, artifact_path))
        max_bytes = await self._within_quota(attempt.tenant, max_bytes, request)
        async with self._received_body(request, max_bytes) as (received_file, blob_stat):
            await self._message_handlers.leased_attempt(runner, request.lease_id())
            await self._disk.run(lambda: self._blobs.put(blob_key, received_file))
        await self._delete_if_lease_lost(runner, request, blob_key)
        self._count_stored(attempt.tenant, blob_stat.bytes)
        uri = keys.artifact_uri(attempt.id, current_lease_number, artifact_path)
        return StoredArtifact(uri=uri, bytes=blob_stat.bytes, sha256=blob_stat.sha256)

    def _artifact_limit(self, attempt: Attempt, current_lease_number: int, artifact_path: str) -> int:
        """Return how many bytes this artifact may have. Raises `Refused` if the lease has stored too many files.

        Uploads at the same moment do not count for each other. Before the first upload of a later lease, the artifacts
        of earlier leases are deleted.
        """
        artifacts = keys.artifacts(self._blobs, attempt.tenant, attempt.id, current_lease_number)
        if not artifacts and current_lease_number > 1:
            keys.remove_lost_artifacts(self._blobs, attempt.tenant, attempt.id, current_lease_number)
        other_artifacts = [artifact for artifact in artifacts if artifact.path != artifact_path]
        if len(other_artifacts) >= self._limits.files:
            raise Refused("too_large", f"a job may store at most {self._limits.files} files; pack them")
        remaining_bytes = self._limits.lease_bytes - sum(artifact.bytes for artifact in other_artifacts)
        return max(0, min(self._limits.file_bytes, remaining_bytes))

    # -- caches

    async def _read_cache(self, attempt: Attempt, cache_key: str) -> StreamedResponse:
        """Return a cache entry of the job's own scope, or else of the scope of trusted runs.

        All jobs of the tenant may read the entries of trusted runs. Raise `Refused` if neither scope has the entry.
        """
        for cache_scope in dict.fromkeys((job_spec(attempt).cache_scope, "")):
            blob_key = keys.cache_key(attempt.tenant, cache_scope, cache_key)
            blob_stat = await self._disk.run(lambda blob_key=blob_key: self._blobs.stat(blob_key))  # type: ignore[misc]
            if blob_stat is not None:
                return StreamedResponse(blob_stat, self._read_chunks(blob_key))
        raise Refused(
            "not_found", "there is no cache with this key; create it, and upload it when the job has succeeded"
        )

    async def _store_cache(self, runner: Runner, attempt: Attempt, cache_key: str, request: Request) -> StoredCache:
        """Store the body as a cache entry, unless the entry exists already or the lease ends during the upload."""
        blob_key = keys.cache_key(attempt.tenant, job_spec(attempt).cache_scope, cache_key)
        existing_stat = await self._disk.run(lambda: self._blobs.stat(blob_key))
        if existing_stat is not None:
            async for _ in request.chunks(self._limits.cache_bytes):
                pass  # Clients send the whole body before they read the response.
            return StoredCache(stored=False, bytes=existing_stat.bytes, sha256=existing_stat.sha256)
        max_bytes = await self._within_quota(attempt.tenant, self._limits.cache_bytes, request)
        async with self._received_body(request, max_bytes) as (received_file, blob_stat):
            await self._message_handlers.leased_attempt(runner, request.lease_id())
            is_stored = await self._disk.run(lambda: self._blobs.put_if_absent(blob_key, received_file)) is not None
        if is_stored:
            await self._delete_if_lease_lost(runner, request, blob_key)
            self._count_stored(attempt.tenant, blob_stat.bytes)
            cache_scope = job_spec(attempt).cache_scope
            await self._disk.run(lambda: self._job_inputs.remember_cache(attempt.tenant, cache_scope, cache_key))
        return StoredCache(stored=is_stored, bytes=blob_stat.bytes, sha256=blob_stat.sha256)

    # -- bodies

    async def _within_quota(self, tenant: str, max_bytes: int, request: Request) -> int:
        """Return `max_bytes`, or fewer if the tenant's quota does not allow that many.

        Raises `Refused` if the body that the request announces exceeds the quota.
        """
        remaining_bytes = await self._quota.remaining_bytes(tenant) if self._quota is not None else None
        if remaining_bytes is None:
            return max_bytes
        content_length = request.header(b"content-length")
        if remaining_bytes == 0 or (
            content_length.isdecimal()
            and len(content_length) < 16
            and remaining_bytes < int(content_length) <= max_bytes
        ):
            raise Refused(
                "too_large", f"the tenant may store {remaining_bytes} more bytes of artifacts and caches; remove some"
            )
        return min(max_bytes, remaining_bytes)

    def _count_stored(self, tenant: str, stored_bytes: int) -> None:
        if self._quota is not None:
            self._quota.add_stored_bytes(tenant, stored_bytes)

    async def _delete_if_lease_lost(self, runner: Runner, request: Request, blob_key: str) -> None:
        """Check the lease after an upload. If it was lost, delete the uploaded blob and raise `StaleLease`."""
        try:
            await self._message_handlers.leased_attempt(runner, request.lease_id())
        except StaleLease:
            await self._disk.run(lambda: self._blobs.delete(blob_key))
            raise

    @asynccontextmanager
    async def _received_body(self, request: Request, max_bytes: int) -> AsyncIterator[tuple[BinaryIO, BlobStat]]:
        """Receive the whole body into an unnamed temporary file. Yield the file, with the size and hash of the body.

        Raise `Overloaded` if too many uploads are in progress, `Refused` if the body has another hash than announced.
        """
        expected_digest = request.digest()
        if self._upload_count >= MAX_RUNNING:
            raise Overloaded(f"{MAX_RUNNING} uploads are in progress; try again later")
        self._upload_count += 1
        try:
            with await self._disk.run(self._temporary_file) as body_file:
                blob_stat = await self._receive_into(request, max_bytes, body_file)
                if expected_digest is not None and expected_digest.lower() != blob_stat.sha256:
                    raise Refused("bad_request", f"the body is not what {SHA256_HEADER} says; send it again")
                body_file.seek(0)
                yield body_file, blob_stat
        finally:
            self._upload_count -= 1

    def _temporary_file(self) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self._folder)

    async def _receive_into(self, request: Request, max_bytes: int, body_file: BinaryIO) -> BlobStat:
        """Write the body to a file in large blocks. Return its size and hash."""
        body_hash, received_bytes = hashlib.sha256(), 0
        buffered_chunks: list[bytes] = []
        buffered_bytes = 0

        def write() -> None:
            check_free_space(self._folder, buffered_bytes)
            for chunk in buffered_chunks:
                body_hash.update(chunk)
                body_file.write(chunk)

        chunks = request.chunks(max_bytes)
        while (chunk := await _next_chunk(chunks)) is not None:
            buffered_chunks.append(chunk)
            buffered_bytes += len(chunk)
            received_bytes += len(chunk)
            if buffered_bytes >= BUFFER_BYTES:
                await self._disk.run(write)
                buffered_chunks, buffered_bytes = [], 0
        await self._disk.run(write)
        return BlobStat(received_bytes, body_hash.hexdigest())

    async def _read_chunks(self, blob_key: str) -> AsyncIterator[bytes]:
        chunks: Iterator[bytes] = keys.read_all(self._blobs, blob_key)
        while (chunk := await self._disk.run(lambda: next(chunks, None))) is not None:
            yield chunk


async def _next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        raise Refused("bad_request", f"nothing came for {STALL_SECONDS:.0f} s; send the body at once") from None
