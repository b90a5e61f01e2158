"""The scenarios of tests/surface: what a person and a runner do, in order. Every action has a name."""

from __future__ import annotations

from typing import Any, Final

from tests.server.rest.site import ScriptedRunner, gate, task
from tests.surface.stage import JOB_SECONDS, TTL_SECONDS, Scenario, Stage

SCENARIOS: Final[dict[str, Scenario]] = {}
RETRY: Final = {"max_attempts": 2, "base_delay_seconds": 50}
FULL_DISK: Final[dict[str, Any]] = {"log_tail": ["compiling", "fatal: No space left on device"]}
UNAVAILABLE: Final[dict[str, Any]] = {"log_tail": ["test_health", "503 Service Unavailable"]}
NO_START: Final[dict[str, Any]] = {"error_code": "RUNNER_STARTUP", "exit_code": None}


def scenario(play: Scenario) -> Scenario:
    """Register a scenario under the name of its function."""
    SCENARIOS[play.__name__] = play
    return play


@scenario
async def success(stage: Stage) -> None:
    """Two jobs in order and one that may fail; an artifact and a log are uploaded before the result."""
    await stage.start(
        task("build", timeout_seconds=JOB_SECONDS),
        task("test", needs=["build"]),
        task("lint", needs=["test"], allow_failure=True),
    )
    lease = await stage.claim()
    await stage.act("claim while leased", stage.runner.lease(wait_seconds=0))
    await stage.ack(lease)
    await stage.beat(lease, progress={"percent": 35, "current_step": "make", "step_index": 0, "message": "compiling"})
    await stage.beat(lease, "second Heartbeat")
    await stage.act("log", stage.runner.log(lease, b"compiling\n"))
    await stage.act("artifact", stage.runner.upload_artifact(lease, "report.xml", b"<testsuite/>"))
    artifact = {"type": "junit", "uri": f"artifact:{lease['job_id']}.1/1/report.xml", "name": "report.xml", "bytes": 12}
    await stage.complete(lease, output={"size": 3}, cost={"cpu_seconds": 2}, artifacts=[artifact], summary="all good")
    await stage.complete(
        lease,
        "repeated Complete",
        output={"size": 3},
        cost={"cpu_seconds": 2},
        artifacts=[artifact],
        summary="all good",
    )
    await stage.act("late Heartbeat", stage.runner.send(lease, "Heartbeat", ts="2026-01-04T08:00:00Z"))
    await stage.wait(JOB_SECONDS, "time limit over")
    lease = await stage.claim("claim test")
    await stage.complete(lease, "Complete test")
    lease = await stage.claim("claim lint")
    await stage.complete(lease, "Complete lint", ok=False)
    await stage.reported()
    await stage.cancel("late cancel")
    for part in ("outputs", "costs", "plan"):
        await stage.act(part, stage.ada.get(f"/runs/{stage.history.run_id}/{part}"))


@scenario
async def retried(stage: Stage) -> None:
    """The first attempt fails because the disk is full, the second one succeeds."""
    await stage.start(task("build", retry=RETRY))
    lease = await stage.running()
    await stage.complete(lease, ok=False, **FULL_DISK)
    await stage.wait(99, "99 s later")
    await stage.wait(1, "100 s later")
    lease = await stage.running("second")
    await stage.complete(lease, "second Complete")
    await stage.reported()


@scenario
async def exhausted(stage: Stage) -> None:
    """Both attempts fail; one job depends on it and one does not."""
    await stage.start(
        task("build", retry=RETRY, needs=[], priority=1), task("ship", needs=["build"]), task("docs", needs=[])
    )
    lease = await stage.running()
    await stage.complete(lease, ok=False, **FULL_DISK)
    await stage.wait(100, "100 s later")
    lease = await stage.running("second")
    await stage.complete(lease, "second Complete", ok=False, **FULL_DISK)
    lease = await stage.running("docs")
    await stage.complete(lease, "docs Complete")
    await stage.reported()


@scenario
async def compile_error(stage: Stage) -> None:
    """A failure of the user is not retried although attempts remain."""
    await stage.start(task("build", retry=RETRY))
    lease = await stage.running()
    await stage.complete(lease, ok=False, log_tail=["main.c:3: error: expected ';'"], summary="1 error")
    await stage.reported()


@scenario
async def canceled(stage: Stage) -> None:
    """A run is cancelled while one job runs, one was claimed, one is queued and one waits for another."""
    await stage.start(
        task("build", needs=[], priority=3),
        task("test", needs=[], priority=2),
        task("docs", needs=[]),
        task("ship", needs=["build"]),
    )
    lease = await stage.running()
    claimed = await stage.claim("claim test")
    await stage.cancel()
    await stage.beat(lease, "Heartbeat after cancel")
    await stage.act("log", stage.runner.log(lease, b"stopping\n"))
    await stage.cancel_ack(lease)
    await stage.ack(claimed, "AckLease test")
    await stage.cancel_ack(claimed, "CancelAck test")
    await stage.cancel("repeated cancel")
    await stage.reported()


