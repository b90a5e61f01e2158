"""The scenarios that a runner is tested with. Each only produces a transcript, which `runner_checks` judges.

The steps of a job hold a pipe of the kit open while any of their processes runs (see `process_monitor`), and wait where
the scenario tells them to. The protocol determines the duration: heartbeats are due once a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from deltaci.conformance.orchestrator import CREDENTIAL_SECONDS, ScriptedOrchestrator
from deltaci.conformance.scripted_job import BUSY, CUT, INTERVAL_SECONDS, Fault, ScriptedJob

HEARTBEATS: Final = 4
HEARTBEATS_SECONDS: Final = (HEARTBEATS + 3) * INTERVAL_SECONDS
OBSERVATION_SECONDS: Final = 2.5 * INTERVAL_SECONDS
SHORT_OBSERVATION_SECONDS: Final = 1.0
HOLD_SECONDS: Final = 0.5
LIFE_TTL_SECONDS: Final = 20  # Long enough that a runner without heartbeats still reaches the other checks.
SHORT_TTL_SECONDS: Final = 3
CANCEL_SECONDS: Final = 7
STOP_SECONDS: Final = 5.0
SHORT_CREDENTIAL_SECONDS: Final = 6
EXIT_CODE: Final = 7
ENV_VALUE: Final = "a-word-of-the-environment"

# Ignores every signal that can be ignored, and has a child process in another session.
STUBBORN: Final = (
    "trap '' TERM INT HUP",
    "$(command -v setsid) sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' > /dev/null 2>&1 < /dev/null &",
    "while :; do sleep 1; done",
)


class Patience(msgspec.Struct, frozen=True):
    """How long a scenario waits for an action of the runner."""

    seconds: float


async def _start_job(server: ScriptedOrchestrator, job: ScriptedJob, patience: Patience) -> bool:
    """Grant the job. Return whether its first step began within the patience."""
    server.grant(job)
    return await server.until(lambda: server.transcript.first("job", job.name), patience.seconds)


async def _wait_for_heartbeats(server: ScriptedOrchestrator, job: ScriptedJob, count: int, seconds: float) -> bool:
    """Wait until this many heartbeats of the job were answered. Return False on a timeout."""
    return await server.until(
        lambda: len(server.transcript.answered("Heartbeat", "HeartbeatAck", job.name)) >= count, seconds
    )


async def _wait_for_complete(server: ScriptedOrchestrator, job: ScriptedJob, patience: Patience) -> bool:
    """Wait until the job's result was accepted. Return False on a timeout."""
    return await server.until(lambda: server.transcript.answered("Complete", "CompleteAck", job.name), patience.seconds)


