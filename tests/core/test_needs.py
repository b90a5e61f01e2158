"""The result and the outputs of a job, as jobs that need it read them."""

from __future__ import annotations

from typing import Any

import pytest

from deltaci.core import job
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job, JobSpec
from deltaci.core.status.needs import job_outputs, job_result


@pytest.mark.parametrize(
    ("state", "reason", "is_required", "report", "expected"),
    [
        (job.SUCCEEDED, "", True, None, "success"),
        (job.SUCCEEDED, "", True, {"is_skipped": True}, "skipped"),
        (job.SUCCEEDED, "", True, {"is_skipped": "yes"}, "success"),
        (job.SUCCEEDED, "", True, ["odd"], "success"),
        (job.FAILED, "", True, None, "failure"),
        (job.FAILED, "", False, None, "success"),
        (job.CANCELED, job.BLOCKED, True, None, "skipped"),
        (job.CANCELED, job.NOT_NEEDED, True, None, "skipped"),
        (job.CANCELED, job.RUN_CANCELED, True, None, "cancelled"),
        (job.RUNNING, "", True, None, "skipped"),
    ],
)
def test_the_result_follows_from_state_reason_and_report(
    state: str, reason: str, is_required: bool, report: Any, expected: str
) -> None:
    needed = Job(id="r/a", tenant="t", state=state, reason=reason, spec=JobSpec(name="a", is_required=is_required))

    assert job_result(needed, Attempt(id="r/a.1", tenant="t", report=report)) == expected


def test_only_an_object_has_outputs() -> None:
    for result, expected in (({"a": 1}, {"a": 1}), ([1], {}), (None, {}), ("text", {})):
        assert job_outputs(Attempt(id="a", tenant="t", result=result)) == expected
    assert job_outputs(None) == {}
