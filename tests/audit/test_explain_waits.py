"""Why something does not go on: for every kind of wait, what a person is told and what they can do."""

from __future__ import annotations

import pytest

from deltaci.audit.explain import Explanation, Reason
from deltaci.core import attempt, job, run, worker
from deltaci.core.approvals import Gate
from deltaci.core.instants import SECOND
from tests.audit.explanations import why
from tests.lab import START, Lab, gate, task


def only(told: Explanation, code: str) -> Reason:
    """The one reason why it waits."""
    assert [each.code for each in told.waiting] == [code], told.waiting
    assert told.waiting[0].text.startswith(told.summary[:-1])
    return told.waiting[0]


# -- for other jobs


def test_a_job_that_waits_for_another_is_followed_to_where_the_wait_begins() -> None:
    """What has to be done is at the end of the chain, not at its beginning."""
    lab = Lab().plan(task("test", queue_key="gpu"), task("package", "test"), task("deploy", "package"))
    for id in ("w1", "w2", "w3"):
        lab.register(id, labels=("linux",))

    told = only(why(lab, lab.job("deploy")), "waiting_for_jobs")

    assert told.text.startswith(
        "Job deploy waits for package, which waits for test, which waits for a worker with the label gpu:"
        " none of the 3 workers has it."
    )
    assert "deltaci runner --labels gpu" in told.text
    assert told.about == "r1/test"


def test_a_job_that_waits_for_one_that_runs_says_where_and_until_when() -> None:
    """Progress is an answer too."""
    lab = Lab().plan(task("build", timeout_seconds=600), task("test", "build"))
    lab.register("w1")
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))

    told = only(why(lab.after(60), lab.job("test")), "waiting_for_jobs")

    assert "which has been running on worker w1 since 2026-01-04 08:00:00 UTC" in told.text
    assert "until 2026-01-04 08:10:00 UTC (in 9 min)" in told.text
    assert not why(lab, lab.job("build")).waiting


def test_of_several_needs_the_one_that_needs_somebody_is_told_first() -> None:
    """A person must not read through what passes by itself to find what waits for them."""
    lab = Lab().plan(task("a"), gate("ok"), task("middle", "a", "ok"), task("end", "a", "middle"))
    lab.register("w1")
    lab.say(attempt.Start, lab.claim(lab.attempt("a")))

    told = why(lab, lab.job("end"))

    assert [each.about for each in told.waiting] == ["r1/ok", "r1/a"]
    assert told.summary.startswith("Job end waits for middle, which waits for ok, which waits for approval by a person")


def test_needs_that_wait_for_the_same_are_told_once_and_counted() -> None:
    """A thousand lines that say the same say nothing."""
    names = [f"t{index}" for index in range(50)]
    lab = Lab().plan(task("build"), *(task(name, "build") for name in names), task("end", *names))

    told = only(why(lab, lab.job("end")), "waiting_for_jobs")

    assert "49 other jobs before it wait for the same reason." in told.text


def test_a_long_chain_is_told_short() -> None:
    """The beginning and the end matter."""
    names = [f"j{index}" for index in range(2000)]
    lab = Lab().plan(*(task(name, *names[max(0, at - 1) : at]) for at, name in enumerate(names)))

    told = only(why(lab, lab.job("j1999")), "waiting_for_jobs")

    assert "1994 other jobs in a chain, the last of which waits for j0, which waits for a worker" in told.text
    assert len(told.text) < 400


# -- for a worker


def test_without_any_worker_it_says_how_to_start_one() -> None:
    """The first thing that a newcomer meets."""
    lab = Lab().plan(task("build"))

    told = only(why(lab, lab.job("build")), "no_worker")

    assert told.text == "Job build waits for a worker: no worker is registered. Start one with `deltaci runner`."


