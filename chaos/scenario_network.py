"""A runner behind a real network that fails: one way, both ways, for long, again and again, slowly, out of order.

Server and runner are in networks of their own; a second runner stands beside the server, and may take the job only
when the first one has let go of it. All cases play at the same time, each in a deployment of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from chaos.cable import Cable
from chaos.deployment import Deployment, deployed
from chaos.jobs import over
from chaos.rows import NotRun, Row, measured
from chaos.stage import Stage, TimedOut
from deltaci.storage.blobs.logs import LogStore
from tests.e2e.proxy import Proxy

FAULT: Final = "partition, one-way and two-way"
SLOW: Final = "slow link"
SHORT_TTL_SECONDS: Final = 5  # For leases that are to be lost.
TTL_SECONDS: Final = 11  # For those that are not; the longest with a heartbeat every second.
SLOW_TTL_SECONDS: Final = 30
JOB_SECONDS: Final = 8.0
SLOW_BYTES_PER_SECOND: Final = 2000

NO_OVERLAP: Final = "the runner stops its job by its own clock before another may have it"
NOT_SPURIOUS: Final = "no lease is lost by what is shorter than the lease"

Case = Callable[[Stage], Awaitable[list[Row]]]


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Every case, side by side: they wait more than they work."""
    if reason := Cable.unavailable_reason():
        raise NotRun(reason)
    cases: list[Case] = [slow, *(partition(name) for name in CUTS), dripping, flapping, half_open, resets, disorder]
    for rows in asyncio.as_completed([case(stage) for case in cases]):
        for row in await rows:
            yield row


class Net:
    """A cable with a deployment at its ends."""

    def __init__(self, cable: Cable, deployment: Deployment) -> None:
        self.cable = cable
        self.deployment = deployment
        self._url = f"http://{cable.server.address}:{deployment.ports()[0]}"

    def add_far(self, slots: int = 1) -> None:
        """A runner at the other end of the cable."""
        self.deployment.add_runner("far", slots=slots, url=self._url, wrapper=self.cable.runner.inside)

    def add_near(self) -> None:
        """A runner on the server's own machine, which no fault of the cable reaches."""
        self.deployment.add_runner("near", url=self._url, wrapper=self.cable.server.inside)


@asynccontextmanager
async def networked(stage: Stage, case: str, ttl_seconds: int) -> AsyncIterator[Net]:
    """Both, for one case."""
    with Cable() as cable:
        server: dict[str, Any] = {"under": cable.server.inside, "host": cable.server.address}
        async with deployed(stage, case, ttl_seconds=ttl_seconds, **server) as deployment:
            try:
                yield Net(cable, deployment)
            finally:
                cable.repair()  # Whoever has something to say at its end is heard.


def cut_requests(cable: Cable) -> None:
    """What the runner says is lost."""
    cable.to_server.is_cut = True


def cut_answers(cable: Cable) -> None:
    """Heartbeats arrive, and renew the lease, but the runner cannot know."""
    cable.to_runner.is_cut = True


def cut_both(cable: Cable) -> None:
    """Nothing passes."""
    cable.cut()


CUTS: Final = {"requests lost": cut_requests, "answers lost": cut_answers, "both ways lost": cut_both}


def partition(name: str) -> Case:
    """A cut that lasts until somebody else has done the job."""

    async def case(stage: Stage) -> list[Row]:
        async with networked(stage, name.replace(" ", "-"), SHORT_TTL_SECONDS) as net:
            net.add_far()
            return await _cut_off(
                stage, net.deployment, name, lambda: CUTS[name](net.cable), net.cable.repair, net.add_near
            )

    return case


async def dripping(stage: Stage) -> list[Row]:
    """Every answer comes byte by byte, so slowly that no read times out and none is ever whole."""
    async with deployed(stage, "dripping", ttl_seconds=SHORT_TTL_SECONDS) as deployment, Proxy(deployment.ports) as way:
        deployment.add_runner("far", url=way.url)

        def drip(is_so: bool) -> None:
            way.drips = is_so

        return await _cut_off(
            stage,
            deployment,
            "answers that come byte by byte",
            lambda: drip(True),
            lambda: drip(False),
            lambda: deployment.add_runner("near"),
        )


async def _cut_off(
    stage: Stage,
    deployment: Deployment,
    name: str,
    cut: Callable[[], None],
    mend: Callable[[], None],
    add_near: Callable[[], object],
) -> list[Row]:
    injected = f"{name}, longer than the lease of {SHORT_TTL_SECONDS} s"
    [id] = await deployment.work.enqueue_recorded(1, JOB_SECONDS)
    await deployment.wait_for_starts(1)
    await asyncio.sleep(1.5)  # The first heartbeat was heard.

    cut()
    cut_at = _uptime()
    add_near()
    await deployment.wait_for_starts(2)
    found_again = _uptime() - cut_at
    stage.log(f"{name}: the second runner began after {found_again:.1f} s")
    is_alive = deployment.runners["far"].is_running
    await deployment.wait_for_work()
    mend()
    verdict = await deployment.verdict(all_succeed=True)
    first, second = deployment.work.witness.executions()[deployment.work.acknowledged[id]]
    gap = second.began - first.last
    return [
        measured(FAULT, injected, NO_OVERLAP, max(0.0, -gap), "s of overlap", 0.0, f"let go {gap:.2f} s before"),
        measured(FAULT, injected, "somebody else has the job soon", found_again, "s after the cut", 20.0),
        verdict.row(FAULT, injected, "" if is_alive else "the runner that was cut off ended"),
    ]


