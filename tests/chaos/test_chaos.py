"""The harness of `make chaos` works: two scenarios are rehearsed, and the verdict finds what it is there for."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import pytest

from chaos import __main__ as command
from chaos import report
from chaos.deployment import Deployment, deployed
from chaos.parts import processes_with
from chaos.rows import NotRun, Row, measured, not_run
from chaos.speaker import Acknowledgement, Speakers
from chaos.stage import Stage
from chaos.verdict import Verdict
from chaos.witness import Witness, overlap_seconds
from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.engine.queue import AsyncQueue
from deltaci.storage import open_store
from tests.contract.backends import within

patient = within(60)


# -- rehearsals


@pytest.mark.parametrize("name", ["servers_killed", "runners_killed"])
def test_a_scenario_can_be_played(name: str) -> None:
    """A scenario that broke unnoticed is found when somebody needs to know."""
    rows = command.play(name, is_quick=True)

    assert rows
    assert all(row.ok for row in rows if row.unit != "s"), rows  # How long it takes is for `make chaos` to judge.


@pytest.mark.parametrize("name", command.names())
def test_every_scenario_says_what_goes_wrong(name: str) -> None:
    """What it is called is where its rows are looked for."""
    module = importlib.import_module(f"chaos.{command.PREFIX}{name}")

    assert module.FAULT
    assert module.run


def test_a_scenario_that_cannot_run_here_says_so_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a tool must be seen to have tried nothing."""
    crash_points = importlib.import_module("chaos.scenario_crash_points")

    def missing() -> None:
        raise NotRun("strace is not installed")

    monkeypatch.setattr(crash_points, "check_strace", missing)

    [row] = command.play("crash_points", is_quick=True)

    assert row.ok is None
    assert row.note == "not run: strace is not installed"


def test_a_scenario_that_fails_is_a_broken_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It showed nothing; what it left is kept for whoever looks into it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    crash_points = importlib.import_module("chaos.scenario_crash_points")
    monkeypatch.setattr(crash_points, "check_strace", lambda: 1 / 0)

    [row] = command.play("crash_points", is_quick=True)

    assert row.ok is False
    assert "ZeroDivisionError" in row.note
    assert len(list(tmp_path.iterdir())) == 1


# -- the verdict


async def judged(tmp_path: Path, *told: str, completes: bool = True, seconds: float = 20) -> Verdict:
    """One job, j1, that is taken and completed here, and what its witness is made to say."""
    async with deployed(Stage(tmp_path, is_quick=True), "case", servers=0) as deployment:
        await deployment.work.enqueue_recorded(1)
        if completes:
            await complete(deployment)
        (deployment.folder / "witness" / "told").write_text("".join(f"{line}\n" for line in told))
        return await deployment.verdict(seconds)


async def complete(deployment: Deployment) -> None:
    """As a worker that does nothing."""
    async with AsyncQueue(open_store(deployment.store_url)) as queue:
        [claimed] = await queue.claim_next("w1")
        await queue.start(claimed.lease_id)
        await queue.complete(claimed.lease_id)


WELL = ("j1 m1 begin 1.00", "j1 m1 on 1.10", "j1 m1 end 1.20")


@patient
async def test_work_that_was_done_once_is_fine(tmp_path: Path) -> None:
    """So that the others fail for what they are made to fail for."""
    found = await judged(tmp_path, *WELL)

    assert found.wrong == []
    assert (found.acknowledged, found.succeeded, found.executions) == (1, 1, 1)
    assert found.row("a fault", "somehow").ok


@patient
async def test_a_success_without_a_witness_is_found(tmp_path: Path) -> None:
    """Somebody said that it is done, and nobody did it."""
    found = await judged(tmp_path, *WELL[:2])

    assert "no execution of it came to its end" in found.wrong[0]
    assert found.row("a fault", "somehow").ok is False


@patient
async def test_a_job_that_ended_badly_is_found_where_all_must_succeed(tmp_path: Path) -> None:
    """Nobody broke it, and it failed."""
    async with deployed(Stage(tmp_path, is_quick=True), "case", servers=0) as deployment:
        await deployment.work.enqueue_recorded(1)
        async with AsyncQueue(open_store(deployment.store_url)) as queue:
            [claimed] = await queue.claim_next("w1")
            await queue.start(claimed.lease_id)
            await queue.fail(claimed.lease_id, "no")

        lenient = await deployment.verdict(20)
        strict = await deployment.verdict(20, all_succeed=True)

    assert lenient.wrong == []
    assert "ended, and not well" in strict.wrong[0]


