"""Random histories of pushes, pull requests, cancels, failures, force pushes, merges and skipped commits.

A green head means that every required job whose condition held for the head's event succeeded, as its latest result,
on inputs equal to the head's. The planner and the stored results are the real ones; which inputs a job has is said
here once more, by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from hashlib import sha1
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from msgspec.structs import replace

from deltaci.core import results
from deltaci.core.job import CANCELED, FAILED, SUCCEEDED, Job
from deltaci.core.results import ended_job_results
from deltaci.core.run import Origin, Run
from deltaci.pipeline.change import Change, EventName
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.planning import compile as compiling
from deltaci.pipeline.planning import job_filter, job_specs, reuse
from deltaci.pipeline.planning.compile import UNTRUSTED, compile_pipeline
from deltaci.pipeline.planning.inputs import inputs_hash
from deltaci.pipeline.planning.plan import Plan, exclude_jobs
from deltaci.pipeline.planning.projects import Projects
from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import Transaction, Write
from tests.support.lab import TENANT

HISTORIES: Final = 2000
PLANTED_HISTORIES: Final = 400  # within which each planted mistake is found
STEPS: Final = 7
DAY: Final = 24 * 3600 * 1_000_000
FILE: Final = ".deltaci.yml"
PIPELINE: Final = """\
projects:
  web: {folder: web, depends-on: [lib]}
  tools: {folder: tools, depends-on: [lib]}
jobs:
  lint: {steps: [make lint]}
  api: {paths: ['api/**', '!**/*.md'], steps: ['make api VARIANT']}
  gen: {paths: ['lib/**'], steps: [make gen], outputs: {version: '1'}}
  web: {project: web, needs: gen, steps: ['make ${{ needs.gen.outputs.version }}']}
  sign: {paths: ['api/**'], strategy: {matrix: {key: [a, b]}}, steps: ['sign $GITHUB_REF_NAME ${{ matrix.key }}']}
  check: {project: tools, steps: [make check]}
  try: {paths: ['web/**'], allow_failure: true, steps: [make try]}
  deploy: {needs: [api, web, sign], if: github.event_name == 'push', steps: [make deploy]}