async def life(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Run a job of three steps, with a delayed answer to AckLease. After its result, observe a quiet period."""
    job = server.job("life", ttl_seconds=LIFE_TTL_SECONDS)
    job.set_steps(
        job.step("one", "echo first line", "env"),
        job.step("two", "echo second line", job.monitor.wait_command),
        job.step("three $KIT_WORD", "echo third line"),
        env={"KIT_WORD": ENV_VALUE},
    )
    job.inject("AckLease", Fault("hold", seconds=HOLD_SECONDS))
    if not await _start_job(server, job, patience):
        return
    await _wait_for_heartbeats(server, job, HEARTBEATS, HEARTBEATS_SECONDS)
    job.monitor.release()
    if await _wait_for_complete(server, job, patience):
        await server.observe(OBSERVATION_SECONDS)


async def lost_answers(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Run a job whose first message of every type gets no answer, and whose second one is answered with 503."""
    job = server.job("lost")
    job.set_steps(job.step("one", "echo a line", job.monitor.wait_command, "echo another line"))
    for message_type in ("AckLease", "Heartbeat", "log", "Complete"):
        job.inject(message_type, CUT, BUSY)
    if not await _start_job(server, job, patience):
        return
    await _wait_for_heartbeats(server, job, 1, HEARTBEATS_SECONDS)
    job.monitor.release()
    if await _wait_for_complete(server, job, patience):
        await server.observe(SHORT_OBSERVATION_SECONDS)


async def no_lease(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Answer AckLease of a first job with StaleLease; then run a job that fails, and one with `job_spec_ref`."""
    refused_job = server.job("refused")
    refused_job.set_steps(refused_job.step("one"))
    refused_job.inject("AckLease", Fault("stale", reason="LEASE_REVOKED"))
    failing_job = server.job("failing")
    failing_job.set_steps(
        failing_job.step("one"), failing_job.step("two", f"exit {EXIT_CODE}"), failing_job.step("three")
    )
    referring_job = server.job("referred", is_spec_referenced=True)
    referring_job.set_steps(referring_job.step("one"))
    server.grant(refused_job)
    if not await server.until(
        lambda: server.transcript.received("AckLease", "refused") or server.transcript.markers("refused"),
        patience.seconds,
    ):
        return
    for job in (failing_job, referring_job):
        server.grant(job)
        await _wait_for_complete(server, job, patience)


async def same_twice(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Grant one lease twice in one answer and again after its end.

    A later job shows that the runner has processed the last grant.
    """
    job = server.job("doubled")
    job.set_steps(job.step("one", job.monitor.wait_command))
    later_job = server.job("after")
    later_job.set_steps(later_job.step("one"))
    server.grant(job, job)
    if not await server.until(lambda: server.transcript.markers(job.name), patience.seconds):
        return
    await server.observe(SHORT_OBSERVATION_SECONDS)
    for _ in range(2):
        job.monitor.release()
    await _wait_for_complete(server, job, patience)
    job.monitor.release()  # For a runner that runs it a third time.
    server.grant(job)
    server.grant(later_job)
    await _wait_for_complete(server, later_job, patience)


async def cancel(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Cancel a running job that ignores signals and has a child process in another session."""
    job = server.job("canceled")
    job.set_steps(job.step("one", *STUBBORN))
    if not await _start_job(server, job, patience):
        return
    await _wait_for_heartbeats(server, job, 1, HEARTBEATS_SECONDS)
    job.cancel_deadline_seconds = CANCEL_SECONDS
    await server.until(
        lambda: server.transcript.received("CancelAck", job.name), CANCEL_SECONDS + 2 * INTERVAL_SECONDS + 1
    )
    await server.observe(SHORT_OBSERVATION_SECONDS)


async def stale(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Answer the second heartbeat of a running job with StaleLease, as after a revocation."""
    job = server.job("stale")
    job.set_steps(job.step("one", job.monitor.wait_command))
    job.inject("Heartbeat", Fault("hold"), Fault("stale", reason="LEASE_REVOKED"))
    if not await _start_job(server, job, patience):
        return
    is_stale = await server.until(
        lambda: server.transcript.answered("Heartbeat", "StaleLease", job.name), HEARTBEATS_SECONDS
    )
    if is_stale:
        await server.until(lambda: server.transcript.process_exits(job.name), STOP_SECONDS)
        job.monitor.release()
        await server.observe(OBSERVATION_SECONDS)


async def silence(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Leave the server unreachable until the lease has expired; only then let the job end."""
    job = server.job("silent", ttl_seconds=SHORT_TTL_SECONDS)
    job.set_steps(job.step("one", job.monitor.wait_command))
    if not await _start_job(server, job, patience):
        return
    await _wait_for_heartbeats(server, job, 1, HEARTBEATS_SECONDS)
    await _cut_off_until_expiry(server, job, ends_late=True)


async def late_result(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Make the server unreachable, let the job end, and answer again only after the lease has expired."""
    job = server.job("late", ttl_seconds=SHORT_TTL_SECONDS)
    job.set_steps(job.step("one", job.monitor.wait_command))
    if not await _start_job(server, job, patience):
        return
    await _wait_for_heartbeats(server, job, 1, HEARTBEATS_SECONDS)
    await _cut_off_until_expiry(server, job, ends_late=False)


async def _cut_off_until_expiry(server: ScriptedOrchestrator, job: ScriptedJob, *, ends_late: bool) -> None:
    """Make the server unreachable until the lease has expired.

    The job ends after the expiry if `ends_late`, otherwise at the beginning of the outage.
    """
    server.is_cut_off = True
    if not ends_late:
        job.monitor.release()
    await server.observe(max(0.0, job.expires_at - server.now()) + 0.3)
    if ends_late:
        job.monitor.release()
    await server.observe(SHORT_OBSERVATION_SECONDS)
    server.is_cut_off = False
    await server.observe(1.5 * SHORT_OBSERVATION_SECONDS)


class Scenario(msgspec.Struct, frozen=True):
    """A named scenario, and how long the credentials of its server last."""

    name: str
    run: Callable[[ScriptedOrchestrator, Patience], Awaitable[None]]
    credential_seconds: int = CREDENTIAL_SECONDS


# The longest ones start first, so that the others run beside them.
SCENARIOS: Final = (
    Scenario("life", life, SHORT_CREDENTIAL_SECONDS),
    Scenario("cancel", cancel),
    Scenario("lost-answers", lost_answers),
    Scenario("silence", silence),
    Scenario("late-result", late_result),
    Scenario("stale", stale),
    Scenario("same-twice", same_twice),
    Scenario("no-lease", no_lease),
)