@scenario
async def canceled_queued(stage: Stage) -> None:
    """A run is cancelled before any job was claimed."""
    await stage.start(task("build"), task("test", needs=["build"]))
    await stage.cancel()
    await stage.reported()


@scenario
async def canceled_by_force(stage: Stage) -> None:
    """The runner of a cancelled job does not answer until the deadline has passed."""
    await stage.start(task("build"))
    lease = await stage.running()
    await stage.act("log", stage.runner.log(lease, b"working\n"))
    await stage.act("artifact", stage.runner.upload_artifact(lease, "partial.txt", b"half"))
    await stage.cancel()
    await stage.wait(29, "29 s later")
    await stage.wait(1, "30 s later")
    await stage.complete(lease, "late Complete")
    await stage.cancel_ack(lease, "late CancelAck")
    job = f"/runs/{stage.history.run_id}/jobs/build"
    await stage.act("read log", stage.ada.get(f"{job}/log"))
    await stage.act("read artifacts", stage.ada.get(f"{job}/attempts/1/artifacts"))
    await stage.reported()


@scenario
async def completed_after_cancel(stage: Stage) -> None:
    """The result of a job arrives after its cancel was requested."""
    await stage.start(task("build"))
    lease = await stage.running()
    await stage.cancel()
    log = {"type": "log", "uri": "log:x", "name": "log", "bytes": 1}
    await stage.complete(lease, artifacts=[log], summary="just done")
    await stage.reported()


@scenario
async def job_canceled(stage: Stage) -> None:
    """A person cancels one running job of a run; another depends on it."""
    await stage.start(task("build"), task("test", needs=["build"]))
    lease = await stage.running()
    await stage.cancel(job="build")
    await stage.cancel_ack(lease)
    await stage.reported()


@scenario
async def lease_lost(stage: Stage) -> None:
    """A job loses four leases: not acknowledged, while it started, and twice while it ran."""
    other = await stage.site.register_runner("linux")
    await stage.start(task("build"))
    first = await stage.claim()
    await stage.wait(30, "accept window over")
    await stage.ack(first, "late AckLease")
    second = await stage.claim("second claim", other)
    await stage.ack(second, "second AckLease", other)
    await stage.wait(TTL_SECONDS - 1, "119 s later")
    await stage.wait(1, "120 s later")
    await stage.complete(second, "late Complete", by=other)
    third = await stage.running("third")
    await stage.act("third log", stage.runner.log(third, b"third\n"))
    await stage.complete(second, "Complete under the old lease", by=other)
    await stage.wait(TTL_SECONDS, "third lease over")
    await stage.beat(third, "late Heartbeat")
    fourth = await stage.running("fourth", other)
    await stage.wait(TTL_SECONDS, "fourth lease over")
    await stage.cancel_ack(fourth, "late CancelAck", by=other)
    await stage.reported()


@scenario
async def renewed(stage: Stage) -> None:
    """A runner that heartbeats keeps its lease for longer than the TTL."""
    await stage.start(task("build"))
    lease = await stage.running()
    for n in range(4):
        await stage.wait(100, f"wait {n}")
        await stage.beat(lease, f"Heartbeat {n}")
    await stage.complete(lease)
    await stage.reported()


@scenario
async def job_timeout(stage: Stage) -> None:
    """A job exceeds its time limit twice; its runner heartbeats all the time."""
    await stage.start(task("build", timeout_seconds=150, retry=RETRY))
    lease = await stage.running()
    await stage.wait(100, "100 s later")
    await stage.beat(lease, "Heartbeat at 100 s")
    await stage.wait(50, "150 s later")
    await stage.complete(lease, "late Complete")
    await stage.wait(200, "retry due")
    lease = await stage.running("second")
    await stage.wait(100, "second 100 s later")
    await stage.beat(lease, "second Heartbeat at 100 s")
    await stage.wait(50, "second 150 s later")
    await stage.reported()


@scenario
async def run_timeout(stage: Stage) -> None:
    """A run exceeds its time limit while one job runs and another waits."""
    await stage.start(task("build"), task("test", needs=["build"]), plan={"timeout_seconds": 100})
    await stage.running()
    await stage.wait(99, "99 s later")
    await stage.wait(1, "100 s later")
    await stage.reported()