"""
VARIANTS: Final = {"0": PIPELINE.replace("VARIANT", "one"), "1": PIPELINE.replace("VARIANT", "two")}
PATHS: Final = (FILE, "api/a", "api/b.md", "lib/a", "web/a", "poetry.lock")
EVERYTHING: Final = (FILE, "poetry.lock")
# The files that each job depends on, besides those that everything depends on.
FILES_OF: Final = {
    "api": ("api/a",),
    "gen": ("lib/a",),
    "web": ("web/a", "lib/a"),
    "check": ("lib/a",),
    "sign (a)": ("api/a", "api/b.md"),
    "sign (b)": ("api/a", "api/b.md"),
    "lint": PATHS,
    "deploy": PATHS,
}

Files = tuple[str, ...]  # the contents of PATHS, each "0" or "1"


class Event(NamedTuple):
    """What happened to a branch or a pull request."""

    kind: EventName
    ref: str
    number: int
    is_fork: bool
    files: Files
    before: Files


class Finished(NamedTuple):
    """A job that a worker started and that ended, as this test remembers it."""

    job: str
    trust: str
    inputs: tuple[str, ...]
    state: str


@cache
def compiled(event: Event) -> Plan:
    """Return the plan of all jobs, as the planner makes it before it looks for results."""
    contents = dict(zip(PATHS, event.files, strict=True))
    changed = {path for path, old, new in zip(PATHS, event.before, event.files, strict=True) if old != new}
    commit = commit_of(event.files)
    change = Change(
        event=event.kind,
        commit=commit,
        repository="ann/shop",
        ref=event.ref,
        branch="main",
        number=event.number,
        is_fork=event.is_fork,
    )
    parsed = parsed_pipeline(contents[FILE])
    plan = compile_pipeline(parsed, change, changed=changed, contents=contents).plan
    assert plan is not None
    return plan


@cache
def parsed_pipeline(variant: str) -> Any:
    return parse_pipeline(VARIANTS[variant], FILE)


def commit_of(files: Files) -> str:
    return sha1("".join(files).encode()).hexdigest()


def inputs_of(job: str, event: Event) -> tuple[str, ...]:
    """Return what the result of a job depends on."""
    contents = dict(zip(PATHS, event.files, strict=True))
    ref = (event.ref,) if job.startswith("sign") else ()
    return (event.kind, *ref, *(contents[path] for path in (*EVERYTHING, *FILES_OF.get(job, ()))))


def trust_of(event: Event) -> str:
    return f"fork {event.number}" if event.is_fork else "trusted"


class World:
    """One history: a repository, the stored results, and what happened so far."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 100 * DAY
        self.store = MemoryStore(clock=lambda: self.now)
        self.main: Files = ("0",) * len(PATHS)
        self.older = [self.main]
        self.requests: dict[int, tuple[Files, bool]] = {}
        self.finished: list[Finished] = []
        self.runs = 0
        self.reused = 0
        self.green_heads = 0

    async def live(self) -> None:
        """Let random things happen."""
        await self.run(Event("push", "refs/heads/main", 0, False, self.main, self.main))
        for _ in range(STEPS):
            self.now += self.random.choice((1, 1, 1, 3)) * DAY
            happen = self.random.choices(
                (self.push, self.skip, self.force, self.request, self.merge), weights=(6, 2, 1, 4, 1)
            )[0]
            await happen()

    def edited(self, files: Files) -> Files:
        """Return the files with one or two changes."""
        contents = list(files)
        for _ in range(self.random.choice((1, 1, 2))):
            index = self.random.choice((0, 1, 1, 2, 3, 3, 4, 4, 5))
            contents[index] = self.random.choice("01")
        return tuple(contents)

    async def move_main(self, files: Files) -> None:
        before, self.main = self.main, files
        self.older.append(files)
        await self.run(Event("push", "refs/heads/main", 0, False, files, before))

    async def push(self) -> None:
        await self.move_main(self.edited(self.main))

    async def skip(self) -> None:
        """Push a commit that asks for no run; the next push is compared with it."""
        self.main = self.edited(self.main)

    async def force(self) -> None:
        await self.move_main(self.random.choice(self.older))

    async def request(self) -> None:
        """Open or update a pull request, from a fork or not."""
        number = self.random.choice((1, 2))
        is_fork = self.requests[number][1] if number in self.requests else self.random.random() < 0.5
        files = self.edited(self.main)
        self.requests[number] = (files, is_fork)
        await self.run(Event("pull_request", f"refs/pull/{number}/head", number, is_fork, files, self.main))

    async def merge(self) -> None:
        if self.requests:
            _, (files, _) = self.requests.popitem()
            await self.move_main(files)

    # -- a run

    async def run(self, event: Event) -> None:
        """Plan a run, execute it, perhaps repeat all of its jobs, and check what a green head says."""
        origin = Origin(project="shop", file=FILE, ref=event.ref, number=event.number, is_fork=event.is_fork)
        full_plan = compiled(event)
        stored = await self.store.find_job_results(reuse.result_keys(full_plan, TENANT, origin))
        plan = reuse.leave_out_reused(full_plan, stored, self.now)
        self.reused += len(plan.excluded)
        ending = self.random.choices(("executed", "superseded", "canceled", "repeated"), weights=(12, 2, 2, 1))[0]
        if ending == "superseded":  # Before any job was started.
            return
        await self.execute(plan, event, origin, is_canceled=ending == "canceled")
        if ending == "repeated":
            await self.execute(full_plan, event, origin)

    async def execute(self, plan: Plan, event: Event, origin: Origin, *, is_canceled: bool = False) -> None:
        """Execute the jobs of a plan in order. When the run is cancelled, one job is running."""
        self.runs += 1
        run = Run(id=f"r{self.runs}", tenant=TENANT, origin=replace(origin, commit=commit_of(event.files)))
        states: dict[str, str] = {}
        stop_at = self.random.randrange(len(plan.jobs) or 1) if is_canceled else -1
        for index, planned in enumerate(plan.jobs):
            name = planned.spec.name
            if planned.code == UNTRUSTED:
                states[name] = SUCCEEDED
                continue
            if any(states[need] != SUCCEEDED for need in planned.spec.needs):
                states[name] = CANCELED
                continue
            self.check_needs(planned.job, plan, event, states)
            state = CANCELED if index == stop_at else self.outcome(name, event)
            states[name] = state
            self.now += 1
            ended = Job(
                id=f"{run.id}/{name}",
                run_id=run.id,
                tenant=TENANT,
                state=state,
                spec=planned.spec,
                started_at=self.now - 1,
                completed_at=self.now,
            )
            await self.store.transact(partial(written, ended, run))
            self.finished.append(Finished(name, trust_of(event), inputs_of(name, event), state))
            if index == stop_at:
                return
        if all(states[job.spec.name] == SUCCEEDED or not job.spec.is_required for job in plan.jobs):
            self.check_green_head(event)

    def outcome(self, name: str, event: Event) -> str:
        """Return how an execution ends: some inputs are broken, and any job may fail by chance."""
        is_broken = name.partition(" ")[0] in ("api", "gen", "web") and inputs_of(name, event)[-1] == "1"
        return FAILED if self.random.random() < (0.6 if is_broken else 0.05) else SUCCEEDED

    # -- the property

    def latest_state(self, job: str, event: Event) -> str:
        """Return the latest result of a job on inputs equal to the event's, at sufficient trust."""
        trusts, inputs = {trust_of(event), "trusted"}, inputs_of(job, event)
        matching = (
            finished.state
            for finished in reversed(self.finished)
            if finished.job == job and finished.inputs == inputs and finished.trust in trusts
        )
        return next(matching, "never")

    def check_green_head(self, event: Event) -> None:
        self.green_heads += 1
        for job in FILES_OF:
            if job != "deploy" or event.kind == "push":
                assert self.latest_state(job, event) == SUCCEEDED, (job, event)

    def check_needs(self, job: str, plan: Plan, event: Event, states: Mapping[str, str]) -> None:
        """Check that a starting job has what it needs: successes, and outputs of this run."""
        if job == "web":
            assert states.get("gen") == SUCCEEDED, event
        if job == "deploy":
            for need in ("api", "web", "sign (a)", "sign (b)"):
                assert self.latest_state(need, event) == SUCCEEDED, (need, event)


