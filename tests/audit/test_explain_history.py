"""Explanations of outcomes and histories: retries, blocked jobs, cancellations, lost leases and timeouts."""

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
from deltaci.core import attempt, job, run
from deltaci.core.approvals import Gate
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.failures import Facts, FailureRule
from deltaci.core.instants import SECOND
from deltaci.core.run import Origin
from tests.audit.explanations import why
from tests.support.lab import Lab, gate, task


def entry(explanation: Explanation, code: str) -> Reason:
    """Return the only entry of the history with this code."""
    (reason,) = [reason for reason in explanation.history if reason.code == code]
    return reason


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("", "The outcome was published."),
        ("success", "The outcome was published. Result at the forge: “success”."),
        ("exhausted: 401", "The outcome was published. Result at the forge: “exhausted: 401”."),
    ],
)
def test_a_reported_run_includes_the_result_at_its_forge(result: str, text: str) -> None:
    """A report that was given up must be visible."""
    lab = Lab().plan(task("build"))
    lab.work("build")
    lab.do(run.Report(id="r1", actor="reporter", reported_to=result))

    assert entry(why(lab, lab.run()), "reported").text == text


# -- retried or not


def test_a_retry_names_the_failure_class_the_rule_and_the_log_line() -> None:
    """The reader must be able to check the decision."""
    lab = Lab().plan(task("build", max_attempts=3))
    tail = ("fetching", "curl: (6) Could not resolve host: example.org")
    lab.complete(lab.claim(lab.attempt("build")), ok=False, exit_code=6, facts=Facts(log_tail=tail))

    reason = entry(why(lab, lab.job("build")), "retry_scheduled")

    assert reason.text == (
        "Attempt 1 of 3 of build failed: it ended with exit code 6. The rule “transfer:curl” classifies that as a"
        " failure of the machine or the network (INFRA), because of the line “curl: (6) Could not resolve host:"
        " example.org”. The"
        " failure may be temporary, so attempt 2 was scheduled for 2026-01-04 08:00:20 UTC."
    )
    assert reason.seq == lab.last("r1/build").seq
    assert entry(why(lab, lab.run()), "retry_scheduled").text == reason.text


def test_a_user_failure_says_why_it_is_not_retried() -> None:
    """This is the most frequent question."""
    lab = Lab().plan(task("build", max_attempts=3))
    lab.work("build", ok=False)

    explanation = why(lab, lab.job("build"))

    assert explanation.summary == "Job build failed: it ended with exit code 1."
    assert entry(explanation, "not_retried").text == (
        "Job build failed: it ended with exit code 1. The rule “failed” classifies that as a failure of the job itself"
        " (USER). Another attempt would fail in the same way, so attempt 1 of 3 was the last one."
    )


def test_exhausted_attempts_are_counted() -> None:
    """The history has both failures."""
    lab = Lab().plan(task("build", max_attempts=2))
    lab.fail(lab.claim(lab.attempt("build")), "CACHE_FETCH")
    lab.after(60).do(job.RetryDue(id="r1/build"))
    lab.fail(lab.claim(lab.attempt("build")), "CHECKOUT")

    explanation = why(lab, lab.job("build"))

    assert "(TOOLING)" in entry(explanation, "retry_scheduled").text
    assert entry(explanation, "retried").text == "Job build was queued again for attempt 2."
    assert entry(explanation, "not_retried").text.endswith(
        "The failure may be temporary, but all 2 attempts are used up."
    )


def test_a_job_with_one_attempt_names_the_setting_for_more() -> None:
    """The advice belongs to the reason."""
    lab = Lab().plan(task("build"))
    lab.fail(lab.claim(lab.attempt("build")))

    assert "only one attempt; allow more with max_attempts" in entry(why(lab, lab.job("build")), "not_retried").text


def test_a_rule_that_forbids_a_retry_is_named() -> None:
    """A project may have its own failure rules."""
    rule = FailureRule(name="licence", failure_class="TOOLING", is_retryable=False, exit_codes=(42,))
    lab = Lab().plan(task("build", max_attempts=3))
    lab.complete(lab.claim(lab.attempt("build")), ok=False, exit_code=42, rules=(rule,))

    text = entry(why(lab, lab.job("build")), "not_retried").text

    assert "The rule “licence” classifies that as a failure of the tools around the job (TOOLING)." in text
    assert "The rule does not allow a retry" in text


