"""Test runs of the merge queue: create them, and interpret their results for the members of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from deltaci.controllers.merge_queue.decisions import (
    MAX_RULES,
    BatchResult,
    MergeBatch,
    MergeQueueState,
    TestTarget,
    outcome_of,
    queue_digest,
    run_of,
    tests_of,
)
from deltaci.controllers.merge_queue.records import METHODS, NONE, MergeEntry
from deltaci.controllers.projects import Project
from deltaci.core import job
from deltaci.core.decide import StartRun
from deltaci.core.errors import Refused
from deltaci.core.failures import FLAKY, RETRYABLE, USER, Failure
from deltaci.core.ids import job_id
from deltaci.core.job import Job, JobSpec
from deltaci.core.plan import plan_hash
from deltaci.core.run import Origin, Run
from deltaci.core.worker import queue_key
from deltaci.git.commit_builder import BRANCH_REFS
from deltaci.protocol.job_spec import JobSpec as Work
from deltaci.protocol.job_spec import Source, ValidationRule, Worktree

LABEL: Final = "merge-queue"
STREAM: Final = "merge-"
MAX_ATTEMPTS: Final = 3
MAX_TITLE: Final = 200
TIMED_OUT: Final = "TIMED_OUT"  # The rules themselves took too long: trying it for ever would not help.


def check(entry: MergeEntry) -> None:
    """Refuse one that nobody could merge, or test: in the line, it would stop all others."""
    if entry.method not in METHODS:
        raise Refused("bad_request", f"the method is {entry.method!r}; expected one of {', '.join(METHODS)}")
    try:
        rules = msgspec.convert(entry.rules, list[ValidationRule])
        msgspec.convert(entry.work, Work)
    except msgspec.ValidationError as error:
        raise Refused("bad_request", f"the validation rules of workstream {entry.id} are invalid: {error}") from None
    if len(rules) > MAX_RULES:
        raise Refused("bad_request", f"workstream {entry.id} has {len(rules)} rules; at most {MAX_RULES} are checked")


def order(line: MergeQueueState, batch: MergeBatch, project: Project) -> StartRun:
    """Start the run that tests a batch, one job for each commit that the base would get."""
    entries = line.entries(batch)
    title = entries[0].title if len(entries) == 1 else f"{len(entries)} workstreams"
    id = run_of(line, batch)
    record = Run(
        id=id,
        run_id=id,
        tenant=line.tenant,
        origin=Origin(
            project=line.project,
            branch=line.base,
            repository=project.url,
            commit=batch.commits[-1],
            title=f"Merge queue of {line.base}: {title}"[:MAX_TITLE],
            labels=(LABEL,),
        ),
    )
    jobs = tuple(_job(line, batch, project, each) for each in tests_of(line, batch))
    hashed = plan_hash(jobs, is_fail_fast=record.is_fail_fast, timeout_seconds=record.timeout_seconds)
    return StartRun(id=id, record=record, jobs=jobs, plan_hash=hashed)


def _job(line: MergeQueueState, batch: MergeBatch, project: Project, tested: TestTarget) -> JobSpec:
    stream = f"{STREAM}{queue_digest(line.tenant, line.project, line.base)}"
    entry = line.entries(batch)[tested.last]
    work = msgspec.structs.replace(
        msgspec.convert(entry.work, Work),
        name=_name(tested),
        rules=[msgspec.convert(each, ValidationRule) for each in tested.rules],
        tree=Worktree(
            stream=stream,
            source=Source(
                url=project.url,
                commit=entry.base_commit if batch.method == NONE else batch.base,
                ref=f"{BRANCH_REFS}{line.base}",
                depth=0,  # Heads stand on older commits of the base, too.
                credential=project.credential,
            ),
            branch=line.base,
            commit=tested.commit,
            is_committed=False,
        ),
    )
    return JobSpec(
        name=_name(tested),
        max_attempts=MAX_ATTEMPTS,
        retry_on=RETRYABLE,
        queue_key=queue_key(entry.labels),
        work=msgspec.to_builtins(work),
    )


def job_ids(line: MergeQueueState, batch: MergeBatch) -> list[str]:
    """The jobs of the run that tests a batch."""
    return [job_id(run_of(line, batch), _name(each)) for each in tests_of(line, batch)]


def _name(tested: TestTarget) -> str:
    return f"test-{tested.last + 1}"


def verdict(line: MergeQueueState, batch: MergeBatch, jobs: Sequence[Job]) -> BatchResult | str:
    """What the jobs of a run that is over say of the batch; or, if they say nothing of it, why."""
    known = {each.id: each for each in jobs}
    results: list[tuple[TestTarget, str | None]] = []
    nothing = ""
    for id, tested in zip(job_ids(line, batch), tests_of(line, batch), strict=True):
        found = known.get(id)
        if found is not None and job.satisfies(found):
            results.append((tested, None))
        elif found is not None and found.last_error is not None and _is_about_it(found.last_error):
            results.append((tested, _details(line, batch, found.last_error, run_of(line, batch))))
        else:
            nothing = nothing or _why_nothing(found)
    said = outcome_of(results)
    return nothing if nothing and said.is_good else said


def _is_about_it(failure: Failure) -> bool:
    """Whether what was tested failed, rather than what tested it."""
    return failure.failure_class in (USER, FLAKY) or failure.code == TIMED_OUT


def _why_nothing(found: Job | None) -> str:
    if found is None:
        return "the test run is incomplete"
    error = found.last_error
    if error is None:
        return f"its test run was cancelled: {found.reason or 'no reason given'}"
    return f"its test run could not be created: {error.code}: {error.message or error.line or error.rule}"


def _details(line: MergeQueueState, batch: MergeBatch, error: Failure, run_id: str) -> str:
    what = error.line or error.message or error.code
    if batch.method == NONE:
        return f"{what}; see run {run_id}"
    return f"merged with {line.base} at {batch.start[:12]} it fails: {what}; see run {run_id}"
