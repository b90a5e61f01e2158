"""What a job may learn of others of its run, under its lease: results, artifacts that have a name, caches by prefix.

And what its runner alone may have: the credential with which it fetches the sources. Everything follows from the
attempt's own record; a request only chooses among what that allows.
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
from deltaci.protocol.responses import CacheMatch, NeededJob, SharedArtifact, SourceCredential
from deltaci.protocol.routes import MAX_CACHE_KEY
from deltaci.server.disk import Disk
from deltaci.server.runner_api.message_handlers import Protocol, job_spec
from deltaci.server.secrets import Secrets, Where, is_foreign, where
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStat, BlobStore

NAMES: Final = frozenset(
    {"needs", "run-artifacts", "run-artifact", "source-credential", "optional-secrets", "cache-keys"}
)
AT_A_TIME: Final = 200
MAX_REPEATS: Final = 20  # Runs that repeat runs that repeat runs.
MAX_SHARED: Final = 10_000


class Shared:
    """What jobs of one run have of each other."""

    def __init__(self, protocol: Protocol, blobs: BlobStore, secrets: Secrets, disk: Disk) -> None:
        self._protocol = protocol
        self._blobs = blobs
        self._secrets = secrets
        self._disk = disk

    # -- results

    async def needs(self, held: Attempt) -> dict[str, NeededJob]:
        """How each of the jobs ended that the attempt's record names: only of its own run, or of the one it repeats."""
        names = list(dict.fromkeys(job_spec(held).needs))
        found: dict[str, NeededJob] = {}
        async for run_id in self._runs(held):
            left = [name for name in names if name not in found]
            if not left:
                break
            for start in range(0, len(left), AT_A_TIME):
                jobs = await self._jobs(held, run_id, left[start : start + AT_A_TIME])
                lasts = await self._lasts(held, jobs)
                found |= {each.spec.name: _need(each, lasts.get(each.id)) for each in jobs}
        return {name: found.get(name) or NeededJob(result=SKIPPED, exists=False) for name in names}

    async def _runs(self, held: Attempt) -> AsyncIterator[str]:
        """The attempt's run; then the one that it repeats, of which it has what it need not do again; and so on."""
        run_id = held.run_id
        for _ in range(MAX_REPEATS):
            if not run_id:
                return
            yield run_id
            records = await self._protocol.looked([run_id])
            record = records[0] if records else None
            run_id = record.rerun_of if isinstance(record, Run) and record.tenant == held.tenant else ""

    async def _jobs(self, held: Attempt, run_id: str, names: list[str]) -> list[Job]:
        records = await self._protocol.looked([job_id(run_id, name) for name in names])
        return [each for each in records if isinstance(each, Job) and each.tenant == held.tenant]

    async def _lasts(self, held: Attempt, jobs: list[Job]) -> dict[str, Attempt]:
        """The last attempt of each job."""
        wanted = [each.attempt_id for each in jobs if each.attempt_id]
        records = await self._protocol.looked(wanted) if wanted else []
        return {each.job_id: each for each in records if isinstance(each, Attempt) and each.tenant == held.tenant}

    # -- artifacts with a name

    async def artifacts(self, held: Attempt, number: int) -> list[SharedArtifact]:
        """Those of every job of the run that is over, and its own; of a run that repeats another, also of what that
        one did and this one need not."""
        names, found = set[str](), list[SharedArtifact]()
        async for run_id in self._runs(held):
            jobs = [each for each in await self._protocol.load_jobs(run_id) if each.tenant == held.tenant]
            found += await self._of_jobs(held, [each for each in jobs if each.spec.name not in names])
            names |= {each.spec.name for each in jobs}
        own = held.job_id.removeprefix(f"{held.run_id}/") if held.job_id else held.id
        return found + await self._kept(held, number, own)

    async def _of_jobs(self, held: Attempt, jobs: list[Job]) -> list[SharedArtifact]:
        over = sorted((each for each in jobs if is_over(each)), key=lambda each: each.position)
        found: list[SharedArtifact] = []
        for start in range(0, len(over), AT_A_TIME):
            some = over[start : start + AT_A_TIME]
            lasts = await self._lasts(held, some)
            for each in some:
                last = lasts.get(each.id)
                if last is not None and last.ended_lease is not None:
                    found += await self._kept(last, last.ended_lease.number, each.spec.name)
                if len(found) > MAX_SHARED:
                    raise Refused("too_large", f"the run has more than {MAX_SHARED} artifacts; keep fewer, packed")
        return found

    async def _kept(self, attempt: Attempt, number: int, job: str) -> list[SharedArtifact]:
        kept = await self._disk.do(lambda: keys.artifacts(self._blobs, attempt.tenant, attempt.id, number))
        found: list[SharedArtifact] = []
        for each in kept:
            name, uri = keys.shared_name(each.path), keys.artifact_uri(attempt.id, number, each.path)
            path = "" if name else each.path
            found.append(SharedArtifact(job=job, name=name, path=path, uri=uri, bytes=each.bytes))
        return found

    async def artifact(self, held: Attempt, number: int, uri: str) -> tuple[str, BlobStat]:
        """Where one of them is. Whatever is asked for is compared with what there is, never taken apart."""
        if any(each.uri == uri for each in await self.artifacts(held, number)):
            key = keys.key_of_uri(held.tenant, uri)
            stored = await self._disk.do(lambda: self._blobs.stat(key))
            if stored is not None:
                return key, stored
        raise Refused("not_found", "no job of this run that is over kept such an artifact; look at run-artifacts")

    # -- caches

    async def cache_key(self, held: Attempt, prefix: str) -> CacheMatch:
        """The newest key with this beginning: in the job's own scope, or else in that of trusted runs."""
        if len(prefix) > MAX_CACHE_KEY:
            raise Refused("bad_request", f"the key has {len(prefix)} characters; at most {MAX_CACHE_KEY}")
        for scope in dict.fromkeys((job_spec(held).cache_scope, "")):
            found = await self._disk.do(
                lambda scope=scope: keys.newest_cache(self._blobs, held.tenant, scope, prefix)  # type: ignore[misc]
            )
            if found:
                return CacheMatch(key=found)
        raise Refused("not_found", "there is no cache whose key begins so")

    def remember_cache(self, tenant: str, scope: str, key: str) -> None:
        """It was kept just now."""
        keys.remember_cache(self._blobs, tenant, scope, key, int(time.time() * 1000))

    # -- secrets

    async def source_credential(self, held: Attempt) -> SourceCredential:
        """For the runner, also of a run that is not trusted: what it is for does not come from the run."""
        spec = job_spec(held)
        source = spec.source or (spec.tree.source if spec.tree is not None else None)
        if source is None or not source.credential:
            raise Refused("not_found", "the job's sources need no credential")
        # It is the project's, whatever the run is about: a branch has none of its own.
        at = Where((await self._protocol.origin(held)).project)
        opened = await self._disk.do(lambda: self._secrets.opened(held.tenant, [source.credential], at))
        return SourceCredential(value=opened[source.credential])

    async def optional_secrets(self, held: Attempt) -> dict[str, str]:
        """Those that the job may have and that there are."""
        spec = job_spec(held)
        if spec.cache_scope or not spec.optional_secrets:
            return {}
        origin = await self._protocol.origin(held)
        if is_foreign(origin):
            return {}
        return await self._disk.do(lambda: self._secrets.there(held.tenant, spec.optional_secrets, where(origin)))


def _need(needed: Job, last: Attempt | None) -> NeededJob:
    result = job_result(needed, last)
    return NeededJob(result=result, outputs=job_outputs(last), family=needed.spec.family)  # type: ignore[arg-type]


def number_of(lease_id: str) -> int:
    """The number of a lease that was checked before."""
    return ids.lease_ref(lease_id).number