def test_a_worker_that_left_is_no_worker() -> None:
    """Only who is there counts."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.do(worker.Shutdown(id="w1"))

    only(why(lab, lab.job("build")), "no_worker")


def test_missing_labels_are_named_and_the_nearest_worker_too() -> None:
    """One label short is a mistake in a label; four short is another machine."""
    lab = Lab().plan(task("train", queue_key="arm,gpu,linux"))
    lab.register("w1", labels=("linux",))
    lab.register("w2", labels=("arm", "linux"))

    told = only(why(lab, lab.attempt("train")), "no_fitting_worker")

    assert "with the labels arm, gpu and linux" in told.text
    assert "none of the 2 workers has all of them; the closest, w2, lacks gpu." in told.text
    assert told.about == "w2"


def test_busy_workers_are_named_with_what_they_do() -> None:
    """Then a person can see whether that is worth waiting for."""
    lab = Lab().plan(task("a", queue_key="linux"), task("b", queue_key="linux"), task("c", queue_key="linux"))
    lab.register("w1", labels=("linux",))
    lab.register("w2", labels=("linux",))
    lab.claim(lab.attempt("a"), by="w1")
    lab.claim(lab.attempt("b"), by="w2")

    told = only(why(lab, lab.job("c")), "workers_busy")

    assert "each of the 2 matching workers is busy (w1 with r1/a.1; w2 with r1/b.1)" in told.text
    assert "claimed when a slot becomes free" in told.text


def test_workers_that_stopped_answering_are_named() -> None:
    """They look like workers in a list, and take nothing."""
    lab = Lab().plan(task("a", queue_key="linux"), task("b", queue_key="linux"))
    lab.register("w1", labels=("linux",))
    lab.claim(lab.attempt("a"), by="w1")
    lab.do(worker.MissHealthChecks(id="w1"))

    told = only(why(lab, lab.job("b")), "workers_unresponsive")

    assert "the only matching worker (w1) stopped answering" in told.text


def test_workers_that_are_about_to_leave_are_named() -> None:
    """They are busy with their last work."""
    lab = Lab().plan(task("a"), task("b"))
    lab.register("w1", places=2)
    lab.claim(lab.attempt("a"), by="w1")
    lab.do(worker.Shutdown(id="w1"))

    assert "w1" in only(why(lab, lab.job("b")), "workers_leaving").text


def test_what_each_of_the_workers_keeps_is_said() -> None:
    """Some are busy, some are silent, some leave: who counts is who may still come free."""
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


def test_a_drained_worker_is_named_with_who_can_let_it_go_and_how() -> None:
    """It is there, it is idle, and nothing happens: nobody would guess why."""
    lab = Lab().plan(task("train", queue_key="gpu"))
    lab.register("w1", labels=("gpu",))
    lab.register("w2", labels=("linux",))
    lab.after(60).do(worker.Drain(id="w1", actor="user:ada", reason="new disk"))

    told = only(why(lab.after(60), lab.job("train")), "workers_held")

    assert told.text == (
        "Job train waits for a worker with the label gpu: worker w1 matches, but is drained since 2026-01-04"
        " 08:01:00 UTC: “new disk”. `deltaci workers resume w1` lets it take work again."
    )
    assert told.about == "w1"


def test_a_quarantined_worker_is_named_with_what_it_did() -> None:
    """Whoever lets it go again should know why it was stopped."""
    lab = Lab().plan(*(task(name) for name in "abcde"), is_fail_fast=False)
    for id in ("w1", "w2", "w3", "w4", "w5"):
        lab.register(id)
    lab.claim(lab.attempt("e"), by="w5")
    lab.do(worker.MissHealthChecks(id="w5"))
    for name in "abc":
        lab.fail(lab.after(10).claim(lab.attempt(name), by="w1"))
    for id in ("w2", "w3", "w4"):
        lab.do(worker.Quarantine(id=id, reason="slow disk"))

    told = only(why(lab, lab.job("d")), "workers_held").text

    assert (
        "worker w1 matches, but is quarantined since 2026-01-04 08:00:30 UTC: 3 times in a row it lost a job or" in told
    )
    assert "worker w2 matches, but is quarantined since 2026-01-04 08:00:30 UTC: “slow disk”; " in told
    assert "; 1 more is on hold, and the rest stopped answering or will shut down. " in told


def test_a_busy_worker_may_still_come_free_where_the_others_are_held() -> None:
    """Then there is nothing to do but wait, or to let them go."""
    lab = Lab().plan(task("a"), task("b"))
    lab.register("w1")
    lab.register("w2")
    lab.claim(lab.attempt("a"), by="w1")
    lab.do(worker.Drain(id="w2", reason="old"))

    told = only(why(lab, lab.job("b")), "workers_busy").text

    assert "and the rest stopped answering, is on hold or will shut down" in told


def test_who_lost_a_job_leaves_it_to_another_one_that_is_free() -> None:
    """A free worker that does not take what waits looks like a mistake."""
    lab = Lab().plan(task("build"), task("other"))
    lab.register("w1")
    lab.register("w2")
    lab.claim(lab.attempt("build"), by="w1")
    lab.after(30).do(attempt.RevokeUnaccepted(id="r1/build.1"))

    told = only(why(lab, lab.job("build")), "waiting_for_worker").text
    lab.claim(lab.attempt("other"), by="w2")
    busy = only(why(lab, lab.job("build")), "workers_busy").text
    lab.do(worker.Drain(id="w2", reason="old"))
    alone = only(why(lab, lab.job("build")), "waiting_for_worker").text

    assert told == (
        "Job build waits to be claimed: w2 has a free slot; w1 lost it before and leaves it to other workers."
    )
    assert "is busy (w2 with r1/other.1); w1 lost it before and leaves it to other workers" in busy
    assert alone == "Job build waits to be claimed: w1 has a free slot."


def test_with_a_free_worker_it_is_a_matter_of_turns() -> None:
    """It will go on by itself; how many are before it is said where it is known."""
    lab = Lab().plan(task("build"))
    lab.register("w1")

    told = why(lab, lab.job("build"), ahead={"r1/build.1": 7})

    assert [each.code for each in told.waiting] == ["waiting_for_worker", "position"]
    assert told.summary == "Job build waits to be claimed: w1 has a free slot."
    assert "is behind 7 other attempts in the queue" in told.waiting[1].text


def test_the_quota_of_running_jobs_is_a_reason() -> None:
    """Workers are free, and still nothing starts."""
    lab = Lab().plan(task("build"))
    lab.register("w1")

    told = only(why(lab, lab.job("build"), running_quota=5, running=5), "quota")

    assert "5 of at most 5 jobs are running" in told.text
    assert why(lab, lab.job("build"), running_quota=5, running=4).waiting[0].code == "waiting_for_worker"


def test_a_lease_that_nobody_has_taken_yet_says_until_when() -> None:
    """A runner that does not answer looks like one that works."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.claim(lab.attempt("build"))

    told = only(why(lab.after(10), lab.job("build")), "waiting_for_acceptance")

    assert "was assigned to worker w1, which has until 2026-01-04 08:00:30 UTC (in 20 s) to accept it" in told.text


