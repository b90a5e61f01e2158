"""What a job can read of other jobs: only of its run, only those that its record names, only under its lease."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest

from deltaci.core import run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.job import JobSpec
from deltaci.core.run import Run
from tests.contract.backends import on_loop
from tests.server.site import OpenSite, RegisteredRunner, Reply, RunnerLease, Site
from tests.support.lab import TENANT


async def started(site: Site, run_id: str, *specs: JobSpec, rerun_of: str = "") -> None:
    """A run of these jobs."""
    do = site.server.engine.do
    await do(NewRecord(id=run_id, record=Run(id=run_id, run_id=run_id, tenant=TENANT, rerun_of=rerun_of)))
    await do(run.BeginPlanning(id=run_id))
    await do(Plan(id=run_id, jobs=specs, plan_hash="hash"))


def job(name: str, needs: tuple[str, ...] = (), after: tuple[str, ...] = (), **work: Any) -> JobSpec:
    """A job that may read its needs."""
    return JobSpec(name=name, needs=needs, after=after, work={"needs": [*needs, *after], **work})


async def get(lease: RunnerLease, name: str, by: RegisteredRunner | None = None) -> Reply:
    """Ask under the lease."""
    return await (by or lease.runner).request("GET", name, delta_lease=lease.id)


async def finished(lease: RunnerLease, **said: Any) -> None:
    """Say the result."""
    await lease.send("AckLease")
    reply = await lease.send("Complete", **said)
    assert reply.body["accepted"] is True, reply


@pytest.mark.parametrize(
    "address", ["needs", "run-artifacts", "run-artifact/x", "source-credential", "optional-secrets", "cache-keys/k"]
)
@on_loop
async def test_requests_without_the_live_lease_are_refused(site: OpenSite, address: str) -> None:
    """Those of another runner, and those under an ended lease."""
    async with site() as here:
        await here.server.enqueue("q1", spec={"optional_secrets": ["A"]})
        lease, other = await (await here.runner("w1")).take(), await here.runner("w2")

        assert (await get(lease, address, by=other)).status == 409
        await finished(lease)
        assert (await get(lease, address)).body["type"] == "StaleLease"


@on_loop
async def test_needs_returns_results_and_outputs_of_the_needed_jobs(site: OpenSite) -> None:
    """In GitHub's terms, for the jobs that the record names and no others."""
    async with site() as here:
        specs = [job("good"), job("bad"), job("left"), job("blocked", needs=("bad",))]
        names = tuple(spec.name for spec in specs)
        await started(here, "r", *specs, job("last", after=names), job("other"))
        runner = await here.runner(slots=9)
        leases = {lease.granted.job_id: lease for lease in [await runner.take() for _ in range(4)]}
        await finished(leases["r/good"], output={"v": 1})
        await finished(leases["r/bad"], status="FAILED", exit_code=1)
        await finished(leases["r/left"], is_skipped=True, output=[1])

        reply = await get(await runner.take(), "needs")

        assert reply.body == {
            "good": {"result": "success", "outputs": {"v": 1}},
            "bad": {"result": "failure"},
            "left": {"result": "skipped"},
            "blocked": {"result": "skipped"},
        }
        assert (await get(leases["r/other"], "needs")).body == {}


@on_loop
async def test_a_rerun_has_the_results_of_jobs_that_it_did_not_repeat(site: OpenSite) -> None:
    """Only failed jobs run again."""
    async with site() as here:
        runner = await here.runner(slots=9)
        await started(here, "r1", job("build"), job("test", needs=("build",)))
        build = await runner.take()
        await build.runner.request("PUT", "artifacts/out/a%20b", b"file", delta_lease=build.id)
        await finished(build, output={"v": "1"})
        await finished(await runner.take(), status="FAILED", exit_code=1)
        again = JobSpec(name="test", work={"needs": ["build", "none"]})
        await started(here, "r2", again, rerun_of="r1")

        lease = await runner.take()

        assert (await get(lease, "needs")).body == {
            "build": {"result": "success", "outputs": {"v": "1"}},
            "none": {"result": "skipped", "is_there": False},
        }
        [artifact] = (await get(lease, "run-artifacts")).body
        assert (artifact["job"], artifact["name"], artifact["path"]) == ("build", "", "out/a%20b")
        assert (await get(lease, f"run-artifact/{artifact['uri']}")).body == b"file"


