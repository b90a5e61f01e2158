"""`deltaci conformance`: does this runner, or this server, keep the protocol?"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from deltaci.conformance import items
from deltaci.conformance.items import Item
from deltaci.conformance.play import play
from deltaci.conformance.verdicts import CHECKS, judge, scenarios_for

COMPLIANT, NOT_COMPLIANT, BAD_CALL, INTERRUPTED = 0, 1, 2, 130
INDENT = " " * 20

app = typer.Typer(help="Check a runner or a server against the runner protocol.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="ITEM", help="Only this item; may be repeated.")
]


@app.command("runner", context_settings={"ignore_unknown_options": True})
def runner_command(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="How the runner is started.")],
    only: OnlyOption = None,
    timeout: Annotated[
        float, typer.Option(min=1, max=600, help="Seconds to wait for what the runner has to do, its start included.")
    ] = 20.0,
    json: JsonOption = False,
    transcript: Annotated[Path | None, typer.Option(help="Write all that was observed to this file, as JSON.")] = None,
) -> None:
    """Drive any runner, in any language, as a black box, and print the checklist of document 001 item by item.

    The command is started once for each scenario, some at the same time. It finds the server's address, a
    registration token and a folder of its own in DELTACI_SERVER, DELTACI_TOKEN and DELTACI_WORK; its words may
    name them as {server}, {token} and {work}. Jobs are small shell commands; they must run on this machine, not
    isolated from it.

    Exits with 0 when nothing failed, 1 when something did, and 2 when the command cannot be started.
    """
    wanted = _wanted(only, [check.id for check in CHECKS])
    if shutil.which(command[0]) is None:
        fail(f"{command[0]!r} cannot be started: there is no such program; write: deltaci conformance runner -- CMD…")
    started = time.monotonic()

    def tell(scenario: str, what: str) -> None:
        if not json:
            print(f"{time.monotonic() - started:5.1f} s  {scenario:<13} {what}", file=sys.stderr, flush=True)

    try:
        found = asyncio.run(_interruptible(play(command, scenarios_for(wanted), timeout, tell)))
    except asyncio.CancelledError:
        fail("interrupted; nothing that was started is left", INTERRUPTED)
    if transcript is not None:
        transcript.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    show(judge(found, wanted), time.monotonic() - started, as_json=json)


async def _interruptible(work: Any) -> Any:
    """Ctrl-C and SIGTERM end it in order: everything that was started is ended too."""
    task = asyncio.ensure_future(work)
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, task.cancel)
    return await task


def _wanted(only: list[str] | None, known: Sequence[str]) -> set[str]:
    unknown = sorted(set(only or ()) - set(known))
    if unknown:
        fail(f"there is no item {unknown[0]!r}; expected one of: {', '.join(known)}")
    return set(only or ())


def show(found: Sequence[Item], seconds: float, *, as_json: bool) -> None:
    """The checklist, and the exit code that it deserves."""
    is_compliant = items.is_compliant(found)
    if as_json:
        told = {"compliant": is_compliant, "seconds": round(seconds, 1), "items": found}
        print(msgspec.json.encode(told).decode())
    else:
        for each in found:
            print(f"{each.verdict:<10} {each.id:<8} {each.title}\n{INDENT}{each.evidence}")
        counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in (items.PASS, items.FAIL)}
        rest = len(found) - sum(counts.values())
        print(f"\n{counts[items.PASS]} passed, {counts[items.FAIL]} failed, {rest} not shown ({seconds:.1f} s)")
    raise typer.Exit(COMPLIANT if is_compliant else NOT_COMPLIANT)


def fail(message: str, code: int = BAD_CALL) -> None:
    """Say what is wrong with the call, and leave."""
    print(f"deltaci conformance: {message}", file=sys.stderr)
    raise typer.Exit(code)
