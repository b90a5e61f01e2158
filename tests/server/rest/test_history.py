"""A run's transitions in each vocabulary, and its tests with their outcomes in earlier runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlencode

import pytest

from deltaci.server import test_reports
from deltaci.server.rest import history
from deltaci.server.rest import tests as tested
from tests.contract.backends import on_both_stores, on_loop
from tests.server.rest.site import TIME, ApiSite, Caller, ScriptedRunner, gate, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


async def get_part(caller: Caller, run: str, part: str, **query: Any) -> Any:
    """Return a part of the run. Fail if the response is not 200."""
    reply = await caller.get(f"/runs/{run}/{part}?{urlencode(query)}")
    assert reply.status == 200, reply
    return reply.body


async def all_pages(caller: Caller, run: str, **query: Any) -> list[Any]:
    """Return all steps, read in small pages."""
    found: list[Any] = []
    name = "before" if query.get("order") == "newest" else "after"
    next: int | None = 0
    while next is not None:
        page = await get_part(caller, run, "transitions", limit=3, **{name: next}, **query)
        assert page["transitions"] or page["next"] is None
        found += page["transitions"]
        next = page["next"]
    return found


# -- events


@pytest.mark.proves("MOD-13")
@on_both_stores
@on_loop
async def test_no_step_names_somebody_who_did_not_take_it(site: Opened) -> None:
    """A person who asks what a runner did must not read of heartbeats and failures that it never sent."""
    async with site() as here:
        ada, runner = await here.key("ada", "run", "read"), await here.register_runner()
        run = await ada.start(task("a"), task("b", needs=[]))
        [first], [second] = await runner.lease(), await runner.lease()
        await runner.finish(first)
        await runner.send(second, "AckLease", job_id=second["job_id"], accepted_at=TIME)
        await ada.post(f"/runs/{run}/cancel")
        await runner.send(second, "CancelAck", final_status="CANCELED", ts=TIME)
        await here.until(ada, run, "REPORTED")

        async def steps(view: str, lease: Any) -> list[tuple[str, Any]]:
            part = await get_part(ada, run, "transitions", view=view, limit=1000)
            id = lease["job_id"] + ".1"
            return [(each["trigger"], each["metadata"]) for each in part["transitions"] if each["entity_id"] == id]

        finished = [(trigger, data.get("implied_by")) for trigger, data in await steps("orchestration", first)]
        canceled = [trigger for trigger, _ in await steps("orchestration", second)]
        taken_over = [(trigger, data.get("takeover")) for trigger, data in await steps("queue", second)]

        implied = [("implied", "Complete")] * 3
        assert finished == [("enqueued", None), ("claimed", None), *implied, ("succeeded", None)]
        assert canceled == ["enqueued", "claimed", "AckLease", "cancel_requested", "CancelAck"]
        cause = {"by": "user:ada", "reason": "RUN_CANCELED"}
        assert taken_over[3:] == [("started", cause), ("failed", cause)]


@on_loop
async def test_every_vocabulary_is_complete_in_both_orders_and_in_pages(site: Opened) -> None:
    """The newest-first order is the reverse of the other; no step is missing or repeated."""
    async with site() as here:
        ada, runner = await here.key("ada", "run", "read"), await here.register_runner()
        run = await ada.start(task("a"), task("b", needs=["a"]), gate("g", ["b"]))
        await runner.finish(await runner.take())
        await runner.fail(await runner.take())
        await here.until(ada, run, "REPORTED")

        for view in ("canonical", "orchestration", "steps", "workstreams", "queue"):
            whole = (await get_part(ada, run, "transitions", view=view, limit=1000))["transitions"]
            told = [(each["seq"], each["kind"], each["from"], each["to"]) for each in whole]

            assert [(e["seq"], e["kind"], e["from"], e["to"]) for e in await all_pages(ada, run, view=view)] == told
            turned = await all_pages(ada, run, view=view, order="newest")
            assert [(e["seq"], e["kind"], e["from"], e["to"]) for e in turned] == told[::-1]
            assert all(bool(each["rule"]) for each in whole) == (view != "canonical")
            of_a = await get_part(ada, run, "transitions", view=view, job="a", limit=1000)
            assert [each for each in whole if each["job"] == "a"] == of_a["transitions"] != []


@on_loop
async def test_transitions_are_filtered_and_the_search_is_bounded(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind belongs to one vocabulary; a run that is too long is refused with advice."""
    async with site() as here:
        ada = await here.key("ada", "run", "read")
        run = await ada.start(task("a"))

        steps = await get_part(ada, run, "transitions", view="steps", kind="step")
        assert {transition["kind"] for transition in steps["transitions"]} == {"step"}
        assert (await get_part(ada, run, "transitions", view="steps", kind="lease"))["transitions"] == []
        assert (await ada.get(f"/runs/{run}/transitions?view=french")).code == "bad_message"
        monkeypatch.setattr(history, "MAX_EVENTS_READ", 2)
        refused = await ada.get(f"/runs/{run}/transitions?view=steps")
        assert refused.code == "too_large"
        assert "deltaci events export" in refused.body["message"]


