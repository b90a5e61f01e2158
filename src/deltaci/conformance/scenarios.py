"""The scenarios that a runner is put through. Each is a short story; what it means is judged afterwards.

A job's steps hold a pipe of the kit for as long as anything of them lives (see `witness`), and wait where the kit wants
them to wait. Nothing here is slower than the protocol makes it: heartbeats come once a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from deltaci.conformance.orchestrator import CREDENTIAL_SECONDS, ScriptedOrchestrator
from deltaci.conformance.scripted_job import BUSY, CUT, INTERVAL_SECONDS, Fault, ScriptedJob

BEATS: Final = 4
BEATS_SECONDS: Final = (BEATS + 3) * INTERVAL_SECONDS
QUIET_SECONDS: Final = 2.5 * INTERVAL_SECONDS
SHORT_QUIET_SECONDS: Final = 1.0
HOLD_SECONDS: Final = 0.5
LIFE_TTL_SECONDS: Final = 20  # A runner that does not heartbeat shall still show the rest.
SILENCE_TTL_SECONDS: Final = 3
CANCEL_SECONDS: Final = 7
STOP_SECONDS: Final = 5.0
SHORT_CREDENTIAL_SECONDS: Final = 6
EXIT_CODE: Final = 7
WORD: Final = "a-word-of-the-environment"

# Deaf to every polite signal, and with a child in a session of its own.
STUBBORN: Final = (
    "trap '' TERM INT HUP",
    "$(command -v setsid) sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' > /dev/null 2>&1 < /dev/null &",
    "while :; do sleep 1; done",
)


class Patience(msgspec.Struct, frozen=True):
    """How long a scenario waits for the runner to do what it must do."""

    seconds: float


async def _taken(server: ScriptedOrchestrator, job: ScriptedJob, patience: Patience) -> bool:
    """Hand it out; whether it began to run."""
    server.grant(job)
    return await server.until(lambda: server.transcript.first("job", job.name), patience.seconds)


async def _beaten(server: ScriptedOrchestrator, job: ScriptedJob, times: int, seconds: float) -> bool:
    """Wait for answered heartbeats."""
    return await server.until(
        lambda: len(server.transcript.answered("Heartbeat", "HeartbeatAck", job.name)) >= times, seconds
    )


async def _completed(server: ScriptedOrchestrator, job: ScriptedJob, patience: Patience) -> bool:
    return await server.until(lambda: server.transcript.answered("Complete", "CompleteAck", job.name), patience.seconds)


async def life(server: ScriptedOrchestrator, patience: Patience) -> None:
    """A job of three steps: a slow answer to AckLease, some heartbeats, the log, the end, and silence."""
    job = server.job("life", ttl_seconds=LIFE_TTL_SECONDS)
    job.runs(
        job.step("one", "echo first line", "env"),
        job.step("two", "echo second line", job.witness.waits),
        job.step("three $KIT_WORD", "echo third line"),
        env={"KIT_WORD": WORD},
    )
    job.reacts("AckLease", Fault("hold", seconds=HOLD_SECONDS))
    if not await _taken(server, job, patience):
        return
    await _beaten(server, job, BEATS, BEATS_SECONDS)
    job.witness.go()
    if await _completed(server, job, patience):
        await server.quiet(QUIET_SECONDS)


async def lost_answers(server: ScriptedOrchestrator, patience: Patience) -> None:
    """Every kind of message is received once without an answer and refused once with 503."""
    job = server.job("lost")
    job.runs(job.step("one", "echo a line", job.witness.waits, "echo another line"))
    for type in ("AckLease", "Heartbeat", "log", "Complete"):
        job.reacts(type, CUT, BUSY)
    if not await _taken(server, job, patience):
        return
    await _beaten(server, job, 1, BEATS_SECONDS)
    job.witness.go()
    if await _completed(server, job, patience):
        await server.quiet(SHORT_QUIET_SECONDS)


async def no_lease(server: ScriptedOrchestrator, patience: Patience) -> None:
    """A lease that is gone when it is acknowledged; then a job that fails; then one that is specified elsewhere."""
    refused = server.job("refused")
    refused.runs(refused.step("one"))
    refused.reacts("AckLease", Fault("stale", reason="LEASE_REVOKED"))
    failing = server.job("failing")
    failing.runs(failing.step("one"), failing.step("two", f"exit {EXIT_CODE}"), failing.step("three"))
    referred = server.job("referred", by_ref=True)
    referred.runs(referred.step("one"))
    server.grant(refused)
    if not await server.until(
        lambda: server.transcript.heard("AckLease", "refused") or server.transcript.words("refused"), patience.seconds
    ):
        return
    for job in (failing, referred):
        server.grant(job)
        await _completed(server, job, patience)


async def same_twice(server: ScriptedOrchestrator, patience: Patience) -> None:
    """One lease is delivered twice at once, and again when it is over; then another job, to see that it was handled."""
    job = server.job("doubled")
    job.runs(job.step("one", job.witness.waits))
    after = server.job("after")
    after.runs(after.step("one"))
    server.grant(job, job)
    if not await server.until(lambda: server.transcript.words(job.name), patience.seconds):
        return
    await server.quiet(SHORT_QUIET_SECONDS)
    for _ in range(2):
        job.witness.go()
    await _completed(server, job, patience)
    job.witness.go()  # For one who runs it a third time.
    server.grant(job)
    server.grant(after)
    await _completed(server, after, patience)


async def cancel(server: ScriptedOrchestrator, patience: Patience) -> None:
    """A job that does not want to stop, and has a child that hides, is canceled."""
    job = server.job("canceled")
    job.runs(job.step("one", *STUBBORN))
    if not await _taken(server, job, patience):
        return
    await _beaten(server, job, 1, BEATS_SECONDS)
    job.deadline_seconds = CANCEL_SECONDS
    await server.until(
        lambda: server.transcript.heard("CancelAck", job.name), CANCEL_SECONDS + 2 * INTERVAL_SECONDS + 1
    )
    await server.quiet(SHORT_QUIET_SECONDS)


async def stale(server: ScriptedOrchestrator, patience: Patience) -> None:
    """In the middle of a job its lease is taken away."""
    job = server.job("stale")
    job.runs(job.step("one", job.witness.waits))
    job.reacts("Heartbeat", Fault("hold"), Fault("stale", reason="LEASE_REVOKED"))
    if not await _taken(server, job, patience):
        return
    told = await server.until(lambda: server.transcript.answered("Heartbeat", "StaleLease", job.name), BEATS_SECONDS)
    if told:
        await server.until(lambda: server.transcript.find("nobody", job.name), STOP_SECONDS)
        job.witness.go()
        await server.quiet(QUIET_SECONDS)


async def silence(server: ScriptedOrchestrator, patience: Patience) -> None:
    """The server is out of reach for longer than the lease lasts, and the job ends after that."""
    job = server.job("silent", ttl_seconds=SILENCE_TTL_SECONDS)
    job.runs(job.step("one", job.witness.waits))
    if not await _taken(server, job, patience):
        return
    await _beaten(server, job, 1, BEATS_SECONDS)
    await _away(server, job, ends_late=True)


async def late_result(server: ScriptedOrchestrator, patience: Patience) -> None:
    """The server is out of reach when the job ends, and comes back when the lease is over."""
    job = server.job("late", ttl_seconds=SILENCE_TTL_SECONDS)
    job.runs(job.step("one", job.witness.waits))
    if not await _taken(server, job, patience):
        return
    await _beaten(server, job, 1, BEATS_SECONDS)
    await _away(server, job, ends_late=False)


async def _away(server: ScriptedOrchestrator, job: ScriptedJob, *, ends_late: bool) -> None:
    server.is_cut_off = True
    if not ends_late:
        job.witness.go()
    await server.quiet(max(0.0, job.expires_at - server.now()) + 0.3)
    if ends_late:
        job.witness.go()
    await server.quiet(SHORT_QUIET_SECONDS)
    server.is_cut_off = False
    await server.quiet(1.5 * SHORT_QUIET_SECONDS)


class Scenario(msgspec.Struct, frozen=True):
    """A story and its name."""

    name: str
    play: Callable[[ScriptedOrchestrator, Patience], Awaitable[None]]
    credential_seconds: int = CREDENTIAL_SECONDS


# The longest come first, so that the others fit beside them.
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
