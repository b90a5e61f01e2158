"""Print the plan of a run: which jobs run, which do not, and why."""

from __future__ import annotations

from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.cli.output import TableOutput, console, facts, safe, show
from deltaci.cli.session import CommandSession


def show_plan(session: CommandSession, run_id: str) -> None:
    """Print the plan of a run with the reason for every job, or the problems that prevented it."""
    plan = session.client.plan(run_id)
    if session.is_json:
        session.print_json(plan)
        return
    out = console()
    for problem in plan.problems:
        out.print(safe(problem, 2000), soft_wrap=True)
    compared = plan.compared_with or (f"nothing: {plan.unknown_because}" if plan.unknown_because else "")
    show(facts((("file", plan.file), ("compared with", compared), ("group", plan.group), ("plan", plan.plan_hash))))
    rows = TableOutput("JOB", "RUNS", "~WHY", "~NEEDS")
    needs = {job.name: ", ".join(job.needs) for job in plan.jobs}
    for each in plan.choices or _all(plan):
        mark = Text("yes", style="green") if each.is_kept else Text("no", style="dim")
        rows.add(each.name, mark, each.reason, needs.get(each.name, ""))
    out.print()
    rows.print("no jobs")


def _all(plan: api.Plan) -> list[api.JobChoice]:
    """Return a choice without a reason for each job of a plan that was not made from a file."""
    return [
        api.JobChoice(name=job.name, job=job.name, is_kept=True, code="asked", reason="", path="") for job in plan.jobs
    ]
