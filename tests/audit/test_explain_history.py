"""Why something ended, or went another way than planned: for every kind of trouble, what a person is told."""

from __future__ import annotations

import pytest

from deltaci.audit.explain import (
    Explanation,
    Reason,
    TenantState,
    explain_attempt,
    explain_job,
    explain_run,
    format_lines,
)
from deltaci.audit.explain.formatting import duration, listed, one_line
from deltaci.core import attempt, job, run, worker
from deltaci.core.approvals import Gate
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.failures import Facts, FailureRule
from deltaci.core.instants import SECOND
from deltaci.core.run import Origin
from tests.audit.explanations import why
from tests.lab import Lab, gate, task


def told(explanation: Explanation, code: str) -> Reason:
    """The one reason of this kind."""
    (found,) = [each for each in explanation.history if each.code == code]
    return found


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("", "The outcome was published."),
        ("success", "The outcome was published. Result at the forge: “success”."),
        ("exhausted: 401", "The outcome was published. Result at the forge: “exhausted: 401”."),
    ],
)
def test_a_run_that_is_over_says_what_its_forge_was_told(said: str, text: str) -> None:
    """A forge that was given up must be visible somewhere."""
    lab = Lab().plan(task("build"))
    lab.work("build")
    lab.do(run.Report(id="r1", actor="reporter", reported_to=said))

    assert told(why(lab, lab.run()), "reported").text == text


# -- retried or not


def test_a_retry_names_the_class_the_rule_and_the_line() -> None:
    """A person must be able to check the decision."""
    lab = Lab().plan(task("build", max_attempts=3))
    tail = ("fetching", "curl: (6) Could not resolve host: example.org")
    lab.complete(lab.claim(lab.attempt("build")), ok=False, exit_code=6, facts=Facts(log_tail=tail))

    found = told(why(lab, lab.job("build")), "retry_scheduled")

    assert found.text == (
        "Attempt 1 of 3 of build failed: it ended with exit code 6. The rule “network” classifies that as a failure of"
        " the machine or the network (INFRA), because of the line “curl: (6) Could not resolve host: example.org”. The"
        " failure may be temporary, so attempt 2 was scheduled for 2026-01-04 08:00:20 UTC."
    )
    assert found.seq == lab.last("r1/build").seq
    assert told(why(lab, lab.run()), "retry_scheduled").text == found.text


def test_a_failure_of_the_job_itself_is_not_retried_and_says_so() -> None:
    """The most common question: why was it not tried again?"""
    lab = Lab().plan(task("build", max_attempts=3))
    lab.work("build", ok=False)

    explanation = why(lab, lab.job("build"))

    assert explanation.summary == "Job build failed: it ended with exit code 1."
    assert told(explanation, "not_retried").text == (
        "Job build failed: it ended with exit code 1. The rule “failed” classifies that as a failure of the job itself"
        " (USER). Another attempt would fail in the same way, so attempt 1 of 3 was the last one."
    )


def test_attempts_that_are_used_up_are_counted() -> None:
    """Two attempts, and which of them failed how."""
    lab = Lab().plan(task("build", max_attempts=2))
    lab.fail(lab.claim(lab.attempt("build")), "CACHE_FETCH")
    lab.after(60).do(job.RetryDue(id="r1/build"))
    lab.fail(lab.claim(lab.attempt("build")), "CHECKOUT")

    explanation = why(lab, lab.job("build"))

    assert "(TOOLING)" in told(explanation, "retry_scheduled").text
    assert told(explanation, "retried").text == "Job build was queued again for attempt 2."
    assert told(explanation, "not_retried").text.endswith(
        "The failure may be temporary, but all 2 attempts are used up."
    )


def test_a_job_with_one_attempt_says_how_to_give_it_more() -> None:
    """What can be done is said where it can be done."""
    lab = Lab().plan(task("build"))
    lab.fail(lab.claim(lab.attempt("build")))

    assert "only one attempt; allow more with max_attempts" in told(why(lab, lab.job("build")), "not_retried").text


def test_a_rule_that_forbids_another_attempt_is_named() -> None:
    """The project's own rules are as good as ours."""
    rule = FailureRule(name="licence", failure_class="TOOLING", is_retryable=False, exit_codes=(42,))
    lab = Lab().plan(task("build", max_attempts=3))
    lab.complete(lab.claim(lab.attempt("build")), ok=False, exit_code=42, rules=(rule,))

    text = told(why(lab, lab.job("build")), "not_retried").text

    assert "The rule “licence” classifies that as a failure of the tools around the job (TOOLING)." in text
    assert "The rule does not allow a retry" in text