@on_loop
async def test_the_newest_events_of_a_long_run_are_found_by_binary_search(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only in the canonical vocabulary: the others depend on all earlier events."""
    async with site() as here:
        ada = await here.key("ada", "run", "read")
        run = await ada.start(*(task(f"job{n}", needs=[]) for n in range(20)))
        for n in range(5):
            await ada.start(task(f"other{n}"))
        await ada.post(f"/runs/{run}/cancel")
        await here.until(ada, run, "REPORTED")
        whole = (await get_part(ada, run, "transitions", limit=1000))["transitions"]
        monkeypatch.setattr(history, "PAGE_SIZE", 10)
        monkeypatch.setattr(history, "MAX_EVENTS_READ", 20)

        found = await all_pages(ada, run, order="newest")

        assert len(whole) > 80
        assert [each["seq"] for each in found] == [each["seq"] for each in whole][::-1]
        assert (await ada.get(f"/runs/{run}/transitions?order=newest&view=queue")).code == "too_large"


# -- tests


TOTAL = 4


def report_xml(*failed: str) -> bytes:
    """Return a test report with these failed tests and some passed ones, each slower than the one before."""
    cases = [f"<testcase name='{name}'><failure message='no'>why &lt;b></failure></testcase>" for name in failed]
    cases += [f"<testcase name='fine{n}' time='{n}.5'/>" for n in range(TOTAL - len(failed))]
    return f"<testsuite>{''.join(cases)}</testsuite>".encode()


async def run_job(runner: ScriptedRunner, *failed: str, report: bytes | None = None, kept: bool = True) -> None:
    """Run the next job with a report in which these tests failed."""
    lease = await runner.take()
    if kept:
        assert (
            await runner.upload_artifact(lease, "r.xml", report if report is not None else report_xml(*failed))
        ).status_code == 200
    tests = {"total": TOTAL, "passed": TOTAL - len(failed), "failed": len(failed), "seconds": 2.0}
    told = {**tests, "failures": [{"name": name, "message": "no"} for name in failed]}
    artifact = {"type": "junit", "uri": "artifact:x/1/r.xml", "name": "r.xml", "bytes": 1}
    end = runner.fail if failed else runner.finish
    await end(lease, tests=told, artifacts=[artifact])


@on_loop
async def test_tests_are_listed_worst_first_with_earlier_outcomes(site: Opened) -> None:
    """Earlier outcomes come from the records of runs of the same branch; flaky tests are marked."""
    async with site() as here:
        ada, runner = await here.key("ada", "run", "read"), await here.register_runner()
        about = {"project": "shop", "branch": "main"}
        other = await ada.start(task("test"), project="shop", branch="other")
        await run_job(runner, "net")
        first = await ada.start(task("test"), **about, commit="c1")
        await run_job(runner, "net")
        silent = await ada.start(task("test"), **about)
        await runner.finish(await runner.take())
        again = await ada.start(task("test"), **about, commit="c1")
        await run_job(runner)
        await here.service.flaky.catch_up()
        run = await ada.start(task("test"), **about, commit="c2")
        await run_job(runner, "math", "net")

        found = await get_part(ada, run, "tests")
        assert [(test["name"], test["outcome"]) for test in found["tests"]] == [
            *(("math", "failed"), ("net", "failed"), ("fine1", "passed"), ("fine0", "passed")),
        ]
        assert [each["id"] for each in found["earlier"]] == [again, silent, first]
        assert other not in str(found["earlier"])
        by_name = {test["name"]: test for test in found["tests"]}
        assert by_name["net"]["history"] == ["not_failed", "unknown", "failed"]
        assert by_name["math"]["history"] == ["not_failed", "unknown", "not_failed"]
        assert (by_name["net"]["is_flaky"], by_name["net"]["flake"]["times"]) == (True, 1)
        assert (by_name["math"]["is_flaky"], by_name["math"]["flake"]) == (False, None)
        assert (by_name["math"]["message"], by_name["math"]["output"]) == ("no", "why <b>")
        assert found["counts"] == {"failed": 2, "flaky": 1, "skipped": 0, "passed": 2}
        [totals] = found["jobs"]
        assert (totals["total"], totals["failed"], totals["is_whole"]) == (4, 2, True)


@on_loop
async def test_tests_are_filtered_and_paginated(site: Opened) -> None:
    """All filters apply together, and each test is on one page."""
    async with site() as here:
        ada, runner = await here.key("ada", "run", "read"), await here.register_runner()
        run = await ada.start(task("one", needs=[]), task("two", needs=[]))
        await run_job(runner, "Broken")
        await run_job(runner)

        names: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await get_part(ada, run, "tests", limit=2, cursor=cursor, order="name")
            names += [test["name"] for test in page["tests"]]
            cursor = page["next"]
        assert names == ["Broken", "fine0", "fine0", "fine1", "fine1", "fine2", "fine2", "fine3"]
        assert [test["name"] for test in (await get_part(ada, run, "tests", q="bROK"))["tests"]] == ["Broken"]
        assert (await get_part(ada, run, "tests", job="one", q="fine"))["found"] == 3
        assert (await get_part(ada, run, "tests", outcome="failed"))["found"] == 1
        slowest = (await get_part(ada, run, "tests", order="slowest", limit=1))["tests"]
        assert [each["seconds"] for each in slowest] == [3.5]
        assert (await ada.get(f"/runs/{run}/tests?cursor=nonsense")).code == "bad_request"


@pytest.mark.parametrize(
    ("report", "kept", "why"),
    [
        (b"<html/>", True, "begins with <html>"),
        (b"<testsuite>" + b"<testcase/>" * 10 + b"<!-- long enough to be too long -->" * 10, True, "bytes; at most"),
        (b"", False, "is no longer stored"),
    ],
    ids=["no-report", "too-large", "gone"],
)
@on_loop
async def test_an_unreadable_report_falls_back_to_the_record(
    site: Opened, report: bytes, kept: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response has the totals, the first failures and the reason why there is no more."""
    monkeypatch.setattr(test_reports, "MAX_BYTES", 300)
    async with site() as here:
        ada, runner = await here.key("ada", "run", "read"), await here.register_runner()
        run = await ada.start(task("test"))
        await run_job(runner, "net", report=report, kept=kept)

        found = await get_part(ada, run, "tests")

        [totals] = found["jobs"]
        assert (totals["total"], totals["is_whole"]) == (TOTAL, False)
        assert why in totals["troubles"][0]
        [only] = found["tests"]
        assert (only["name"], only["outcome"], only["message"], only["seconds"]) == ("net", "failed", "no", None)


@on_loop
async def test_control_characters_of_a_report_are_removed(site: Opened) -> None:
    """Names stay as runners report them, so that they match later reports; outputs keep their lines."""
    async with site() as here:
        ada, runner = await here.key("ada", "run", "read"), await here.register_runner()
        run = await ada.start(task("test"))
        report = (
            "<testsuite><testcase name='turned\u202earound'><failure>one\u202e\ntwo</failure></testcase></testsuite>"
        )
        await run_job(runner, "turned\u202earound", report=report.encode())

        [only] = (await get_part(ada, run, "tests"))["tests"]

        assert only["name"] == "turned\ufffdaround"
        assert only["output"] == "one\ufffd\ntwo"


@on_loop
async def test_the_number_of_reports_per_request_is_limited(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other jobs say how to list their tests; a report is read only once."""
    monkeypatch.setattr(tested, "MAX_JOBS", 1)
    async with site() as here:
        ada, runner = await here.key("ada", "run", "read"), await here.register_runner()
        run = await ada.start(task("one", needs=[]), task("two", needs=[]))
        await run_job(runner)
        await run_job(runner)

        found = await get_part(ada, run, "tests")
        assert [job["is_whole"] for job in found["jobs"]] == [True, False]
        assert "ask for one job" in found["jobs"][1]["troubles"][0]
        assert (await get_part(ada, run, "tests", job="two"))["found"] == TOTAL
        for blob in list(here.service.blobs.list("artifacts/")):
            here.service.blobs.delete(blob.key)
        assert (await get_part(ada, run, "tests"))["tests"] == found["tests"]
