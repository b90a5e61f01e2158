"""How a job ended, in the words of those that need it."""

from __future__ import annotations

from typing import Any

import pytest

from deltaci.core import job
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job, JobSpec
from deltaci.core.status.needs import job_outputs, job_result


@pytest.mark.parametrize(
    ("state", "reason", "is_required", "report", "wanted"),
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
def test_results(state: str, reason: str, is_required: bool, report: Any, wanted: str) -> None:
    needed = Job(id="r/a", tenant="t", state=state, reason=reason, spec=JobSpec(name="a", is_required=is_required))

    assert job_result(needed, Attempt(id="r/a.1", tenant="t", report=report)) == wanted


def test_only_an_object_has_outputs() -> None:
    for result, wanted in (({"a": 1}, {"a": 1}), ([1], {}), (None, {}), ("text", {})):
        assert job_outputs(Attempt(id="a", tenant="t", result=result)) == wanted
    assert job_outputs(None) == {}
