"""The codes of reasons, which are stable, and their meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Why something waits.
WAITS: Final[Mapping[str, str]] = {
    "waiting_for_jobs": "other jobs of the run have not finished; `about` is the job at the root of the wait",
    "no_worker": "no worker is registered",
    "no_fitting_worker": "no worker has all the labels; `about` is the closest one",
    "workers_unresponsive": "every matching worker stopped answering",
    "workers_leaving": "every matching worker is about to shut down",
    "workers_held": "every matching worker is drained or quarantined; `about` is the first of them",
    "workers_busy": "no matching worker has a free slot",
    "waiting_for_worker": "a worker may claim it at any moment",
    "waiting_for_acceptance": "it is assigned to a worker that has not accepted it yet",
    "position": "other attempts are before it in the queue",
    "quota": "the quota of running jobs is used up",
    "waiting_for_group": "another job of its group is running, or may be; `about` is that job",
    "waiting_for_approval": "it needs approval",
    "waiting_for_validation": "its result is being validated",
    "retry_scheduled": "an attempt failed, and the next one is scheduled",
    "fence": "the worker that lost it may still be running it",
    "not_before": "it is scheduled for later",
    "planning": "the run has no plan yet",
    "optional_jobs": "every required job of the run has ended, and jobs that may fail have not",
    "stopping": "it was cancelled, and a worker has not stopped yet",
    "worker_silent": "its worker stopped answering; without a heartbeat it is requeued when its lease ends",
    "stalled": "a person took it from its worker too often, and it has to be requeued by hand to fail",
    "more": "more reasons of this kind are omitted",
}

# How something ended.
ENDED: Final[Mapping[str, str]] = {
    "succeeded": "it succeeded",
    "approved": "enough people approved it",
    "failed": "an attempt failed; or a run failed because of a job",
    "not_retried": "a job failed, and why there is no other attempt",
    "timed_out": "it exceeded its time limit",
    "lost_too_often": "workers lost it more often than allowed",
    "validation_failed": "its result did not pass the validation",
    "rejected": "a person rejected it",
    "approval_expired": "not enough people approved it in time",
    "canceled": "it was cancelled; by whom and why",
    "forced": "it was cancelled, and its worker did not confirm that in time",
    "blocked": "a job that it needs did not succeed; `about` is the first such job in the chain",
    "not_needed": "its run or its family had failed already, or every required job had ended and the wait for it, too",
    "plan_failed": "the run could not be planned",
    "plan_timed_out": "there was no plan in time",
}

# What happened before the end.
STEPS: Final[Mapping[str, str]] = {
    "created": "the run was created",
    "planned": "the run has a plan; or the job is part of it",
    "started": "the run or the attempt started",
    "ready": "the job was queued, because nothing it waits for is left",
    "enqueued": "it was queued",
    "claimed": "a worker claimed it",
    "claimed_again": "a worker claimed it after another had lost it or handed it back",
    "marked_for_reassignment": "its worker stopped answering; when its lease would end",
    "lease_lost": "its worker lost it: which worker, how, how often",
    "handed_back": "its worker handed it back",
    "requeued": "it was requeued",
    "retried": "the next attempt was queued",
    "validating": "its result was validated",
    "approval_opened": "approval was requested",
    "approval_given": "one of several people approved",
    "optional_wait_began": "every required job had ended, and the wait for jobs that may fail began",
    "optional_wait_ended": "the wait for jobs that may fail ended, or no registered worker had their labels",
    "resumed": "the run resumed after an approval",
    "cancel_requested": "its cancellation was requested",
    "reported": "the outcome was published",
}

CODES: Final = frozenset({*WAITS, *ENDED, *STEPS})
END_CODES: Final = frozenset(ENDED)
