"""One call of `deltaci run`: adapts the plans to this machine, starts the runs, and collects their outcomes."""

from __future__ import annotations

import asyncio
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from deltaci.core import job
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.plan import job_names_to_rerun
from deltaci.core.run import Origin, Run
from deltaci.core.status.steps import run_status, step_status
from deltaci.core.worker import required_labels
from deltaci.local.engine import TENANT, LocalEngine
from deltaci.local.plans import LocalPlans, PlannedPipeline
from deltaci.local.watch import DecideApproval, RunWatcher, Screen
from deltaci.pipeline.planning.plan import Plan, PlannedJob, exclude_jobs

LAST_FILE: Final = "last.json"
SYSTEMS: Final = frozenset({"linux", "macos", "windows"})
# Network settings of this machine. They say nothing about the user, and without them a job could fetch nothing.
_NETWORK: Final = re.compile(
    r"(?i:https?_proxy|no_proxy|all_proxy)|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO"
    r"|NODE_EXTRA_CA_CERTS|PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|TRUSTED_HOST|DEFAULT_TIMEOUT)|UV_(INDEX_URL|DEFAULT_INDEX)"
    r"|NPM_CONFIG_REGISTRY|GOPROXY|GOFLAGS|CARGO_NET_\w+|TZ|TERM"
)


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was started."""

    run_id: str
    file: str
    plan: Plan


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    started: StartedRun
    run: Run
    jobs: list[Job]
    events: list[Event]

    @property
    def is_success(self) -> bool:
        """Whether every required job succeeded."""
        return run_status(self.run) == "SUCCEEDED"

    def as_json(self) -> dict[str, Any]:
        """Return the outcome for `--json`."""
        return {
            "file": self.started.file,
            "run": self.run.id,
            "status": run_status(self.run),
            "state": self.run.conclusion or self.run.state,
            "reason": self.run.reason,
            "plan_hash": self.started.plan.hash,
            "jobs": [
                {
                    "name": job.spec.name,
                    "status": step_status(job),
                    "reason": job.reason,
                    "attempts": job.attempts,
                    "error": job.last_error,
                }
                for job in self.jobs
            ],
            "left_out": self.started.plan.excluded,
        }


class LastRuns(msgspec.Struct, frozen=True):
    """The last run of each pipeline file."""

    runs: dict[str, str] = {}


def system_label() -> str:
    """Return this machine's operating system as a runner label."""
    return {"darwin": "macos"}.get(platform.system().lower(), platform.system().lower())


def runnable_plans(pipelines: Sequence[PlannedPipeline]) -> list[tuple[str, Plan]]:
    """Return the plans without the jobs for other operating systems, which are listed as excluded."""
    plans: list[tuple[str, Plan]] = []
    for pipeline in pipelines:
        if pipeline.plan is None:
            continue
        excluded = {
            planned_job.spec.name: (
                "other_machine",
                f"it runs on {', '.join(sorted(other_systems))}, and this machine is {system_label()}",
            )
            for planned_job in pipeline.plan.jobs
            if (other_systems := required_labels(planned_job.spec.queue_key) & (SYSTEMS - {system_label()}))
        }
        plans.append(
            (pipeline.file, exclude_jobs(pipeline.plan, excluded, are_done=False) if excluded else pipeline.plan)
        )
    return plans


def all_required_labels(plans: Sequence[tuple[str, Plan]]) -> list[str]:
    """Return all labels that the jobs require: locally, this machine provides all of them."""
    return sorted(
        {
            label
            for _, plan in plans
            for planned_job in plan.jobs
            for label in required_labels(planned_job.spec.queue_key)
        }
    )


def read_last_runs(folder: Path) -> LastRuns:
    """Read the runs of the previous call."""
    try:
        return msgspec.json.decode((folder / LAST_FILE).read_bytes(), type=LastRuns)
    except (FileNotFoundError, msgspec.MsgspecError):
        return LastRuns()


