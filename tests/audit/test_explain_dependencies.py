"""Explanations of jobs with `after`, families, groups and `retry_on`."""

from __future__ import annotations

from deltaci.audit.explain import format_lines
from deltaci.core import attempt
from tests.audit.explanations import why
from tests.audit.test_explain_waits import only
from tests.support.lab import Lab, task


def test_a_job_that_comes_after_another_waits_for_its_end() -> None:
    """It is followed to the root like a need."""
    lab = Lab().plan(task("build"), task("test", "build"), task("mop", after=("build", "test")), task("last", "mop"))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))

    reason = only(why(lab, lab.job("last")), "waiting_for_jobs")

    assert reason.text.startswith("Job last waits for mop, which waits for build, which has been running on worker w1")
    assert reason.about == "r1/build"


def test_a_failed_job_does_not_keep_jobs_that_come_after_it() -> None:
    """They wait for its end, not for its success."""
    lab = Lab().plan(task("a"), task("b"), task("mop", after=("a", "b")))
    lab.register("w1")
    lab.work("a", ok=False)
    lease = lab.claim(lab.attempt("b"))
    lab.send(attempt.Start, lease)

    reason = only(why(lab, lab.job("mop")), "waiting_for_jobs")

    assert reason.text.startswith("Job mop waits for b, which has been running")
    lab.complete(lease)
    assert "was queued after the jobs before it had ended." in "\n".join(format_lines(why(lab, lab.job("mop"))))


def test_a_wait_for_a_group_names_the_job_that_holds_it() -> None:
    """The holder may belong to another run."""
    lab = Lab().plan(task("deploy", group="prod"), task("other", group="prod"))
    lab.register("w1", slots=2)
    lab.plan(task("deploy", group="prod"), id="r2")
    lab.claim(lab.attempt("deploy", run_id="r2"))

    near = only(why(lab, lab.job("deploy", "r2"), groups={"prod": "r2/deploy.1"}), "waiting_for_acceptance")
    far = only(why(lab, lab.job("deploy"), groups={"prod": "r2/deploy.1"}), "waiting_for_group")
    same = only(why(lab, lab.job("other"), groups={"prod": "r1/deploy.1"}), "waiting_for_group")
    free = why(lab, lab.job("deploy"), groups={"prod": ""})

    assert "group" not in near.text
    assert far.text.startswith("Job deploy waits for group prod, which job deploy of run r2 holds.")
    assert far.about == "r2/deploy"
    assert same.text.startswith("Job other waits for group prod, which job deploy holds.")
    assert [reason.code for reason in free.waiting] == ["waiting_for_worker"]


def test_a_missing_worker_is_explained_beside_the_group() -> None:
    """It needs action even when the group becomes free."""
    lab = Lab().plan(task("deploy", group="prod", queue_key="gpu"))

    explanation = why(lab, lab.job("deploy"), groups={"prod": "r2/deploy.1"})

    assert [reason.code for reason in explanation.waiting] == ["waiting_for_group", "no_worker"]


def test_a_job_stopped_with_its_family_names_the_failed_job() -> None:
    """For a waiting job and for one that a worker has to stop."""
    family = {"family": "os", "is_family_fail_fast": True}
    lab = Lab().plan(task("linux", **family), task("mac", **family), task("win", **family), task("doc"))
    running = lab.claim(lab.attempt("mac"), by="w2")
    lab.work("linux", ok=False)

    because = "because linux failed and the jobs of os stop at the first failure"
    assert why(lab, lab.job("win")).summary == f"Job win was no longer needed, {because}."
    assert because in only(why(lab, lab.job("mac")), "stopping").text
    lab.send(attempt.CancelAck, running)
    lab.work("doc")
    assert why(lab, lab.job("mac")).summary == f"Job mac was no longer needed, {because}."
    assert because in why(lab, lab.attempt("mac")).summary


def test_a_failure_class_that_the_job_does_not_retry_is_named() -> None:
    """Attempts remain, so the reader would wonder."""
    lab = Lab().plan(task("a", max_attempts=3, retry_on=("FLAKY", "TOOLING")))
    lab.fail(lab.claim(lab.attempt("a")))

    text = "\n".join(format_lines(why(lab, lab.job("a"))))

    assert "The job is retried only on FLAKY and TOOLING, so attempt 1 of 3 was the last one." in text