# -- for a person


def test_an_approval_says_until_when_and_what_happens_then() -> None:
    """Whoever is asked must know how long they have."""
    lab = Lab().plan(gate("ok", approval_seconds=900), gate("open"))

    timed = only(why(lab, lab.job("ok")), "waiting_for_approval").text
    endless = only(why(lab, lab.job("open")), "waiting_for_approval").text

    assert "waits for approval by a person until 2026-01-04 08:15:00 UTC (in 15 min). Without" in timed
    assert "There is no deadline." in endless


def test_an_approval_by_several_says_who_may_and_who_has() -> None:
    """Nobody should ask in vain, and nobody twice."""
    rule = Gate(role="release", approvers=3, not_by_starter=True)
    lab = Lab().plan(gate("ok", gate=rule), started_by="bob")
    lab.do(job.Approve(id="r1/ok", actor="user:ada", roles=("release",), comment="looks\ngood"))

    told = why(lab, lab.job("ok"))

    text = only(told, "waiting_for_approval").text
    assert "waits for approval by 3 different people with the role release (not bob, who started the run)" in text
    assert "1 of 3 has approved (ada)" in text
    given = next(each for each in told.history if each.code == "approval_given")
    assert given.text == "ada approved ok: “looks good”. That was approval 1 of 3."
    assert why(lab, lab.run()).waiting[0].code == "waiting_for_approval"


# -- for a time


def test_a_retry_says_when_which_attempt_and_after_what() -> None:
    """The whole answer to "why does it not run?" in one sentence."""
    lab = Lab().plan(task("build", max_attempts=3, base_delay_seconds=10))
    lab.fail(lab.claim(lab.attempt("build")), "IMAGE_PULL")

    told = only(why(lab.after(5), lab.job("build")), "retry_scheduled")

    assert "attempt 2 of 3 starts at 2026-01-04 08:00:20 UTC (in 15 s)" in told.text
    assert "attempt 1 failed: its image could not be fetched (IMAGE_PULL)" in told.text
    assert (told.at, told.seq) == (START, lab.last("r1/build").seq)


def test_after_a_lost_lease_nobody_may_begin_before_the_last_worker_has_surely_ended() -> None:
    """Two workers at one job are worse than a minute of waiting."""
    lab = Lab().plan(task("build"))
    lab.register("w1")
    lab.register("w2")
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))
    lab.after(20).do(worker.MissHealthChecks(id="w1"))

    told = only(why(lab, lab.job("build")), "fence")

    assert "cannot be claimed before 2026-01-04 08:02:00 UTC (in 1 min 40 s)" in told.text
    assert "worker w1, which lost it, may still be running it" in told.text
    assert why(lab, lab.run()).summary.startswith("Run r1 waits (0 of 1 job have ended): job build cannot be claimed")