def test_an_allowed_failure_says_that_the_run_continues() -> None:
    """Otherwise a failed job in a successful run is confusing."""
    lab = Lab().plan(task("lint", is_required=False), task("build"))
    lab.work("lint", ok=False)
    lab.work("build")

    assert entry(why(lab, lab.job("lint")), "not_retried").text.endswith(
        "Its failure is allowed, so the run continues."
    )
    assert why(lab, lab.run()).summary == (
        "Run r1 succeeded: every required job succeeded, and 1 job that may fail did not."
    )


# -- blocked, not needed


def test_a_blocked_job_names_the_first_job_that_failed() -> None:
    """The direct need may itself be blocked."""
    lab = Lab().plan(task("build"), task("test", "build"), task("deploy", "test"))
    lab.work("build", ok=False)

    explanation = why(lab, lab.job("deploy"))

    assert explanation.summary == (
        "Job deploy could not start: it needs test, which needs build, which failed: it ended with exit code 1."
    )
    assert "(USER)" in entry(explanation, "blocked").text
    assert why(lab, lab.run()).summary.startswith("Run r1 failed, because required job build failed")
    assert entry(why(lab, lab.run()), "failed").text.endswith("2 other required jobs did not succeed either.")


def test_a_cancelled_optional_job_blocks_the_jobs_that_need_it() -> None:
    """Only its failure is allowed."""
    lab = Lab().plan(task("data", is_required=False), task("test", "data"))
    lab.do(CancelJob(id="r1/data", actor="user:ada", reason="too expensive"))

    assert why(lab, lab.run()).summary == (
        "Run r1 failed, because required job test could not start:"
        " it needs data, which was cancelled by ada: “too expensive”."
    )


def test_a_long_chain_of_blocked_jobs_is_shortened() -> None:
    """Its first jobs and its root are enough."""
    names = [f"j{index}" for index in range(2000)]
    lab = Lab().plan(*(task(name, *names[max(0, at - 1) : at]) for at, name in enumerate(names)))
    lab.work("j0", ok=False)

    text = why(lab, lab.job("j1999")).summary

    assert "1994 other jobs in a chain, the last of which needs j0, which failed" in text
    assert entry(why(lab, lab.run()), "more").text.startswith("Omitted: 1989 more events of these kinds")


def test_a_job_that_a_failed_run_no_longer_needs_names_the_failed_job() -> None:
    """No person cancelled it."""
    lab = Lab().plan(task("build"), task("docs"), is_fail_fast=True)
    lab.work("build", ok=False)

    assert why(lab, lab.job("docs")).summary == (
        "Job docs was no longer needed, because build failed and the run stops at the first failure."
    )
    assert "because build failed" in why(lab, lab.attempt("docs")).summary


# -- cancelled


@pytest.mark.parametrize(
    ("reason", "shown_reason"),
    [("JOB_CANCELED", ""), ("not today", ": “not today”"), ("SUPERSEDED", ", because a newer run took its place")],
)
def test_a_cancelled_job_names_the_person_and_the_reason(reason: str, shown_reason: str) -> None:
    """The reader knows whom to ask."""
    lab = Lab().plan(task("build"), task("test", "build"), gate("ok"))
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))
    lab.do(CancelJob(id="r1/ok", actor="user:bob", reason=reason))
    lab.do(CancelJob(id="r1/build", actor="user:ada", reason=reason))
    request = entry(why(lab, lab.job("build")), "cancel_requested").text
    lab.after(31).do(attempt.ForceCancel(id="r1/build.1"))

    assert why(lab, lab.job("ok")).summary == f"Job ok was cancelled by bob{shown_reason}."
    assert request.startswith(f"Attempt 1 of build was asked to stop by ada{shown_reason}. Its worker has until")
    assert why(lab, lab.job("build")).summary == f"Job build was cancelled by ada{shown_reason}."
    assert why(lab, lab.job("test")).summary.endswith(f"it needs build, which was cancelled by ada{shown_reason}.")