class Session:
    """Starts the runs, shows them until they end, and remembers them for `--failed`."""

    def __init__(self, engine: LocalEngine, local_plans: LocalPlans, plans: Sequence[tuple[str, Plan]]) -> None:
        self._engine = engine
        self._local_plans = local_plans
        self._plans = list(plans)
        self._started: list[StartedRun] = []

    async def select_failed_jobs(self) -> None:
        """Plan only the jobs that did not succeed in the last runs, the jobs after them, and the approvals before
        these.

        A file without an earlier run keeps all jobs. Raise `Refused` if no file has an earlier run, or every job
        succeeded.
        """
        last_runs = read_last_runs(self._engine.folder).runs
        if not any(file_path in last_runs for file_path, _ in self._plans):
            raise Refused("wrong_state", "there is no earlier run here; run it without --failed first")
        narrowed: list[tuple[str, Plan]] = []
        for file_path, plan in self._plans:
            reasons_to_skip: dict[str, tuple[str, str]] = {}
            if run_id := last_runs.get(file_path, ""):
                earlier_jobs = await self._earlier_jobs(run_id, {planned_job.spec.name for planned_job in plan.jobs})
                to_rerun = job_names_to_rerun(earlier_jobs)
                reasons_to_skip = {
                    job_name: ("succeeded_before", f"it succeeded in {job.run_id}")
                    for job_name, job in earlier_jobs.items()
                }
                reasons_to_skip = {
                    job_name: why for job_name, why in reasons_to_skip.items() if job_name not in to_rerun
                }
            narrowed.append((file_path, exclude_jobs(plan, reasons_to_skip, are_done=True)))
        self._plans = [
            (file_path, plan) for file_path, plan in narrowed if any(_is_task(planned_job) for planned_job in plan.jobs)
        ]
        if not self._plans:
            raise Refused("wrong_state", "everything succeeded the last time; run it without --failed")

    async def _earlier_jobs(self, run_id: str, job_names: set[str]) -> dict[str, Job]:
        """Return these jobs of a run. Jobs that it did not repeat are taken from the run that it is a rerun of."""
        job_by_name: dict[str, Job] = {}
        while run_id and (missing_names := sorted(job_names - set(job_by_name))):
            job_by_name |= {job.spec.name: job for job in await self._engine.jobs(run_id, missing_names)}
            run_record = await self._engine.store.find(run_id)
            run_id = run_record.rerun_of if isinstance(run_record, Run) else ""
        return job_by_name

    def set_secrets(self, secret_by_name: Mapping[str, str]) -> None:
        """Store secrets for the jobs."""
        for secret_name, secret in secret_by_name.items():
            self._engine.secrets.set(TENANT, secret_name, secret)

    async def run(
        self, screen: Screen, decide: DecideApproval, env: Mapping[str, str], *, is_again: bool
    ) -> list[Outcome]:
        """Start all runs and show them until they end."""
        last_runs = read_last_runs(self._engine.folder).runs
        for file_path, plan in self._plans:
            run_id = await self._engine.start(
                _with_env(plan, env), self._origin(file_path), rerun_of=last_runs.get(file_path, "") if is_again else ""
            )
            self._started.append(StartedRun(run_id=run_id, file=file_path, plan=plan))
        run_ids = {**last_runs, **{started.file: started.run_id for started in self._started}}
        (self._engine.folder / LAST_FILE).write_bytes(msgspec.json.encode(LastRuns(run_ids)))
        watchers = [RunWatcher(self._engine, started.run_id, screen, decide).watch() for started in self._started]
        runs = await asyncio.gather(*watchers)
        return [
            Outcome(
                started=started,
                run=run,
                jobs=await self._engine.jobs(run.id, [job.spec.name for job in started.plan.jobs]),
                events=await self._engine.events(run.id),
            )
            for started, run in zip(self._started, runs, strict=True)
        ]

    async def cancel(self) -> None:
        """Cancel all runs."""
        for started in self._started:
            await self._engine.cancel(started.run_id, "Ctrl-C")

    @property
    def job_names(self) -> list[str]:
        """The names of all jobs."""
        return [planned_job.spec.name for _, plan in self._plans for planned_job in plan.jobs]

    def _origin(self, file_path: str) -> Origin:
        change = self._local_plans.change
        return Origin(
            branch=change.branch,
            repository=change.repository,
            commit=change.commit,
            title=change.title,
            file=file_path,
        )


def job_environment(assignments: Sequence[str]) -> dict[str, str]:
    """Return the environment for jobs: the network settings of this machine and the variables in `assignments`."""
    variables = {variable: value for variable, value in os.environ.items() if _NETWORK.fullmatch(variable)}
    for assignment in assignments:
        variable, has_value, value = assignment.partition("=")
        if not has_value and variable not in os.environ:
            raise Refused("bad_request", f"--env {variable!r}: there is no such variable here; give {variable}=VALUE")
        variables[variable] = value if has_value else os.environ[variable]
    return variables


def _is_task(planned_job: PlannedJob) -> bool:
    return planned_job.spec.kind == job.TASK


def _with_env(plan: Plan, env: Mapping[str, str]) -> Plan:
    """Add these variables to every job; a job's own ones take precedence."""
    jobs = tuple(
        structs.replace(
            planned_job,
            spec=structs.replace(
                planned_job.spec, work={**planned_job.spec.work, "env": {**env, **planned_job.spec.work.get("env", {})}}
            ),
        )
        if _is_task(planned_job)
        else planned_job
        for planned_job in plan.jobs
    )
    return structs.replace(plan, jobs=jobs)