def test_what_was_asked_for_later_says_for_when() -> None:
    """It is not forgotten."""
    lab = Lab()
    lab.enqueue("q1", run_at=START + 3600 * SECOND)

    told = only(why(lab, lab.queued()), "not_before")

    assert told.text == "Job q1 is scheduled for 2026-01-04 09:00:00 UTC (in 1 h)."


# -- for a stop, a plan, a validation


def test_a_cancelled_run_says_which_runner_must_still_stop_and_until_when() -> None:
    """Cancelled is not yet stopped."""
    lab = Lab().plan(task("build"), task("test", "build"))
    lab.register("w1")
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))
    lab.cancel_run(reason="wrong branch")

    told = why(lab, lab.run())

    assert told.summary == "Run r1 was cancelled by ada: “wrong branch”; 1 of 2 jobs has ended, and 1 must still stop."
    assert [each.code for each in told.waiting] == ["stopping"]
    assert "worker w1 has not confirmed yet that it stopped" in told.waiting[0].text
    assert "At 2026-01-04 08:00:30 UTC (in 30 s) it is ended without the worker." in told.waiting[0].text


def test_a_run_that_is_not_planned_says_so() -> None:
    """There are no jobs yet to ask about."""
    lab = Lab()
    lab.create()
    only(why(lab, lab.run()), "planning")
    lab.do(run.BeginPlanning(id="r1"))

    assert "until 2026-01-04 08:01:00 UTC (in 1 min)" in only(why(lab, lab.run()), "planning").text

    lab.cancel_run()
    assert [each.code for each in why(lab, lab.run()).waiting] == ["planning", "stopping"]
    assert "cancelled by ada" in why(lab, lab.run()).waiting[1].text


def test_a_validation_under_way_is_a_reason() -> None:
    """Execution is over, the outcome is not known."""
    lab = Lab().plan(task("build", has_validation=True), has_validation=True)
    lab.register("w1")
    lab.work("build")
    only(why(lab, lab.job("build")), "waiting_for_validation")

    lab.do(job.Validate(id="r1/build", is_passed=True))

    only(why(lab, lab.run()), "waiting_for_validation")


# -- runs and the plain queue


def test_a_run_tells_of_jobs_that_wait_for_the_same_together() -> None:
    """Of a thousand jobs that need one worker, one sentence."""
    lab = Lab().plan(*(task(f"t{index}", queue_key="gpu") for index in range(1000)), task("end", "t0"))
    lab.register("w1")

    told = why(lab, lab.run())

    assert [each.code for each in told.waiting] == ["no_fitting_worker"]
    assert "The same applies to t1, t2, t3 and 996 more." in told.waiting[0].text
    assert told.summary == (
        "Run r1 waits (0 of 1001 jobs have ended):"
        " job t0 waits for a worker with the label gpu: the only worker, w1, lacks gpu."
    )


def test_reasons_that_differ_end_somewhere() -> None:
    """An answer that nobody reads to its end is no answer."""
    lab = Lab().plan(*(gate(f"g{index}", approval_seconds=60 + index) for index in range(30)))

    told = why(lab, lab.run())

    assert len(told.waiting) == 21
    assert told.waiting[-1].text == "10 more jobs wait; explain a job to see why."


def test_a_run_that_goes_on_still_says_what_of_it_waits() -> None:
    """One busy job must not hide another that nobody can take."""
    lab = Lab().plan(task("build"), task("train", queue_key="gpu"))
    lab.register("w1")
    lab.say(attempt.Start, lab.claim(lab.attempt("build")))

    told = why(lab, lab.run())

    assert told.summary == "Run r1 is running: 0 of 2 jobs have ended, and 1 is running."
    assert [each.code for each in told.waiting] == ["no_fitting_worker"]


@pytest.mark.parametrize(("key", "wanted"), [("", "a worker asks"), ("gpu", "a worker with the label gpu asks")])
def test_the_plain_queue_does_not_know_all_workers(key: str, wanted: str) -> None:
    """Its workers need not register, so nobody is told to start one."""
    lab = Lab()
    lab.enqueue("q1", queue_key=key)

    told = only(why(lab, lab.queued()), "waiting_for_worker")

    assert told.text == f"Job q1 waits until {wanted} the queue for work."


def test_what_was_taken_from_a_worker_by_hand_says_what_to_do() -> None:
    """Nothing happens to it by itself."""
    lab = Lab()
    lab.say(attempt.Start, lab.claim(lab.enqueue("q1")))
    lab.do(attempt.Stall(id="q1", actor="user:ada"))

    told = only(why(lab, lab.queued()), "stalled")

    assert "was taken from worker w1 by ada" in told.text
    assert "Requeue it, or let a worker claim it from 2026-01-04 08:02:00 UTC (in 2 min) on." in told.text
