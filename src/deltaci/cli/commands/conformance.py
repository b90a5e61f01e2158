"""`deltaci conformance`: check a runner or a server against the runner protocol."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from deltaci.conformance import results
from deltaci.conformance.http_client import HttpClient
from deltaci.conformance.results import CheckResult
from deltaci.conformance.runner_checks import RUNNER_CHECKS, check_runner, scenarios_for
from deltaci.conformance.scenario_execution import run_scenarios
from deltaci.conformance.server_checks import SERVER_CHECKS, check_server
from deltaci.core.errors import Refused
from deltaci.engine.blocking import BlockingQueue
from deltaci.engine.queue import AsyncQueue
from deltaci.storage import open_store
from deltaci.storage.port import Unavailable

COMPLIANT, NOT_COMPLIANT, BAD_CALL, INTERRUPTED = 0, 1, 2, 130
INDENT = " " * 11

app = typer.Typer(
    add_completion=False, help="Check a runner or a server against the runner protocol.", no_args_is_help=True
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="ITEM", help="Check only this item. May be repeated.")
]


@app.command("runner")
def runner_command(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command that starts the runner.")],
    only: OnlyOption = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, max=600, help="Seconds to wait for each expected action of the runner, including its start."
        ),
    ] = 20.0,
    json: JsonOption = False,
    transcript: Annotated[Path | None, typer.Option(help="Write everything observed to this file, as JSON.")] = None,
) -> None:
    """Test a runner in any language as a black box against the checklist of document 001.

    The command is started once per scenario, some of them in parallel. It
    receives the server URL, a registration token and a working folder in
    DELTACI_SERVER, DELTACI_TOKEN and DELTACI_WORK; its arguments may use
    {server}, {token} and {work}. Jobs are small shell commands; they must run
    on this machine, not isolated from it. See docs/conformance.md.

    Exits with 0 if nothing failed, 1 if something failed, 2 on
    invalid usage.
    """
    wanted = _wanted(only, [check.id for check in RUNNER_CHECKS])
    if shutil.which(command[0]) is None:
        fail(f"{command[0]!r} cannot be started: no such program; usage: deltaci conformance runner -- CMD…")
    started = time.monotonic()

    def tell(scenario: str, what: str) -> None:
        if not json:
            print(f"{time.monotonic() - started:5.1f} s  {scenario:<13} {what}", file=sys.stderr, flush=True)

    try:
        found = asyncio.run(_interruptible(run_scenarios(command, scenarios_for(wanted), timeout, tell)))
    except asyncio.CancelledError:
        fail("interrupted; all started processes have been stopped", INTERRUPTED)
    if transcript is not None:
        transcript.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    checked = check_runner(found, wanted)
    for item in checked if not json else ():
        _print(item, width=8)
    show(checked, time.monotonic() - started, as_json=json)


@app.command("server")
def server_command(
    url: Annotated[str, typer.Argument(help="The URL of the server, e.g. http://127.0.0.1:8080.")],
    token: Annotated[
        list[str],
        typer.Option("--token", help="A registration token. Give a second one to check isolation between runners."),
    ],
    store: Annotated[
        str,
        typer.Option(
            help="The store of the server, used to enqueue and cancel small jobs: sqlite:PATH or postgresql://…"
        ),
    ] = "",
    tenant: Annotated[str, typer.Option(help="The tenant of those jobs. The tokens must belong to it.")] = "default",
    patience: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds to wait for a lease or a credential to expire.")
    ] = 15.0,
    only: OnlyOption = None,
    json: JsonOption = False,
) -> None:
    """Test a server with a scripted runner and print the result of each check.

    Checks of leases need jobs: with --store the kit enqueues its own, one at
    a time. Without it, two jobs with the specification {"name":
    "deltaci-conformance", "steps": ["true"]} must be queued; a job of another
    name is never acknowledged. Nothing is executed. Use a separate tenant:
    deltaci token NAME --tenant conformance. See docs/conformance.md.

    Exits with 0 if nothing failed, 1 if something failed, 2 on
    invalid usage.
    """
    wanted = _wanted(only, [promise.id for promise in SERVER_CHECKS])
    started = time.monotonic()
    found: list[CheckResult] = []
    try:
        caller = HttpClient(url)
        with _work(store, tenant) as work:
            for item in check_server(caller, token, work, patience, wanted):
                found.append(item)
                if not json:
                    _print(item, width=17)
    except (ValueError, Refused, Unavailable) as error:
        fail(str(error))
    show(found, time.monotonic() - started, as_json=json)


class _LocalQueue:
    """The job queue of the server under test. Jobs are added directly to its store, not through its API."""

    def __init__(self, queue: BlockingQueue) -> None:
        self._queue = queue

    def enqueue(self, spec: dict[str, Any]) -> str:
        """Add a job."""
        return self._queue.enqueue(spec).id

    def cancel(self, id: str) -> None:
        """Ask for a stop."""
        self._queue.cancel(id)


@contextmanager
def _work(store: str, tenant: str) -> Iterator[_LocalQueue | None]:
    """Where the kit's jobs come from, if it may make them. Time is the server's business, so there are no timers."""
    if not store:
        yield None
        return
    with BlockingQueue(AsyncQueue(open_store(store), tenant=tenant, has_timers=False)) as queue:
        yield _LocalQueue(queue)


async def _interruptible(work: Any) -> Any:
    """Ctrl-C and SIGTERM end it in order: everything that was started is ended too."""
    task = asyncio.ensure_future(work)
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, task.cancel)
    return await task


def _wanted(only: list[str] | None, known: Sequence[str]) -> set[str]:
    unknown = sorted(set(only or ()) - set(known))
    if unknown:
        fail(f"unknown item {unknown[0]!r}; expected one of: {', '.join(known)}")
    return set(only or ())


def _print(item: CheckResult, width: int) -> None:
    print(f"{item.verdict:<10} {item.id:<{width}} {item.title}\n{INDENT}{item.evidence}", flush=True)


def show(found: Sequence[CheckResult], seconds: float, *, as_json: bool) -> None:
    """The result, and the exit code that it deserves."""
    is_compliant = results.is_compliant(found)
    if as_json:
        told = {"compliant": is_compliant, "seconds": round(seconds, 1), "items": found}
        print(msgspec.json.encode(told).decode())
    else:
        counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in (results.PASS, results.FAIL)}
        rest = len(found) - sum(counts.values())
        print(f"\n{counts[results.PASS]} passed, {counts[results.FAIL]} failed, {rest} not shown ({seconds:.1f} s)")
    raise typer.Exit(COMPLIANT if is_compliant else NOT_COMPLIANT)


def fail(message: str, code: int = BAD_CALL) -> NoReturn:
    """Say what is wrong with the call, and leave."""
    print(f"deltaci conformance: {message}", file=sys.stderr)
    raise typer.Exit(code)