def written(ended: Job, run: Run) -> Transaction[None]:
    """Write the result of a job as the engine does with the end of the job."""
    yield Write([], [], job_results=results.ended_job_results([ended], {run.id: run}))


def live(count: int) -> Iterator[World]:
    """Play histories."""
    compiled.cache_clear()
    for seed in range(count):
        world = World(Random(seed))
        asyncio.run(world.live())
        yield world


def test_a_green_head_means_that_its_inputs_were_tested() -> None:
    """In every history; and the histories are not trivial: jobs are reused, heads become green."""
    worlds = list(live(HISTORIES))

    assert sum(world.green_heads for world in worlds) > HISTORIES
    assert sum(world.reused for world in worlds) > 5 * HISTORIES


# -- planted mistakes


def leave_out_unaffected(plan: Plan, _results: object, _now: int) -> Plan:
    """Leave out what no changed file affects, as planning once did."""
    reasons = {job.spec.name: (job.code, "") for job in plan.jobs if job.code == job_filter.UNTESTED}
    return exclude_jobs(plan, reasons, are_done=True)


def only_successes(ended: list[Job], runs: dict[str, Run]) -> list[results.JobResult]:
    return [result for result in ended_job_results(ended, runs) if result.state == SUCCEEDED]


def ignoring(**fields: Any) -> Callable[..., str]:
    return lambda spec, inputs: inputs_hash(spec, replace(inputs, **fields))


MISTAKES: Final[dict[str, tuple[object, str, Any]]] = {
    "compares with the previous push": (reuse, "leave_out_reused", leave_out_unaffected),
    "ignores a later failure": (results, "ended_job_results", only_successes),
    "any result counts as a success": (reuse, "is_recent_success", lambda _result, _now: True),
    "untrusted results count": (results, "trust_of", lambda _origin: results.TRUSTED),
    "ignores dependencies of projects": (
        *(Projects, "reachable"),
        lambda _self, folders, *, includes_start: frozenset(folders if includes_start else ()),
    ),
    "ignores files that affect everything": (job_filter, "ALWAYS", ()),
    "ignores contexts that a job reads": (job_specs._SpecBuilder, "read_contexts", lambda _self: {}),
    "ignores the event": (compiling, "inputs_hash", ignoring(event="")),
    "ignores the files": (compiling, "inputs_hash", ignoring(file_digest="")),
    "ignores who reads outputs": (
        *(reuse, "_reused_results"),
        lambda _plan, stored, now: {
            name: result for name, result in stored.items() if results.is_recent_success(result, now)
        },
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_property_finds_each_planted_mistake(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within few histories; a property that finds nothing proves nothing."""
    monkeypatch.setattr(*MISTAKES[mistake])

    with pytest.raises(AssertionError):
        for _ in live(PLANTED_HISTORIES):
            pass
