"""The operations that are allowed in each state: the table of docs/api.md, cell by cell, against a running server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from deltaci.core import job, run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.job import APPROVAL, JobSpec
from deltaci.core.run import Run
from tests.contract.backends import within
from tests.server.rest.site import TENANT, ApiSite, Caller, ScriptedRunner, gate, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
PAGE = Path(__file__).parents[3] / "docs" / "api.md"
VERBS = ("cancel", "approve", "reject", "rerun")


def documented_responses() -> dict[str, dict[str, int]]:
    """Return the table of docs/api.md: for every state, the HTTP status of each operation."""
    text = PAGE.read_text(encoding="utf-8").partition("| state of the run |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {row[0].replace("`", ""): dict(zip(VERBS, map(int, row[1:]), strict=True)) for row in rows}


class RunFactory:
    """Brings a new run into any state. No reporter is running, so that finished runs stay as they are."""

    def __init__(self, here: ApiSite, ada: Caller, runner: ScriptedRunner) -> None:
        self.here, self.ada, self.runner = here, ada, runner
        self._count = 0
        self.makers: dict[str, Callable[[], Awaitable[str]]] = {
            "CREATED": self.created,
            "PLANNING": self.planning,
            "QUEUED": lambda: ada.start(task("a", runs_on=["nobody"])),
            "RUNNING": self.running,
            "RUNNING, and a gate waits": lambda: self.running(gate("g", needs=[])),
            "WAITING_APPROVAL": lambda: ada.start(gate("g")),
            "VALIDATING": self.validating,
            "CANCEL_REQUESTED": self.cancel_requested,
            "SUCCESS": self.success,
            "SUCCESS, and the caller approved it": self.approved,
            "FAILED": self.failed,
            "TIMEOUT": self.timeout,
            "CANCELED": self.canceled,
            "REPORTED": lambda: self.reported(self.success),
            "REPORTED, cancelled": lambda: self.reported(self.canceled),
        }

    async def created(self) -> str:
        self._count += 1
        id = f"made-{self._count}"
        await self.here.service.engine.do(
            NewRecord(id=id, record=Run(id=id, run_id=id, tenant=TENANT, has_validation=True))
        )
        return id

    async def planning(self) -> str:
        id = await self.created()
        await self.here.service.engine.do(run.BeginPlanning(id=id))
        return id

    async def running(self, *more: dict[str, object]) -> str:
        id = await self.ada.start(self._urgent_task(), *more)
        await self.runner.take()
        return id

    async def validating(self) -> str:
        id = await self.planning()
        do = self.here.service.engine.do
        await do(Plan(id=id, jobs=(JobSpec(name="g", kind=APPROVAL),), plan_hash="x"))
        await do(job.Approve(id=f"{id}/g", actor="user:somebody"))
        return id

    async def cancel_requested(self) -> str:
        id = await self.running()
        await self.ada.post(f"/runs/{id}/cancel")
        return id

    def _urgent_task(self) -> dict[str, Any]:
        """Return a task that is claimed before those of earlier runs."""
        self._count += 1
        return task("a", needs=[], priority=self._count)

    async def success(self) -> str:
        id = await self.ada.start(self._urgent_task())
        await self.runner.finish(await self.runner.take())
        return id

    async def approved(self) -> str:
        id = await self.ada.start(gate("g"))
        await self.ada.post(f"/runs/{id}/approve")
        return id

    async def failed(self) -> str:
        id = await self.ada.start(self._urgent_task())
        await self.runner.fail(await self.runner.take())
        return id

    async def timeout(self) -> str:
        id = await self.ada.start(self._urgent_task(), plan={"timeout_seconds": 5})
        await self.runner.take()
        self.here.backend.after(6)
        await self.here.until(self.ada, id, "TIMEOUT")
        return id

    async def canceled(self) -> str:
        id = await self.ada.start(task("a", runs_on=["nobody"]))
        await self.ada.post(f"/runs/{id}/cancel")
        return id

    async def reported(self, made: Callable[[], Awaitable[str]]) -> str:
        id = await made()
        await self.here.service.engine.do(run.Report(id=id, actor="reporter"))
        return id


@within(170)
async def test_every_state_responds_to_every_operation_as_documented(site: Opened) -> None:
    """A refusal changes neither the run nor its jobs."""
    promised = documented_responses()
    async with site() as here:
        await here.service.reporter.stop()
        ada = await here.key("ada", "run", "approve")
        runs = RunFactory(here, ada, await here.register_runner(slots=100))

        assert set(promised) == set(runs.makers)
        states = {state.partition(",")[0] for state in promised}
        assert states | {"PLAN_FAILED"} == set(run.MACHINE.states)
        for state, answers in promised.items():
            for verb, expected in answers.items():
                id = await runs.makers[state]()
                before = await ada.run(id)
                assert before["state"] == state.partition(",")[0], state

                reply = await ada.post(f"/runs/{id}/{verb}")

                assert reply.status == expected, (state, verb, reply)
                if expected == 409:
                    assert reply.code == "wrong_state", (state, verb, reply)
                    assert await ada.run(id) == before, (state, verb)
