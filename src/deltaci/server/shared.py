"""What a job may learn of others of its run, under its lease: results, artifacts that have a name, caches by prefix.

And what its runner alone may have: the credential with which it fetches the sources. Everything follows from the
attempt's own record; a request only chooses among what that allows.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

from deltaci.blobs import keys
from deltaci.blobs.store import Blobs, Stored
from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.core.decide import job_id
from deltaci.core.errors import Refused
from deltaci.core.job import Job
from deltaci.core.needs import SKIPPED, is_over, outputs_of, result_of
from deltaci.core.run import Run
from deltaci.server.disk import Disk
from deltaci.server.protocol import Protocol, job_spec
from deltaci.server.secrets import Secrets
from deltaci.wire.addresses import MAX_CACHE_KEY
from deltaci.wire.answers import FoundCache, Need, SharedArtifact, SourceCredential

NAMES: Final = frozenset(
    {"needs", "run-artifacts", "run-artifact", "source-credential", "optional-secrets", "cache-keys"}
)
AT_A_TIME: Final = 200
MAX_EARLIER: Final = 20  # Runs that went on from each other.


class Shared:
    """What jobs of one run have of each other."""

    def __init__(self, protocol: Protocol, blobs: Blobs, secrets: Secrets, disk: Disk) -> None:
        self._protocol = protocol
        self._blobs = blobs
        self._secrets = secrets
        self._disk = disk

    # -- results

    async def needs(self, held: Attempt) -> dict[str, Need]:
        """How each of the jobs ended that the attempt's record names; only of its own run."""
        names = list(dict.fromkeys(job_spec(held).needs))
        found: dict[str, Need] = {}
        for start in range(0, len(names), AT_A_TIME):
            some = names[start : start + AT_A_TIME]
            jobs = {each.spec.name: each for each in await self._jobs(held, some)}
            lasts = await self._lasts(held, list(jobs.values()))
            for name in some:
                found[name] = _need(jobs.get(name), lasts)
        return found

    async def _jobs(self, held: Attempt, names: list[str]) -> list[Job]:
        """These jobs of its run; one that the run does not have is that of the run which it goes on from."""
        found: dict[str, Job] = {}
        async for run_id in self._runs(held):
            left = [name for name in names if name not in found]
            if not left:
                break
            records = await self._protocol.looked([job_id(run_id, name) for name in left])
            found |= {each.spec.name: each for each in records if isinstance(each, Job) and each.tenant == held.tenant}
        return list(found.values())

    async def _runs(self, held: Attempt) -> AsyncIterator[str]:
        """Its run, the one that this one repeats, and so on: what was not repeated stands as it was."""
        run_id = held.run_id
        for _ in range(MAX_EARLIER):
            if not run_id:
                return
            yield run_id
            [*found] = await self._protocol.looked([run_id])
            of = found[0] if found else None
            run_id = of.rerun_of if isinstance(of, Run) and of.tenant == held.tenant else ""

    async def _lasts(self, held: Attempt, jobs: list[Job]) -> dict[str, Attempt]:
        """The last attempt of each job."""
        wanted = [each.attempt_id for each in jobs if each.attempt_id]
        records = await self._protocol.looked(wanted) if wanted else []
        return {each.job_id: each for each in records if isinstance(each, Attempt) and each.tenant == held.tenant}

    # -- artifacts with a name

    async def artifacts(self, held: Attempt, number: int) -> list[SharedArtifact]:
        """Those of every job of the run that is over, and its own."""
        known: dict[str, Job] = {}
        async for run_id in self._runs(held):
            for each in await self._protocol.jobs_of(run_id):
                if each.tenant == held.tenant:
                    known.setdefault(each.spec.name, each)
        jobs = list(known.values())
        over = sorted((each for each in jobs if is_over(each)), key=lambda each: each.position)
        found: list[SharedArtifact] = []
        for start in range(0, len(over), AT_A_TIME):
            some = over[start : start + AT_A_TIME]
            lasts = await self._lasts(held, some)
            for each in some:
                last = lasts.get(each.id)
                if last is not None and last.ended_lease is not None:
                    found += await self._kept(last, last.ended_lease.number, each.spec.name)
        own = next((each.spec.name for each in jobs if each.id == held.job_id), held.id)
        return found + await self._kept(held, number, own)

    async def _kept(self, attempt: Attempt, number: int, job: str) -> list[SharedArtifact]:
        kept = await self._disk.do(lambda: keys.artifacts(self._blobs, attempt.tenant, attempt.id, number))
        return [
            SharedArtifact(job=job, name=name, uri=keys.artifact_uri(attempt.id, number, each.path), bytes=each.bytes)
            for each in kept
            if (name := keys.shared_name(each.path))
        ]

    async def artifact(self, held: Attempt, number: int, uri: str) -> tuple[str, Stored]:
        """Where one of them is. Whatever is asked for is compared with what there is, never taken apart."""
        if any(each.uri == uri for each in await self.artifacts(held, number)):
            key = keys.key_of_uri(held.tenant, uri)
            stored = await self._disk.do(lambda: self._blobs.stat(key))
            if stored is not None:
                return key, stored
        raise Refused("not_found", "no job of this run that is over kept such an artifact; look at run-artifacts")

    # -- caches

    async def cache_key(self, held: Attempt, prefix: str) -> FoundCache:
        """The newest key with this beginning: in the job's own scope, or else in that of trusted runs."""
        if len(prefix) > MAX_CACHE_KEY:
            raise Refused("bad_request", f"the key has {len(prefix)} characters; at most {MAX_CACHE_KEY}")
        for scope in dict.fromkeys((job_spec(held).cache_scope, "")):
            found = await self._disk.do(
                lambda scope=scope: keys.newest_cache(self._blobs, held.tenant, scope, prefix)  # type: ignore[misc]
            )
            if found:
                return FoundCache(key=found)
        raise Refused("not_found", "there is no cache whose key begins so")

    def remember_cache(self, tenant: str, scope: str, key: str) -> None:
        """It was kept just now."""
        keys.remember_cache(self._blobs, tenant, scope, key, int(time.time() * 1000))

    # -- secrets

    async def source_credential(self, held: Attempt) -> SourceCredential:
        """For the runner, also of a run that is not trusted: what it is for does not come from the run."""
        source = job_spec(held).source
        if source is None or not source.credential:
            raise Refused("not_found", "the job's sources need no credential")
        opened = await self._disk.do(lambda: self._secrets.opened(held.tenant, [source.credential]))
        return SourceCredential(value=opened[source.credential])

    async def optional_secrets(self, held: Attempt) -> dict[str, str]:
        """Those that the job may have and that there are."""
        spec = job_spec(held)
        if spec.cache_scope or not spec.optional_secrets:
            return {}
        return await self._disk.do(lambda: self._opened(held.tenant, spec.optional_secrets))

    def _opened(self, tenant: str, names: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in names:
            try:
                found |= self._secrets.opened(tenant, [name])
            except Refused as refused:
                if refused.code not in ("no_secret", "bad_request"):
                    raise
        return found


def _need(needed: Job | None, lasts: dict[str, Attempt]) -> Need:
    if needed is None:
        return Need(result=SKIPPED, is_there=False)
    last = lasts.get(needed.id)
    result = result_of(needed, last)
    return Need(result=result, outputs=outputs_of(last), family=needed.spec.family)  # type: ignore[arg-type]


def number_of(lease_id: str) -> int:
    """The number of a lease that was checked before."""
    return ids.lease_ref(lease_id).number
