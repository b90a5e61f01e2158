"""`deltaci run`: run the pipelines of a repository locally, with the planner, engine and runner of a server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.cli.commands.plan import as_json
from deltaci.cli.local_options import (
    BaseOption,
    EventOption,
    FileOption,
    FolderOption,
    InputOption,
    JobOption,
    JsonOption,
    MatrixOption,
    failing,
    looked_at,
    opened,
    state_folder,
    tell_problems,
)
from deltaci.cli.output import console, safe, span, status
from deltaci.cli.run_view import LineOutput, LiveBoard
from deltaci.client.atomic_file import AtomicFile
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.status.steps import run_status, step_status
from deltaci.engine import event_loop
from deltaci.local.engine import open_engine
from deltaci.local.plans import LocalPlans
from deltaci.local.session import Outcome, Session, all_required_labels, job_environment, runnable_plans
from deltaci.local.watch import DecideApproval
from deltaci.storage import open_store

app = typer.Typer(add_completion=False)

GOOD, BAD, STOPPED = 0, 1, 130
EVENTS_FILE = "events.jsonl"


ChangedOption = Annotated[
    bool, typer.Option("--changed", help="Only jobs affected by local changes; see `deltaci plan`.")
]
FailedOption = Annotated[
    bool, typer.Option("--failed", help="Only jobs that did not succeed last time, with the outputs of the others.")
]
SlotsOption = Annotated[int, typer.Option(min=0, max=1000, help="Number of parallel jobs; 0: the number of CPUs.")]
SecretOption = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="Pass this environment variable to jobs as a secret."),
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME[=VALUE]", help="Set this variable in every job.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Approve all approval gates.")]
LogOption = Annotated[bool, typer.Option("--log", "-l", help="Print the full output of jobs.")]


@app.command("run")
def run_command(
    folder: FolderOption = Path(),
    file: FileOption = None,
    event: EventOption = "push",
    input: InputOption = None,
    base: BaseOption = "",
    changed: ChangedOption = False,
    job: JobOption = None,
    matrix: MatrixOption = None,
    failed: FailedOption = False,
    slots: SlotsOption = 0,
    secret: SecretOption = None,
    env: EnvOption = None,
    yes: YesOption = False,
    log: LogOption = False,
    json: JsonOption = False,
) -> None:
    """Run the pipelines of this repository locally, without a server.

    Runs the working tree, including uncommitted changes: each job gets its own copy. The planner, engine and runner are
    those of a server. Logs are kept in .state/local/runs, with the event log of each run for 'deltaci verify'. Ctrl-C
    cancels the run; a second one stops immediately.

    Exits with 0 if every run succeeded, 1 if one did not or could not be planned, 2 if nothing could be started.

    Examples:

      deltaci run

      deltaci run --job test --matrix python=3.12

      deltaci run --failed
    """
    with failing("run"):
        tree = opened(folder)
        is_all = not (changed or base)
        local_plans = looked_at(
            tree, files=file, event=event, inputs=input, base=base, is_all=is_all, jobs=job, matrix=matrix
        )
        _check(local_plans, is_json=json)
        asked = _RunOptions(
            state=state_folder(tree.root),
            local_plans=local_plans,
            slots=slots or os.cpu_count() or 1,
            secrets=_secrets(secret or ()),
            env=job_environment(env or ()),
            is_failed_only=failed,
            is_sure=yes,
            is_chatty=log,
            is_json=json,
        )
        outcomes, is_stopped = event_loop.run(_run(asked))
        event_logs = [_write_event_log(asked.state, outcome) for outcome in outcomes]
    if json:
        print(msgspec.json.encode(list(map(_as_json, outcomes, event_logs))).decode())
    else:
        _tell(outcomes, event_logs, local_plans)
    is_good = bool(outcomes) and all(each.is_success for each in outcomes)
    raise typer.Exit(STOPPED if is_stopped else GOOD if is_good or not outcomes else BAD)


class _RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed options of one `deltaci run`."""

    state: Path
    local_plans: LocalPlans
    slots: int
    secrets: dict[str, str]
    env: dict[str, str]
    is_failed_only: bool
    is_sure: bool
    is_chatty: bool
    is_json: bool


async def _run(asked: _RunOptions) -> tuple[list[Outcome], bool]:
    plans = runnable_plans(asked.local_plans.pipelines)
    if not any(plan.jobs for _, plan in plans):
        return [], False
    stopped = asyncio.Event()
    store = open_store(f"sqlite:{asked.state / 'deltaci.db'}")
    asked.state.mkdir(parents=True, exist_ok=True)
    async with open_engine(asked.state, store, labels=all_required_labels(plans), slots=asked.slots) as local_engine:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, _on_signal, stopped)
        session = Session(local_engine, asked.local_plans, plans)
        if asked.is_failed_only:
            await session.select_failed_jobs()
        session.set_secrets(asked.secrets)
        with _screen(asked) as screen:
            screen.expect(session.job_names)
            running = asyncio.create_task(
                session.run(screen, _decider(asked), asked.env, is_again=asked.is_failed_only)
            )
            stopping = asyncio.create_task(stopped.wait())
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if stopped.is_set():
                await session.cancel()
            return await running, stopped.is_set()


