"""One call of `deltaci run`: the plans made fit for this machine, the runs, and how they ended."""

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
from deltaci.core.job import Job
from deltaci.core.plan import job_names_to_rerun
from deltaci.core.run import Origin, Run
from deltaci.core.status.steps import run_status, step_status
from deltaci.core.worker import required_labels
from deltaci.local.engine import TENANT, Engine
from deltaci.local.plans import Planned, Seen
from deltaci.local.watch import Decide, Screen, Watch
from deltaci.pipeline.planning.plan import Plan, PlannedJob, exclude_jobs

LAST_FILE: Final = "last.json"
SYSTEMS: Final = frozenset({"linux", "macos", "windows"})
# How this machine reaches the world: nothing of it is about the person, and without it a job could fetch nothing.
_NETWORK: Final = re.compile(
    r"(?i:https?_proxy|no_proxy|all_proxy)|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO"
    r"|NODE_EXTRA_CA_CERTS|PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|TRUSTED_HOST|DEFAULT_TIMEOUT)|UV_(INDEX_URL|DEFAULT_INDEX)"
    r"|NPM_CONFIG_REGISTRY|GOPROXY|GOFLAGS|CARGO_NET_\w+|TZ|TERM"
)


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was started."""

    run_id: str
    file: str
    plan: Plan


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    begun: Begun
    run: Run
    jobs: list[Job]

    @property
    def is_success(self) -> bool:
        """Whether everything that must succeed did."""
        return run_status(self.run) == "SUCCEEDED"

    def told(self) -> dict[str, Any]:
        """For programs."""
        return {
            "file": self.begun.file,
            "run": self.run.id,
            "status": run_status(self.run),
            "state": self.run.conclusion or self.run.state,
            "reason": self.run.reason,
            "plan_hash": self.begun.plan.hash,
            "jobs": [
                {
                    "name": each.spec.name,
                    "status": step_status(each),
                    "reason": each.reason,
                    "attempts": each.attempts,
                    "error": each.last_error,
                }
                for each in self.jobs
            ],
            "left_out": self.begun.plan.excluded,
        }


class Last(msgspec.Struct, frozen=True):
    """The last runs here, by their pipeline files."""

    runs: dict[str, str] = {}


def system() -> str:
    """What this machine is, as runners' labels call it."""
    return {"darwin": "macos"}.get(platform.system().lower(), platform.system().lower())


def runnable(planned: Sequence[Planned]) -> list[tuple[str, Plan]]:
    """The plans, without what is for machines of another kind; that is told as left out."""
    found: list[tuple[str, Plan]] = []
    for each in planned:
        if each.plan is None:
            continue
        foreign = {
            kept.spec.name: ("other_machine", f"it runs on {', '.join(sorted(other))}, and this machine is {system()}")
            for kept in each.plan.jobs
            if (other := required_labels(kept.spec.queue_key) & (SYSTEMS - {system()}))
        }
        found.append((each.file, exclude_jobs(each.plan, foreign, are_done=False) if foreign else each.plan))
    return found


def labels(plans: Sequence[tuple[str, Plan]]) -> list[str]:
    """Every label that a job asks for: here this machine stands for all of them."""
    return sorted({label for _, plan in plans for kept in plan.jobs for label in required_labels(kept.spec.queue_key)})


def last(folder: Path) -> Last:
    """The runs before this one."""
    try:
        return msgspec.json.decode((folder / LAST_FILE).read_bytes(), type=Last)
    except (FileNotFoundError, msgspec.MsgspecError):
        return Last()


