"""A job is not retried on the worker that lost it when another one fits: docs/spec/workstreams.md, WST-KH5."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaci.core.attempt import Attempt, should_yield
from deltaci.core.job import RetryDue
from deltaci.core.worker import MAX_AVOIDED, with_avoided
from tests.spec.test_workstreams_holds import expire, fleet, handed_back, stalled, timed_out
from tests.support.lab import Lab, task


def lost_by(*avoid: str, key: str = "") -> Attempt:
    """An attempt that these workers lost."""
    return Attempt(id="a", job_id="j", queue_key=key, avoid=avoid)


@pytest.mark.proves("WST-KH5")
@pytest.mark.parametrize(
    ("avoid", "rivals", "ids", "is_left"),
    [
        ((), (("linux",),), ("w2",), False),
        (("w2",), (("linux",),), ("w2",), False),
        (("w1",), (), (), False),
        (("w1",), (("mac",),), ("w2",), False),
        (("w1",), (("gpu", "linux"),), ("w2",), True),
        (("w1",), (("linux",),), (), True),
        (("w1", "w2"), (("linux",),), ("w2",), False),
        (("w1", "w2"), (("linux",),), (), False),
        (("w1", "w2"), (("linux",), ("linux",)), ("w2", "w3"), True),
        (("w1", "w2"), (("linux",), ("linux",)), (), True),
        (("w1", "w9"), (("linux",),), ("w3",), True),
    ],
)
def test_a_worker_leaves_a_lost_task_to_another_eligible_worker(
    avoid: tuple[str, ...], rivals: tuple[tuple[str, ...], ...], ids: tuple[str, ...], is_left: bool
) -> None:
    """Two workers never wait for each other."""
    assert should_yield(lost_by(*avoid, key="linux"), "w1", rivals, ids) is is_left


@pytest.mark.proves("WST-KH5")
def test_an_attempt_records_the_workers_that_lost_it_for_the_next_attempt() -> None:
    """The next attempt is another record of the same job."""
    lab = Lab()
    for id in ("w1", "w2", "w3"):
        lab.register(id)
    lab.plan(task("a", max_attempts=9), task("b", max_attempts=9))
    expire(lab, lab.claim(lab.attempt("a")))
    assert lab.attempt("a").avoid == ("w1",)

    lab.fail(lab.claim(lab.attempt("a"), "w2"), "RUNNER_STARTUP")
    lab.after(1000).do(RetryDue(id="r1/a"))
    lab.fail(lab.claim(lab.attempt("a"), "w3"), "CACHE_FETCH")
    lab.after(1000).do(RetryDue(id="r1/a"))

    assert lab.attempt("a").avoid == lab.job("a").avoid == ("w1", "w2")
    timed_out(lab, "b")
    lab.after(90_000).do(RetryDue(id="r1/b"))
    assert lab.attempt("b").avoid == ("w1",)
    lab.verified()


@pytest.mark.proves("WST-KH5")
@pytest.mark.parametrize("end", [handed_back, stalled])
def test_a_worker_that_released_a_task_is_not_avoided(end: Callable[[Lab, str], None]) -> None:
    """It lost nothing: it was asked to stop, or the task was taken from it."""
    lab = fleet()

    end(lab, "a")

    assert lab.attempt("a").avoid == ()


@pytest.mark.proves("WST-KH5")
def test_only_the_last_few_are_remembered_each_once() -> None:
    """A job that goes from worker to worker must not grow."""
    avoid: tuple[str, ...] = ()
    for number in range(20):
        avoid = with_avoided(avoid, f"w{number % 12}")

    assert avoid == tuple(f"w{number}" for number in (0, 1, 2, 3, 4, 5, 6, 7))
    assert len(avoid) == MAX_AVOIDED
    assert with_avoided(avoid, "w3")[-1] == "w3"


@pytest.mark.proves("WST-KH5")
def test_a_worker_that_came_back_is_the_same_worker() -> None:
    """Its record is another one in each life; the machine is not."""
    lost = lost_by(*with_avoided((), "w1/2"))

    assert lost.avoid == ("w1",)
    assert should_yield(lost, "w1/3", ((),), ("w2",))
    assert not should_yield(lost, "w1/3", ((),), ("w1/3",))
    assert not should_yield(lost, "w1/part", ((),), ("w2",))


def test_the_plain_queue_records_no_lost_workers() -> None:
    """Its workers need not be registered."""
    lab = Lab()
    lab.enqueue()
    expire(lab, lab.claim(lab.queued()))

    assert lab.queued().avoid == ()