@patient
async def test_doubled_and_overlapping_work_is_found(tmp_path: Path) -> None:
    """Two executions, and only one lease was given."""
    found = await judged(tmp_path, *WELL, "j1 m2 begin 1.15", "j1 m2 clash 1.15", "j1 m2 end 1.30")

    assert found.doubled == 1
    assert found.overlap_seconds == pytest.approx(0.05)
    assert any("ran twice at once" in each for each in found.wrong)
    assert any("executed 2 times (2 to the end) under 1 leases" in each for each in found.wrong)


@patient
async def test_work_that_is_not_over_in_time_is_found(tmp_path: Path) -> None:
    """Nobody takes it."""
    found = await judged(tmp_path, completes=False, seconds=0.5)

    assert found.stuck == 1
    assert "is not over after" in found.wrong[0]


@patient
async def test_work_that_is_gone_is_found(tmp_path: Path) -> None:
    """Acknowledged, and the store does not know it."""
    async with deployed(Stage(tmp_path, is_quick=True), "case", servers=0) as deployment:
        deployment.work.acknowledged["q-never-there"] = "j1"

        found = await deployment.verdict(0.5)

    assert found.lost == 1


def test_a_process_that_is_left_is_found_by_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a job may outlive it."""
    monkeypatch.setattr(
        "chaos.parts.process_environments", lambda: {7: b"\0A=1\0MARK=m1\0", 8: b"\0MARK=m10\0", 9: b""}
    )

    assert processes_with("MARK", {"m1", "m2"}) == [7]


def test_a_witness_that_was_killed_while_it_wrote_is_heard_until_then(tmp_path: Path) -> None:
    """Half a line says nothing."""
    witness = Witness(tmp_path / "witness")
    (tmp_path / "witness" / "told").write_text("j1 m1 begin 1.00\nj1 m1 on 2.00\nj1 m2 begin 3.00\nj1 m")

    [first, second] = witness.executions()["j1"]

    assert (first.last, first.ends, second.mark) == (2.0, 0, "m2")
    assert overlap_seconds([first, second]) == 0.0


def test_an_acknowledgement_that_does_not_stand_is_found(tmp_path: Path) -> None:
    """What a runner was told must be in the records, and no token may be shown to two."""
    speakers = Speakers(Deployment(tmp_path, store="", ttl_seconds=5, arguments=(), data=None), 0)
    token = ids.lease_id("q-1", 1, "s" * 20)
    speakers.acknowledged = [Acknowledgement(0.0, "r1", token, "Lease"), Acknowledgement(0.0, "r1", token, "Complete")]
    speakers.granted = {token: ["r1", "r2"]}

    assert len(speakers.broken({})) == 2
    assert "1 was acknowledged, and 0 were given" in speakers.broken({"q-1": Attempt(id="q-1", tenant="default")})[0]
    assert speakers.granted_twice() == [token]


# -- the page


def rows() -> list[Row]:
    """Some."""
    return [
        measured("power loss", "a cut", "nothing is lost", 0, "lost", 0, "a | b"),
        measured("disk full", "a log", "it recovers", 7.25, "s", 5),
        measured("disk full", "a log", "how long it took", 3, "s"),
        not_run("clock jumps", "a shim", "no compiler"),
    ]


def test_the_page_is_the_same_for_the_same_rows() -> None:
    """In whatever order they were read."""
    drawn = report.format_figures(rows())

    assert drawn == report.format_figures(rows()[::-1])
    assert drawn.index("### Clock jumps") < drawn.index("### Disk full") < drawn.index("### Power loss")
    assert "| a log | it recovers | 7.25 s | ≤ 5 | BROKEN |  |" in drawn
    told = "1 invariants held, 1 broken, 1 not run there, under 3 faults; and 1 figures without a limit."
    assert told in drawn
    assert "| a log | how long it took | 3 s |  |  |  |" in drawn


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    """The rest is written by people."""
    page = f"# Title\n\nwords\n\n{report.BEGIN}\nold\n{report.END}\n\nmore words\n"

    changed = report.replace_figures(page, "new")

    assert changed == f"# Title\n\nwords\n\n{report.BEGIN}\n\nnew\n\n{report.END}\n\nmore words\n"
    assert report.replace_figures(changed, "new") == changed
    with pytest.raises(report.NoMarkers, match="put them where the figures belong"):
        report.replace_figures("# Title\n", "new")


def test_the_page_of_the_project_has_its_markers() -> None:
    """Otherwise nobody could write the figures into it."""
    report.replace_figures(report.PAGE.read_text("utf-8"), "")
