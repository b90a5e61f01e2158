"""The files of a workstream: what they say, and that nobody ever sees half of one."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from deltaci.controllers.workstreams import files
from deltaci.controllers.workstreams.metrics import WorkstreamTimes, WorkstreamTimesCache, metrics
from deltaci.core import job, run
from tests.contract.backends import on_loop
from tests.controllers.workstreams.streams import (
    BASE,
    HEAD,
    ID,
    begun,
    completed,
    entry,
    merged,
    specs,
    stored,
    stream,
    work,
)


def read(folder: Path, name: str) -> Any:
    """One of the files."""
    return json.loads((files.place(folder, ID) / name).read_text("utf-8"))


@pytest.mark.proves("WST-WA1")
def test_becoming_ready_writes_the_dag_and_the_execution_plan(tmp_path: Path) -> None:
    """Which task when, and what each does, before the first of them begins."""
    files.ready(tmp_path, stream(), specs())

    dag, plan = read(tmp_path, "dag.json"), read(tmp_path, "plan.json")
    assert dag["stages"] == [["schema"], ["code", "docs"], ["test"]]
    assert {(edge["from"], edge["to"]) for edge in dag["edges"]} == {
        ("schema", "code"),
        ("schema", "docs"),
        ("code", "test"),
        ("docs", "test"),
    }
    assert [(node["name"], node["stage"], node["critical"], node["tree"]) for node in dag["nodes"]] == [
        ("schema", 1, True, "shared"),
        ("code", 2, True, "shared"),
        ("docs", 2, False, "own"),
        ("test", 3, True, "shared"),
    ]
    assert (plan["base"], plan["base_commit"], plan["branch"]) == ("main", BASE, "ws/login-3f9a2c")
    assert [stage["tasks"] for stage in plan["stages"]] == dag["stages"]
    code, tested = plan["tasks"][1], plan["tasks"][3]
    assert (code["run"], code["needs"], code["max_retries"]) == (["agent write", "make"], ["schema"], 1)
    assert [rule["run"] for rule in code["rules"]] == ["make check"]
    assert (tested["timeout_seconds"], tested["critical"]) == (300, True)


@pytest.mark.proves("WST-WA1")
def test_the_event_of_becoming_ready_is_emitted() -> None:
    """Beside the files, the log says so in document 003's words."""
    lines = [json.loads(line) for line in begun().transitions()]

    [ready] = [line for line in lines if line["to_state"] == "ready"]
    assert (ready["entity_id"], ready["trigger"], ready["metadata"]["task_count"]) == (ID, "all_tasks_created", 4)


def test_the_graph_can_be_drawn(tmp_path: Path) -> None:
    """Also with names that would end a text, or a statement."""
    odd = stream(name='a "b" \\ c\n')
    files.ready(tmp_path, odd, specs())

    text = (files.place(tmp_path, ID) / "dag.dot").read_text("utf-8")
    assert text.splitlines()[0] == 'digraph "a \\"b\\" \\\\ c\\n" {'
    assert '  "schema" -> "code";' in text.splitlines()
    assert '  "docs" [style=dashed];' in text.splitlines()
    assert '  { rank=same; "code"; "docs"; }' in text.splitlines()
    assert text.endswith("}\n")


@on_loop
async def test_metrics_say_how_long_each_task_was_what(tmp_path: Path) -> None:
    """Counted from the log: also what was retried, and also half-way."""
    lab = begun()
    work(lab, "schema")
    lab.fail(lab.after(2).claim(lab.attempt("code", run_id=ID)))
    store = await stored(lab)

    meters = WorkstreamTimesCache(store)
    records = [lab.job(name, ID) for name in ("schema", "code", "docs", "test")]
    files.executing(tmp_path, stream(), lab.run(ID), records, await meters.read(ID))

    told = read(tmp_path, "metrics.json")
    schema, code, docs, _ = told["tasks"]
    assert (told["state"], told["started_at"] is not None) == ("executing", True)
    assert told["counts"] == {
        "pending": 1,
        "queued": 1,
        "running": 0,
        "validating": 0,
        "completed": 1,
        "failed": 0,
        "retrying": 1,
        "cancelled": 0,
    }
    assert (schema["queued_seconds"], schema["running_seconds"], schema["validating_seconds"]) == (2.0, 10.0, 1.0)
    assert (code["queued_seconds"], code["running_seconds"], code["attempts"]) == (2.0, 0.0, 1)
    assert (schema["worker"], code["worker"], docs["worker"]) == ("w1", "w1", "")
    assert (docs["state"], docs["queued_seconds"]) == ("queued", 2.0)


