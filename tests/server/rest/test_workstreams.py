"""Workstreams over the API: created from a file, listed, read in both vocabularies and cancelled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from deltaci.controllers.merge_queue.records import BatchSplit, BatchView, EntryView, QueueView
from deltaci.core import job
from tests.contract.backends import on_loop
from tests.server.rest.site import TENANT, ApiSite, ScriptedRunner, task
from tests.support.workstream_context import BASE, SPEC, StandIn

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
FILE = "workstream: login\nproject: shop\ntasks:\n  - {name: a, run: make}\n"


async def complete_next_task(here: ApiSite, runner: ScriptedRunner, *, is_good: bool = True) -> str:
    """Complete and validate the next task, and return its id."""
    lease = await runner.take()
    rules = lease["job_spec"].get("rules", [])
    await runner.finish(lease, verdicts=[{"rule": rule["run"], "is_passed": True} for rule in rules])
    id = str(lease["job_id"])
    await here.service.engine.do(job.Validate(id=id, is_passed=is_good))
    return id


# -- what is refused


@on_loop
async def test_an_invalid_file_is_refused_with_the_positions_of_its_problems(site: Opened) -> None:
    """All problems, by line for a file and by path for an object."""
    async with site() as here:
        StandIn(here.service)
        ada = await here.key("ada", "run")
        text = "workstream: x\ntasks:\n  - {name: a, rum: make, needs: b}\n"
        spec = {"workstream": "x", "tasks": [{"name": "a", "run": ""}], "bsae": "main"}

        file = await ada.post("/workstreams", {"file": text, "name": "login.yml"})
        plain = await ada.post("/workstreams", {"spec": spec})

        assert (file.status, file.code) == (400, "bad_request")
        assert "login.yml:3:15: the key 'rum', which a task does not have; did you mean 'run'?" in file.body["message"]
        assert "login.yml:3:33: there is no task 'b'" in file.body["message"]
        assert plain.body["message"] == (
            "tasks[0].run: an empty text; expected a command for the shell; "
            "bsae: the key 'bsae', which a workstream does not have; did you mean 'base'?"
        )
        assert (await ada.get("/workstreams")).body == {"workstreams": [], "next": None}


@on_loop
async def test_an_invalid_request_is_refused_without_effects(site: Opened) -> None:
    """Both or neither of file and spec, an invalid branch, an unknown project, a key that may only read."""
    async with site() as here:
        stand_in = StandIn(here.service)
        ada, bob = await here.key("ada", "run"), await here.key("bob", "read")

        for body, said in (
            ({}, "neither of 'file' and 'spec' is given"),
            ({"file": FILE, "spec": SPEC}, "both of 'file' and 'spec'"),
            ({"file": FILE, "base": "a..b"}, "base: 'a..b' as a branch"),
            ({"file": FILE, "base": "a b"}, "base: the text 'a b'"),
        ):
            reply = await ada.post("/workstreams", body)
            assert (reply.code, said in reply.body["message"]) == ("bad_request", True), reply.body
        assert (await ada.post("/workstreams", {"file": FILE, "project": "shpo"})).code == "not_found"
        assert (await ada.post("/workstreams", {"file": 3})).code == "bad_message"
        assert (await bob.post("/workstreams", {"file": FILE})).code == "missing_scope"
        assert [name async for name, _ in stand_in.records.kept.iterate(TENANT)] == []


@on_loop
async def test_plain_runs_and_workstreams_of_other_tenants_are_not_found(site: Opened) -> None:
    """The response is the same as for an unknown id."""
    async with site() as here:
        StandIn(here.service)
        ada, them = await here.key("ada", "run"), await here.key("eve", "run", tenant="them")
        plain = await ada.start(task("a"))
        made = (await ada.post("/workstreams", {"spec": SPEC})).body["id"]

        for caller, id in ((ada, plain), (them, made), (ada, "r404")):
            for reply in (await caller.get(f"/workstreams/{id}"), await caller.post(f"/workstreams/{id}/cancel")):
                assert (reply.status, reply.body["message"]) == (404, f"there is no workstream {id!r}")
        assert (await them.get("/workstreams")).body["workstreams"] == []
        assert (await ada.get(f"/workstreams/{made}")).body["state"] == "ready"


@on_loop
async def test_a_server_without_repositories_refuses_workstreams(site: Opened) -> None:
    """It still responds to reads."""
    async with site() as here:
        ada = await here.key("ada", "run")
        here.service.control_plane.api._app_state = msgspec.structs.replace(
            here.service.control_plane.api._app_state, workstreams=None
        )

        assert (await ada.post("/workstreams", {"file": FILE})).code == "wrong_state"
        assert (await ada.get("/merge-queues")).body == {"queues": []}


# -- what is done


@on_loop
async def test_a_repeated_key_returns_the_same_workstream(site: Opened) -> None:
    """As for runs: a repeat changes nothing, another body with the same key is refused."""
    async with site() as here:
        StandIn(here.service)
        ada = await here.key("ada", "run")

        first = await ada.post("/workstreams", {"spec": SPEC}, idempotency_key="k1")
        again = await ada.post("/workstreams", {"spec": SPEC}, idempotency_key="k1")
        other = await ada.post("/workstreams", {"file": FILE}, idempotency_key="k1")

        assert (first.status, again.status, other.code) == (201, 200, "request_id_reused")
        assert first.headers["location"] == f"/api/v1/workstreams/{first.body['id']}"
        assert again.headers["idempotency-replayed"] == "true"
        assert again.body["id"] == first.body["id"]
        assert len((await ada.get("/workstreams")).body["workstreams"]) == 1


@on_loop
async def test_a_file_can_be_started_for_another_project_and_branch(site: Opened) -> None:
    """The fields of the request take precedence over the file."""
    async with site() as here:
        StandIn(here.service)
        ada = await here.key("ada", "run")

        made = await ada.post("/workstreams", {"file": FILE.replace("shop", "old"), "project": "shop", "base": "next"})

        assert (made.body["project"], made.body["base"]) == ("shop", "next")


@pytest.mark.proves("WST-WD1", "WST-WD4", "WST-TA1")
@on_loop
async def test_a_workstream_is_read_in_both_vocabularies(site: Opened) -> None:
    """Its own state and the run's, each task's state and its job's, and the state derived from the tasks."""
    async with site() as here:
        stand_in, ada, runner = StandIn(here.service), await here.key("ada", "run"), await here.register_runner()
        id = (await ada.post("/workstreams", {"spec": SPEC})).body["id"]

        ready = (await ada.get(f"/workstreams/{id}")).body
        await complete_next_task(here, runner)
        await stand_in.join(TENANT, id, "schema", "c" * 40, place="w1:/workstreams/x")
        await runner.take()
        found = (await ada.get(f"/workstreams/{id}")).body

        assert (ready["state"], ready["run_state"], ready["derived_state"], ready["started_at"]) == (
            "ready",
            "QUEUED",
            "ready",
            None,
        )
        assert ready["stages"] == [["schema"], ["api", "notes"]]
        assert (found["state"], found["run_state"], found["derived_state"]) == ("executing", "RUNNING", "executing")
        assert found["counts"] == {"completed": 1, "queued": 1, "running": 1}
        assert found["seconds"] >= 0
        schema, api, notes = found["tasks"]
        assert (schema["state"], schema["job_state"], schema["worker_id"]) == ("completed", "SUCCEEDED", "w1")
        assert schema["added"] == {
            "attempt_id": f"{id}/schema.1",
            "is_changed": True,
            "start": BASE,
            "head": "c" * 40,
            "tip": "c" * 40,
        }
        assert (found["tip"], found["base_commit"], found["branch"]) == ("c" * 40, BASE, f"ws/login-{id[1:7]}")
        assert found["place"] == "w1:/workstreams/x"
        assert (api["stage"], api["is_critical"], api["worktree"]) == (2, True, "shared")
        assert (notes["stage"], notes["is_critical"], notes["worktree"]) == (2, False, "own")
        assert {api["state"], notes["state"]} == {"queued", "running"}