@scenario
async def approved(stage: Stage) -> None:
    """A gate between two jobs is approved."""
    await stage.start(task("build"), gate("ok", ["build"]), task("ship", needs=["ok"]))
    await stage.decide("approve", "early approve")
    lease = await stage.running()
    await stage.complete(lease)
    await stage.act("claim while it waits", stage.runner.lease(wait_seconds=0))
    await stage.decide("approve")
    await stage.decide("approve", "repeated approve")
    lease = await stage.running("ship")
    await stage.complete(lease, "ship Complete")
    await stage.reported()


@scenario
async def last_gate(stage: Stage) -> None:
    """A run whose last job is a gate."""
    await stage.start(task("build"), gate("ok", ["build"]))
    lease = await stage.running()
    await stage.complete(lease)
    await stage.decide("approve")
    await stage.reported()


@scenario
async def gate_beside_job(stage: Stage) -> None:
    """A gate waits while another job runs."""
    await stage.start(gate("ok", []), task("build", needs=[]), task("ship", needs=["ok"]))
    lease = await stage.running()
    await stage.complete(lease)
    await stage.decide("approve")
    lease = await stage.running("ship")
    await stage.complete(lease, "ship Complete", ok=False)
    await stage.reported()


@scenario
async def rejected(stage: Stage) -> None:
    """A gate is rejected; a job depends on it."""
    await stage.start(gate("ok", []), task("ship", needs=["ok"]))
    await stage.decide("reject")
    await stage.reported()


@scenario
async def canceled_at_gate(stage: Stage) -> None:
    """A run is cancelled while a gate waits."""
    await stage.start(gate("ok", []), task("ship", needs=["ok"]))
    await stage.cancel()
    await stage.reported()


@scenario
async def validation_failed(stage: Stage) -> None:
    """A job was executed, but a validation rule does not hold; another job depends on it."""
    rules = [{"run": "make check"}]
    await stage.start(
        task("build", work={"steps": ["make"], "rules": rules}, retry=RETRY), task("ship", needs=["build"])
    )
    lease = await stage.running()
    verdict = {"rule": "make check", "is_passed": False, "found": "exit code 2", "wanted": "exit code 0"}
    await stage.complete(lease, verdicts=[verdict])
    await stage.reported()


@scenario
async def fail_fast(stage: Stage) -> None:
    """The failure of a required job ends the run at once."""
    await stage.start(
        task("build", needs=[], priority=2),
        task("test", needs=[], priority=1),
        task("docs", needs=[]),
        plan={"fail_fast": True},
    )
    lease = await stage.running()
    other = await stage.running("test")
    await stage.complete(lease, ok=False)
    await stage.cancel_ack(other)
    await stage.reported()


@scenario
async def two_workers(stage: Stage) -> None:
    """One worker with two slots and one with other labels; jobs need labels."""
    wide = stage.site.register_runner("gpu", slots=2)
    await stage.start(
        *(task(f"gpu{n}", needs=[], runs_on=["gpu"]) for n in range(3)), task("any", needs=["gpu0"], priority=-1)
    )
    gpu = await stage.act("register", wide)
    await stage.act("claim without label", stage.runner.lease(wait_seconds=0))
    first, second = await stage.act("claim two", gpu.lease(slots=9))
    await stage.act("claim a third", gpu.lease(slots=1, wait_seconds=0))
    await stage.complete(first, "first Complete", by=gpu)
    await stage.complete(second, "second Complete", by=gpu, ok=False)
    third = await stage.claim("claim the rest", gpu)
    await stage.complete(third, "third Complete", by=gpu)
    lease = await stage.claim("claim any")
    await stage.complete(lease, "Complete any")
    await stage.reported()


FAILURES: Final[dict[str, tuple[dict[str, Any], str, bool]]] = {
    "network": ({"log_tail": ["curl: Connection reset by peer"]}, "INFRA", True),
    "disk": ({"log_tail": ["fatal: No space left on device"]}, "INFRA", True),
    "startup": ({"error_code": "RUNNER_STARTUP", "exit_code": None}, "INFRA", True),
    "cache": ({"error_code": "CACHE_FETCH", "exit_code": None}, "TOOLING", True),
    "registry": ({"error_code": "REGISTRY_FETCH", "exit_code": None}, "TOOLING", True),
    "tool": ({"exit_code": 127, "log_tail": ["make: not found"]}, "TOOLING", False),
    "compile": ({"log_tail": ["main.c:3: error: expected ';'"]}, "USER", False),
    "tests": (
        {"tests": {"total": 2, "passed": 1, "failed": 1, "failures": [{"name": "math", "message": "no"}]}},
        "USER",
        False,
    ),
    "lint": ({"exit_code": 2, "log_tail": ["style.py:1: line too long"]}, "USER", False),
}


