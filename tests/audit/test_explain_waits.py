"""Explanations of waiting records: the reason and the advice for every kind of wait."""

from __future__ import annotations

import msgspec
import pytest

from deltaci.audit.explain import Explanation, Reason
from deltaci.core import attempt, job, run, worker
from deltaci.core.approvals import Gate
from deltaci.core.instants import SECOND
from tests.audit.explanations import why
from tests.support.lab import START, Lab, gate, task


def only(explanation: Explanation, code: str) -> Reason:
    """Return the only waiting reason, after checking its code and that the summary is based on it."""
    assert [reason.code for reason in explanation.waiting] == [code], explanation.waiting
    assert explanation.waiting[0].text.startswith(explanation.summary[:-1])
    return explanation.waiting[0]


# -- for other jobs


def test_a_wait_for_another_job_is_followed_to_its_root() -> None:
    """The job that needs action is at the end of the chain."""
    lab = Lab().plan(task("test", queue_key="gpu"), task("package", "test"), task("deploy", "package"))
    for id in ("w1", "w2", "w3"):
        lab.register(id, labels=("linux",))

    reason = only(why(lab, lab.job("deploy")), "waiting_for_jobs")

    assert reason.text.startswith(
        "Job deploy waits for package, which waits for test, which waits for a worker with the label gpu:"
        " none of the 3 workers has it."
    )
    assert "deltaci runner --labels gpu" in reason.text
    assert reason.about == "r1/test"


def test_a_wait_for_a_running_job_names_its_worker_and_time_limit() -> None:
    """A running job makes progress, so nothing has to be done."""
    lab = Lab().plan(task("build", timeout_seconds=600), task("test", "build"))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))

    reason = only(why(lab.after(60), lab.job("test")), "waiting_for_jobs")

    assert "which has been running on worker w1 since 2026-01-04 08:00:00 UTC" in reason.text
    assert "until 2026-01-04 08:10:00 UTC (in 9 min)" in reason.text
    assert not why(lab, lab.job("build")).waiting


def test_a_need_that_requires_a_person_is_explained_before_others() -> None:
    """It would be overlooked behind waits that end by themselves."""
    lab = Lab().plan(task("a"), gate("ok"), task("middle", "a", "ok"), task("end", "a", "middle"))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("a")))

    explanation = why(lab, lab.job("end"))

    assert [reason.about for reason in explanation.waiting] == ["r1/ok", "r1/a"]
    assert explanation.summary.startswith(
        "Job end waits for middle, which waits for ok, which waits for approval by a person"
    )


def test_needs_with_the_same_root_are_explained_once_and_counted() -> None:
    """Fifty equal sentences would hide the reason."""
    names = [f"t{index}" for index in range(50)]
    lab = Lab().plan(task("build"), *(task(name, "build") for name in names), task("end", *names))

    reason = only(why(lab, lab.job("end")), "waiting_for_jobs")

    assert "49 other jobs before it wait for the same reason." in reason.text


def test_a_long_chain_of_waits_is_shortened() -> None:
    """Its first jobs and its root are enough."""
    names = [f"j{index}" for index in range(2000)]
    lab = Lab().plan(*(task(name, *names[max(0, at - 1) : at]) for at, name in enumerate(names)))

    reason = only(why(lab, lab.job("j1999")), "waiting_for_jobs")

    assert "1994 other jobs in a chain, the last of which waits for j0, which waits for a worker" in reason.text
    assert len(reason.text) < 400


# -- for a worker


def test_without_any_worker_the_advice_is_to_start_one() -> None:
    """New users meet this first."""
    lab = Lab().plan(task("build"))

    reason = only(why(lab, lab.job("build")), "no_worker")

    assert reason.text == "Job build waits for a worker: no worker is registered. Start one with `deltaci runner`."


