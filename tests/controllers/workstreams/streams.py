"""Workstreams to write down: real plans, worked on in a lab, in a store."""

from __future__ import annotations

from typing import Any

import msgspec

from deltaci.controllers.merge_queue.records import MergeEntry
from deltaci.controllers.workstreams.records import IntegratedTask, Workstream
from deltaci.core import job, run
from deltaci.core.attempt import Verdict
from deltaci.core.job import JobSpec
from deltaci.core.run import Origin
from deltaci.core.timers import is_over
from deltaci.pipeline.workstream import model
from deltaci.pipeline.workstream.compile import compile_jobs
from deltaci.protocol.job_spec import Source
from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import Begin, Put, Transaction, Write
from tests.support.lab import TENANT, Lab

ID = "ws-3f9a2c"
BASE, HEAD, MERGED = "a" * 40, "b" * 40, "c" * 40
SPEC: dict[str, Any] = {
    "workstream": "login",
    "title": "Log in with a key",
    "project": "shop",
    "tasks": [
        {"name": "schema", "run": ["make schema"], "env": {"CI": "1"}},
        {
            "name": "code",
            "run": ["agent write", "make"],
            "needs": ["schema"],
            "retry": {"max_attempts": 2},
            "post_execution": [{"run": "make check"}],
        },
        {"name": "docs", "run": ["make docs"], "needs": ["schema"], "critical": False, "worktree": "own"},
        {"name": "test", "run": ["make test"], "needs": ["code", "docs"], "timeout-minutes": 5},
    ],
    "validation": [{"run": "make all"}],
}


def stream(**fields: Any) -> Workstream:
    """What is known of it beside its run."""
    return msgspec.structs.replace(
        Workstream(
            id=ID,
            tenant=TENANT,
            name="login",
            project="shop",
            base="main",
            base_commit=BASE,
            branch="ws/login-3f9a2c",
            spec=SPEC,
            created_by="ada",
            place="/srv/runner/workstreams/ws-3f9a2c/tree",
        ),
        **fields,
    )


def merged() -> Workstream:
    """The same, once its base has it."""
    joined = IntegratedTask(task="code", attempt_id=f"{ID}/code.1", bundle="b", start=BASE, head=HEAD, tip=HEAD)
    return stream(joined=(joined,), merged_as=MERGED)


def specs() -> tuple[JobSpec, ...]:
    """Its tasks, as they are planned."""
    asked = msgspec.convert(SPEC, model.Workstream)
    return compile_jobs(
        asked, workstream_id=ID, source=Source(url="https://example.org/shop.git", commit=BASE), branch="ws/login"
    )


def entry(of: Workstream) -> MergeEntry:
    """What the merge queue is told of it."""
    return MergeEntry(
        id=of.id,
        tenant=of.tenant,
        project=of.project,
        base=of.base,
        head=of.tip,
        base_commit=of.base_commit,
        method="merge",
        title="Log in with a key",
        rules=[{"run": "make all"}],
    )


def begun() -> Lab:
    """It is ready, and a worker is there."""
    lab = Lab()
    lab.register("w1", slots=2)
    return lab.plan(*specs(), id=ID, has_validation=True, origin=Origin(project="shop", workstream="login"))


def work(lab: Lab, name: str, seconds: float = 10, **fields: Any) -> None:
    """A task waits for two seconds, runs for so many, and is validated for one."""
    lease = lab.after(2).claim(lab.attempt(name, run_id=ID))
    lab.after(seconds).complete(lease, **fields)
    lab.after(1).do(job.Validate(id=f"{ID}/{name}", is_passed=True))


def completed() -> Lab:
    """All of its tasks are completed, one at its second attempt, and it is merged."""
    lab = begun()
    work(lab, "schema", result={"tables": 3})
    lab.fail(lab.after(2).claim(lab.attempt("code", run_id=ID)))
    lab.after(60).do(job.RetryDue(id=f"{ID}/code"))
    kept = {"type": "tree", "uri": f"artifact:{ID}%2Fcode.2/1/tree.bundle", "bytes": 17}
    work(lab, "code", 20, report={"artifacts": [kept]})
    work(lab, "docs")
    work(lab, "test", 5)
    lab.after(30).do(run.Validate(id=ID, is_passed=True, details="merged"))
    lab.after(3).report(ID)
    return lab


def failed() -> Lab:
    """A critical task does not keep its rule, and the rest is never begun."""
    lab = begun()
    work(lab, "schema")
    lease = lab.after(2).claim(lab.attempt("code", run_id=ID))
    lab.after(10).complete(lease, verdict=Verdict(is_passed=False, details="make check: exit code 1, wanted 0"))
    if not is_over(lab.job("docs", ID)):
        work(lab, "docs")
    lab.after(3).report(ID)
    return lab


def cancelled() -> Lab:
    """Somebody does not want it any more."""
    lab = begun()
    work(lab, "schema")
    lab.after(2).cancel_run(ID)
    lab.after(3).report(ID)
    return lab


async def stored(lab: Lab) -> MemoryStore:
    """The same in a store."""
    store = MemoryStore()

    def write() -> Transaction[None]:
        yield Begin(())
        puts = [
            Put(record, 0, None, None, is_over(record)) for record in lab.unit.records.values() if record is not None
        ]
        yield Write(puts, [msgspec.structs.replace(event, seq=0) for event in lab.log], is_last=True)

    await store.transact(write)
    return store
