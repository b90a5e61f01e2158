"""`deltaci plan`: show which jobs would run in this repository, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.text import Text

from deltaci.cli.local_options import (
    AllOption,
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
    tell_problems,
)
from deltaci.cli.output import console, safe
from deltaci.local.plans import PlannedPipeline
from deltaci.pipeline.planning.plan import Plan

app = typer.Typer(add_completion=False)

GOOD, BAD = 0, 1
HASH_SHOWN: Final = 12


@app.command("plan")
def plan_command(
    folder: FolderOption = Path(),
    file: FileOption = None,
    event: EventOption = "push",
    input: InputOption = None,
    base: BaseOption = "",
    all_: AllOption = False,
    job: JobOption = None,
    matrix: MatrixOption = None,
    json: JsonOption = False,
) -> None:
    """Show which jobs would run in this repository, and why. Runs nothing and needs no uses the same planner.

    The working tree counts, including uncommitted changes; it is compared with the merge base of this branch. A server
    uses the same planner.

    Examples:

      deltaci plan

      deltaci plan --base origin/main --event pull_request

      deltaci plan --all --json
    """
    with failing("plan"):
        seen = looked_at(
            opened(folder), files=file, event=event, inputs=input, base=base, is_all=all_, jobs=job, matrix=matrix
        )
        if json:
            print(msgspec.json.encode(as_json(seen.pipelines, seen.comparison)).decode())
        else:
            for each in seen.pipelines:
                _show(each, seen.comparison)
        raise typer.Exit(BAD if any(each.problems for each in seen.pipelines) else GOOD)


def as_json(planned: list[PlannedPipeline], compared: str) -> dict[str, Any]:
    """All of it, for programs."""
    return {"compared_with": compared, "pipelines": [_one(each) for each in planned]}


def _one(each: PlannedPipeline) -> dict[str, Any]:
    told: dict[str, Any] = {
        "file": each.file,
        "is_triggered": each.is_triggered,
        "reason": each.reason,
        "problems": each.problems,
    }
    if each.plan is not None:
        told["hash"] = each.plan.hash
        told["jobs"] = [
            {
                "name": kept.spec.name,
                "job": kept.job,
                "code": kept.code,
                "reason": kept.reason,
                "matrix": kept.matrix,
                "needs": kept.spec.needs,
                "after": kept.spec.after,
                "work": kept.spec.work,
            }
            for kept in each.plan.jobs
        ]
        told["left_out"] = each.plan.excluded
    return told


def _show(each: PlannedPipeline, compared: str) -> None:
    out = console()
    head = Text(safe(each.file), style="bold")
    if each.plan is not None and each.plan.name not in ("", each.file):
        head.append(f"  {safe(each.plan.name)}", style="not bold")
    out.print(head, soft_wrap=True)
    if each.problems:
        tell_problems(each)
        return
    if each.plan is None:
        out.print(f"  does not run: {safe(each.reason)}", soft_wrap=True)
        return
    out.print(Text(f"  {safe(each.reason)}; {safe(compared)}", style="dim"), soft_wrap=True)
    _show_jobs(each.plan)
    jobs = len(each.plan.jobs)
    left = f", {len(each.plan.excluded)} left out" if each.plan.excluded else ""
    short = each.plan.hash[:HASH_SHOWN]
    out.print(Text(f"  {jobs} job{'' if jobs == 1 else 's'}{left}; plan {short}", style="dim"), soft_wrap=True)


def _show_jobs(plan: Plan) -> None:
    out = console()
    names = [each.spec.name for each in plan.jobs] + [each.name for each in plan.excluded]
    width = max(map(len, names), default=0)
    for kept in plan.jobs:
        line = Text("  run       ", style="green").append(f"{safe(kept.spec.name):<{width}}", style="bold not dim")
        waits = ", ".join((*kept.spec.needs, *kept.spec.after))
        after = f" (after {safe(waits)})" if waits else ""
        out.print(line.append(f"  {safe(kept.reason)}{after}", style="default not bold"), soft_wrap=True)
    for gone in plan.excluded:
        line = Text("  left out  ", style="dim").append(f"{safe(gone.name):<{width}}")
        out.print(line.append(f"  {safe(gone.reason)}"), soft_wrap=True)