def test_a_worker_that_shut_down_does_not_count() -> None:
    """It cannot claim anything."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.do(worker.Shutdown(id="w1"))

    only(why(lab, lab.job("build")), "no_worker")


def test_missing_labels_and_the_closest_worker_are_named() -> None:
    """One missing label is likely a typo, several are another machine."""
    lab = Lab().plan(task("train", queue_key="arm,gpu,linux"))
    lab.register("w1", labels=("linux",))
    lab.register("w2", labels=("arm", "linux"))

    reason = only(why(lab, lab.attempt("train")), "no_fitting_worker")

    assert "with the labels arm, gpu and linux" in reason.text
    assert "none of the 2 workers has all of them; the closest, w2, lacks gpu." in reason.text
    assert reason.about == "w2"


def test_busy_workers_are_named_with_their_attempts() -> None:
    """The reader can judge how long they will take."""
    lab = Lab().plan(task("a", queue_key="linux"), task("b", queue_key="linux"), task("c", queue_key="linux"))
    lab.register("w1", labels=("linux",))
    lab.register("w2", labels=("linux",))
    lab.claim(lab.attempt("a"), by="w1")
    lab.claim(lab.attempt("b"), by="w2")

    reason = only(why(lab, lab.job("c")), "workers_busy")

    assert "each of the 2 matching workers is busy (w1 with r1/a.1; w2 with r1/b.1)" in reason.text
    assert "claimed when a slot becomes free" in reason.text


def test_unresponsive_workers_are_named() -> None:
    """A list of workers may still show them as registered."""
    lab = Lab().plan(task("a", queue_key="linux"), task("b", queue_key="linux"))
    lab.register("w1", labels=("linux",))
    lab.claim(lab.attempt("a"), by="w1")
    lab.do(worker.MissHealthChecks(id="w1"))

    reason = only(why(lab, lab.job("b")), "workers_unresponsive")

    assert "the only matching worker (w1) stopped answering" in reason.text


def test_workers_that_are_shutting_down_are_named() -> None:
    """They are busy with their last attempts."""
    lab = Lab().plan(task("a"), task("b"))
    lab.register("w1", slots=2)
    lab.claim(lab.attempt("a"), by="w1")
    lab.do(worker.Shutdown(id="w1"))

    assert "w1" in only(why(lab, lab.job("b")), "workers_leaving").text


def test_the_reason_counts_workers_by_what_keeps_them() -> None:
    """Only workers that may become free matter; the others are summed up."""
    lab = Lab().plan(*(task(name) for name in ("a", "b", "c", "d")))
    for name, by in (("a", "w1"), ("b", "w2"), ("c", "w3")):
        lab.register(by)
        lab.claim(lab.attempt(name), by=by)
    lab.do(worker.MissHealthChecks(id="w1"))
    lab.do(worker.Shutdown(id="w2"))

    busy = only(why(lab, lab.job("d")), "workers_busy").text
    lab.do(worker.Shutdown(id="w3"))
    leaving = only(why(lab, lab.job("d")), "workers_leaving").text

    assert (
        "1 of the 3 matching workers is busy (w3 with r1/c.1), and the rest stopped answering or will shut down" in busy
    )
    assert (
        "2 of the 3 matching workers (w2 and w3) will shut down and take no new work, and the rest stopped" in leaving
    )


def test_a_drained_worker_is_named_with_its_reason_and_the_command_to_resume_it() -> None:
    """It is online and idle, so the cause is not obvious."""
    lab = Lab().plan(task("train", queue_key="gpu"))
    lab.register("w1", labels=("gpu",))
    lab.register("w2", labels=("linux",))
    lab.after(60).do(worker.Drain(id="w1", actor="user:ada", reason="new disk"))

    reason = only(why(lab.after(60), lab.job("train")), "workers_held")

    assert reason.text == (
        "Job train waits for a worker with the label gpu: worker w1 matches, but is drained since 2026-01-04"
        " 08:01:00 UTC: “new disk”. `deltaci workers resume w1` lets it take work again."
    )
    assert reason.about == "w1"


def test_a_quarantined_worker_is_named_with_the_reason() -> None:
    """Whoever resumes it should know the cause."""
    lab = Lab().plan(*(task(name) for name in "abcde"), is_fail_fast=False)
    for id in ("w1", "w2", "w3", "w4", "w5"):
        lab.register(id)
    lab.claim(lab.attempt("e"), by="w5")
    lab.do(worker.MissHealthChecks(id="w5"))
    for name in "abc":
        lab.fail(lab.after(10).claim(lab.attempt(name), by="w1"))
    for id in ("w2", "w3", "w4"):
        lab.do(worker.Quarantine(id=id, reason="slow disk"))

    reason = only(why(lab, lab.job("d")), "workers_held").text

    assert (
        "worker w1 matches, but is quarantined since 2026-01-04 08:00:30 UTC: 3 times in a row it lost a job or"
        in reason
    )
    assert "worker w2 matches, but is quarantined since 2026-01-04 08:00:30 UTC: “slow disk”; " in reason
    assert "; 1 more is on hold, and the rest stopped answering or will shut down. " in reason


def test_a_busy_worker_counts_before_workers_on_hold() -> None:
    """It becomes free by itself."""
    lab = Lab().plan(task("a"), task("b"))
    lab.register("w1")
    lab.register("w2")
    lab.claim(lab.attempt("a"), by="w1")
    lab.do(worker.Drain(id="w2", reason="old"))

    reason = only(why(lab, lab.job("b")), "workers_busy").text

    assert "and the rest stopped answering, is on hold or will shut down" in reason


def test_a_worker_that_lost_the_job_leaves_it_to_another_worker() -> None:
    """Otherwise a free worker that claims nothing looks like a bug."""
    lab = Lab().plan(task("build"), task("other"))
    lab.register("w1")
    lab.register("w2")
    lab.claim(lab.attempt("build"), by="w1")
    lab.after(30).do(attempt.RevokeUnaccepted(id="r1/build.1"))

    reason = only(why(lab, lab.job("build")), "waiting_for_worker").text
    lab.claim(lab.attempt("other"), by="w2")
    busy = only(why(lab, lab.job("build")), "workers_busy").text
    lab.do(worker.Drain(id="w2", reason="old"))
    alone = only(why(lab, lab.job("build")), "waiting_for_worker").text

    assert reason == (
        "Job build waits to be claimed: w2 has a free slot; w1 lost it before and leaves it to other workers."
    )
    assert "is busy (w2 with r1/other.1); w1 lost it before and leaves it to other workers" in busy
    assert alone == "Job build waits to be claimed: w1 has a free slot."


def test_with_a_free_worker_the_attempt_waits_to_be_claimed() -> None:
    """The position in the queue is added if it is known."""
    lab = Lab().plan(task("build"))
    lab.register("w1")

    explanation = why(lab, lab.job("build"), ahead={"r1/build.1": 7})

    assert [reason.code for reason in explanation.waiting] == ["waiting_for_worker", "position"]
    assert explanation.summary == "Job build waits to be claimed: w1 has a free slot."
    assert "is behind 7 other attempts in the queue" in explanation.waiting[1].text


def test_a_full_quota_of_running_jobs_is_a_reason() -> None:
    """Workers are free, but nothing may start."""
    lab = Lab().plan(task("build"))
    lab.register("w1")

    reason = only(why(lab, lab.job("build"), running_quota=5, running=5), "quota")

    assert "5 of at most 5 jobs are running" in reason.text
    assert why(lab, lab.job("build"), running_quota=5, running=4).waiting[0].code == "waiting_for_worker"


def test_an_unaccepted_lease_names_its_deadline() -> None:
    """A worker that does not answer looks like one that is running the job."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.claim(lab.attempt("build"))

    reason = only(why(lab.after(10), lab.job("build")), "waiting_for_acceptance")

    assert "was assigned to worker w1, which has until 2026-01-04 08:00:30 UTC (in 20 s) to accept it" in reason.text