@on_loop
async def test_a_workstream_without_a_plan_shows_the_tasks_of_its_file(site: Opened) -> None:
    """Before planning there are no jobs. Regression: the request failed with an internal error."""
    async with site() as here:
        StandIn(here.service, is_planned=False)
        ada = await here.key("ada", "run")
        id = (await ada.post("/workstreams", {"spec": SPEC})).body["id"]

        reply = await ada.get(f"/workstreams/{id}")

        assert reply.status == 200, reply
        assert [(task["name"], task["state"], task["place"]) for task in reply.body["tasks"]] == [
            ("schema", "", ""),
            ("api", "", ""),
            ("notes", "", ""),
        ]


@on_loop
async def test_a_failed_validation_rule_is_shown_with_its_actual_value(site: Opened) -> None:
    """The workstream fails with its critical task at once and names the rule."""
    async with site() as here:
        StandIn(here.service)
        ada, runner = await here.key("ada", "run"), await here.register_runner()
        spec = {**SPEC, "tasks": [SPEC["tasks"][1] | {"needs": []}]}
        id = (await ada.post("/workstreams", {"spec": spec})).body["id"]

        lease = await runner.take()
        wrong = {"rule": "make test", "is_passed": False, "found": "exit code 2", "wanted": "exit code 0"}
        await runner.finish(lease, verdicts=[wrong], place="/trees/x")
        await here.until(ada, id, "FAILED")
        found = (await ada.get(f"/workstreams/{id}")).body

        assert (found["state"], found["derived_state"]) == ("failed", "failed")
        [api] = found["tasks"]
        assert (api["state"], api["reason"]) == ("failed", "VALIDATION_FAILED")
        assert api["failed_rules"] == [{"rule": "make test", "found": "exit code 2", "wanted": "exit code 0"}]
        assert "make test" in api["last_error"]["line"]
        assert (api["place"], found["place"]) == ("/trees/x", "/trees/x")
        assert found["ended_at"] is not None


