"""What jobs left behind: listed, and read part by part.

A file of a job is a stranger's: it is sent as something to save, never as a page of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltaci.api.schemas import records as api
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.protocol.routes import SHA256_HEADER
from deltaci.server.rest.http.lookup import attempt_of, attempts_of, jobs_of, run_of
from deltaci.server.rest.http.ranges import Bytes, chosen
from deltaci.server.rest.http.request import Call, Handler, Send, missing
from deltaci.server.rest.http.streaming import disposition, sending, write_span
from deltaci.server.rest.log_tails import last_lease
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStat, BlobStore, BlobStoreUnavailable

MAX_LISTED: Final = 10_000  # Of one run, at once.
AT_A_TIME: Final = 200


async def list_artifacts(call: Call) -> api.Artifacts:
    """Of the last lease of an attempt."""
    attempt = await attempt_of(call)
    blobs, name = call.parts.blobs, call.params["job"]
    return api.Artifacts(artifacts=await call.parts.disk.do(lambda: _kept(blobs, attempt, name)))


async def list_run_artifacts(call: Call) -> api.Artifacts:
    """Of every attempt of every job of a run."""
    jobs = await jobs_of(call, await run_of(call))
    blobs = call.parts.blobs
    found: list[api.RunArtifact] = []
    for start in range(0, len(jobs), AT_A_TIME):
        some = jobs[start : start + AT_A_TIME]
        attempts = await attempts_of(call, some)
        wanted = [(each, job.spec.name) for job in some for each in attempts.get(job.id, ())]
        found += await call.parts.disk.do(lambda wanted=wanted: [one for each in wanted for one in _kept(blobs, *each)])  # type: ignore[misc]
        if len(found) > MAX_LISTED:
            raise Refused("too_large", f"the run has more than {MAX_LISTED} artifacts; list them by attempt")
    return api.Artifacts(artifacts=found)


def _kept(blobs: BlobStore, attempt: Attempt, job: str) -> list[api.RunArtifact]:
    lease = last_lease(attempt)
    if lease is None:
        return []
    return [
        api.RunArtifact(job=job, attempt=attempt.index, path=each.path, bytes=each.bytes)
        for each in keys.artifacts(blobs, attempt.tenant, attempt.id, lease.number)
    ]


async def read_artifact(call: Call) -> File:
    """One file of the last lease of an attempt, or a part of it."""
    attempt = await attempt_of(call)
    path, lease, blobs = call.params["path"], last_lease(attempt), call.parts.blobs
    if lease is None:
        raise missing("artifact", path)
    try:
        key = keys.artifact_key(attempt.tenant, attempt.id, lease.number, path)
    except Refused:
        raise missing("artifact", path) from None  # No file can have such a name.
    stored = await call.parts.disk.do(lambda: blobs.stat(key))
    if stored is None:
        raise missing("artifact", path)
    wanted = call.request.header(b"range")
    if call.request.header(b"if-range") not in ("", _etag(stored)):
        wanted = ""  # It is another file by now: a part of it would not fit to what was read before.
    return File(call, key, stored, chosen(wanted, stored.bytes))


class File:
    """An answer that is a file, or a part of one."""

    def __init__(self, call: Call, key: str, stored: BlobStat, span: Bytes) -> None:
        self._call = call
        self._key = key
        self._stored = stored
        self._span = span

    async def send(self, send: Send) -> None:
        """All that was asked for."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": disposition(self._key.rpartition("/")[2]),
            "Content-Security-Policy": "sandbox",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "ETag": _etag(self._stored),
            **self._span.headers,
        }
        if not self._span.is_part:
            headers[SHA256_HEADER] = self._stored.sha256
        async with sending(send, self._call.request) as out:
            await out.begin(headers, self._span.status)
            await write_span(out, self._span, self._call.parts.disk, self._part)

    def _part(self, at: int) -> bytes:
        part = self._call.parts.blobs.get(self._key, at, min(keys.PART_BYTES, self._span.stop - at))
        if not part:
            raise BlobStoreUnavailable(f"{self._key} ended at byte {at}: it was replaced while it was read")
        return part


def _etag(stored: BlobStat) -> str:
    return f'"{stored.sha256}"'


HANDLERS: Final[Mapping[str, Handler]] = {
    "listRunArtifacts": list_run_artifacts,
    "listArtifacts": list_artifacts,
    "readArtifact": read_artifact,
}