def test_a_failure_that_is_allowed_says_that_the_run_goes_on() -> None:
    """A red job in a green run is a question."""
    lab = Lab().plan(task("lint", is_required=False), task("build"))
    lab.work("lint", ok=False)
    lab.work("build")

    assert told(why(lab, lab.job("lint")), "not_retried").text.endswith("Its failure is allowed, so the run continues.")
    assert why(lab, lab.run()).summary == (
        "Run r1 succeeded: every required job succeeded, and 1 job that may fail did not."
    )


# -- blocked, not needed


def test_a_blocked_job_is_followed_to_the_job_that_failed() -> None:
    """The cause is not the job before, but the first one."""
    lab = Lab().plan(task("build"), task("test", "build"), task("deploy", "test"))
    lab.work("build", ok=False)

    explanation = why(lab, lab.job("deploy"))

    assert explanation.summary == (
        "Job deploy could not start: it needs test, which needs build, which failed: it ended with exit code 1."
    )
    assert "(USER)" in told(explanation, "blocked").text
    assert why(lab, lab.run()).summary.startswith("Run r1 failed, because required job build failed")
    assert told(why(lab, lab.run()), "failed").text.endswith("2 other required jobs did not succeed either.")


def test_an_optional_job_that_is_cancelled_blocks_and_is_the_cause() -> None:
    """Its failure is allowed, its absence is not."""
    lab = Lab().plan(task("data", is_required=False), task("test", "data"))
    lab.do(CancelJob(id="r1/data", actor="user:ada", reason="too expensive"))

    assert why(lab, lab.run()).summary == (
        "Run r1 failed, because required job test could not start:"
        " it needs data, which was cancelled by ada: “too expensive”."
    )


def test_a_long_chain_of_blocked_jobs_is_told_short() -> None:
    """The beginning and the end matter."""
    names = [f"j{index}" for index in range(2000)]
    lab = Lab().plan(*(task(name, *names[max(0, at - 1) : at]) for at, name in enumerate(names)))
    lab.work("j0", ok=False)

    text = why(lab, lab.job("j1999")).summary

    assert "1994 other jobs in a chain, the last of which needs j0, which failed" in text
    assert told(why(lab, lab.run()), "more").text.startswith("Omitted: 1989 more events of these kinds")


def test_what_a_failed_run_does_not_need_any_more_says_which_job_failed() -> None:
    """Nobody cancelled it."""
    lab = Lab().plan(task("build"), task("docs"), is_fail_fast=True)
    lab.work("build", ok=False)

    assert why(lab, lab.job("docs")).summary == (
        "Job docs was no longer needed, because build failed and the run stops at the first failure."
    )
    assert "because build failed" in why(lab, lab.attempt("docs")).summary


# -- cancelled


@pytest.mark.parametrize(
    ("reason", "said"),
    [("JOB_CANCELED", ""), ("not today", ": “not today”"), ("SUPERSEDED", ", because a newer run took its place")],
)
def test_a_cancelled_job_says_by_whom_and_why(reason: str, said: str) -> None:
    """A name is whom to ask."""
    lab = Lab().plan(task("build"), task("test", "build"), gate("ok"))
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))
    lab.do(CancelJob(id="r1/ok", actor="user:bob", reason=reason))
    lab.do(CancelJob(id="r1/build", actor="user:ada", reason=reason))
    asked = told(why(lab, lab.job("build")), "cancel_requested").text
    lab.after(31).do(attempt.ForceCancel(id="r1/build.1"))

    assert why(lab, lab.job("ok")).summary == f"Job ok was cancelled by bob{said}."
    assert asked.startswith(f"Attempt 1 of build was asked to stop by ada{said}. Its worker has until")
    assert why(lab, lab.job("build")).summary == f"Job build was cancelled by ada{said}."
    assert why(lab, lab.job("test")).summary.endswith(f"it needs build, which was cancelled by ada{said}.")


