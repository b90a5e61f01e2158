"""Results of jobs by the hash of their inputs: a job that has succeeded with equal inputs need not run again.

The planner gives the spec of a job that may be reused the hash of its inputs. When the job ends after it was started,
its result is stored in the same transaction. Of all results with equal inputs only the latest is stored, so that a
later failure replaces an earlier success. A job that no worker started has no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from deltaci.core.instants import SECOND
from deltaci.core.job import SUCCEEDED, TERMINAL, Job
from deltaci.core.machine import Record
from deltaci.core.run import Origin, Run

MAX_AGE_SECONDS: Final = 14 * 24 * 3600
TRUSTED: Final = ""


class ResultKey(msgspec.Struct, frozen=True, order=True):
    """The key of a result: a job of a project, the hash of its inputs, and the trust of its change."""

    tenant: str
    project: str
    trust: str
    job: str
    inputs: str


class JobResult(msgspec.Struct, frozen=True):
    """The latest result of a job with these inputs: its final state, and the commit and run in which it ended."""

    key: ResultKey
    state: str
    commit: str
    run_id: str
    at: int


def trust_of(origin: Origin) -> str:
    """Return the trust of a run: TRUSTED, or for a change from a fork a name that only runs of that change share."""
    return f"fork:{origin.number or origin.ref or origin.commit}" if origin.is_fork else TRUSTED


def sufficient_trusts(origin: Origin) -> tuple[str, ...]:
    """Return the trusts of results that a run may reuse: its own and higher ones."""
    return tuple(dict.fromkeys((trust_of(origin), TRUSTED)))


def job_key(file: str, job_name: str) -> str:
    """Return the name by which results of a job are found: that of its pipeline file and its own."""
    return f"{file}:{job_name}"


def ended_job_results(changed: Iterable[Record], records: Mapping[str, Record | None]) -> list[JobResult]:
    """Return the results of the changed jobs that have ended, sorted, one for each key. `records` has their runs.

    Jobs without a hash of their inputs, and jobs that no worker has started, have none.
    """
    result_by_key: dict[ResultKey, JobResult] = {}
    for record in changed:
        if type(record) is Job and record.spec.inputs and record.state in TERMINAL and record.started_at:
            job_run = records.get(record.run_id)
            if isinstance(job_run, Run):
                result = _result(record, job_run)
                previous = result_by_key.get(result.key)
                if previous is None or previous.at <= result.at:
                    result_by_key[result.key] = result
    return [result_by_key[key] for key in sorted(result_by_key)]


def _result(ended_job: Job, job_run: Run) -> JobResult:
    origin = job_run.origin
    key = ResultKey(
        job_run.tenant,
        origin.project,
        trust_of(origin),
        job_key(origin.file, ended_job.spec.name),
        ended_job.spec.inputs,
    )
    return JobResult(key, ended_job.state, origin.commit, job_run.id, ended_job.completed_at)


def latest_results(results: Iterable[JobResult]) -> dict[tuple[str, str], JobResult]:
    """Return the latest result for each job and inputs, of any trust."""
    latest: dict[tuple[str, str], JobResult] = {}
    for result in results:
        name = (result.key.job, result.key.inputs)
        if name not in latest or latest[name].at <= result.at:
            latest[name] = result
    return latest


def is_recent_success(result: JobResult, now: int) -> bool:
    """Return whether this latest result lets a planned job be left out."""
    return result.state == SUCCEEDED and result.at > now - MAX_AGE_SECONDS * SECOND
