"""Runs over the API: started, listed, read and rerun, with their outputs and costs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.contract.backends import on_both_stores, on_loop
from tests.server.rest.site import ApiSite, gate, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


@pytest.mark.proves("ORC-W1", "ORC-W3")
@on_loop
async def test_a_run_is_created_in_one_request_and_has_state_and_status(site: Opened) -> None:
    """`state` is for debugging, `status` says whether it is done."""
    async with site() as here:
        ada = await here.key("ada", "run")

        reply = await ada.post(
            "/runs",
            {
                "plan": {"jobs": [task("build"), task("test", needs=["build"])], "fail_fast": True},
                "project": "shop",
                "branch": "main",
                "commit": "c0ffee",
                "title": "Buy more",
                "labels": ["nightly", "nightly", "eu"],
            },
        )

        assert (reply.status, reply.headers["location"]) == (201, f"/api/v1/runs/{reply.body['id']}")
        run = await ada.run(reply.body["id"])
        assert (run["state"], run["status"], run["started_by"]) == ("QUEUED", "PENDING", "ada")
        assert (run["project"], run["branch"], run["commit"], run["labels"]) == (
            *("shop", "main", "c0ffee", ["nightly", "eu"]),
        )
        assert [(job["name"], job["state"], job["status"]) for job in run["jobs"]] == [
            ("build", "QUEUED", "PENDING"),
            ("test", "PENDING", "PENDING"),
        ]
        assert len(run["plan_hash"]) == 64
        assert run["fail_fast"]


@pytest.mark.proves("STP-O1", "STP-O2", "STP-O3", "STP-O4")
@on_loop
async def test_jobs_without_needs_run_in_sequence(site: Opened) -> None:
    """Document 002 demands a strict sequence; once a job has `needs`, the plan is a graph."""
    async with site() as here:
        ada = await here.key("ada", "run")

        chain = await ada.run(await ada.start(task("c"), task("a"), task("b")))
        graph = await ada.run(await ada.start(task("c"), task("a", needs=[]), task("b")))

        assert [(job["name"], job["needs"]) for job in chain["jobs"]] == [("c", []), ("a", ["c"]), ("b", ["a"])]
        assert [(job["name"], job["needs"], job["state"]) for job in graph["jobs"]] == [
            *(("c", [], "QUEUED"), ("a", [], "QUEUED"), ("b", [], "QUEUED")),
        ]


@on_loop
async def test_a_run_completes_with_outputs_and_costs(site: Opened) -> None:
    """The outputs and costs of a job are stored with its attempt."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        id = await ada.start(task("build"), task("test"))

        first = await runner.take()
        running = await ada.run(id)
        await runner.finish(first, output={"size": 3}, cost={"cpu_seconds": 1.5, "host": "w"})
        await runner.finish(await runner.take(), cost={"cpu_seconds": 2})
        run = await here.until(ada, id, "REPORTED")

        assert (running["state"], running["status"]) == ("RUNNING", "RUNNING")
        assert running["jobs"][0]["tries"][0]["worker_id"] == runner.name
        assert (run["state"], run["status"], run["conclusion"]) == ("REPORTED", "SUCCEEDED", "SUCCESS")
        assert (await ada.get(f"/runs/{id}/outputs")).body == {"outputs": {"build": {"size": 3}}}
        costs = (await ada.get(f"/runs/{id}/costs")).body
        assert costs["total"] == {"cpu_seconds": 3.5}
        assert [attempt["job"] for attempt in costs["attempts"]] == ["build", "test"]