def test_a_runner_that_did_not_stop_is_named() -> None:
    """It may still be at work, and somebody should look after it."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))
    lab.cancel_run()
    lab.after(31).do(attempt.ForceCancel(id="r1/build.1"))

    text = told(why(lab, lab.attempt("build")), "forced").text

    assert text.startswith("Attempt 1 of build was cancelled, because its run was cancelled by ada.")
    assert text.endswith("Worker w1 did not confirm in time that it stopped: the attempt was ended without it.")
    for record in (lab.run(), lab.job("build")):
        assert "Worker w1 did not stop attempt 1 of build in time" in told(why(lab, record), "forced").text


def test_a_cancel_that_was_remembered_names_who_asked_for_it() -> None:
    """We carried it out; somebody else wanted it."""
    lab = Lab()
    lab.create()
    lab.cancel_run(reason="SUPERSEDED")
    lab.do(run.BeginPlanning(id="r1"))
    lab.do(Plan(id="r1", jobs=(task("build"),)))

    assert why(lab, lab.run()).summary == "Run r1 was cancelled by ada, because a newer run took its place."
    assert why(lab, lab.job("build")).summary.startswith(
        "Job build was cancelled, because its run was cancelled by ada"
    )


# -- lost


LOSSES = {
    attempt.LEASE_EXPIRED: "Worker w1 lost attempt 1 of build, because it sent no heartbeat in time",
    attempt.NOT_ACCEPTED: "Worker w1 lost attempt 1 of build, because it did not accept it in time",
    attempt.WORKER_LOST: "Worker w1 lost attempt 1 of build, because it stopped answering",
    attempt.HANDED_BACK: "Worker w1 handed attempt 1 of build back",
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_lease_says_who_lost_it_how_and_who_has_it_now(loss: str) -> None:
    """Four ways to lose a job, and each has another cure."""
    lab = Lab().plan(task("build", max_lost_leases=2))
    lab.register("w1")
    lab.register("w2")
    lease = lab.claim(lab.attempt("build"))
    if loss != attempt.NOT_ACCEPTED:
        lab.say(attempt.Start, lease)
    ways = {
        attempt.LEASE_EXPIRED: (121, attempt.Expire(id="r1/build.1")),
        attempt.NOT_ACCEPTED: (31, attempt.RevokeUnaccepted(id="r1/build.1")),
        attempt.WORKER_LOST: (5, worker.MissHealthChecks(id="w1")),
        attempt.HANDED_BACK: (5, attempt.Stall(id="r1/build.1", reason=attempt.HANDED_BACK)),
    }
    seconds, command = ways[loss]
    lab.after(seconds).do(command)
    lab.after(200).claim(lab.attempt("build"), by="w2")

    is_lost = loss != attempt.HANDED_BACK
    for record in (lab.job("build"), lab.attempt("build")):
        explanation = why(lab, record)
        text = told(explanation, "lease_lost" if is_lost else "handed_back").text
        after = "That was loss 1, and 2 are allowed." if is_lost else "This does not count as a loss."
        assert text == f"{LOSSES[loss]} (lease 1, {loss}). {after}"
        gave = "had lost it" if is_lost else "had handed it back"
        assert told(explanation, "claimed_again").text == (
            f"Worker w2 claimed attempt 1 of build after worker w1 {gave} (lease 2)."
        )


def test_an_attempt_that_was_lost_too_often_says_how_often() -> None:
    """The limit is part of the answer."""
    lab = Lab().plan(task("build", max_lost_leases=1))
    for _ in range(2):
        lab.claim(lab.attempt("build"))
        lab.after(200).do(attempt.RevokeUnaccepted(id="r1/build.1"))

    assert why(lab, lab.attempt("build")).summary == (
        "Attempt 1 of build failed, because workers lost it twice and only 1 loss is allowed."
    )
    assert "its worker was lost too often (LEASE_LOST)" in why(lab, lab.job("build")).summary


# -- out of time


def test_an_attempt_that_took_too_long_says_how_long_it_had() -> None:
    """The limit is what can be changed."""
    lab = Lab().plan(task("build", timeout_seconds=60, max_attempts=2))
    lab.register("w1")
    lease = lab.claim(lab.attempt("build"))
    lab.say(attempt.Start, lease)
    lab.after(61).do(attempt.TimeOut(id="r1/build.1"))

    text = told(why(lab, lab.attempt("build")), "timed_out").text

    assert text.startswith("Attempt 1 of build was stopped on worker w1, because it exceeded its time limit of 1 min")
    assert "timeout_seconds" in text
    assert "it exceeded its time limit (TIMED_OUT)" in told(why(lab, lab.job("build")), "retry_scheduled").text


def test_a_run_that_took_too_long_says_so_for_its_jobs_too() -> None:
    """A job that was stopped in the middle did nothing wrong."""
    lab = Lab().plan(task("build"), task("test", "build"), timeout_seconds=600)
    lab.claim(lab.attempt("build"))
    lab.after(601).do(run.TimeOut(id="r1"))

    assert why(lab, lab.run()).summary == "Run r1 was stopped, because it exceeded its time limit of 10 min."
    assert why(lab, lab.job("test")).summary == (
        "Job test was cancelled, because its run exceeded the time limit of 10 min."
    )


# -- people, validation, planning


def test_decisions_of_people_say_who_and_what_they_said() -> None:
    """Their comment is the reason."""
    lab = Lab().plan(gate("ship"), gate("no"), gate("late", approval_seconds=60, gate=Gate(approvers=2)))
    lab.do(job.Approve(id="r1/ship", actor="user:ada", comment="go"))
    lab.do(job.Reject(id="r1/no", actor="user:bob", comment="not\nnow"))
    lab.do(job.Approve(id="r1/late", actor="user:ada"))
    lab.after(61).do(job.ExpireApproval(id="r1/late"))

    assert why(lab, lab.job("ship")).summary == "Job ship was approved by ada: “go”."
    assert why(lab, lab.job("no")).summary == "Job no was rejected by bob: “not now”."
    assert why(lab, lab.job("late")).summary == (
        "Job late failed, because only 1 of 2 people approved it by 2026-01-04 08:01:00 UTC."
    )
    assert why(lab, lab.run()).summary == ("Run r1 failed, because required job no was rejected by bob: “not now”.")


def test_everybody_who_approved_is_named() -> None:
    """Two people took responsibility, not one."""
    lab = Lab().plan(gate("ship", gate=Gate(approvers=2)))
    lab.approve("ship", by="user:ada")
    lab.approve("ship", by="user:bob")

    assert why(lab, lab.job("ship")).summary == "Job ship was approved by ada and bob."


def test_a_validation_that_did_not_pass_says_what_it_found() -> None:
    """Of a job, and of a whole run."""
    lab = Lab().plan(task("build", has_validation=True))
    lab.work("build")
    lab.do(job.Validate(id="r1/build", is_passed=False, details="coverage 71 % < 80 %"))
    lab.plan(task("build"), id="r2", has_validation=True)
    lab.work("build", run_id="r2")
    lab.do(run.Validate(id="r2", is_passed=False, details="no signature"))

    lab.plan(task("build"), id="r3")
    broken = attempt.Verdict(is_passed=False, details="rule coverage: found 71, wanted at least 80")
    lab.complete(lab.claim(lab.attempt("build", run_id="r3"), "w1"), verdict=broken)

    assert why(lab, lab.job("build")).summary.endswith("did not pass the validation: “coverage 71 % < 80 %”.")
    assert why(lab, lab.job("build", "r3")).summary.endswith(f"did not pass the validation: “{broken.details}”.")
    assert why(lab, lab.run("r2")).summary == (
        "Run r2 failed, because its final validation did not pass: “no signature”."
    )


def test_a_plan_that_failed_or_never_came_says_so() -> None:
    """A run without jobs has nobody else to ask."""
    lab = Lab()
    for id in ("r1", "r2"):
        lab.create(id)
        lab.do(run.BeginPlanning(id=id))
    lab.do(run.PlanFailed(id="r1", error="no file .ci/run"))
    lab.after(61).do(run.TimeOutPlanning(id="r2"))

    assert why(lab, lab.run()).summary == "Run r1 failed, because it could not be planned: “no file .ci/run”."
    assert why(lab, lab.run("r2")).summary == "Run r2 failed, because there was no plan within 1 min."


def test_a_run_says_where_it_comes_from() -> None:
    """The first sentence of every history."""
    origin = Origin(template="nightly", template_version=4)
    lab = Lab().plan(task("build"), started_by="ada", rerun_of="r0", origin=origin)

    assert told(why(lab, lab.run()), "created").text == (
        "Run r1 was created by ada, as a rerun of run r0, from template nightly version 4."
    )


# -- the plain queue, hostile texts, little known


def test_the_plain_queue_is_explained_too() -> None:
    """No run, no job: a job of the queue."""
    lab = Lab()
    lab.complete(lab.claim(lab.enqueue("q1"), by="me"), ok=False, facts=Facts(message="ValueError: no\nsuch file"))
    lab.enqueue("q2")
    lab.do(attempt.Cancel(id="q2", actor="user:ada", reason="CANCELED"))

    assert why(lab, lab.queued()).summary == (
        "Job q1 failed on worker me: it ended with exit code 1: “ValueError: no”."
    )
    assert "(USER)" in told(why(lab, lab.queued()), "failed").text
    assert why(lab, lab.queued("q2")).summary == "Job q2 was cancelled by ada."


def test_texts_of_others_stay_on_one_line_and_hide_nothing() -> None:
    """A comment must not draw on the terminal of whoever reads it."""
    nasty = "a\x1b[2J\x1b]0;title\x07b\r\nc\u202ed\u2028e\x00" + "x" * 5000
    lab = Lab().plan(gate("ok"), task("build"))
    lab.do(job.Reject(id="r1/ok", actor="user:bob\x1b[31m", comment=nasty))
    lab.claim(lab.attempt("build"), by="w\x1b[1m\n")
    lab.cancel_run(reason=nasty)

    for record in (lab.run(), lab.job("ok"), lab.job("build"), lab.attempt("build")):
        for line in format_lines(why(lab, record)):
            assert line.isprintable()
            assert len(line) < 1000
    assert told(why(lab, lab.job("ok")), "rejected").text.startswith("Job ok was rejected by bob: “ab c d e xxx")


@pytest.mark.parametrize(
    "word", ["REJECTED", "APPROVAL_EXPIRED", "VALIDATION_FAILED", "LEASE_LOST", "BLOCKED", "CANCELED"]
)
def test_a_runner_that_uses_our_words_is_not_believed(word: str) -> None:
    """What a runner calls its failure is free; what happened is not."""
    lab = Lab().plan(task("build"), task("test", "build"))
    lab.fail(lab.claim(lab.attempt("build")), word)

    failed = why(lab, lab.job("build"))

    assert failed.history[-1].code == "not_retried"
    assert f"({word})" in failed.summary
    assert why(lab, lab.attempt("build")).history[-1].code == "failed"
    assert "it needs build, which failed: " in why(lab, lab.job("test")).summary


@pytest.mark.parametrize("word", ["BLOCKED", "NOT_NEEDED", "RUN_TIMEOUT"])
def test_a_person_who_uses_our_words_is_quoted(word: str) -> None:
    """Nothing but a person stopped it."""
    lab = Lab().plan(task("build"), task("docs"), gate("ok"))
    lab.claim(lab.attempt("docs"))
    for name in ("build", "ok"):
        lab.do(CancelJob(id=f"r1/{name}", actor="user:ada", reason=word))

        assert why(lab, lab.job(name)).summary == f"Job {name} was cancelled by ada: “{word}”."
        assert why(lab, lab.job(name)).history[-1].code == "canceled"


def test_little_knowledge_makes_a_short_answer_and_no_error() -> None:
    """Old events may be gone; the records still say something."""
    lab = Lab().plan(task("build"), task("test", "build"), gate("ok"))
    lab.claim(lab.attempt("build"))
    lab.plan(task("build"), task("test", "build"), gate("ok"), id="r2")
    lab.work("build", ok=False, run_id="r2")
    lab.do(job.Reject(id="r2/ok", actor="user:bob"))
    around = TenantState(now=lab.now)

    for id in ("r1", "r2"):
        assert explain_run(lab.run(id), [], [], [], around).summary
        for name in ("build", "test", "ok"):
            assert explain_job(lab.job(name, id), lab.run(id), [], [], [], around).summary
        assert explain_attempt(lab.attempt("build", run_id=id), None, [], [], [], around).summary


def test_a_time_beyond_all_calendars_is_no_error() -> None:
    """Who asks for a hundred million years gets them, and an answer."""
    forever = 10**15
    lab = Lab().plan(task("build", timeout_seconds=forever), gate("ok", "build"), timeout_seconds=forever)
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))

    assert "until 9999-12-31 23:59:59 UTC (in 11574074074 d" in why(lab, lab.job("ok")).summary
    assert why(lab, lab.attempt("build")).summary.startswith("Attempt 1 of build has been running on worker w1 since")


def test_words_for_times_and_names() -> None:
    """Two units are enough, and a list ends."""
    spans = (0, 1, 59 * SECOND, 60 * SECOND, 61 * SECOND, 3600 * SECOND, 3601 * SECOND, 90061 * SECOND)

    assert [duration(each) for each in spans] == ["0 s", "1 s", "59 s", "1 min", "1 min 1 s", "1 h", "1 h", "1 d 1 h"]
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert one_line("x" * 10, 5) == "xxxx…"
    assert one_line(" a\t b\n") == "a b"
