"""Why something is as it is: what the core says about it, from the records, the events and the fleet."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas import records as api
from deltaci.audit import explain
from deltaci.core import flaky
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.listing import WORKERS
from deltaci.core.run import Run
from deltaci.core.timers import ready_at
from deltaci.core.worker import Worker
from deltaci.engine import feed
from deltaci.server.rest import serializers
from deltaci.server.rest.http.lookup import attempt_of, attempts_of, job_of, jobs_of, run_of
from deltaci.server.rest.http.request import Call, Handler
from deltaci.storage.port import ListQuery

MAX_EVENTS: Final = 200_000
MAX_WORKERS: Final = 1000
MAX_FLAKY_JOBS: Final = 50
MAX_GROUPS: Final = 100
_PAGE: Final = 200


async def explain_run(call: Call) -> api.Explanation:
    """The whole run."""
    run, jobs, tries, events, around = await _known(call)
    return _shown(explain.explain_run(run, jobs, tries, events, around))


async def explain_job(call: Call) -> api.Explanation:
    """One job of it."""
    job = await job_of(call)
    run, jobs, tries, events, around = await _known(call)
    return _shown(explain.explain_job(job, run, jobs, tries, events, around))


async def explain_attempt(call: Call) -> api.Explanation:
    """One attempt of a job."""
    attempt = await attempt_of(call)
    run, jobs, tries, events, around = await _known(call)
    return _shown(explain.explain_attempt(attempt, run, jobs, tries, events, around))


async def _known(call: Call) -> tuple[Run, list[Job], list[Attempt], list[Event], explain.TenantState]:
    run = await run_of(call)
    jobs = await jobs_of(call, run)
    tries = [each for some in (await attempts_of(call, jobs)).values() for each in some]
    events = await feed.read(call.parts.store, 0, MAX_EVENTS, run_id=run.id)
    return run, jobs, tries, events, await _around(call, run, tries)


async def _around(call: Call, run: Run, tries: list[Attempt]) -> explain.TenantState:
    """The fleet, the quota, who has the attempts' groups, and what is known to be flaky, as all of it is now."""
    tenant, store, tenants = call.who.tenant, call.parts.store, call.parts.tenants
    quota = await tenants.running_limit(tenant)
    groups = {each.group for each in tries if each.group and ready_at(each)}
    return explain.TenantState(
        now=await store.now(),
        workers=tuple(await fleet_of(call)),
        running_quota=quota,
        running=await tenants.running(tenant) if quota else 0,
        groups={group: await store.group_holder(tenant, group) for group in sorted(groups)[:MAX_GROUPS]},
        flaky=await _flaky(call, run, tries),
    )


async def fleet_of(call: Call) -> list[Worker]:
    """The tenant's workers that are there; of very many the newest."""
    workers: list[Worker] = []
    before = None
    while len(workers) < MAX_WORKERS:
        search = ListQuery(tenant=call.who.tenant, lists=[WORKERS], before=before, limit=_PAGE)
        page = await call.parts.store.page(search)
        workers += [each for each in page.records if isinstance(each, Worker)]
        before = page.next
        if before is None:
            break
    return workers


async def _flaky(call: Call, run: Run, tries: list[Attempt]) -> dict[str, frozenset[str]]:
    """Of jobs with failed tests: those of their tests that are known to be flaky."""
    names = dict.fromkeys(flaky.job_name(each) for each in tries if flaky.failed_tests(each.report)[0])
    project, now = flaky.history_key(run)[0], await call.parts.store.now()
    return {
        name: frozenset(flaky.flaky_tests(await call.parts.flaky.of_job(run.tenant, project, name), now))
        for name in list(names)[:MAX_FLAKY_JOBS]
    }


def _shown(explanation: explain.Explanation) -> api.Explanation:
    return api.Explanation(
        id=explanation.id,
        entity=explanation.entity,
        state=explanation.state,
        status=explanation.status,
        summary=explanation.summary,
        waiting=[because(each) for each in explanation.waiting],
        history=[because(each) for each in explanation.history],
    )


def because(reason: explain.Reason) -> api.Reason:
    """One sentence."""
    return api.Reason(
        code=reason.code, text=reason.text, about=reason.about, at=serializers.maybe(reason.at), seq=reason.seq
    )


HANDLERS: Final[dict[str, Handler]] = {
    "explainRun": explain_run,
    "explainJob": explain_job,
    "explainAttempt": explain_attempt,
}
