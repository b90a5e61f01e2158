"""The kinds of reasons, by the words that programs depend on, each with what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Why something does not go on.
WAITS: Final[Mapping[str, str]] = {
    "waiting_for_jobs": "other jobs of the run are not done; `about` is the job where the wait begins",
    "no_worker": "there is no worker at all",
    "no_fitting_worker": "no worker has all the labels; `about` is the nearest one",
    "workers_unresponsive": "every worker that fits stopped answering",
    "workers_leaving": "every worker that fits is about to leave",
    "workers_held": "every worker that fits is drained or quarantined; `about` is the first of them",
    "workers_busy": "every worker that fits has all of its places taken",
    "waiting_for_worker": "a worker may take it at any moment",
    "waiting_for_acceptance": "a worker was given it and has not said yet that it takes it",
    "position": "others stand before it in the queue",
    "quota": "as many jobs run as may run at once",
    "waiting_for_group": "another job of its group is under way; `about` is that job",
    "waiting_for_approval": "people must approve it",
    "waiting_for_validation": "its result is being validated",
    "retry_scheduled": "an attempt failed, and the next one has a time",
    "fence": "the worker that lost it may still be at work on it",
    "not_before": "it was asked for a later time",
    "planning": "the run has no plan yet",
    "stopping": "it was cancelled, and a runner must still stop",
    "stalled": "it was taken from its worker by hand and waits for somebody to put it back",
    "more": "there are more of these than are shown",
}

# How something ended.
ENDED: Final[Mapping[str, str]] = {
    "succeeded": "it succeeded",
    "approved": "enough people approved it",
    "failed": "an attempt failed; or a run, because of a job",
    "not_retried": "a job failed, and why there is no other attempt",
    "timed_out": "it ran for longer than it may",
    "lost_too_often": "workers lost it more often than is allowed",
    "validation_failed": "its result did not pass the validation",
    "rejected": "a person rejected it",
    "approval_expired": "not enough people approved it in time",
    "canceled": "it was cancelled; by whom and why",
    "forced": "it was cancelled, and ended without its worker, which did not stop in time",
    "blocked": "a job that it needs did not succeed; followed to the first one",
    "not_needed": "its run had failed already",
    "plan_failed": "the run could not be planned",
    "plan_timed_out": "there was no plan in time",
}

# What happened on the way.
STEPS: Final[Mapping[str, str]] = {
    "created": "the run was created",
    "planned": "the run has a plan; or the job is part of it",
    "started": "the run or the attempt began",
    "ready": "what the job needs was done",
    "enqueued": "it was put into the queue",
    "claimed": "a worker took it",
    "claimed_again": "a worker took it after another had lost it or given it back",
    "lease_lost": "its worker lost it: which worker, how, how often",
    "handed_back": "its worker gave it back",
    "requeued": "it went back into the queue",
    "retried": "the next attempt was put into the queue",
    "validating": "its result was validated",
    "approval_opened": "people were asked to approve",
    "approval_given": "one of several people approved",
    "resumed": "the run went on after an approval",
    "cancel_requested": "somebody wants it to stop",
    "reported": "the outcome was published",
}

CODES: Final = frozenset({*WAITS, *ENDED, *STEPS})
ENDS: Final = frozenset(ENDED)
