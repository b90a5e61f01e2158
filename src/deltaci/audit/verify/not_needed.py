"""Check that only jobs that are not needed end as NOT_NEEDED.

That is the rest of a failed run or family and, once every required job of a run has ended, the jobs for which the
bounded wait is over (MOD-15).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from deltaci.audit.verify.log_lines import EventLine, RunMetadata
from deltaci.audit.verify.tracked import TrackedJob, TrackedRun
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import run as core_run
from deltaci.core.worker import required_labels

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier

RULE: Final = "MOD-15"
# A decision may read the workers before another server commits the registration of one, which then precedes it.
MAX_UNSEEN: Final = timedelta(minutes=1)
_FAILED: Final = (core_run.FAILED, core_run.REPORTED)
_DEFAULT_WAIT: Final = timedelta(seconds=core_run.OPTIONAL_WAIT_SECONDS)


def ends_family(job: TrackedJob) -> bool:
    """Return whether this job failed and that cancels the other jobs of its family."""
    return job.is_family_fail_fast and job.is_required and job.state == core_job.FAILED


def check_not_needed(verifier: CanonicalVerifier, job: TrackedJob, event: EventLine) -> None:
    """Report a job that ends as NOT_NEEDED for no legal cause.

    Its run or its family failed, or the wait for it is over because every required job of its run has ended.
    """
    if job.run.state in _FAILED or is_wait_over(job, event):
        return
    if not any(map(ends_family, job.run.families.get(job.family, ()))):
        verifier.flag(
            "MOD-6",
            f"job {job.id} is {core_job.NOT_NEEDED} while its run is {job.run.state}",
            f"{' or '.join(_FAILED)}, a failed family, or an optional job after its wait",
        )


def check_wait(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    """Report a wait that begins while a required job is open, has the wrong end, or ends early or without cause."""
    if event.trigger == core_run.OPTIONAL_WAIT_BEGAN:
        _check_begin(verifier, run, event, metadata)
    elif event.trigger == core_run.OPTIONAL_WAIT_ENDED and metadata.cause == core_run.NO_WORKER:
        _check_unserved(verifier, run, event, metadata)
        run.unserved_at, run.unserved_keys = event.at, frozenset(metadata.queue_keys or ())
    elif event.trigger == core_run.OPTIONAL_WAIT_ENDED:
        if metadata.cause != core_run.WAIT_OVER or run.optional_until is None or event.at < run.optional_until:
            until_text = run.optional_until.isoformat() if run.optional_until is not None else "a wait"
            verifier.flag(RULE, f"run {run.id} ends its wait for optional jobs early", f"{until_text}, or no worker")
        run.optional_until, run.wait_ended_at = None, event.at


def _check_begin(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    required_count = run.open_job_count - run.open_optional_job_count
    if required_count or not run.open_job_count:
        problem = f"run {run.id} waits for {run.open_optional_job_count} optional jobs"
        verifier.flag(RULE, f"{problem} with {required_count} required jobs open", "no required job open")
    job = run.jobs.get(metadata.job_id or "")
    if run.is_decided != (metadata.job_id is not None) or (job is None) != (metadata.job_id is None):
        problem = f"run {run.id} begins its wait for job {metadata.job_id!r}"
        verifier.flag(RULE, problem, "no job at first, then a job that begins to wait")
    expected_until = event.at + (run.optional_wait if run.optional_wait is not None else _DEFAULT_WAIT)
    if metadata.optional_until != expected_until:
        verifier.flag(RULE, f"run {run.id} waits for optional jobs until another time", expected_until.isoformat())
    run.is_decided, run.optional_until = True, expected_until


def _check_unserved(verifier: CanonicalVerifier, run: TrackedRun, event: EventLine, metadata: RunMetadata) -> None:
    for key in metadata.queue_keys or ():
        for worker in verifier.workers.values():
            is_relevant = worker.registered_at is not None and worker.registered_at < event.at - MAX_UNSEEN
            if is_relevant and worker.tenant == run.tenant and required_labels(key) <= worker.labels:
                problem = f"run {run.id} does not wait for jobs with the labels {key!r}"
                verifier.flag(RULE, problem, f"a wait: worker {worker.id} has them")
                break


def is_wait_over(job: TrackedJob, event: EventLine) -> bool:
    """Return whether the event's transaction ended the wait for this job, which no runner has."""
    run, latest_attempt = job.run, job.latest_attempt
    if job.is_required or job.state == core_job.PENDING:
        return False
    if latest_attempt is not None and latest_attempt.lease_state is not None:
        return False
    if run.wait_ended_at == event.at:
        return True
    return run.unserved_at == event.at and latest_attempt is not None and latest_attempt.queue_key in run.unserved_keys


def check_transaction(verifier: CanonicalVerifier, run: TrackedRun) -> None:
    """At the end of a transaction, report a wait that has not begun, and jobs that outlast the end of the wait."""
    if run.state not in (core_run.QUEUED, core_run.RUNNING, core_run.WAITING_APPROVAL):
        return
    if run.optional_wait is not None and not run.is_decided and 0 < run.open_job_count == run.open_optional_job_count:
        problem = f"run {run.id} has only optional jobs open, and does not begin to wait for them"
        verifier.flag(RULE, problem, core_run.OPTIONAL_WAIT_BEGAN)
    if run.wait_ended_at is None or run.wait_ended_at != run.scope.at:
        return
    for job in run.jobs.values():
        # A job that began to wait in this transaction has a wait of its own.
        if job.state in core_job.TERMINAL or job.state == core_job.PENDING or job.at == run.scope.at:
            continue
        latest_attempt = job.latest_attempt
        if latest_attempt is None or (
            latest_attempt.lease_state is None and latest_attempt.state != core_attempt.CANCEL_REQUESTED
        ):
            verifier.flag(RULE, f"job {job.id} stays {job.state} after the wait for it", "CANCELED as NOT_NEEDED")