def _on_signal(stopped: asyncio.Event) -> None:
    if stopped.is_set():
        os._exit(STOPPED)  # Asked twice: what the jobs' own guards see is that we are gone.
    print("deltaci run: cancelling; press Ctrl-C again to stop immediately", file=sys.stderr)
    stopped.set()


def _screen(asked: _RunOptions) -> LineOutput | LiveBoard:
    if asked.is_json:
        return LineOutput(Console(file=sys.stderr, highlight=False, markup=False), is_chatty=asked.is_chatty)
    out = console()
    return LiveBoard(out) if out.is_terminal and not asked.is_chatty else LineOutput(out, is_chatty=asked.is_chatty)


def _decider(asked: _RunOptions) -> DecideApproval:
    async def decide(waiting: Job) -> bool:
        if asked.is_sure:
            return True
        if not sys.stdin.isatty():
            print(
                f"deltaci run: {waiting.spec.name} needs approval, but there is no terminal; rejected. Use --yes",
                file=sys.stderr,
            )
            return False
        answer = await asyncio.to_thread(input, f"approve {waiting.spec.name}? [y/N] ")
        return answer.strip().lower() in ("y", "yes")

    return decide


def _secrets(names: Sequence[str]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise Refused("bad_request", f"--secret {missing[0]!r}: the environment variable is not set; set it")
    return {name: os.environ[name] for name in names}


def _check(local_plans: LocalPlans, *, is_json: bool) -> None:
    """Nothing runs of what is broken. A workflow of GitHub that is outside of our subset keeps no others back."""
    bad = [each for each in local_plans.pipelines if each.problems]
    if any(not each.is_foreign for each in bad) or (bad and not any(each.plan for each in local_plans.pipelines)):
        _refuse(local_plans, is_json=is_json)
    for each in bad:
        count = len(each.problems)
        reasons = f"{count} reason{'' if count == 1 else 's'}, the first in line {each.problems[0].line}"
        print(
            f"{safe(each.file)}: not run, it uses unsupported features ({reasons}); see: deltaci plan --file "
            f"{safe(each.file)}",
            file=sys.stderr,
        )


def _refuse(local_plans: LocalPlans, *, is_json: bool) -> None:
    if is_json:
        print(msgspec.json.encode(as_json(local_plans.pipelines, local_plans.comparison)).decode())
    else:
        for each in local_plans.pipelines:
            tell_problems(each)
        print("deltaci run: nothing was run; fix these problems first", file=sys.stderr)
    raise typer.Exit(BAD)


def _write_event_log(state: Path, outcome: Outcome) -> Path:
    """Write the events of a run as a canonical log, which `deltaci verify` accepts. Return its path."""
    path = state / "runs" / outcome.run.id / EVENTS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as draft:
        for line in canonical_lines(outcome.events):
            draft.write(line + b"\n")
    return path


def _as_json(outcome: Outcome, event_log: Path) -> dict[str, Any]:
    return {**outcome.as_json(), "event_log": str(event_log)}


def _shortest(path: Path) -> str:
    """Return the path relative to the current folder if it is inside, so that it can be pasted into a command."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _tell(outcomes: list[Outcome], event_logs: list[Path], local_plans: LocalPlans) -> None:
    out = console()
    if not outcomes:
        for planned in local_plans.pipelines:
            out.print(f"{safe(planned.file)}: nothing to run; {safe(planned.reason)}", soft_wrap=True)
    for each, event_log in zip(outcomes, event_logs, strict=True):
        run = each.run
        line = Text(f"{safe(each.started.file)} {safe(run.id)} ", style="bold").append_text(status(run_status(run)))
        if run.started_at:
            line.append(f" in {span((run.updated_at - run.started_at) / SECOND)}", style="not bold")
        counts = Counter(step_status(job).lower() for job in each.jobs)
        told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items(), key=lambda pair: -pair[1]))
        left = f"; {len(each.started.plan.excluded)} left out" if each.started.plan.excluded else ""
        out.print(line.append(f": {told}{left}", style="not bold"), soft_wrap=True)
        out.print(f"event log: {safe(_shortest(event_log))}", style="dim", soft_wrap=True)
    if any(not each.is_success for each in outcomes):
        out.print("logs are in .state/local/runs; rerun failed jobs with: deltaci run --failed", style="dim")