@on_loop
async def test_workstreams_are_filtered_by_state_project_and_person(site: Opened) -> None:
    """In pages, the newest first; plain runs are not included."""
    async with site() as here:
        StandIn(here.service)
        ada, bob = await here.key("ada", "run"), await here.key("bob", "run")
        await ada.start(task("a"), project="shop")
        ids = [(await ada.post("/workstreams", {"spec": SPEC})).body["id"] for _ in range(3)]
        theirs = (await bob.post("/workstreams", {"spec": SPEC})).body["id"]
        stopped = (await ada.post(f"/workstreams/{ids[0]}/cancel", {"reason": "wrong base"})).body

        async def found(query: str) -> list[str]:
            reply = await ada.get(f"/workstreams?{query}")
            return [workstream["id"] for workstream in reply.body["workstreams"]]

        assert (stopped["state"], stopped["reason"]) == ("cancelled", "wrong base")
        assert await found("") == [theirs, *reversed(ids)]
        assert await found("state=ready") == [theirs, ids[2], ids[1]]
        assert await found("state=cancelled") == [ids[0]]
        assert await found("state=cancelled&person=bob") == []
        assert await found("person=bob&project=shop") == [theirs]
        assert await found("project=other") == []
        page = (await ada.get("/workstreams?limit=3")).body
        assert await found(f"limit=3&cursor={page['next']}") == [ids[0]]
        assert (await ada.get("/workstreams?state=RUNNING")).code == "bad_message"
        again = await ada.post(f"/workstreams/{ids[0]}/cancel")
        assert (again.status, again.body["state"]) == (200, "cancelled")


@on_loop
async def test_a_list_has_progress_if_requested(site: Opened) -> None:
    """Tasks by state, running tasks, the position in the merge queue and the first failed rule."""
    async with site() as here:
        stand_in, ada, runner = StandIn(here.service), await here.key("ada", "run"), await here.register_runner()
        failing = {**SPEC, "tasks": [SPEC["tasks"][1] | {"needs": []}]}
        bad = (await ada.post("/workstreams", {"spec": failing})).body["id"]
        lease = await runner.take()
        wrong = {"rule": "make test", "is_passed": False, "found": "exit code 2", "wanted": "exit code 0"}
        await runner.finish(lease, verdicts=[wrong])
        await here.until(ada, bad, "FAILED")
        good = (await ada.post("/workstreams", {"spec": SPEC})).body["id"]
        await runner.take()
        entry = EntryView(id=good, title="t", method="merge", head="c" * 40, at=1, problem="no way in")
        stand_in.waiting = [QueueView(project="shop", base="main", entries=(entry,))]

        plain = (await ada.get("/workstreams")).body["workstreams"]
        first, second = (await ada.get("/workstreams?progress=true")).body["workstreams"]
        read = (await ada.get(f"/workstreams/{good}")).body

        assert [each["progress"] for each in plain] == [None, None]
        assert (first["id"], second["id"]) == (good, bad)
        assert first["progress"] == read["progress"]
        assert (first["progress"]["tasks"], first["progress"]["counts"]) == (3, {"pending": 2, "running": 1})
        assert (first["progress"]["under_way"], first["progress"]["waiting"]) == (["schema"], [])
        assert (first["progress"]["position"], first["progress"]["waits_for"]) == (1, "no way in")
        assert (first["progress"]["failed_task"], first["progress"]["failed_rule"]) == ("", None)
        assert second["progress"]["failed_task"] == "api"
        assert second["progress"]["failed_rule"] == {
            "rule": "make test",
            "found": "exit code 2",
            "wanted": "exit code 0",
        }
        assert "make test" in second["progress"]["problem"]