@pytest.mark.proves("STP-S3", "STP-E3")
@on_loop
async def test_a_retry_has_its_time_and_its_rule(site: Opened) -> None:
    """`next_run_at = now + 2^attempts * base_delay`, and the rule and the line that it matched."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        id = await ada.start(task("build", retry={"max_attempts": 2, "base_delay_seconds": 50}))

        await runner.fail(await runner.take(), log_tail=["ok", "fatal: No space left on device"])
        [job] = (await ada.run(id))["jobs"]

        assert (job["state"], job["status"], job["attempts"]) == ("RETRYING", "PENDING", 1)
        assert (job["last_error"]["rule"], job["last_error"]["failure_class"]) == ("disk-or-memory", "INFRA")
        assert "No space left" in job["last_error"]["line"]
        assert job["next_run_at"] > job["tries"][0]["updated_at"]


@on_loop
async def test_a_job_with_a_lost_lease_stays_running_and_is_marked_reclaimed(site: Opened) -> None:
    """A lost lease is not a failed attempt."""
    async with site() as here:
        ada = await here.key("ada", "run")
        lost, second = await here.register_runner(), await here.register_runner()
        id = await ada.start(task("build"))
        lease = await lost.take()

        answer = await here.http.post(
            "/runner/v1/hand-back",
            headers={"Authorization": f"Bearer {lost._credential}", "Delta-Lease": lease["lease_id"]},
        )
        between = (await ada.run(id))["jobs"][0]
        await second.take()
        [job] = (await ada.run(id))["jobs"]

        assert answer.status_code == 200
        assert (between["state"], between["tries"][0]["state"], between["is_reclaimed"]) == ("RUNNING", "QUEUED", False)
        assert (job["state"], job["is_reclaimed"], job["worker_id"]) == ("RUNNING", True, second.name)
        assert len(job["tries"]) == 1


WRONG: list[tuple[Any, int, str, str]] = [
    ({}, 400, "bad_request", "neither"),
    ({"plan": {"jobs": [task("a")]}, "template": "t"}, 400, "bad_request", "both"),
    ({"plan": {"jobs": [task("a")]}, "inputs": {"x": "1"}}, 400, "bad_request", "template"),
    ({"plan": {"jobs": []}}, 422, "bad_message", "$.plan.jobs"),
    ({"plan": {"jobs": [{"name": "a"}]}}, 400, "bad_request", "no 'work'"),
    ({"plan": {"jobs": [task("a"), task("a")]}}, 400, "bad_request", "same name"),
    ({"plan": {"jobs": [task("a", needs=["b"])]}}, 400, "bad_request", "b"),
    ({"plan": {"jobs": [task("a", needs=["b"]), task("b", needs=["a"])]}}, 400, "dependency_cycle", "a"),
    ({"plan": {"jobs": [task("a", needz=[])]}}, 422, "bad_message", "did you mean 'needs'?"),
    ({"plan": {"jobs": [task("a", retry={"xyz": 1})]}}, 422, "bad_message", "expected base_delay_seconds, jitter"),
    ({"plan": {"jobs": [task("a", kind="gate")]}}, 422, "bad_message", "expected approval, task"),
    (
        {"plan": {"jobs": [{"name": "a", "work": {"steps": [{"runs": "x"}]}}]}},
        422,
        "bad_message",
        "did you mean 'run'?",
    ),
    ({"tilte": "x"}, 422, "bad_message", "did you mean 'title'?"),
    ({"plan": {"jobs": [task("a/b")]}}, 422, "bad_message", "$.plan.jobs[0].name"),
    ({"plan": {"jobs": [{**gate("g"), "work": {"steps": ["true"]}}]}}, 400, "bad_request", "approval"),
    ({"plan": {"jobs": [task("a", approval={})]}}, 400, "bad_request", "only a job of kind"),
    ({"template": "nope"}, 404, "not_found", "nope"),
    ([], 422, "bad_message", "object"),
]


@pytest.mark.proves("ORC-W1", "MOD-S1")
@on_loop
async def test_an_invalid_run_is_refused_with_a_path_and_not_created(site: Opened) -> None:
    """All errors have a code, a message, a hint and a request_id."""
    async with site() as here:
        ada = await here.key("ada", "run")
        before = await here.store.last_seq()

        for body, status, code, said in WRONG:
            reply = await ada.post("/runs", body)

            assert (reply.status, reply.code) == (status, code), (body, reply.body)
            assert said in reply.body["message"], (body, reply.body)
            assert reply.body["hint"]
            assert reply.body["request_id"] == reply.headers["delta-request-id"]
            assert reply.body["status"] == status

        assert await here.store.last_seq() == before
        assert (await ada.get("/runs")).body == {"runs": [], "next": None}


@on_both_stores
@on_loop
async def test_runs_are_filtered_by_each_filter_and_by_all_together(site: Opened) -> None:
    """A run must match all filters."""
    async with site() as here:
        ada, bob = await here.key("ada", "run"), await here.key("bob", "run")
        first = await ada.start(task("a"), project="shop", branch="main", labels=["x", "y"])
        second = await bob.start(task("a"), project="shop", branch="dev", labels=["x"])
        third = await bob.start(task("a"), project="blog", branch="main")
        await ada.post(f"/runs/{third}/cancel")
        await here.until(ada, third, "REPORTED")
        created = (await ada.run(second))["created_at"].replace("+00:00", "Z")

        async def found(query: str) -> list[str]:
            reply = await ada.get(f"/runs?{query}")
            assert reply.status == 200, reply
            return [run["id"] for run in reply.body["runs"]]

        assert await found("") == [third, second, first]
        assert await found("project=shop") == [second, first]
        assert await found("branch=main") == [third, first]
        assert await found("label=x") == [second, first]
        assert await found("label=x&label=y") == [first]
        assert await found("person=bob") == [third, second]
        assert await found("state=REPORTED") == [third]
        assert await found("status=CANCELED") == [third]
        assert await found("status=PENDING&branch=main") == [first]
        assert await found(f"since={created}") == [third, second]
        assert await found(f"until={created}") == [first]
        assert await found("project=none") == []


@on_both_stores
@on_loop
async def test_pages_neither_skip_nor_repeat_while_runs_are_created(site: Opened) -> None:
    """A cursor is a position, not a number of rows."""
    async with site() as here:
        ada = await here.key("ada", "run")
        made = [await ada.start(task("a")) for _ in range(7)]
        seen, cursor = [], ""

        while True:
            page = (await ada.get(f"/runs?limit=2&cursor={cursor}")).body
            seen += [run["id"] for run in page["runs"]]
            await ada.start(task("a"))
            cursor = page["next"]
            if cursor is None:
                break

        assert seen == made[::-1]
        for wrong in ("x", "!!", "MTIz"):
            assert (await ada.get(f"/runs?cursor={wrong}")).code == "bad_request"
        for query in ("limit=0", "limit=201", "state=NO", "since=yesterday", "nope=1"):
            assert (await ada.get(f"/runs?{query}")).code == "bad_message"
        assert (await ada.get("/runs?limit=1&limit=2")).code == "bad_request"
        assert "expected CANCELED, FAILED, PENDING" in (await ada.get("/runs?status=NO")).body["message"]


@on_loop
async def test_jobs_and_attempts_have_their_own_paths(site: Opened) -> None:
    """Each response is the same as in the run."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        id = await ada.start(*(task(f"job {n}", needs=[]) for n in range(5)))
        lease = await runner.take()
        run = await ada.run(id)

        first = (await ada.get(f"/runs/{id}/jobs?limit=3")).body
        rest = (await ada.get(f"/runs/{id}/jobs?limit=3&cursor={first['next']}")).body

        assert first["jobs"] + rest["jobs"] == run["jobs"]
        assert rest["next"] is None
        assert (await ada.get(f"/runs/{id}/jobs/job 0")).body == run["jobs"][0]
        name = lease["job_id"].partition("/")[2]
        [shown] = (await ada.get(f"/runs/{id}/jobs/{name}/attempts")).body["attempts"]
        assert (await ada.get(f"/runs/{id}/jobs/{name}/attempts/1")).body == shown
        assert shown["worker_id"] == runner.name
        assert (await ada.get(f"/runs/{id}/jobs/{name}/attempts/2")).code == "not_found"
        assert (await ada.get(f"/runs/{id}/jobs/nope")).code == "not_found"
        plan = (await ada.get(f"/runs/{id}/plan")).body
        assert plan["plan_hash"] == run["plan_hash"]
        assert [job["name"] for job in plan["jobs"]] == [f"job {n}" for n in range(5)]
        assert (await ada.post(f"/runs/{id}/jobs/job 4/cancel", {"reason": "not today"})).body["state"] == "CANCELED"
        assert (await ada.post(f"/runs/{id}/jobs/job 4/cancel")).body["state"] == "CANCELED"