def test_a_worker_that_did_not_stop_is_named() -> None:
    """It may still be running the job and needs attention."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))
    lab.cancel_run()
    lab.after(31).do(attempt.ForceCancel(id="r1/build.1"))

    text = entry(why(lab, lab.attempt("build")), "forced").text

    assert text.startswith("Attempt 1 of build was cancelled, because its run was cancelled by ada.")
    assert text.endswith("Worker w1 did not confirm in time that it stopped: the attempt was ended without it.")
    for record in (lab.run(), lab.job("build")):
        assert "Worker w1 did not stop attempt 1 of build in time" in entry(why(lab, record), "forced").text


def test_a_remembered_cancel_names_the_person_who_requested_it() -> None:
    """The orchestrator only applied it later."""
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
    attempt.HANDED_BACK: "Worker w1 handed attempt 1 of build back",
    attempt.STALLED: "ada took attempt 1 of build away from worker w1",
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_lease_names_the_worker_the_cause_and_the_next_worker(loss: str) -> None:
    """Each of the causes needs another remedy."""
    lab = Lab().plan(task("build", max_lost_leases=2))
    lab.register("w1")
    lab.register("w2")
    lease = lab.claim(lab.attempt("build"))
    if loss != attempt.NOT_ACCEPTED:
        lab.send(attempt.Start, lease)
    causes = {
        attempt.LEASE_EXPIRED: (121, attempt.Expire(id="r1/build.1")),
        attempt.NOT_ACCEPTED: (31, attempt.RevokeUnaccepted(id="r1/build.1")),
        attempt.HANDED_BACK: (5, attempt.Stall(id="r1/build.1", reason=attempt.HANDED_BACK)),
        attempt.STALLED: (5, attempt.Stall(id="r1/build.1", actor="user:ada")),
    }
    seconds, command = causes[loss]
    lab.after(seconds).do(command)
    lab.after(200).claim(lab.attempt("build"), by="w2")

    is_lost = loss != attempt.HANDED_BACK
    for record in (lab.job("build"), lab.attempt("build")):
        explanation = why(lab, record)
        text = entry(explanation, "lease_lost" if is_lost else "handed_back").text
        after = "That was loss 1, and 2 are allowed." if is_lost else "This does not count as a loss."
        if loss == attempt.STALLED:
            after += (
                " It can be claimed from 2026-01-04 08:02:00 UTC on: until then the worker may still be running it."
            )
        assert text == f"{LOSSES[loss]} (lease 1, {loss}). {after}"
        gave = "had lost it" if is_lost else "had handed it back"
        assert entry(explanation, "claimed_again").text == (
            f"Worker w2 claimed attempt 1 of build after worker w1 {gave} (lease 2)."
        )


def test_an_attempt_that_was_lost_too_often_names_the_limit() -> None:
    """The limit is part of the reason."""
    lab = Lab().plan(task("build", max_lost_leases=1))
    for _ in range(2):
        lab.claim(lab.attempt("build"))
        lab.after(200).do(attempt.RevokeUnaccepted(id="r1/build.1"))

    assert why(lab, lab.attempt("build")).summary == (
        "Attempt 1 of build failed, because workers lost it twice and only 1 loss is allowed."
    )
    assert "its worker was lost too often (LEASE_LOST)" in why(lab, lab.job("build")).summary


# -- out of time


def test_an_attempt_that_timed_out_names_its_time_limit() -> None:
    """The limit can be changed."""
    lab = Lab().plan(task("build", timeout_seconds=60, max_attempts=2))
    lab.register("w1")
    lease = lab.claim(lab.attempt("build"))
    lab.send(attempt.Start, lease)
    lab.after(61).do(attempt.TimeOut(id="r1/build.1"))

    text = entry(why(lab, lab.attempt("build")), "timed_out").text

    assert text.startswith("Attempt 1 of build was stopped on worker w1, because it exceeded its time limit of 1 min")
    assert "timeout_seconds" in text
    assert "it exceeded its time limit (TIMED_OUT)" in entry(why(lab, lab.job("build")), "retry_scheduled").text


def test_a_run_that_timed_out_is_the_reason_of_its_jobs_too() -> None:
    """The stopped jobs did not fail themselves."""
    lab = Lab().plan(task("build"), task("test", "build"), timeout_seconds=600)
    lab.claim(lab.attempt("build"))
    lab.after(601).do(run.TimeOut(id="r1"))

    assert why(lab, lab.run()).summary == "Run r1 was stopped, because it exceeded its time limit of 10 min."
    assert why(lab, lab.job("test")).summary == (
        "Job test was cancelled, because its run exceeded the time limit of 10 min."
    )


# -- people, validation, planning


def test_an_approval_decision_names_the_people_and_their_comments() -> None:
    """The comment is the reason."""
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


def test_every_approver_is_named() -> None:
    """Both people share the responsibility."""
    lab = Lab().plan(gate("ship", gate=Gate(approvers=2)))
    lab.approve("ship", by="user:ada")
    lab.approve("ship", by="user:bob")

    assert why(lab, lab.job("ship")).summary == "Job ship was approved by ada and bob."


def test_a_failed_validation_quotes_its_details() -> None:
    """For a job and for a whole run."""
    lab = Lab().plan(task("build", has_validation=True))
    lab.work("build")
    lab.do(job.Validate(id="r1/build", is_passed=False, details="coverage 71 % < 80 %"))
    lab.plan(task("build"), id="r2", has_validation=True)
    lab.work("build", run_id="r2")
    lab.do(run.Validate(id="r2", is_passed=False, details="no signature"))

    lab.plan(task("build"), id="r3")
    failed_verdict = attempt.Verdict(is_passed=False, details="rule coverage: found 71, wanted at least 80")
    lab.complete(lab.claim(lab.attempt("build", run_id="r3"), "w1"), verdict=failed_verdict)

    assert why(lab, lab.job("build")).summary.endswith("did not pass the validation: “coverage 71 % < 80 %”.")
    assert why(lab, lab.job("build", "r3")).summary.endswith(
        f"did not pass the validation: “{failed_verdict.details}”."
    )
    assert why(lab, lab.run("r2")).summary == (
        "Run r2 failed, because its final validation did not pass: “no signature”."
    )


def test_a_run_without_a_plan_says_whether_planning_failed_or_timed_out() -> None:
    """A run without jobs has no other explanation."""
    lab = Lab()
    for id in ("r1", "r2"):
        lab.create(id)
        lab.do(run.BeginPlanning(id=id))
    lab.do(run.PlanFailed(id="r1", error="no file .ci/run"))
    lab.after(61).do(run.TimeOutPlanning(id="r2"))

    assert why(lab, lab.run()).summary == "Run r1 failed, because it could not be planned: “no file .ci/run”."
    assert why(lab, lab.run("r2")).summary == "Run r2 failed, because there was no plan within 1 min."


def test_the_history_of_a_run_starts_with_its_origin() -> None:
    """Who started it, which run it repeats, and its template."""
    origin = Origin(template="nightly", template_version=4)
    lab = Lab().plan(task("build"), started_by="ada", rerun_of="r0", origin=origin)

    assert entry(why(lab, lab.run()), "created").text == (
        "Run r1 was created by ada, as a rerun of run r0, from template nightly version 4."
    )


# -- the plain queue, untrusted text, missing input


def test_an_attempt_of_the_plain_queue_is_explained_as_a_job() -> None:
    """It has neither a run nor a job record."""
    lab = Lab()
    lab.complete(lab.claim(lab.enqueue("q1"), by="me"), ok=False, facts=Facts(message="ValueError: no\nsuch file"))
    lab.enqueue("q2")
    lab.do(attempt.Cancel(id="q2", actor="user:ada", reason="CANCELED"))

    assert why(lab, lab.queued()).summary == (
        "Job q1 failed on worker me: it ended with exit code 1: “ValueError: no”."
    )
    assert "(USER)" in entry(why(lab, lab.queued()), "failed").text
    assert why(lab, lab.queued("q2")).summary == "Job q2 was cancelled by ada."


def test_untrusted_text_cannot_control_the_terminal() -> None:
    """Comments, reasons and names come from other people."""
    untrusted = "a\x1b[2J\x1b]0;title\x07b\r\nc\u202ed\u2028e\x00" + "x" * 5000
    lab = Lab().plan(gate("ok"), task("build"))
    lab.do(job.Reject(id="r1/ok", actor="user:bob\x1b[31m", comment=untrusted))
    lab.claim(lab.attempt("build"), by="w\x1b[1m\n")
    lab.cancel_run(reason=untrusted)

    for record in (lab.run(), lab.job("ok"), lab.job("build"), lab.attempt("build")):
        for line in format_lines(why(lab, record)):
            assert line.isprintable()
            assert len(line) < 1000
    assert entry(why(lab, lab.job("ok")), "rejected").text.startswith("Job ok was rejected by bob: “ab c d e xxx")


@pytest.mark.parametrize(
    "word", ["REJECTED", "APPROVAL_EXPIRED", "VALIDATION_FAILED", "LEASE_LOST", "BLOCKED", "CANCELED"]
)
def test_a_failure_code_chosen_by_a_runner_does_not_change_the_reason(word: str) -> None:
    """A runner may use any code; the event decides."""
    lab = Lab().plan(task("build"), task("test", "build"))
    lab.fail(lab.claim(lab.attempt("build")), word)

    failed = why(lab, lab.job("build"))

    assert failed.history[-1].code == "not_retried"
    assert f"({word})" in failed.summary
    assert why(lab, lab.attempt("build")).history[-1].code == "failed"
    assert "it needs build, which failed: " in why(lab, lab.job("test")).summary


@pytest.mark.parametrize("word", ["BLOCKED", "NOT_NEEDED", "RUN_TIMEOUT"])
def test_a_cancel_reason_equal_to_an_internal_reason_is_quoted(word: str) -> None:
    """Only the person stopped the job."""
    lab = Lab().plan(task("build"), task("docs"), gate("ok"))
    lab.claim(lab.attempt("docs"))
    for name in ("build", "ok"):
        lab.do(CancelJob(id=f"r1/{name}", actor="user:ada", reason=word))

        assert why(lab, lab.job(name)).summary == f"Job {name} was cancelled by ada: “{word}”."
        assert why(lab, lab.job(name)).history[-1].code == "canceled"


def test_missing_records_and_events_shorten_the_explanation() -> None:
    """Old events may be deleted; the records still say something."""
    lab = Lab().plan(task("build"), task("test", "build"), gate("ok"))
    lab.claim(lab.attempt("build"))
    lab.plan(task("build"), task("test", "build"), gate("ok"), id="r2")
    lab.work("build", ok=False, run_id="r2")
    lab.do(job.Reject(id="r2/ok", actor="user:bob"))
    tenant = TenantState(now=lab.now)

    for id in ("r1", "r2"):
        assert explain_run(lab.run(id), [], [], [], tenant).summary
        for name in ("build", "test", "ok"):
            assert explain_job(lab.job(name, id), lab.run(id), [], [], [], tenant).summary
        assert explain_attempt(lab.attempt("build", run_id=id), None, [], [], [], tenant).summary


def test_a_time_after_the_year_9999_is_formatted() -> None:
    """A timeout may be arbitrarily long."""
    forever = 10**15
    lab = Lab().plan(task("build", timeout_seconds=forever), gate("ok", "build"), timeout_seconds=forever)
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))

    assert "until 9999-12-31 23:59:59 UTC (in 11574074074 d" in why(lab, lab.job("ok")).summary
    assert why(lab, lab.attempt("build")).summary.startswith("Attempt 1 of build has been running on worker w1 since")


def test_durations_lists_and_names_are_formatted() -> None:
    """Durations have at most two units, lists are cut."""
    spans = (0, 1, 59 * SECOND, 60 * SECOND, 61 * SECOND, 3600 * SECOND, 3601 * SECOND, 90061 * SECOND)

    assert [duration(span) for span in spans] == ["0 s", "1 s", "59 s", "1 min", "1 min 1 s", "1 h", "1 h", "1 d 1 h"]
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert one_line("x" * 10, 5) == "xxxx…"
    assert one_line(" a\t b\n") == "a b"