@scenario
async def classes(stage: Stage) -> None:
    """Jobs fail in different ways, each with a second attempt left."""
    await stage.start(*(task(name, needs=[], retry=RETRY) for name in FAILURES))
    leases = await stage.act("claim", stage.runner.lease(slots=len(FAILURES)))
    for lease in leases:
        name = lease["job_id"].partition("/")[2]
        await stage.complete(lease, f"Complete {name}", ok=False, **FAILURES[name][0])
    await stage.cancel()
    await stage.reported()


async def leave(runner: ScriptedRunner) -> Any:
    """Send the message that a runner stops."""
    return await runner.request("leave", {"type": "Leave", "runner_id": runner.name})


@scenario
async def worker_leaves(stage: Stage) -> None:
    """A busy worker leaves and an idle one does; the first finishes its job before."""
    idle = await stage.site.register_runner()
    await stage.start(task("build"), task("test"))
    lease = await stage.running()
    await stage.act("busy leaves", leave(stage.runner))
    await stage.act("idle leaves", leave(idle))
    await stage.complete(lease)
    await stage.act(
        "lease after leaving", stage.runner.request("lease", {"type": "Lease", "runner_id": stage.runner.name})
    )
    await stage.cancel()
    await stage.reported()


@scenario
async def team_gate(stage: Stage) -> None:
    """A gate needs two leads, and not the person who started the run."""
    bob, cyd = [await stage.site.key(name, "approve", roles=["lead"]) for name in ("bob", "cyd")]
    eve = await stage.site.key("eve", "approve")
    await stage.start(gate("ok", [], role="lead", approvers=2, not_by_starter=True), task("ship", needs=["ok"]))
    path = f"/runs/{stage.history.run_id}/approve"
    await stage.decide("approve", "by the starter")
    await stage.act("without the role", eve.post(path))
    await stage.act("another plan", bob.post(path, {"plan_hash": "0" * 64}))
    await stage.act("first", bob.post(path, {"plan_hash": stage.history.runs["start"]["plan_hash"]}))
    await stage.act("first again", bob.post(path))
    await stage.act("second", cyd.post(path))
    await stage.cancel()
    await stage.reported()


@scenario
async def backoff(stage: Stage) -> None:
    """Two jobs fail whose retries have a cap, and a random part."""
    capped, spread = {**RETRY, "max_delay_seconds": 60}, {**RETRY, "jitter": 1.0}
    await stage.start(task("capped", retry=capped, needs=[], priority=1), task("spread", retry=spread, needs=[]))
    for name in ("capped", "spread"):
        lease = await stage.claim(f"claim {name}")
        await stage.complete(lease, f"Complete {name}", ok=False, **FULL_DISK)
    await stage.cancel()
    await stage.reported()


@scenario
async def printed(stage: Stage) -> None:
    """Jobs print that a service was unavailable; between them, one does not start because of the runner."""
    await stage.start(*(task(f"job{n}", needs=[], allow_failure=True) for n in range(6)))
    for n, failure in enumerate((UNAVAILABLE, UNAVAILABLE, NO_START, UNAVAILABLE, FULL_DISK)):
        lease = await stage.claim(f"claim {n}")
        await stage.complete(lease, f"Complete {n}", ok=False, **failure)
    await stage.complete(await stage.claim("claim 5"), "Complete 5")
    await stage.reported()


@scenario
async def holds(stage: Stage) -> None:
    """A worker is quarantined, drained and resumed, and then drained while it has jobs."""
    path = f"/workers/{stage.runner.name}"
    await stage.start(*(task(f"job{n}", needs=[], allow_failure=True) for n in range(7)))
    for n in range(3):
        lease = await stage.claim(f"claim {n}")
        await stage.complete(lease, f"Complete {n}", ok=False, **NO_START)
    await stage.act("claim in quarantine", stage.runner.lease(wait_seconds=0))
    await stage.act("drain", stage.ada.post(f"{path}/drain", {"reason": "new disk"}))
    await stage.act("resume", stage.ada.post(f"{path}/resume"))
    leases = await stage.act("claim three", stage.runner.lease(slots=3))
    await stage.act("second drain", stage.ada.post(f"{path}/drain", {"reason": "move"}))
    await stage.act("third drain", stage.ada.post(f"{path}/drain", {"reason": "another"}))
    for n, lease in enumerate(leases):
        await stage.complete(lease, f"Complete {n + 3}", ok=False, **NO_START)
    await stage.act("claim while drained", stage.runner.lease(wait_seconds=0))
    await stage.act("second resume", stage.ada.post(f"{path}/resume"))
    await stage.act("third resume", stage.ada.post(f"{path}/resume"))
    lease = await stage.claim("last claim")
    await stage.complete(lease, "last Complete")
    await stage.reported()
