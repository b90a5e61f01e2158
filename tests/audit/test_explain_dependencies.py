"""Why, where jobs are tied to others: by an order, by a family, by a group, by what they are retried on."""

from __future__ import annotations

from deltaci.audit.explain import format_lines
from deltaci.core import attempt
from tests.audit.explanations import why
from tests.audit.test_explain_waits import only
from tests.lab import Lab, task


def test_a_job_that_only_comes_after_another_waits_for_its_end() -> None:
    """Whether or not it may still succeed."""
    lab = Lab().plan(task("build"), task("test", "build"), task("mop", after=("build", "test")), task("last", "mop"))
    lab.register("w1")
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))

    told = only(why(lab, lab.job("last")), "waiting_for_jobs")

    assert told.text.startswith("Job last waits for mop, which waits for build, which has been running on worker w1")
    assert told.about == "r1/build"


def test_what_is_over_keeps_nobody_who_only_comes_after_it() -> None:
    """It failed, and that is enough."""
    lab = Lab().plan(task("a"), task("b"), task("mop", after=("a", "b")))
    lab.register("w1")
    lab.work("a", ok=False)
    lease = lab.claim(lab.attempt("b"))
    lab.say(attempt.Start, lease)

    told = only(why(lab, lab.job("mop")), "waiting_for_jobs")

    assert told.text.startswith("Job mop waits for b, which has been running")
    lab.complete(lease)
    assert "was queued after the jobs before it had ended." in "\n".join(format_lines(why(lab, lab.job("mop"))))


def test_who_waits_for_a_group_is_told_who_has_it() -> None:
    """In whatever run that is."""
    lab = Lab().plan(task("deploy", group="prod"), task("other", group="prod"))
    lab.register("w1", places=2)
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
    assert [each.code for each in free.waiting] == ["waiting_for_worker"]


def test_that_no_worker_fits_is_told_beside_the_group() -> None:
    """It does not pass by itself."""
    lab = Lab().plan(task("deploy", group="prod", queue_key="gpu"))

    told = why(lab, lab.job("deploy"), groups={"prod": "r2/deploy.1"})

    assert [each.code for each in told.waiting] == ["waiting_for_group", "no_worker"]


def test_what_ended_with_its_family_says_whose_failure_that_was() -> None:
    """One that waited, and one that a runner has to stop."""
    kin = {"family": "os", "is_family_fail_fast": True}
    lab = Lab().plan(task("linux", **kin), task("mac", **kin), task("win", **kin), task("doc"))
    running = lab.claim(lab.attempt("mac"), by="w2")
    lab.work("linux", ok=False)

    because = "because linux failed and the jobs of os stop at the first failure"
    assert why(lab, lab.job("win")).summary == f"Job win was no longer needed, {because}."
    assert because in only(why(lab, lab.job("mac")), "stopping").text
    lab.say(attempt.CancelAck, running)
    lab.work("doc")
    assert why(lab, lab.job("mac")).summary == f"Job mac was no longer needed, {because}."
    assert because in why(lab, lab.attempt("mac")).summary


def test_a_failure_that_the_job_does_not_retry_says_so() -> None:
    """Attempts remain, and nobody should wonder."""
    lab = Lab().plan(task("a", max_attempts=3, retry_on=("FLAKY", "TOOLING")))
    lab.fail(lab.claim(lab.attempt("a")))

    told = "\n".join(format_lines(why(lab, lab.job("a"))))

    assert "The job is retried only on FLAKY and TOOLING, so attempt 1 of 3 was the last one." in told
