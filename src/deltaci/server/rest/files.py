"""Artifacts of jobs: list and download them.

The content of an artifact is not trusted: it is sent as a download with a sandboxing policy, so that a browser never
shows it as a page of this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from deltaci.api.schemas import records as api
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.protocol.routes import SHA256_HEADER
from deltaci.server.rest.http.lookup import get_attempt, get_attempts, get_jobs, get_run
from deltaci.server.rest.http.ranges import ByteRange, requested_range
from deltaci.server.rest.http.request import Call, Handler, Send, not_found
from deltaci.server.rest.http.streaming import content_disposition, open_response, write_range
from deltaci.server.rest.streams.log_tails import last_lease
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStat, BlobStore, BlobStoreUnavailable

MAX_LISTED: Final = 10_000  # The limit for the artifacts of a run in one response.
JOBS_PER_BATCH: Final = 200


async def list_artifacts(call: Call) -> api.Artifacts:
    """Return the artifacts of the last lease of an attempt."""
    attempt = await get_attempt(call)
    blobs, job_name = call.app.blobs, call.params["job"]
    return api.Artifacts(artifacts=await call.app.disk.run(lambda: _artifacts(blobs, attempt, job_name)))


async def list_run_artifacts(call: Call) -> api.Artifacts:
    """Return the artifacts of the last lease of each attempt of a run."""
    jobs = await get_jobs(call, await get_run(call))
    blobs = call.app.blobs
    artifacts: list[api.RunArtifact] = []
    for batch_start in range(0, len(jobs), JOBS_PER_BATCH):
        job_batch = jobs[batch_start : batch_start + JOBS_PER_BATCH]
        attempts_by_job = await get_attempts(call, job_batch)
        attempts_with_job_name = [
            (attempt, job.spec.name) for job in job_batch for attempt in attempts_by_job.get(job.id, ())
        ]
        artifacts += await call.app.disk.run(partial(_list_artifacts, blobs, attempts_with_job_name))
        if len(artifacts) > MAX_LISTED:
            raise Refused("too_large", f"the run has more than {MAX_LISTED} artifacts; list them by attempt")
    return api.Artifacts(artifacts=artifacts)


def _list_artifacts(blobs: BlobStore, attempts_with_job_name: Iterable[tuple[Attempt, str]]) -> list[api.RunArtifact]:
    """Return the artifacts of these attempts, each of which is given with the name of its job."""
    return [
        artifact for attempt, job_name in attempts_with_job_name for artifact in _artifacts(blobs, attempt, job_name)
    ]


def _artifacts(blobs: BlobStore, attempt: Attempt, job_name: str) -> list[api.RunArtifact]:
    """Return the artifacts of an attempt's last lease; none if it was never leased."""
    lease = last_lease(attempt)
    if lease is None:
        return []
    return [
        api.RunArtifact(job=job_name, attempt=attempt.index, path=artifact.path, bytes=artifact.bytes)
        for artifact in keys.artifacts(blobs, attempt.tenant, attempt.id, lease.number)
    ]


async def read_artifact(call: Call) -> FileResponse:
    """Return an artifact of the last lease of an attempt, or a range of it."""
    attempt = await get_attempt(call)
    artifact_path, lease, blobs = call.params["path"], last_lease(attempt), call.app.blobs
    if lease is None:
        raise not_found("artifact", artifact_path)
    try:
        blob_key = keys.artifact_key(attempt.tenant, attempt.id, lease.number, artifact_path)
    except Refused:
        raise not_found("artifact", artifact_path) from None  # No artifact can have this path.
    blob_stat = await call.app.disk.run(lambda: blobs.stat(blob_key))
    if blob_stat is None:
        raise not_found("artifact", artifact_path)
    range_header = call.request.header(b"range")
    if call.request.header(b"if-range") not in ("", _etag(blob_stat)):
        range_header = ""  # The file was replaced, so a range of it would not continue the client's copy.
    return FileResponse(call, blob_key, blob_stat, requested_range(range_header, blob_stat.bytes))


class FileResponse:
    """A file, or a range of it, as a download."""

    def __init__(self, call: Call, blob_key: str, blob_stat: BlobStat, byte_range: ByteRange) -> None:
        self._call = call
        self._key = blob_key
        self._blob_stat = blob_stat
        self._range = byte_range

    async def send(self, send: Send) -> None:
        """Send the requested range."""
        response_headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": content_disposition(self._key.rpartition("/")[2]),
            "Content-Security-Policy": "sandbox",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "ETag": _etag(self._blob_stat),
            **self._range.headers,
        }
        if not self._range.is_part:
            response_headers[SHA256_HEADER] = self._blob_stat.sha256
        async with open_response(send, self._call.request) as out:
            await out.start(response_headers, self._range.status)
            await write_range(out, self._range, self._call.app.disk, self._read_artifact)

    def _read_artifact(self, offset: int) -> bytes:
        chunk = self._call.app.blobs.get(self._key, offset, min(keys.PART_BYTES, self._range.stop - offset))
        if not chunk:
            raise BlobStoreUnavailable(f"{self._key} ended at byte {offset}: it was replaced during the response")
        return chunk


def _etag(blob_stat: BlobStat) -> str:
    return f'"{blob_stat.sha256}"'


HANDLERS: Final[Mapping[str, Handler]] = {
    "listRunArtifacts": list_run_artifacts,
    "listArtifacts": list_artifacts,
    "readArtifact": read_artifact,
}