class Session:
    """Starts the runs, shows them until they are over, and remembers them for the next time."""

    def __init__(self, engine: Engine, seen: Seen, plans: Sequence[tuple[str, Plan]]) -> None:
        self._engine = engine
        self._seen = seen
        self._plans = list(plans)
        self._begun: list[Begun] = []

    async def only_failed(self) -> None:
        """Of each plan, keep only what did not succeed the last time."""
        before = last(self._engine.folder).runs
        if not any(file in before for file, _ in self._plans):
            raise Refused("wrong_state", "there is no earlier run here; run it without --failed first")
        narrowed: list[tuple[str, Plan]] = []
        for file, plan in self._plans:
            done: dict[str, tuple[str, str]] = {}
            if run_id := before.get(file, ""):
                known = await self._earlier(run_id, {kept.spec.name for kept in plan.jobs})
                again = job_names_to_rerun(known)
                done = {name: ("succeeded_before", f"it succeeded in {each.run_id}") for name, each in known.items()}
                done = {name: why for name, why in done.items() if name not in again}
            narrowed.append((file, exclude_jobs(plan, done, are_done=True)))
        self._plans = [(file, plan) for file, plan in narrowed if any(_is_work(kept) for kept in plan.jobs)]
        if not self._plans:
            raise Refused("wrong_state", "everything succeeded the last time; run it without --failed")

    async def _earlier(self, run_id: str, names: set[str]) -> dict[str, Job]:
        """These jobs of a run; those that it did not repeat are of the run that it went on from."""
        found: dict[str, Job] = {}
        while run_id and (left := sorted(names - set(found))):
            found |= {each.spec.name: each for each in await self._engine.jobs(run_id, left)}
            record = await self._engine.store.find(run_id)
            run_id = record.rerun_of if isinstance(record, Run) else ""
        return found

    def give(self, values: Mapping[str, str]) -> None:
        """Let jobs have these secrets."""
        for name, value in values.items():
            self._engine.secrets.set(TENANT, name, value)

    async def run(self, screen: Screen, decide: Decide, env: Mapping[str, str], *, is_again: bool) -> list[Outcome]:
        """All of them, side by side."""
        before = last(self._engine.folder).runs
        for file, plan in self._plans:
            run_id = await self._engine.start(
                _with_env(plan, env), self._origin(file), rerun_of=before.get(file, "") if is_again else ""
            )
            self._begun.append(Begun(run_id=run_id, file=file, plan=plan))
        kept = {**before, **{each.file: each.run_id for each in self._begun}}
        (self._engine.folder / LAST_FILE).write_bytes(msgspec.json.encode(Last(kept)))
        watching = [Watch(self._engine, each.run_id, screen, decide).until_over() for each in self._begun]
        ended = await asyncio.gather(*watching)
        return [
            Outcome(
                begun=each, run=run, jobs=await self._engine.jobs(run.id, [kept.spec.name for kept in each.plan.jobs])
            )
            for each, run in zip(self._begun, ended, strict=True)
        ]

    async def cancel(self) -> None:
        """Stop everything that was begun."""
        for each in self._begun:
            await self._engine.cancel(each.run_id, "Ctrl-C")

    @property
    def names(self) -> list[str]:
        """Of all jobs."""
        return [kept.spec.name for _, plan in self._plans for kept in plan.jobs]

    def _origin(self, file: str) -> Origin:
        change = self._seen.change
        return Origin(
            branch=change.branch,
            repository=change.repository,
            commit=change.commit,
            title=change.title,
            file=file,
        )


def network_env(named: Sequence[str]) -> dict[str, str]:
    """Of this machine's environment: how it reaches the world, and what was named."""
    found = {name: value for name, value in os.environ.items() if _NETWORK.fullmatch(name)}
    for each in named:
        name, is_pair, value = each.partition("=")
        if not is_pair and name not in os.environ:
            raise Refused("bad_request", f"--env {name!r}: there is no such variable here; give {name}=VALUE")
        found[name] = value if is_pair else os.environ[name]
    return found


def _is_work(kept: PlannedJob) -> bool:
    return kept.spec.kind == job.TASK


def _with_env(plan: Plan, env: Mapping[str, str]) -> Plan:
    """Variables of this machine below the job's own."""
    changed = tuple(
        structs.replace(
            kept,
            spec=structs.replace(kept.spec, work={**kept.spec.work, "env": {**env, **kept.spec.work.get("env", {})}}),
        )
        if _is_work(kept)
        else kept
        for kept in plan.jobs
    )
    return structs.replace(plan, kept=changed)
