"""The archive of workstreams: complete, legal on its own, whole or not there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaci.audit.verify import verify
from deltaci.controllers.workstreams import files
from deltaci.controllers.workstreams.archive import NotEndedError, archive, place
from deltaci.storage.blobs.logs import LogStore
from tests.contract.backends import on_loop
from tests.controllers.logs import checked
from tests.controllers.workstreams.streams import (
    BASE,
    HEAD,
    ID,
    MERGED,
    SPEC,
    begun,
    cancelled,
    completed,
    entry,
    failed,
    merged,
    stored,
    stream,
)
from tests.support.lab import Lab

ROOT = Path(__file__).parents[3]
EVERYTHING = {
    "workstream.json",
    "dag.json",
    "dag.dot",
    "plan.json",
    "metrics.json",
    "events.jsonl",
    "transitions.jsonl",
    "outputs.json",
    "logs.json",
}


def read(folder: Path, name: str) -> Any:
    """One of the files."""
    return json.loads((folder / name).read_text("utf-8"))


@on_loop
async def test_one_that_goes_on_is_not_archived(tmp_path: Path) -> None:
    """Nothing is put aside that can still change."""
    lab = begun()
    with pytest.raises(NotEndedError):
        await archive(await stored(lab), LogStore(tmp_path / "logs"), stream(), tmp_path)

    assert not place(tmp_path, ID).exists()


@pytest.mark.proves("WST-WI4")
@pytest.mark.parametrize(
    ("scene", "state", "run_state"),
    [(completed, "completed", "SUCCESS"), (failed, "failed", "FAILED"), (cancelled, "cancelled", "CANCELED")],
)
@on_loop
async def test_what_is_over_is_preserved_however_it_ended(
    tmp_path: Path, scene: Callable[[], Lab], state: str, run_state: str
) -> None:
    """All of it: its events in both formats, each legal on its own, what was asked for and what came of it."""
    lab = scene()
    files.ready(tmp_path, stream(), [])

    at = await archive(await stored(lab), LogStore(tmp_path / "logs"), stream(problem="a problem"), tmp_path)

    assert at == tmp_path / "archive" / ID
    assert {path.name for path in at.iterdir()} == EVERYTHING
    told = read(at, "workstream.json")
    assert (told["state"], told["run_state"]) == (state, run_state)
    assert (told["spec"], told["problem"], told["worktree"]) == (SPEC, "a problem", stream().place)
    assert read(at, "metrics.json")["state"] == state
    assert checked(at / "transitions.jsonl").entity_count >= 2
    report = verify((at / "events.jsonl").read_bytes().splitlines(keepends=True), "canonical")
    assert report.is_legal, report.violations[0]
    assert report.event_count == sum(json.loads(each)["run_id"] == ID for each in lab.canonical())
    assert not files.place(tmp_path, ID).exists()


@on_loop
async def test_the_archive_says_what_was_merged_and_where_everything_is(tmp_path: Path) -> None:
    """Commits, outputs, and the place of every log and artifact of every attempt."""
    logs = LogStore(tmp_path / "logs")
    logs.append(f"{ID}/code.2", 1, 0, b"compiled\n")
    files.validating(tmp_path, merged(), entry(merged()), ["src/login.py"])

    at = await archive(await stored(completed()), logs, merged(), tmp_path)

    told = read(at, "workstream.json")
    assert (told["base_commit"], told["head"], told["merged_as"]) == (BASE, HEAD, MERGED)
    assert [each["task"] for each in told["joined"]] == ["code"]
    assert read(at, "merge-plan.json")["paths"] == ["src/login.py"]
    assert read(at, "outputs.json") == {"schema": {"attempt": f"{ID}/schema.1", "result": {"tables": 3}}}
    kept = {each["attempt"]: each for each in read(at, "logs.json")}
    assert sorted(kept) == [f"{ID}/{name}" for name in ("code.1", "code.2", "docs.1", "schema.1", "test.1")]
    [log] = kept[f"{ID}/code.2"]["logs"]
    assert (tmp_path / log["file"]).read_bytes() == b"compiled\n"
    assert log["bytes"] == 9
    [artifact] = kept[f"{ID}/code.2"]["artifacts"]
    assert artifact["blob"] == f"artifacts/acme/{ID}%2Fcode.2/1/tree.bundle"
    assert (kept[f"{ID}/code.1"]["logs"], kept[f"{ID}/code.1"]["state"]) == ([], "FAILED")


@on_loop
async def test_a_failed_task_says_which_rule_did_not_hold(tmp_path: Path) -> None:
    """Whoever looks into the archive later finds the reason there."""
    at = await archive(await stored(failed()), LogStore(tmp_path / "logs"), stream(), tmp_path)

    code = next(task for task in read(at, "workstream.json")["tasks"] if task["name"] == "code")
    assert (code["state"], code["job_state"]) == ("failed", "FAILED")
    assert "make check: exit code 1, wanted 0" in json.dumps(code["last_error"])


@on_loop
async def test_archiving_it_again_changes_nothing(tmp_path: Path) -> None:
    """Whoever is not sure whether it was done does it again."""
    store, logs = await stored(completed()), LogStore(tmp_path / "logs")
    at = await archive(store, logs, merged(), tmp_path)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in at.iterdir()}

    assert await archive(store, logs, merged(), tmp_path) == at

    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in at.iterdir()} == before


@on_loop
async def test_what_is_not_kept_any_more_is_not_made_up(tmp_path: Path) -> None:
    """Events that were dropped are missing, and the archive says where it begins."""
    store = await stored(completed())
    await store.prune(finished_before=0, events_before=2**62, limit=12)

    at = await archive(store, LogStore(tmp_path / "logs"), merged(), tmp_path)

    assert read(at, "workstream.json")["first_seq"] == 13
    assert (at / "transitions.jsonl").read_bytes() == b""


def test_a_server_that_ends_at_any_moment_leaves_it_whole_or_not_at_all(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Everything that it does to the disk is the last thing that a process does, once; the next one finishes it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.controllers.workstreams.archiving", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr.decode()
    moments = int(done.stdout)
    record_property("figure", f"archive: a crash at each of {moments} moments leaves it whole or not at all")
    assert moments > 20