def test_metrics_of_all_of_it_are_the_same_however_often_they_are_counted() -> None:
    """Whoever hears an event again counts it once, and the time ends with the workstream."""
    lab = completed()
    records = [lab.job(name, ID) for name in ("schema", "code", "docs", "test")]
    whole, pieces = WorkstreamTimes(), WorkstreamTimes()

    whole.count(lab.log)
    for at in range(0, len(lab.log), 3):
        pieces.count(lab.log[max(0, at - 5) : at + 3])

    told = metrics(stream(), lab.run(ID), records, whole)
    assert metrics(stream(), lab.run(ID), records, pieces) == told
    code = told["tasks"][1]
    assert (code["queued_seconds"], code["running_seconds"], code["retrying_seconds"]) == (4.0, 20.0, 60.0)
    assert told["elapsed_seconds"] == 10 + 1 + 2 + 60 + 2 + 20 + 1 + 13 + 8 + 30


def test_validating_writes_the_plan_of_the_merge(tmp_path: Path) -> None:
    """What is merged where, how, and what must hold before; with the files that change, if they are not too many."""
    of = merged()
    files.validating(tmp_path, of, entry(of), frozenset({"b", "a"}))
    told = read(tmp_path, "merge-plan.json")
    assert (told["base"], told["base_commit"], told["head"], told["method"]) == ("main", BASE, HEAD, "merge")
    assert (told["changed_files"], told["paths"], told["rules"]) == (2, ["a", "b"], [{"run": "make all"}])

    files.validating(tmp_path, of, entry(of), [str(number) for number in range(files.MAX_PATHS + 1)])
    told = read(tmp_path, "merge-plan.json")
    assert (told["changed_files"], told["paths"]) == (files.MAX_PATHS + 1, None)

    files.validating(tmp_path, of, entry(of), None)
    assert read(tmp_path, "merge-plan.json")["changed_files"] is None


def test_an_id_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    """Whatever somebody calls it."""
    for id in ("../../etc", ".", "..", "a/b", "", "x" * 1000):
        assert files.place(tmp_path, id).parent == tmp_path / "workstreams"
        assert files.place(tmp_path, id).name not in (".", "..", "")


def test_the_same_figures_are_not_written_again(tmp_path: Path) -> None:
    """A file that did not change keeps its time; nobody's disk is worn out."""
    files.ready(tmp_path, stream(), specs())
    before = {path: path.stat().st_ino for path in files.place(tmp_path, ID).iterdir()}

    files.ready(tmp_path, stream(), specs())

    assert {path: path.stat().st_ino for path in files.place(tmp_path, ID).iterdir()} == before
    assert len(before) == 3


def test_whoever_reads_while_it_is_written_sees_all_of_a_file(tmp_path: Path) -> None:
    """The old one or the new one."""
    path, is_done = tmp_path / "metrics.json", threading.Event()
    files.write(path, {"number": 0, "text": "x" * 50_000})

    def write() -> None:
        for number in range(1, 200):
            files.write(path, {"number": number, "text": "x" * 50_000})
        is_done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not is_done.is_set():
        seen.add(json.loads(path.read_bytes())["number"])
    writer.join()
    seen.add(json.loads(path.read_bytes())["number"])

    assert 199 in seen
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.json"]


def test_a_workstream_that_goes_on_is_worked_on_by_real_commands() -> None:
    """The scenes of these tests are legal."""
    for lab in (begun(), completed()):
        lab.verified()
    assert completed().run(ID).state == run.REPORTED
    assert completed().job("code", ID).state == job.SUCCEEDED