# -- for a person


def test_an_approval_names_its_deadline_and_the_consequence() -> None:
    """The approver must know how much time is left."""
    lab = Lab().plan(gate("ok", approval_seconds=900), gate("default"))

    timed = only(why(lab, lab.job("ok")), "waiting_for_approval").text
    default = only(why(lab, lab.job("default")), "waiting_for_approval").text

    assert "waits for approval by a person until 2026-01-04 08:15:00 UTC (in 15 min). Without" in timed
    assert "(in 30 d). Without approval it fails then." in default


def test_an_approval_by_several_people_names_who_may_approve_and_who_did() -> None:
    """Nobody should be asked in vain or twice."""
    rule = Gate(role="release", approvers=3, not_by_starter=True)
    lab = Lab().plan(gate("ok", gate=rule), started_by="bob")
    lab.do(job.Approve(id="r1/ok", actor="user:ada", roles=("release",), comment="looks\ngood"))

    explanation = why(lab, lab.job("ok"))

    text = only(explanation, "waiting_for_approval").text
    assert "waits for approval by 3 different people with the role release (not bob, who started the run)" in text
    assert "1 of 3 has approved (ada)" in text
    given = next(reason for reason in explanation.history if reason.code == "approval_given")
    assert given.text == "ada approved ok: “looks good”. That was approval 1 of 3."
    assert why(lab, lab.run()).waiting[0].code == "waiting_for_approval"


