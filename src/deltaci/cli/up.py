"""`deltaci up`: see it work. For now one planned run goes through the core, and its log is verified."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from deltaci.core import attempt, ids, run
from deltaci.core.attempt import Attempt
from deltaci.core.decide import Decision, Plan, decide
from deltaci.core.events import Event, numbered, worker_actor
from deltaci.core.instants import SECOND
from deltaci.core.job import APPROVAL, Approve, JobSpec
from deltaci.core.machine import Command
from deltaci.core.reactions import Birth
from deltaci.core.run import Run
from deltaci.core.verify import Report, verify
from deltaci.core.views.canonical import lines
from deltaci.core.views.steps import run_status
from deltaci.core.views.transitions import Transitions
from deltaci.core.worker import Worker
from deltaci.core.world import World

app = typer.Typer()

PLAN = (
    JobSpec(name="lint"),
    JobSpec(name="build", max_attempts=2),
    JobSpec(name="test", needs=("build",)),
    JobSpec(name="approve", needs=("lint", "test"), kind=APPROVAL),
    JobSpec(name="deploy", needs=("approve",)),
)
WORKER = "worker-1"


class Demo:
    """One deployment in memory, with one worker, at a made-up pace."""

    def __init__(self, now: int) -> None:
        self.world, self.now = World(is_complete=True), now
        self.log: list[Event] = []

    def do(self, command: Command) -> Decision:
        """Apply a command a second later."""
        self.now += SECOND
        decision = decide(self.world, command, self.now)
        self.log += [numbered(event, len(self.log) + n) for n, event in enumerate(decision.events, 1)]
        return decision

    def work(self) -> bool:
        """Take the next attempt that waits, and finish it. False when none waits."""
        waiting = [r for r in self.world.records.values() if isinstance(r, Attempt) and r.state == attempt.QUEUED]
        if not waiting:
            return False
        token = ids.lease_id(waiting[0].id, waiting[0].claims + 1, "shown-to-its-runner-only")
        actor, id = worker_actor(WORKER), waiting[0].id
        self.do(attempt.Grant(id=id, actor=actor, fingerprint=ids.lease_fingerprint(token)))
        for message in (attempt.Ack, attempt.Heartbeat):
            self.do(message(id=id, actor=actor, lease=ids.lease_ref(token)))
        self.do(attempt.Complete(id=id, actor=actor, lease=ids.lease_ref(token), is_success=True, exit_code=0))
        return True


def play(now: int) -> tuple[Demo, Report]:
    """Run the plan to its end and verify what was logged."""
    demo = Demo(now)
    demo.do(Birth(id=WORKER, record=Worker(id=WORKER, labels=("linux",))))
    demo.do(Birth(id="run-1", record=Run(id="run-1", run_id="run-1")))
    demo.do(run.BeginPlanning(id="run-1"))
    demo.do(Plan(id="run-1", jobs=PLAN, plan_hash="demo"))
    while demo.work():
        pass
    demo.do(Approve(id="run-1/approve", actor="user:you", comment="looks good"))
    while demo.work():
        pass
    demo.do(run.Report(id="run-1", actor="reporter"))
    return demo, verify(lines(demo.log))


def save(log: list[Event], folder: Path) -> None:
    """Leave the log where the next command finds it."""
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines(log)))
    exported = (msgspec.json.encode(line) for line in Transitions().export(log))
    (folder / "transitions.jsonl").write_bytes(b"".join(line + b"\n" for line in exported))


@app.command("up")
def up_command(
    once: Annotated[bool, typer.Option("--once", help="Stop after the first run (for now, always so).")] = False,
) -> None:
    """See it work: a run of five jobs, its events, and the proof that every step was legal.

    Leaves the log in .state/events.jsonl, and as document 003 writes it in .state/transitions.jsonl.
    """
    demo, report = play(time.time_ns() // 1000)
    save(demo.log, Path(".state"))
    console = Console()
    table = Table("seq", "what", "change", "because", box=None, header_style="bold")
    for event in demo.log:
        if event.from_ != event.to and event.entity in ("run", "job"):
            change = f"{event.from_} → {event.to}" if event.from_ else event.to
            table.add_row(str(event.seq), event.entity_id, change, event.trigger)
    console.print(table)
    final = demo.world.run("run-1")
    console.print(f"\nrun-1 is {final.state}, its status {run_status(final)}, after {len(demo.log)} events")
    console.print(f"{report.summary()}; see for yourself: deltaci verify .state/events.jsonl")
    raise typer.Exit(0 if report.is_legal else 1)
