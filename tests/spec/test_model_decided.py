"""Rule 15 of the model: forged histories of the bounded wait, and records and logs of older versions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from deltaci.core import attempt, job, run
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.run import Run, Tally
from deltaci.storage.codec import KIND_OF, decode_record, encode
from tests.spec.logs import Line, altered, violations
from tests.support.lab import Lab, task


def waited(*, labels: tuple[str, ...] = ("linux", "gpu")) -> Lab:
    """Return a run that succeeded after its wait for a worker with the label `gpu`."""
    lab = Lab()
    lab.register("w1", labels=labels)
    lab.after(120).plan(task("build"), task("gpu", is_required=False, queue_key="gpu"))
    lab.work("build")
    if "gpu" in labels:
        lab.after(600).do(run.EndOptionalWait(id="r1"))
    assert (lab.run().state, lab.job("gpu").reason) == (run.SUCCESS, job.NOT_NEEDED)
    lab.verified()
    return lab


def line_with(log: list[Line], trigger: str) -> Line:
    """Return the last line with this trigger."""
    return next(line for line in reversed(log) if line["trigger"] == trigger)


def _earlier(log: list[Line]) -> None:
    last_at, earlier_at = log[-1]["at"], log[-1]["at"].replace(":12:", ":11:")
    for line in log:
        if line["at"] == last_at:
            line["at"] = earlier_at


def _without_end(log: list[Line]) -> None:
    log.remove(line_with(log, run.OPTIONAL_WAIT_ENDED))
    for rev, line in enumerate((line for line in log if line["entity_id"] == "r1"), 1):
        line["rev"] = rev


def _required(log: list[Line]) -> None:
    next(line for line in log if line["entity_id"] == "r1/gpu")["metadata"]["is_required"] = True


def _no_worker(log: list[Line]) -> None:
    line_with(log, run.OPTIONAL_WAIT_ENDED)["metadata"] = {"cause": "no_worker", "queue_keys": ["gpu"]}


def _without_begin(log: list[Line]) -> None:
    log.remove(line_with(log, run.OPTIONAL_WAIT_BEGAN))
    for rev, line in enumerate((line for line in log if line["entity_id"] == "r1"), 1):
        line["rev"] = rev


@pytest.mark.proves("MOD-15", "MOD-E5")
@pytest.mark.parametrize("forge", [_earlier, _without_end, _required, _no_worker, _without_begin])
def test_the_verifier_finds_a_job_that_was_not_needed_too_early(forge: Callable[[list[Line]], None]) -> None:
    """`NOT_NEEDED` before the wait is over would skip a job that a worker could have run."""
    assert altered(waited().canonical(), forge) & {"MOD-15", "MOD-6"}


@pytest.mark.proves("MOD-15")
def test_the_verifier_finds_a_job_that_is_not_awaited_although_it_runs() -> None:
    """A leased job is awaited."""
    lab = Lab()
    lab.register("w1", slots=2)
    lab.plan(task("build"), task("lint", is_required=False))
    lab.claim(lab.attempt("lint"))
    lab.work("build")
    lab.do(attempt.Cancel(id="r1/lint.1", reason=job.NOT_NEEDED))

    assert "MOD-6" in {rule for _, rule in violations(map(msgspec.json.decode, lab.canonical()))}


@pytest.mark.proves("MOD-15")
def test_the_verifier_finds_that_a_registered_worker_had_the_labels() -> None:
    """The wait may be left out only if no registered worker could have taken the job."""

    def with_label(log: list[Line]) -> None:
        line_with(log, "registration_complete")["metadata"]["labels"] = ["linux", "gpu"]

    assert "MOD-15" in altered(waited(labels=("linux",)).canonical(), with_label)


@pytest.mark.proves("MOD-15")
def test_a_log_of_an_older_version_is_legal() -> None:
    """There, a run waited for its optional jobs without a limit, and no event said so."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("build"), task("lint", is_required=False))
    lab.work("build")
    lab.after(5000)
    lab.work("lint")
    log = [line for line in map(msgspec.json.decode, lab.canonical()) if line["trigger"] != run.OPTIONAL_WAIT_BEGAN]
    for rev, line in enumerate((line for line in log if line["entity_id"] == "r1"), 1):
        line["rev"] = rev
        line["metadata"].pop("optional_wait_seconds", None)

    assert violations(log) == []


@pytest.mark.proves("MOD-15")
def test_a_run_of_an_older_version_is_never_taken_as_decided() -> None:
    """Its record does not count its optional jobs, so that a required one may be open."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"), task("b"), task("lint", is_required=False))
    stored = msgspec.msgpack.decode(encode(lab.run()))
    index = Run.__struct_fields__.index("tally")
    del stored[index]["open_optional"]
    old_fields = Run.__struct_fields__.index("optional_wait_seconds")
    record = decode_record("r1", KIND_OF[Run], msgspec.msgpack.encode(stored[:old_fields]))
    assert isinstance(record, Run)

    assert (record.tally, record.optional_wait_seconds) == (Tally(open=3, active=3), 600)
    for name in ("lint", "a", "b"):
        assert not run.is_decided(record)
        ended: Job = msgspec.structs.replace(lab.job(name), state=job.FAILED)
        record = msgspec.structs.replace(record, tally=run.updated_tally(record.tally, job.RUNNING, ended))
    assert run.next_command(record) == run.Fail(id="r1")


@pytest.mark.proves("MOD-15", "MOD-11")
def test_the_events_of_the_wait_do_not_count_time_of_approval_as_run_time() -> None:
    """They come while the run waits for approval; its clock stands still from the beginning of that to the end."""
    lab = Lab()
    lab.register("w1")
    ask = job.JobSpec(name="ask", kind=job.APPROVAL, is_required=False)
    must = job.JobSpec(name="must", kind=job.APPROVAL)
    lab.plan(must, ask, task("deploy", "ask", is_required=False), timeout_seconds=1000)
    started_at = lab.now
    lab.after(5000).do(job.Approve(id="r1/must", actor="user:ada"))
    assert (lab.run().state, lab.run().optional_until) == (run.WAITING_APPROVAL, lab.now + 600 * SECOND)

    lab.after(300).do(job.Approve(id="r1/ask", actor="user:ada"))

    assert lab.run().state == run.RUNNING
    assert lab.run().times_out_at == started_at + (1000 + 5300) * SECOND
    lab.verified()
