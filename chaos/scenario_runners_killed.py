"""Runners that are killed or frozen in each state of a job: requeued once per expiry, in time, and nobody is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from chaos.deployment import Deployment, deployed
from chaos.parts import ManagedProcess, processes_with
from chaos.rows import Row, measured, p99
from chaos.stage import Stage, wait_until
from chaos.verdict import Verdict
from deltaci.core import attempt
from deltaci.core.events import ATTEMPT
from deltaci.core.instants import SECOND
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE
from tests.e2e.proxy import Held, Proxy

FAULT: Final = "runner killed in each state"
FROZEN: Final = "runner frozen for longer than its lease"
SLACK_SECONDS: Final = 3.0  # The timers look every quarter of a second; the machine may be busy.
WAKING_SECONDS: Final = 1.0  # What a frozen machine may do after its return, before it notices what time it is.


class Victim(NamedTuple):
    """A runner behind a way of its own, with one job that only it and the rescuer may have."""

    runner: ManagedProcess
    way: Proxy
    label: str


class Reached(NamedTuple):
    """The job, and what is to be done after the kill."""

    id: str
    let_go: Callable[[], None]


Reach = Callable[[Deployment, Victim, float], Awaitable[Reached]]


class State(NamedTuple):
    """When to strike, and how."""

    name: str
    injected: str
    reached: Reach
    strike: Callable[[Deployment, Victim], Awaitable[None]]


def held(kind: str, what: str) -> Reach:
    """A message of this kind is on its way, and goes no further."""

    async def reached(deployment: Deployment, victim: Victim, seconds: float) -> Reached:
        stop = victim.way.on(kind, Held("request" if what == "request" else "answer"))
        id = await give(deployment, victim, seconds)
        await asyncio.wait_for(stop.came.wait(), 60)
        return Reached(id, stop.drop)

    return reached


async def running(deployment: Deployment, victim: Victim, seconds: float) -> Reached:
    """A step runs."""
    id = await give(deployment, victim, seconds)
    await wait_until(
        lambda: deployment.work.acknowledged[id] in deployment.work.witness.executions(), "the job has begun"
    )
    await asyncio.wait_for(victim.way.next("Heartbeat"), 60)
    return Reached(id, lambda: None)


async def give(deployment: Deployment, victim: Victim, seconds: float) -> str:
    """A job for this one alone; it leaves something to upload. Its id."""
    [id] = await deployment.work.enqueue_recorded(1, seconds, labels=[victim.label], artifacts=[{"path_glob": "**"}])
    return id


async def kill(_deployment: Deployment, victim: Victim) -> None:
    """The runner alone."""
    await victim.runner.kill()


async def kill_keeper(deployment: Deployment, victim: Victim) -> None:
    """Its keeper alone: the runner stops its job and leaves."""
    os.kill(deployment.keeper(victim.runner), signal.SIGKILL)
    await victim.runner.ended()


async def kill_both(deployment: Deployment, victim: Victim) -> None:
    """As a power cut of the machine would, but for the job: the worst that can happen to it."""
    keeper = deployment.keeper(victim.runner)
    victim.runner.send(signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    await victim.runner.kill()


STATES: Final = (
    State("leased", "SIGKILL before its AckLease is heard", held("AckLease", "request"), kill),
    State("starting", "SIGKILL before it hears the answer to AckLease", held("AckLease", "answer"), kill),
    State("running", "SIGKILL while a step runs", running, kill),
    State("uploading", "SIGKILL while it uploads", held("artifacts", "request"), kill),
    State("completing", "SIGKILL before its Complete is heard", held("Complete", "request"), kill),
    State("keeper", "SIGKILL of its keeper while a step runs", running, kill_keeper),
    State("both", "SIGKILL of runner and keeper together while a step runs", running, kill_both),
)


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Those that are killed and those that sleep, side by side, each in a deployment of its own."""
    cases = (killed,) if stage.is_quick else (killed, asleep, frozen)
    async with asyncio.TaskGroup() as group:  # One that fails ends the others, in order.
        playing = [group.create_task(case(stage)) for case in cases]
    for task in playing:
        for row in task.result():
            yield row


async def killed(stage: Stage) -> list[Row]:
    """One runner in every state at a time, round after round."""
    states = [each for each in STATES if not stage.is_quick or each.name in ("running", "completing")]
    rounds = stage.size(4, 1)
    async with deployed(stage, "killed") as deployment, AsyncExitStack() as stack:
        victims = []
        for state in states:
            way = await stack.enter_async_context(Proxy(deployment.ports))
            runner = deployment.add_runner(f"victim-{state.name}", "--labels", state.name, url=way.url)
            victims.append(Victim(runner, way, state.name))
        struck: dict[str, float] = {}
        for number in range(rounds):
            stage.log(f"round {number + 1} of {rounds}: one runner in each of {len(states)} states")
            for id, at in await asyncio.gather(*map(partial(strike, deployment), states, victims)):
                struck[id] = at
            await rescue(deployment, victims)
            if number + 1 < rounds:
                for victim in victims:
                    victim.runner.start()
        return rows(deployment, await deployment.verdict(all_succeed=True), states, struck)


