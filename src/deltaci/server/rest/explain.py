"""Explain the state of a run, a job or an attempt from its records, its events and the state of the tenant."""

from __future__ import annotations

from collections.abc import Iterable
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
from deltaci.server.rest.http.lookup import get_attempt, get_attempts, get_job, get_jobs, get_run
from deltaci.server.rest.http.request import Call, Handler
from deltaci.storage.port import ListQuery

MAX_EVENTS: Final = 200_000
MAX_WORKERS: Final = 1000
MAX_FLAKY_JOBS: Final = 50
MAX_GROUPS: Final = 100
_PAGE: Final = 200


async def explain_run(call: Call) -> api.Explanation:
    run, jobs, attempts, events, tenant_state = await _load_run_records(call)
    return _serialize(explain.explain_run(run, jobs, attempts, events, tenant_state))


async def explain_job(call: Call) -> api.Explanation:
    job = await get_job(call)
    run, jobs, attempts, events, tenant_state = await _load_run_records(call)
    return _serialize(explain.explain_job(job, run, jobs, attempts, events, tenant_state))


async def explain_attempt(call: Call) -> api.Explanation:
    attempt = await get_attempt(call)
    run, jobs, attempts, events, tenant_state = await _load_run_records(call)
    return _serialize(explain.explain_attempt(attempt, run, jobs, attempts, events, tenant_state))


async def _load_run_records(call: Call) -> tuple[Run, list[Job], list[Attempt], list[Event], explain.TenantState]:
    run = await get_run(call)
    jobs = await get_jobs(call, run)
    attempts = [attempt for job_attempts in (await get_attempts(call, jobs)).values() for attempt in job_attempts]
    events = await feed.read(call.app.store, 0, MAX_EVENTS, run_id=run.id)
    return run, jobs, attempts, events, await _tenant_state(call, run, attempts)


async def _tenant_state(call: Call, run: Run, attempts: list[Attempt]) -> explain.TenantState:
    """Return the workers, the quota, the holders of the attempts' groups and the flaky tests, as they are now."""
    tenant, store, tenants = call.caller.tenant, call.app.store, call.app.tenants
    running_quota = await tenants.running_limit(tenant)
    holder_by_group, group_fences = await get_group_holders(call, attempts)
    return explain.TenantState(
        now=await store.now(),
        workers=tuple(await get_workers(call)),
        running_quota=running_quota,
        running=await tenants.running_jobs(tenant) if running_quota else 0,
        groups=holder_by_group,
        group_fences=group_fences,
        flaky=await _flaky_tests(call, run, attempts),
    )


async def get_group_holders(call: Call, attempts: Iterable[Attempt]) -> tuple[dict[str, str], dict[str, int]]:
    """Return the ids of the attempts that hold the groups of waiting attempts, by group.

    Return also until when those without a live lease hold them.
    """
    tenant, store = call.caller.tenant, call.app.store
    waiting_groups = {attempt.group for attempt in attempts if attempt.group and ready_at(attempt)}
    holder_by_group = {
        group_name: await store.group_holder(tenant, group_name) for group_name in sorted(waiting_groups)[:MAX_GROUPS]
    }
    holders = await store.find_all([id for id in holder_by_group.values() if id])
    fences = {
        holder.group: holder.fence_until
        for holder in holders
        if isinstance(holder, Attempt) and holder.lease is None and holder.fence_until
    }
    return holder_by_group, fences


async def get_workers(call: Call) -> list[Worker]:
    """Return the registered workers of the tenant, the newest first, up to about MAX_WORKERS."""
    workers: list[Worker] = []
    before_position = None
    while len(workers) < MAX_WORKERS:
        list_query = ListQuery(tenant=call.caller.tenant, lists=[WORKERS], before=before_position, limit=_PAGE)
        page = await call.app.store.page(list_query)
        workers += [record for record in page.records if isinstance(record, Worker)]
        before_position = page.next
        if before_position is None:
            break
    return workers


async def _flaky_tests(call: Call, run: Run, attempts: list[Attempt]) -> dict[str, frozenset[str]]:
    """Return the names of all known flaky tests of each job with failed tests, for a limited number of jobs."""
    job_names = dict.fromkeys(flaky.job_name(attempt) for attempt in attempts if flaky.failed_tests(attempt.report)[0])
    project_name, now = flaky.history_key(run)[0], await call.app.store.now()
    return {
        job_name: frozenset(flaky.flaky_tests(await call.app.flaky.of_job(run.tenant, project_name, job_name), now))
        for job_name in list(job_names)[:MAX_FLAKY_JOBS]
    }


def _serialize(explanation: explain.Explanation) -> api.Explanation:
    return api.Explanation(
        id=explanation.id,
        entity=explanation.entity,
        state=explanation.state,
        status=explanation.status,
        summary=explanation.summary,
        waiting=[serialize_reason(reason) for reason in explanation.waiting],
        history=[serialize_reason(reason) for reason in explanation.history],
    )


def serialize_reason(reason: explain.Reason) -> api.Reason:
    return api.Reason(
        code=reason.code,
        text=reason.text,
        about=reason.about,
        at=serializers.to_optional_datetime(reason.at),
        seq=reason.seq,
    )


HANDLERS: Final[dict[str, Handler]] = {
    "explainRun": explain_run,
    "explainJob": explain_job,
    "explainAttempt": explain_attempt,
}
