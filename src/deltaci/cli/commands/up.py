"""`deltaci up`: start a server and a local runner without configuration, and show a first run."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from deltaci.app import HttpListener, Server, registration_token, write_url_file
from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.verify import Report, verify
from deltaci.cli.commands.web import signed_link
from deltaci.core import job, run
from deltaci.core.decide import StartRun
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.core.job import APPROVAL, Approve, JobSpec
from deltaci.core.plan import plan_hash
from deltaci.core.run import Run
from deltaci.core.status.steps import run_status
from deltaci.engine import event_loop, feed
from deltaci.git.url_policy import ALLOWABLE, UrlPolicy
from deltaci.runner.workspace.source_policy import KNOWN_PROTOCOLS, PROTOCOLS_VARIABLE
from deltaci.storage import open_store
from deltaci.storage.port import Unavailable

app = typer.Typer(add_completion=False)

TENANT: Final = "default"
STOP_SECONDS: Final = 10.0
FIRST_RUN_SECONDS: Final = 60.0
MAX_EVENTS: Final = 1_000_000


def _work(*steps: str) -> dict[str, Any]:
    return {"steps": list(steps), "executor": "process"}


PLAN: Final = (
    JobSpec(name="lint", work=_work("echo 'nothing to complain about'")),
    JobSpec(name="build", max_attempts=2, work=_work("mkdir out", "echo built > out/program", "cat out/program")),
    JobSpec(name="test", needs=("build",), work=_work("test 2 -eq $((1 + 1))")),
    JobSpec(name="approve", needs=("lint", "test"), kind=APPROVAL),
    JobSpec(name="deploy", needs=("approve",), work=_work("echo deployed")),
)


class FirstRun:
    """A small example run, which shows that the installation works: creates it and follows it to its end."""

    def __init__(self, service: Server, console: Console) -> None:
        self._service = service
        self._console = console
        self.id = ""

    async def begin(self) -> None:
        """Start it, under the first name that is free."""
        number = 1
        while await self._service.store.find(f"run-{number}") is not None:
            number += 1
        self.id = f"run-{number}"
        record = Run(id=self.id, run_id=self.id, tenant=TENANT)
        await self._service.engine.do(StartRun(id=self.id, record=record, jobs=PLAN, plan_hash=plan_hash(PLAN)))

    async def watch(self) -> Run:
        """Show what happens until it is reported. Approves what waits for a person: here that is you."""
        events = feed.follow(self._service.store, 0, run_id=self.id)
        async for event in events:
            self._show(event)
            if event.entity == "job" and job.MACHINE.changes(event.to, Approve):
                await self._service.engine.do(
                    Approve(id=event.entity_id, actor="user:you", comment="the first run approves itself")
                )
            if event.entity == "run" and event.to in run.TERMINAL:
                break
        record = await self._service.store.find(self.id)
        assert isinstance(record, Run)
        return record

    def _show(self, event: Event) -> None:
        if event.from_ != event.to and event.entity in ("run", "job"):
            change = f"{event.from_} → {event.to}" if event.from_ else event.to
            self._console.print(f"{event.seq:>5}  {event.entity_id:<16} {change:<28} {event.trigger}")


async def _save(service: Server, folder: Path) -> Report:
    """Leave the log where the next command finds it, and verify it."""
    log = await feed.read(service.store, 0, MAX_EVENTS)
    (folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in canonical_lines(log)))
    if service.control_plane.transitions is not None and log:
        with suppress(TimeoutError):
            await asyncio.wait_for(service.control_plane.transitions.written(log[-1].seq), STOP_SECONDS)
    return verify(canonical_lines(log))


async def _start_runner(url: str, folder: Path) -> asyncio.subprocess.Process:
    name = f"local-{secrets.token_hex(4)}"
    environment = {
        PROTOCOLS_VARIABLE: ",".join(KNOWN_PROTOCOLS),  # Repositories in folders are this machine's own.
        **os.environ,
        "DELTACI_TOKEN": registration_token(folder, name, TENANT, 60),
    }
    with (folder / "runner.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "deltaci", "runner", "--server", url, "--slots", "2"),
            *("--work", str(folder / "runner" / name)),
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us; the runner is told.
        )


async def _up(folder: Path, port: int, *, once: bool) -> int:
    console = Console(soft_wrap=True)
    stopped = asyncio.Event()
    url_policy = UrlPolicy(frozenset(ALLOWABLE))  # For one user, whose own folders are repositories, too.
    async with Server(open_store(f"sqlite:{folder / 'deltaci.db'}"), folder, url_policy=url_policy) as service:
        listener = HttpListener(service, "127.0.0.1", port)
        serving = asyncio.create_task(listener.serve())
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stopped.set)
        console.print(f"server on {listener.url}, data in {folder}/, runner log in {folder}/runner.log")
        address = write_url_file(folder, listener.url)
        runner = await _start_runner(listener.url, folder)
        try:
            code = await _first_run(service, console, folder, stopped)
            if not once and not stopped.is_set():
                console.print(
                    f"\nweb interface, signed in: {signed_link(listener.url, folder, TENANT)}", highlight=False
                )
                console.print("the link expires in ten minutes; 'deltaci web' prints a new one")
                console.print("\nrunning; Ctrl-C stops it")
                await stopped.wait()
        finally:
            with suppress(ProcessLookupError):
                runner.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(runner.wait(), STOP_SECONDS)
            if runner.returncode is None:
                runner.kill()
                await runner.wait()
            address.unlink(missing_ok=True)
            listener.stop()
            await serving
    return code


async def _first_run(service: Server, console: Console, folder: Path, stopped: asyncio.Event) -> int:
    first = FirstRun(service, console)
    await first.begin()
    watching = asyncio.create_task(first.watch())
    stopping = asyncio.create_task(stopped.wait())
    done, _ = await asyncio.wait({watching, stopping}, timeout=FIRST_RUN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if watching not in done:
        watching.cancel()
        if stopped.is_set():
            return 130
        console.print(f"\n{first.id} did not end within {FIRST_RUN_SECONDS:.0f} s; see {folder}/runner.log")
        return 1
    record = watching.result()
    report = await _save(service, folder)
    console.print(f"\n{first.id} is {record.state}, its status {run_status(record)}")
    console.print(f"{report.summary()}; check it with: deltaci verify {folder}/events.jsonl")
    return 0 if report.is_legal else 1


@app.command("up")
def up_command(
    once: Annotated[bool, typer.Option("--once", help="Stop after the first run.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 0,
) -> None:
    """Start a server and a runner on this machine, with SQLite in .state, and show a first run of five jobs.

    Writes the event log to .state/events.jsonl, and in the format of document 003 to .state/transitions.jsonl.
    """
    folder = Path(".state")
    try:
        folder.mkdir(exist_ok=True)
        code = event_loop.run(_up(folder, port, once=once))
    except (Refused, Unavailable, ValueError, OSError) as error:
        typer.echo(f"deltaci up: {error}", err=True)
        code = 1
    raise typer.Exit(code)
