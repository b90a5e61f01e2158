"""Requests about the run of a job, under its lease: results of other jobs, named artifacts, caches by key prefix.

Also requests for the secrets that only the job's runner may have, such as the credential that fetches the sources. The
record of the attempt determines what the job may read; a request only selects from it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.ids import job_id
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.core.status.needs import SKIPPED, job_outputs, job_result
from deltaci.core.timers import is_over
from deltaci.protocol.artifact_paths import shared_name
from deltaci.protocol.responses import CacheMatch, NeededJob, SharedArtifact, SourceCredential
from deltaci.protocol.routes import MAX_CACHE_KEY
from deltaci.server.disk import DiskThreads
from deltaci.server.runner_api.message_handlers import MessageHandlers, job_spec
from deltaci.server.secrets import JobScope, Secrets, is_from_fork, job_scope_of
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStat, BlobStore

ROUTE_NAMES: Final = frozenset(
    {"needs", "run-artifacts", "run-artifact", "source-credential", "optional-secrets", "cache-keys"}
)
BATCH_SIZE: Final = 200
MAX_RERUNS: Final = 20  # The length of a chain of reruns.
MAX_ARTIFACTS: Final = 10_000


class JobInputHandlers:
    """Handles the requests for needs, artifacts of the run, cache keys, the source credential and optional secrets."""

    def __init__(
        self, message_handlers: MessageHandlers, blobs: BlobStore, secrets: Secrets, disk: DiskThreads
    ) -> None:
        self._message_handlers = message_handlers
        self._blobs = blobs
        self._secrets = secrets
        self._disk = disk

    # -- results

    async def needs(self, attempt: Attempt) -> dict[str, NeededJob]:
        """Return the results of the jobs that this job needs.

        In a rerun, a job that was not repeated has the result of the earlier run.
        """
        needed_names = list(dict.fromkeys(job_spec(attempt).needs))
        needed_job_by_name: dict[str, NeededJob] = {}
        async for run_id in self._run_ids(attempt):
            missing_names = [name for name in needed_names if name not in needed_job_by_name]
            if not missing_names:
                break
            for batch_start in range(0, len(missing_names), BATCH_SIZE):
                jobs = await self._find_jobs(attempt, run_id, missing_names[batch_start : batch_start + BATCH_SIZE])
                last_attempts = await self._last_attempts(attempt, jobs)
                needed_job_by_name |= {job.spec.name: _needed_job(job, last_attempts.get(job.id)) for job in jobs}
        return {name: needed_job_by_name.get(name) or NeededJob(result=SKIPPED, exists=False) for name in needed_names}

    async def _run_ids(self, attempt: Attempt) -> AsyncIterator[str]:
        """Yield the id of the attempt's run, then of the run of which that one is a rerun, and so on.

        A rerun does not repeat all jobs of the earlier run.
        """
        run_id = attempt.run_id
        for _ in range(MAX_RERUNS):
            if not run_id:
                return
            yield run_id
            records = await self._message_handlers.find_records([run_id])
            run_record = records[0] if records else None
            run_id = run_record.rerun_of if isinstance(run_record, Run) and run_record.tenant == attempt.tenant else ""

    async def _find_jobs(self, attempt: Attempt, run_id: str, job_names: list[str]) -> list[Job]:
        """Return the jobs of a run with these names, as far as they exist and belong to the attempt's tenant."""
        records = await self._message_handlers.find_records([job_id(run_id, name) for name in job_names])
        return [record for record in records if isinstance(record, Job) and record.tenant == attempt.tenant]

    async def _last_attempts(self, attempt: Attempt, jobs: list[Job]) -> dict[str, Attempt]:
        """Return the last attempt of each job, by job id."""
        attempt_ids = [job.attempt_id for job in jobs if job.attempt_id]
        records = await self._message_handlers.find_records(attempt_ids) if attempt_ids else []
        return {
            record.job_id: record
            for record in records
            if isinstance(record, Attempt) and record.tenant == attempt.tenant
        }

    # -- artifacts of the run

    async def artifacts(self, attempt: Attempt, current_lease_number: int) -> list[SharedArtifact]:
        """Return the artifacts of the run's finished jobs and of the attempt itself.

        For a rerun, include the artifacts of the earlier runs' jobs that it did not repeat.
        """
        job_names, artifacts = set[str](), list[SharedArtifact]()
        async for run_id in self._run_ids(attempt):
            jobs = [job for job in await self._message_handlers.load_jobs(run_id) if job.tenant == attempt.tenant]
            artifacts += await self._job_artifacts(attempt, [job for job in jobs if job.spec.name not in job_names])
            job_names |= {job.spec.name for job in jobs}
        job_name = attempt.job_id.removeprefix(f"{attempt.run_id}/") if attempt.job_id else attempt.id
        return artifacts + await self._attempt_artifacts(attempt, current_lease_number, job_name)

    async def _job_artifacts(self, attempt: Attempt, jobs: list[Job]) -> list[SharedArtifact]:
        """Return the artifacts of those of the jobs that are over, in the order of the plan."""
        finished_jobs = sorted((job for job in jobs if is_over(job)), key=lambda job: job.position)
        artifacts: list[SharedArtifact] = []
        for batch_start in range(0, len(finished_jobs), BATCH_SIZE):
            job_batch = finished_jobs[batch_start : batch_start + BATCH_SIZE]
            last_attempts = await self._last_attempts(attempt, job_batch)
            for job in job_batch:
                last_attempt = last_attempts.get(job.id)
                if last_attempt is not None and last_attempt.ended_lease is not None:
                    artifacts += await self._attempt_artifacts(
                        last_attempt, last_attempt.ended_lease.number, job.spec.name
                    )
                if len(artifacts) > MAX_ARTIFACTS:
                    raise Refused("too_large", f"the run has more than {MAX_ARTIFACTS} artifacts; pack them into fewer")
        return artifacts

    async def _attempt_artifacts(self, attempt: Attempt, lease_number: int, job_name: str) -> list[SharedArtifact]:
        """Return the artifacts that an attempt stored under one lease."""
        stored_artifacts = await self._disk.run(
            lambda: keys.artifacts(self._blobs, attempt.tenant, attempt.id, lease_number)
        )
        artifacts: list[SharedArtifact] = []
        for artifact in stored_artifacts:
            artifact_name, uri = shared_name(artifact.path), keys.artifact_uri(attempt.id, lease_number, artifact.path)
            shared_path = "" if artifact_name else artifact.path
            artifacts.append(
                SharedArtifact(job=job_name, name=artifact_name, path=shared_path, uri=uri, bytes=artifact.bytes)
            )
        return artifacts

    async def artifact(self, attempt: Attempt, current_lease_number: int, artifact_uri: str) -> tuple[str, BlobStat]:
        """Return the blob key of an artifact of the run, with its size and hash.

        The URI is compared with those of existing artifacts and never parsed.
        """
        if any(artifact.uri == artifact_uri for artifact in await self.artifacts(attempt, current_lease_number)):
            blob_key = keys.key_of_uri(attempt.tenant, artifact_uri)
            blob_stat = await self._disk.run(lambda: self._blobs.stat(blob_key))
            if blob_stat is not None:
                return blob_key, blob_stat
        raise Refused("not_found", "no finished job of this run has this artifact; list them with run-artifacts")

    # -- caches

    async def cache_key(self, attempt: Attempt, key_prefix: str) -> CacheMatch:
        """Return the newest cache key with this prefix, in the job's own scope or else in that of trusted runs.

        Raise `Refused` if neither has one.
        """
        if len(key_prefix) > MAX_CACHE_KEY:
            raise Refused("bad_request", f"the key has {len(key_prefix)} characters; at most {MAX_CACHE_KEY}")
        for cache_scope in dict.fromkeys((job_spec(attempt).cache_scope, "")):
            newest_key = await self._disk.run(
                lambda cache_scope=cache_scope: keys.newest_cache(self._blobs, attempt.tenant, cache_scope, key_prefix)  # type: ignore[misc]
            )
            if newest_key:
                return CacheMatch(key=newest_key)
        raise Refused("not_found", "there is no cache whose key has this prefix")

    def remember_cache(self, tenant: str, cache_scope: str, key: str) -> None:
        """Record that a cache entry was stored just now, so that `cache_key` finds it by a prefix of its key."""
        keys.remember_cache(self._blobs, tenant, cache_scope, key, int(time.time() * 1000))

    # -- secrets

    async def source_credential(self, attempt: Attempt) -> SourceCredential:
        """Return the credential that fetches the job's sources.

        The runner of an untrusted run gets it, too: the project determines where it is used, not the run.
        """
        spec = job_spec(attempt)
        source = spec.source or (spec.tree.source if spec.tree is not None else None)
        if source is None or not source.credential:
            raise Refused("not_found", "the job's sources need no credential")
        # The credential belongs to the project as a whole, not to a branch.
        scope = JobScope((await self._message_handlers.run_origin(attempt)).project)
        secrets = await self._disk.run(lambda: self._secrets.decrypt(attempt.tenant, [source.credential], scope))
        return SourceCredential(value=secrets[source.credential])

    async def optional_secrets(self, attempt: Attempt) -> dict[str, str]:
        """Return the optional secrets of the job that exist, by name; none for an untrusted run."""
        spec = job_spec(attempt)
        if spec.cache_scope or not spec.optional_secrets:
            return {}
        origin = await self._message_handlers.run_origin(attempt)
        if is_from_fork(origin):
            return {}
        return await self._disk.run(
            lambda: self._secrets.decrypt_existing(attempt.tenant, spec.optional_secrets, job_scope_of(origin))
        )


def _needed_job(job: Job, last_attempt: Attempt | None) -> NeededJob:
    result = job_result(job, last_attempt)
    return NeededJob(result=result, outputs=job_outputs(last_attempt), family=job.spec.family)  # type: ignore[arg-type]


def lease_number(lease_id: str) -> int:
    """Return the number in a lease id that was checked before."""
    return ids.lease_ref(lease_id).number
