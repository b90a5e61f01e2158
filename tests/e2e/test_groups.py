"""Two deployments of one group, in real processes: the second never begins while the first may still run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import pytest

from deltaci.core import attempt
from deltaci.core.decide import StartRun
from deltaci.core.instants import SECOND
from deltaci.core.job import JobSpec
from deltaci.core.run import Run
from tests.e2e.deployment import LONG_TTL_SECONDS, Deployment, deployed, on_loop
from tests.e2e.pipes import Pipe, keeper_of

# Writes the time again and again, and ignores requests to stop.
DEAF: Final = "trap '' TERM INT HUP; echo begun > {pipe}; while :; do date +%s%6N >> {times}; sleep 0.02; done"


async def deploy(place: Deployment, run_id: str, step: str, timeout_seconds: int = 600) -> str:
    """Start a run with one job of the group `prod`; return the id of its first attempt."""
    work = {"steps": [step], "executor": "process"}
    spec = JobSpec(name="deploy", work=work, group="prod", timeout_seconds=timeout_seconds)
    record = Run(id=run_id, run_id=run_id, tenant="default")
    await place.engine.do(StartRun(id=run_id, record=record, jobs=(spec,), plan_hash="hash"))
    return f"{run_id}/deploy.1"


@pytest.mark.proves("MOD-D3", "MOD-5")
@pytest.mark.parametrize("is_cancelled", [True, False], ids=["forced cancel", "timeout"])
def test_the_next_deployment_waits_for_a_stopped_runner_whose_job_goes_on(tmp_path: Path, is_cancelled: bool) -> None:
    """The runner cannot learn that its job was ended; its job runs on, up to the end of its lease."""

    @on_loop
    async def story() -> None:
        times = tmp_path / "times"
        with Pipe(tmp_path / "begun") as begun:
            async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
                first_runner = place.start_runner("r1")
                step = DEAF.format(pipe=begun, times=times)
                first = await deploy(place, "run1", step, timeout_seconds=600 if is_cancelled else 3)
                await begun.hear()
                await place.until(first, lambda event: event.to == attempt.RUNNING)
                stopped = (keeper_of(first_runner.pid), first_runner.pid)
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                place.start_runner("r2")
                second = await deploy(place, "run2", "date +%s%6N")
                if is_cancelled:
                    await place.cancel(first, deadline_seconds=1)

                ended = await place.outcome(first)
                next_claim = await place.until(second, lambda event: event.to == attempt.LEASED)
                record = await place.outcome(second)
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)

                assert ended.state == (attempt.CANCELED if is_cancelled else attempt.TIMED_OUT)
                assert record.state == attempt.SUCCEEDED
                last_time = int(times.read_text().split()[-1])
                assert last_time > ended.updated_at + SECOND  # It was still running.
                assert last_time < ended.fence_until <= next_claim.at
                assert record.ended_lease is not None
                [begin_time] = place.numbers(second, record.ended_lease.number)
                assert last_time < begin_time

    story()
