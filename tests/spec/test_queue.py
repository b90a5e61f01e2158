"""The rules of docs/spec/queue.md, each proved on the real core."""

from __future__ import annotations

import pytest

from deltaci.core import attempt
from deltaci.core.views.queue import job_status
from tests.lab import Lab


@pytest.mark.proves("QUE-T2", "QUE-A2")
def test_a_claim_takes_a_queued_job_and_counts_one_attempt() -> None:
    """Document 004 counts claims, so that a poisonous job can be seen."""
    lab = Lab()
    lab.enqueue()

    lab.claim(lab.queued(), by="w1")

    assert job_status(lab.queued()) == "claimed"
    assert lab.queued().claims == 1
    lab.verified()


@pytest.mark.proves("QUE-C2")
def test_only_the_owner_may_finish_a_job() -> None:
    """A runner that was never granted the job must not touch it, whatever it claims to know."""
    lab = Lab()
    lab.enqueue()
    lease = lab.claim(lab.queued(), by="w1")
    lease.worker_id = "w2"

    reason = lab.stale(lab.message(attempt.Complete, lease, is_success=True))

    assert reason == "UNKNOWN_LEASE"
    assert job_status(lab.queued()) == "claimed"