async def half_open(stage: Stage) -> list[Row]:
    """The server is started anew while nobody hears it go: the runner's connections lead nowhere."""
    injected = f"the server restarts during a cut of less than the lease of {TTL_SECONDS} s"
    async with networked(stage, "half-open", TTL_SECONDS) as net:
        await _busy(net, 8.0)
        await asyncio.sleep(1.5)
        net.cable.cut()
        await net.deployment.servers[0].kill()
        await net.deployment.start(net.deployment.servers[0])
        net.cable.repair()
        return await _unharmed(net, FAULT, injected)


async def flapping(stage: Stage) -> list[Row]:
    """The cable is pulled out and put back, again and again, each time for less than the lease."""
    count, seconds = stage.size(4, 1), TTL_SECONDS * 0.4
    injected = f"{count} cuts of {seconds:.1f} s each, lease of {TTL_SECONDS} s"
    async with networked(stage, "flapping", TTL_SECONDS) as net:
        await _busy(net, (seconds + 2.0) * count + 2.0)
        for number in range(count):
            await asyncio.sleep(2.0)
            net.cable.cut()
            await asyncio.sleep(seconds)
            net.cable.repair()
            stage.log(f"flapping: cut {number + 1} of {count} is over")
        return await _unharmed(net, FAULT, injected)


async def resets(stage: Stage) -> list[Row]:
    """Every connection is reset for a while, again and again."""
    count = stage.size(5, 1)
    injected = f"{count} times 1 s in which every connection is reset"
    async with networked(stage, "resets", TTL_SECONDS) as net:
        await _busy(net, count * 3.0 + 2.0)
        for _ in range(count):
            await asyncio.sleep(2.0)
            net.cable.reset()
            await asyncio.sleep(1.0)
            net.cable.repair()
        return await _unharmed(net, FAULT, injected)


async def disorder(stage: Stage) -> list[Row]:
    """Packets are lost, late, doubled and in another order, all the time."""
    injected = "15 % lost, 20 % doubled, up to 0.2 s late and out of order, both ways"
    async with networked(stage, "disorder", TTL_SECONDS) as net:
        for way in (net.cable.to_server, net.cable.to_runner):
            way.loss, way.duplication, way.jitter_seconds = 0.15, 0.2, 0.2
        await _busy(net, stage.size(15, 3))
        await net.deployment.work.enqueue_recorded(stage.size(6, 1), 0.5)
        return await _unharmed(net, "duplicate, delay, reorder, loss", injected)


async def slow(stage: Stage) -> list[Row]:
    """A thin line, and a job that says more than fits through it: heartbeats must not wait behind its words."""
    seconds = stage.size(35, 5)
    injected = f"{SLOW_BYTES_PER_SECOND} bytes/s both ways, a job that writes 20 kB/s for {seconds} s"
    async with networked(stage, "slow", SLOW_TTL_SECONDS) as net:
        deployment = net.deployment
        net.add_far()
        chatter = f"n=0; while [ $n -lt {seconds * 10} ]; do printf '%02000d\\n' $n; sleep 0.1; n=$((n + 1)); done"
        await deployment.runners["far"].wait_for_output("waiting for work")
        for way in (net.cable.to_server, net.cable.to_runner):
            way.bytes_per_second = SLOW_BYTES_PER_SECOND
        id = await deployment.work.ask({"steps": [chatter], "executor": "process"})
        await deployment.event(lambda event: event.entity_id == id and event.to == "RUNNING", "the job runs")
        await asyncio.sleep(seconds)
        arrived = LogStore(deployment.data / "logs").size(id, 1)
        lost = net.cable.to_server.lost
        stage.log(f"slow link: {arrived} bytes of the log arrived in {seconds} s")
        net.cable.repair()
        record = await over(deployment, id)
        found = await deployment.verdict()
    note = f"{record.state}, {lost} packets were too much for the line"
    progress = "the log makes progress, however thin the line"
    share = 1 - arrived / (SLOW_BYTES_PER_SECOND * seconds)
    return [
        measured(SLOW, injected, "a heartbeat never starves", record.lost_leases, "spurious expiries", 0, note),
        measured(SLOW, injected, progress, share, "of the line unused", 0.9, f"{arrived} bytes arrived"),
        found.row(SLOW, injected),
    ]


async def _busy(net: Net, seconds: float) -> None:
    net.add_far(slots=4)
    await net.deployment.work.enqueue_recorded(2, seconds)
    await net.deployment.wait_for_starts(2)


async def _unharmed(net: Net, fault: str, injected: str, note: str = "") -> list[Row]:
    found = await net.deployment.verdict(90.0, all_succeed=True)
    if found.stuck:
        raise TimedOut("; ".join(found.wrong))
    # A grant that was never heard of is nobody's loss: only what had begun, and was begun again, is.
    again = found.executions - found.acknowledged
    unheard = found.lost_leases - again
    told = "; ".join(filter(None, (note, f"{unheard} grants were never heard of" if unheard else "")))
    return [
        measured(fault, injected, NOT_SPURIOUS, again, "spurious expiries", 0, told),
        found.row(fault, injected),
    ]


def _uptime() -> float:
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])