# -- for a time


def test_a_retry_names_its_time_its_attempt_and_the_failure() -> None:
    """One sentence answers why the job is not running."""
    lab = Lab().plan(task("build", max_attempts=3, base_delay_seconds=10))
    lab.fail(lab.claim(lab.attempt("build")), "IMAGE_PULL")

    reason = only(why(lab.after(5), lab.job("build")), "retry_scheduled")

    assert "attempt 2 of 3 starts at 2026-01-04 08:00:20 UTC (in 15 s)" in reason.text
    assert "attempt 1 failed: its image could not be fetched (IMAGE_PULL)" in reason.text
    assert (reason.at, reason.seq) == (START, lab.last("r1/build").seq)


def test_after_a_lost_lease_the_wait_lasts_until_the_last_worker_must_have_stopped() -> None:
    """Two workers must never run the same attempt."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.register("w2")
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))
    lab.after(20).do(attempt.Stall(id="r1/build.1", actor="user:ada"))

    reason = only(why(lab, lab.job("build")), "fence")

    assert "waits until 2026-01-04 08:02:00 UTC (in 1 min 40 s), when its last lease ends" in reason.text
    assert "worker w1, which lost it, may still be running it" in reason.text
    assert why(lab, lab.run()).summary.startswith("Run r1 waits (0 of 1 job have ended): job build waits until 2026")
    assert only(why(lab.after(100), lab.job("build")), "waiting_for_worker").at == START + 20 * SECOND


def test_a_job_of_a_group_waits_until_the_runner_of_a_job_that_was_ended_by_force_must_have_stopped() -> None:
    """The job that holds the group has ended, so that its state does not explain the wait."""
    lab = Lab().plan(task("deploy", group="prod"), id="r0")
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("deploy", run_id="r0")))
    lab.cancel_run("r0")
    lab.after(30).do(attempt.ForceCancel(id="r0/deploy.1"))
    lab.plan(task("deploy", group="prod"))
    holder = lab.attempt("deploy", run_id="r0")

    explanation = why(
        lab, lab.job("deploy"), groups={"prod": holder.id}, group_fences={holder.group: holder.fence_until}
    )

    reason = only(explanation, "waiting_for_group")
    assert "waits for group prod until 2026-01-04 08:02:00 UTC (in 1 min 30 s)" in reason.text
    assert (
        "when the last lease of job deploy of run r0 ends: until then its worker may still be running it" in reason.text
    )
    assert reason.about == "r0/deploy"


def test_a_job_of_a_silent_worker_names_the_end_of_its_lease() -> None:
    """Until then the worker may come back; a person need not do anything."""
    lab = Lab().plan(task("build", max_lost_leases=1))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))
    lab.after(60).do(worker.MissHealthChecks(id="w1"))

    reason = only(why(lab, lab.job("build")), "worker_silent")
    [marked] = [step for step in why(lab, lab.job("build")).history if step.code == "marked_for_reassignment"]
    lab.after(60).do(attempt.Expire(id="r1/build.1"))

    assert reason.text == (
        "Job build is on worker w1, which sends no heartbeat for it; without one, its lease ends at 2026-01-04 08:02:00"
        " UTC (in 1 min). Then it is requeued for another worker."
    )
    assert marked.text == (
        "Worker w1, which has attempt 1 of build, stopped answering; without a heartbeat the lease ends at"
        " 2026-01-04 08:02:00 UTC."
    )
    assert lab.attempt("build").state == attempt.QUEUED


def test_an_attempt_scheduled_for_later_names_the_time() -> None:
    """It is not forgotten."""
    lab = Lab()
    lab.enqueue("q1", run_at=START + 3600 * SECOND)

    reason = only(why(lab, lab.queued()), "not_before")

    assert reason.text == "Job q1 is scheduled for 2026-01-04 09:00:00 UTC (in 1 h)."


# -- for a stop, a plan, a validation


def test_a_cancelled_run_names_the_worker_that_must_still_stop_and_the_deadline() -> None:
    """A cancelled job may still be running."""
    lab = Lab().plan(task("build"), task("test", "build"))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))
    lab.cancel_run(reason="wrong branch")

    explanation = why(lab, lab.run())

    assert (
        explanation.summary
        == "Run r1 was cancelled by ada: “wrong branch”; 1 of 2 jobs has ended, and 1 must still stop."
    )
    assert [reason.code for reason in explanation.waiting] == ["stopping"]
    assert "worker w1 has not confirmed yet that it stopped" in explanation.waiting[0].text
    assert "At 2026-01-04 08:00:30 UTC (in 30 s) it is ended without the worker." in explanation.waiting[0].text


def test_a_run_without_a_plan_explains_its_planning() -> None:
    """There are no jobs yet to ask about."""
    lab = Lab()
    lab.create()
    only(why(lab, lab.run()), "planning")
    lab.do(run.BeginPlanning(id="r1"))

    assert "until 2026-01-04 08:01:00 UTC (in 1 min)" in only(why(lab, lab.run()), "planning").text

    lab.cancel_run()
    assert [reason.code for reason in why(lab, lab.run()).waiting] == ["planning", "stopping"]
    assert "cancelled by ada" in why(lab, lab.run()).waiting[1].text


def test_a_running_validation_is_a_reason() -> None:
    """The job has run, but its outcome is not known yet."""
    lab = Lab().plan(task("build", has_validation=True), has_validation=True)
    lab.register("w1")
    lab.work("build")
    only(why(lab, lab.job("build")), "waiting_for_validation")

    lab.do(job.Validate(id="r1/build", is_passed=True))

    only(why(lab, lab.run()), "waiting_for_validation")


# -- runs and the plain queue


def test_a_run_explains_jobs_that_wait_for_the_same_in_one_sentence() -> None:
    """A thousand jobs that need one worker have one reason."""
    lab = Lab().plan(*(task(f"t{index}", queue_key="gpu") for index in range(1000)), task("end", "t0"))
    lab.register("w1")

    explanation = why(lab, lab.run())

    assert [reason.code for reason in explanation.waiting] == ["no_fitting_worker"]
    assert "The same applies to t1, t2, t3 and 996 more." in explanation.waiting[0].text
    assert explanation.summary == (
        "Run r1 waits (0 of 1001 jobs have ended):"
        " job t0 waits for a worker with the label gpu: the only worker, w1, lacks gpu."
    )


def test_the_number_of_reasons_is_limited() -> None:
    """Nobody reads hundreds of reasons."""
    lab = Lab().plan(*(gate(f"g{index}", approval_seconds=60 + index) for index in range(30)))

    explanation = why(lab, lab.run())

    assert len(explanation.waiting) == 21
    assert explanation.waiting[-1].text == "10 more jobs wait; explain a job to see why."


def test_a_running_run_still_explains_its_waiting_jobs() -> None:
    """A running job must not hide one that no worker can claim."""
    lab = Lab().plan(task("build"), task("train", queue_key="gpu"))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("build")))

    explanation = why(lab, lab.run())

    assert explanation.summary == "Run r1 is running: 0 of 2 jobs have ended, and 1 is running."
    assert [reason.code for reason in explanation.waiting] == ["no_fitting_worker"]


@pytest.mark.parametrize(("key", "subject"), [("", "a worker asks"), ("gpu", "a worker with the label gpu asks")])
def test_the_plain_queue_does_not_know_all_workers(key: str, subject: str) -> None:
    """Its workers need not register, so there is no advice to start one."""
    lab = Lab()
    lab.enqueue("q1", queue_key=key)

    reason = only(why(lab, lab.queued()), "waiting_for_worker")

    assert reason.text == f"Job q1 waits until {subject} the queue for work."


def test_an_attempt_that_an_older_version_stalled_too_often_says_what_to_do() -> None:
    """Nothing happens to it by itself."""
    lab = Lab()
    lab.send(attempt.Start, lab.claim(lab.enqueue("q1", max_lost_leases=1)))
    lab.do(attempt.Stall(id="q1", actor="user:ada"))
    lab.unit.records["q1"] = msgspec.structs.replace(lab.queued(), lost_leases=2)

    reason = only(why(lab, lab.queued()), "stalled")

    assert "was taken from worker w1 by ada and waits to be requeued" in reason.text
    assert "Requeue it: it was lost too often and will fail." in reason.text
