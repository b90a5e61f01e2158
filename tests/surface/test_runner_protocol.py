"""The rules of docs/spec/runner-protocol.md, as a runner observes them.

Most of them are proved in tests/server/runner_api, and those about the runner in tests/e2e.
"""

from __future__ import annotations

import pytest

from tests.surface.conftest import Histories
from tests.surface.scenarios import SCENARIOS


@pytest.mark.proves("PRO-N1")
def test_a_runner_has_a_unique_id_and_its_capabilities(histories: Histories) -> None:
    """The id stays the same in everything that it does."""
    history = histories("two_workers")

    assert {id: worker["labels"] for id, worker in history.workers["register"].items()} == {
        "w1": ["linux"],
        "w2": ["gpu"],
    }
    actors = {change.body["actor"] for change in history.changes("canonical", "claim two", "attempt")}
    assert actors == {"worker:w2"}


@pytest.mark.proves("PRO-N2", "PRO-N3", "PRO-M1")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_lease_names_its_job_its_run_and_its_time(histories: Histories, scenario: str) -> None:
    """The id of a job is unique, because it contains that of its run."""
    history = histories(scenario)

    for reply in history.replies.values():
        for lease in reply if isinstance(reply, list) else []:
            assert (lease["run_id"], lease["job_id"].partition("/")[0]) == (history.run_id, history.run_id)
            assert lease["job_id"] in {job["id"] for job in history.final["jobs"]}
            assert lease["lease_ttl_seconds"] == 120


@pytest.mark.proves("PRO-Q5", "PRO-K1", "ORC-T1", "PRO-C3")
def test_heartbeats_keep_a_lease_for_longer_than_its_time(histories: Histories) -> None:
    """Each of them renews it in full."""
    history = histories("renewed")

    for n in range(4):
        reply = history.replies[f"Heartbeat {n}"]
        assert (reply["extend_lease"], reply["new_lease_ttl_seconds"]) == (True, 120)
        assert history.changes("orchestration", f"wait {n}") == []
    assert history.job("Complete", "build")["state"] == "SUCCEEDED"


@pytest.mark.proves("PRO-K2", "PRO-S3", "PRO-S4", "PRO-F2", "PRO-F3")
def test_only_the_current_lease_finishes_its_attempt(histories: Histories) -> None:
    """A result under the lease before it is stale and changes nothing."""
    history = histories("lease_lost")

    reply = history.replies["Complete under the old lease"]
    assert (reply["type"], reply["reason"]) == ("StaleLease", "LEASE_EXPIRED")
    assert history.runs["Complete under the old lease"] == history.runs["third log"]


@pytest.mark.proves("PRO-Q6", "PRO-S1", "PRO-S5", "PRO-H3")
def test_a_heartbeat_under_an_expired_lease_is_answered_as_stale(histories: Histories) -> None:
    """And does not renew it."""
    reply = histories("lease_lost").replies["late Heartbeat"]

    assert (reply["extend_lease"], reply["stale"], reply["reason"]) == (False, True, "LEASE_EXPIRED")