@pytest.mark.proves("MOD-T3", "MOD-T1", "MOD-G4", "ORC-W2")
@on_loop
async def test_a_rerun_repeats_all_or_only_failed_jobs(site: Opened) -> None:
    """A rerun is a new run that refers to the old one; approvals are not inherited."""
    async with site() as here:
        ada = await here.key("ada", "run", "approve")
        runner = await here.register_runner()
        id = await ada.start(task("a"), gate("g"), task("b"), task("c"), project="shop")
        await runner.finish(await runner.take())
        assert (await ada.post(f"/runs/{id}/approve")).status == 200
        await runner.fail(await runner.take())
        await here.until(ada, id, "REPORTED")

        whole = await ada.post(f"/runs/{id}/rerun")
        failed = await ada.post(f"/runs/{id}/rerun", {"failed_only": True})
        early = await ada.post(f"/runs/{failed.body['id']}/rerun")

        assert (whole.status, failed.status, early.code) == (201, 201, "wrong_state")
        assert (whole.body["rerun_of"], whole.body["project"]) == (id, "shop")
        again = await ada.run(failed.body["id"])
        assert [(job["name"], job["needs"], job["state"]) for job in again["jobs"]] == [
            ("g", [], "WAITING_APPROVAL"),
            ("b", ["g"], "PENDING"),
            ("c", ["b"], "PENDING"),
        ]