@on_loop
async def test_run_artifacts_are_those_of_finished_jobs_of_the_same_run(site: OpenSite) -> None:
    """A running job's artifacts are incomplete."""
    async with site() as here:
        runner = await here.runner(slots=9)
        await started(here, "other", job("x"))
        foreign = await runner.take()
        await foreign.runner.request("PUT", "artifacts/@theirs.tar.gz", b"no", delta_lease=foreign.id)
        foreign_uri = (await get(foreign, "run-artifacts")).body[0]["uri"]
        await finished(foreign)
        await started(here, "r", job("a"), job("b"), job("c"))
        a, b, c = [await runner.take() for _ in range(3)]
        for lease in (a, b, c):
            await lease.runner.request("PUT", "artifacts/@dist.tar.gz", lease.id[:8].encode(), delta_lease=lease.id)
        await finished(a)

        found = (await get(b, "run-artifacts")).body

        assert [(each["job"], each["name"]) for each in found] == [("a", "dist"), ("b", "dist")]
        assert [(await get(b, f"run-artifact/{each['uri']}")).body for each in found] == [
            a.id[:8].encode(),
            b.id[:8].encode(),
        ]
        running = (await get(c, "run-artifacts")).body[-1]["uri"]
        for uri in (foreign_uri, running, "artifact:../../x", unquote(found[0]["uri"]) + "x"):
            assert (await get(b, f"run-artifact/{uri}")).code == "not_found"


@on_loop
async def test_a_cache_prefix_finds_the_newest_key(site: OpenSite) -> None:
    """In the job's own scope first, then in that of trusted runs; a trusted run never gets a fork's cache."""
    async with site() as here:
        runner = await here.runner(slots=9)
        for name, scope in (("t", ""), ("f", "fork")):
            await here.server.enqueue(name, spec={"cache_scope": scope})
        trusted, fork = sorted([await runner.take(), await runner.take()], key=lambda each: each.attempt_id != "t")
        long = "k-" + "x" * 200
        for lease, key in ((trusted, "k-1"), (trusted, "k-2"), (fork, "k-fork"), (trusted, long)):
            await lease.runner.request("PUT", f"caches/{key}", b"x", delta_lease=lease.id)

        assert (await get(trusted, "cache-keys/k-")).body["key"] in (long, "k-1", "k-2")
        assert (await get(trusted, "cache-keys/k-1")).body == {"key": "k-1"}
        assert (await get(trusted, f"cache-keys/{long[:150]}")).body == {"key": long}
        assert (await get(fork, "cache-keys/k-")).body == {"key": "k-fork"}
        assert (await get(fork, "cache-keys/k-2")).body == {"key": "k-2"}
        assert (await get(trusted, "cache-keys/k-f")).code == "not_found"


@on_loop
async def test_optional_secrets_and_the_source_credential(site: OpenSite) -> None:
    """Optional secrets that exist, none for a fork; the runner gets the source credential even for a fork."""
    async with site() as here:
        here.sealed.set(TENANT, "A", "hunter2")
        here.sealed.set(TENANT, "READ", "hunter3")
        source = {"url": "https://h/x", "commit": "0" * 40, "credential": "READ"}
        spec = {"optional_secrets": ["A", "NONE", "no-name"], "source": source}
        runner = await here.runner(slots=9)
        await here.server.enqueue("t", spec=spec)
        trusted = await runner.take()
        await here.server.enqueue("f", spec={**spec, "cache_scope": "fork"})
        fork = await runner.take()
        await here.server.enqueue("n", spec={"source": {**source, "credential": "GONE"}})
        gone = await runner.take()

        assert (await get(trusted, "optional-secrets")).body == {"A": "hunter2"}
        assert (await get(fork, "optional-secrets")).body == {}
        assert (await get(fork, "source-credential")).body == {"value": "hunter3"}
        assert (await get(gone, "source-credential")).code == "no_secret"
        assert (await get(gone, "optional-secrets")).body == {}