async def rescue(deployment: Deployment, victims: list[Victim]) -> None:
    """Another runner does what they could not."""
    if "rescuer" in deployment.runners:
        deployment.runners["rescuer"].start()
    else:
        labels = ",".join(victim.label for victim in victims)
        deployment.add_runner("rescuer", "--labels", labels, slots=len(victims))
    await deployment.wait_for_work()
    await deployment.runners["rescuer"].stop()


async def strike(deployment: Deployment, state: State, victim: Victim) -> tuple[str, float]:
    """One job, one kill; the job's id, and when it was."""
    reached = await state.reached(deployment, victim, 3.0 if state.reached is running else 0.2)
    at = time.time()
    await state.strike(deployment, victim)
    reached.let_go()
    return reached.id, at


def rows(deployment: Deployment, found: Verdict, states: list[State], struck: dict[str, float]) -> list[Row]:
    """What is promised of requeues, besides what is promised of everything."""
    injected = f"{len(struck)} runners, {len(struck) // len(states)} in each state: {', '.join(s.name for s in states)}"
    stale: Counter[str] = Counter()
    again: Counter[str] = Counter()
    waits: list[float] = []
    for event in found.log:
        if event.entity != ATTEMPT:
            continue
        if event.to == attempt.STALE:
            stale[event.entity_id] += 1
        if event.from_ == attempt.STALE and event.to == attempt.QUEUED:
            again[event.entity_id] += 1
            waits.append(event.at / SECOND - struck[event.entity_id])
    wrong = [id for id in found.records if stale[id] != again[id] or stale[id] != found.records[id].lost_leases]
    limit = deployment.ttl_seconds + SLACK_SECONDS
    note = f"{sum(stale.values())} leases expired; a lease is {deployment.ttl_seconds} s long"
    return [
        found.row(FAULT, injected),
        measured(FAULT, injected, "requeued exactly once per expiry", len(wrong), "jobs that were not", 0, note),
        measured(FAULT, injected, "p99 from the kill to the requeue", p99(waits), "s", limit, note),
    ]


# -- those that sleep


async def asleep(stage: Stage) -> list[Row]:
    """Frozen for longer than a lease: the runner alone."""
    async with deployed(stage, "asleep") as deployment:
        runner = deployment.add_runner("sleeper")
        await deployment.work.enqueue_recorded(1, deployment.ttl_seconds + 3)
        await deployment.wait_for_starts(1)
        runner.pause()
        await deployment.wait_for_executions(1, seconds=30)
        await asyncio.sleep(deployment.ttl_seconds)
        runner.resume()
        found = await deployment.verdict(all_succeed=True)
        injected = f"SIGSTOP of the runner alone for {2 * deployment.ttl_seconds} s"
        return [
            found.row(FROZEN, injected),
            measured(FROZEN, injected, "its keeper proves the lease meanwhile", found.lost_leases, "lost leases", 0),
        ]


async def frozen(stage: Stage) -> list[Row]:
    """Its whole machine."""
    async with deployed(stage, "frozen") as deployment:
        runner = deployment.add_runner("frozen")
        await deployment.work.enqueue_recorded(1, deployment.ttl_seconds + 3)
        await deployment.wait_for_starts(1)
        pids = machine_of(deployment, runner)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        deployment.add_runner("rescuer")
        await deployment.wait_for_starts(2, seconds=30)
        woken = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        first = min(deployment.work.witness.executions()["j1"], key=lambda each: each.began).mark
        await wait_until(lambda: not processes_with(MARKER_VARIABLE, {first}), "the zombie's job is gone", 10)
        gone = time.monotonic() - woken
        found = await deployment.verdict(overlap_limit=WAKING_SECONDS, all_succeed=True)
        injected = "SIGSTOP of the runner, its keeper and its job until another has the job; then SIGCONT"
        invariant = "a machine that wakes up with a lease that is another's stops its job at once"
        return [measured(FROZEN, injected, invariant, gone, "s", WAKING_SECONDS), found.row(FROZEN, injected)]


def machine_of(deployment: Deployment, runner: ManagedProcess) -> list[int]:
    """Everybody on the machine of this runner, as far as it is one."""
    found = {runner.pid, *processes_with(MARKER_VARIABLE, deployment.work.witness.marks())}
    waiting = [runner.pid]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                found.add(child)
                waiting.append(child)
    return sorted(found)