@on_loop
async def test_a_merge_queue_shows_how_a_failed_batch_was_split(site: Opened) -> None:
    """Both halves and the result of the test."""
    async with site() as here:
        stand_in, ada = StandIn(here.service), await here.key("ada", "run")
        split = BatchSplit(number=3, first=("a",), second=("b", "c"), problem="no good")
        stand_in.waiting = [QueueView(project="shop", base="main", splits=(split,))]

        [queue] = (await ada.get("/merge-queues")).body["queues"]

        assert queue["splits"] == [{"number": 3, "first": ["a"], "second": ["b", "c"], "problem": "no good"}]


@on_loop
async def test_a_merge_queue_shows_the_members_of_a_batch(site: Opened) -> None:
    """Each workstream has its position in the queue."""
    async with site() as here:
        stand_in, ada = StandIn(here.service), await here.key("ada", "run")
        one, two = [(await ada.post("/workstreams", {"spec": SPEC})).body["id"] for _ in range(2)]
        entries = tuple(
            EntryView(id=id, title="t", method="squash", head="c" * 40, at=1, batch=7, problem=f"p{id}")
            for id in (one, two)
        )
        batch = BatchView(
            number=7, method="squash", members=(one, two), doing="testing", start=BASE, commit="d" * 40, run_id="r9"
        )
        stand_in.waiting = [QueueView(project="shop", base="main", entries=entries, batches=(batch,), not_before=2)]

        [queue] = (await ada.get("/merge-queues")).body["queues"]
        found = (await ada.get(f"/workstreams/{two}")).body["merge"]

        assert [(entry["position"], entry["id"]) for entry in queue["entries"]] == [(1, one), (2, two)]
        assert [(each["run_id"], each["base_commit"], each["is_good"]) for each in queue["batches"]] == [
            ("r9", BASE, None)
        ]
        assert queue["not_before"].startswith("1970-01-01T00:00:00.000002")
        assert (await ada.get("/merge-queues?project=other")).body == {"queues": []}
        assert (found["method"], found["position"], found["ahead"]) == ("squash", 2, 1)
        assert (found["doing"], found["run_id"], found["tested_with"]) == ("testing", "r9", [one])
        assert (found["waits_for"], found["commit"]) == (f"p{two}", "")

        plain = msgspec.structs.replace(entries[0], problem="", batch=0)
        stand_in.waiting = [QueueView(project="shop", base="main", entries=(plain,), problem="no way in")]
        alone = (await ada.get(f"/workstreams/{one}")).body["merge"]
        assert (alone["position"], alone["doing"], alone["waits_for"]) == (1, "", "no way in")


@on_loop
async def test_a_workstream_without_merge_has_no_merge_state(site: Opened) -> None:
    """Nobody should wait for one."""
    async with site() as here:
        StandIn(here.service)
        ada = await here.key("ada", "run")

        assert (await ada.post("/workstreams", {"spec": {**SPEC, "merge": False}})).body["merge"]["method"] == "none"


@on_loop
async def test_a_workstream_cannot_be_rerun_as_a_run(site: Opened) -> None:
    """Its tasks would have no branch."""
    async with site() as here:
        StandIn(here.service)
        ada = await here.key("ada", "run")
        id = (await ada.post("/workstreams", {"spec": SPEC})).body["id"]

        refused = await ada.post(f"/runs/{id}/rerun", {})

        assert (refused.status, refused.code) == (409, "wrong_state")
        assert "create it again from its file" in refused.body["detail"]
