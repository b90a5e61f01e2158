"""The stored explanation of a run's plan: why jobs are part of the run or not, or the problems that prevented it."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.pipeline.planning.plan import Plan
from deltaci.pipeline.planning.reuse import REUSED, SHORT_COMMIT

KIND: Final = "plan"  # of the documents in which reports are stored


class JobChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is part of a run, or was left out."""

    name: str
    job: str
    is_kept: bool
    code: str
    reason: str
    path: str = ""
    run: str = ""  # of a reused job: the run in which it succeeded with equal inputs, and its commit
    commit: str = ""


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of one plan."""

    file: str = ""
    name: str = ""
    compared_with: str = ""
    unknown_because: str = ""
    group: str = ""
    choices: tuple[JobChoice, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def has_reused_jobs(self) -> bool:
        """Whether jobs were left out because they had succeeded with equal inputs."""
        return any(choice.code == REUSED for choice in self.choices)


encode_report = msgspec.json.Encoder().encode
decode_report = msgspec.json.Decoder(PlanReport).decode


def report_name(run_id: str, plan_hash: str) -> str:
    """Return the name of the document with the report of a plan of a run."""
    return f"{run_id} {plan_hash}"


def report_of(plan: Plan, *, compared_with: str = "", unknown_because: str = "") -> PlanReport:
    """Return the report of a plan. `compared_with` is the commit to which the changed paths are relative."""
    planned = [
        JobChoice(name=job.spec.name, job=job.job, is_kept=True, code=job.code, reason=job.reason, path=job.path)
        for job in plan.jobs
    ]
    left_out = [
        JobChoice(
            name=job.name, job=job.job, is_kept=False, code=job.code, reason=job.reason, run=job.run, commit=job.commit
        )
        for job in plan.excluded
    ]
    return PlanReport(
        file=plan.file,
        name=plan.name,
        compared_with=compared_with,
        unknown_because=unknown_because,
        group=plan.group,
        choices=(*planned, *left_out),
    )


def describe_reuse(report: PlanReport) -> str:
    """Return how many jobs ran and were reused, as in "3 ran, 10 unchanged since 1a2b3c4"; empty if none was reused."""
    reused_commits = [choice.commit for choice in report.choices if choice.code == REUSED]
    if not reused_commits:
        return ""
    ran_count = sum(choice.is_kept for choice in report.choices)
    distinct_commits = list(dict.fromkeys(reused_commits))
    others = len(distinct_commits) - 1
    suffix = f" and {others} other {'commit' if others == 1 else 'commits'}" if others else ""
    return f"{ran_count} ran, {len(reused_commits)} unchanged since {distinct_commits[0][:SHORT_COMMIT]}{suffix}"
