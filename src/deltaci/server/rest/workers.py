"""Workers: list, drain, resume and remove them, and create registration tokens.

A path names a worker by its name; the request applies to the latest incarnation of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.api.schemas import records as api
from deltaci.core import worker
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.listing import GONE_WORKERS, WORKERS
from deltaci.core.machine import Command
from deltaci.core.worker import Worker
from deltaci.fleet.incarnations import Incarnation
from deltaci.server.auth.registration_tokens import RegistrationTokens
from deltaci.server.rest import serializers
from deltaci.server.rest.http.cursors import decode_position, encode_position
from deltaci.server.rest.http.request import Call, Handler, not_found
from deltaci.storage.port import ListQuery


async def list_workers(call: Call) -> api.WorkerPage:
    """Return a page of workers, the newest first."""
    query = call.query
    lists = [GONE_WORKERS if query.gone else WORKERS]
    list_query = ListQuery(
        tenant=call.caller.tenant, lists=lists, before=decode_position(query.cursor), limit=query.limit
    )
    page = await call.app.store.page(list_query)
    workers = await _serialize(call, [record for record in page.records if isinstance(record, Worker)])
    return api.WorkerPage(workers=workers, next=encode_position(page.next))


async def read_worker(call: Call) -> api.Worker:
    _, worker_record = await _load_latest(call)
    return (await _serialize(call, [worker_record]))[0]


async def drain_worker(call: Call) -> api.Worker:
    """Drain a worker. Has no effect, and keeps the reason, if it is already draining."""
    _, worker_record = await _load_latest(call)
    return await _execute(call, worker.Drain(id=worker_record.id, reason=call.body.reason, actor=call.actor))


async def resume_worker(call: Call) -> api.Worker:
    """Let a worker get work again. Has no effect if it is not on hold."""
    _, worker_record = await _load_latest(call)
    return await _execute(call, worker.Resume(id=worker_record.id, actor=call.actor))


async def remove_worker(call: Call) -> api.Worker:
    """Shut a worker down unless it has stopped already, and mark it, so that it cannot register again by itself."""
    incarnation, worker_record = await _load_latest(call)
    if incarnation.is_over:
        [removed_worker] = await _serialize(call, [worker_record])
    else:
        removed_worker = await _execute(call, _removal(call, worker_record))
    await call.app.incarnations.mark_removed(call.caller.tenant, incarnation, call.actor, await call.app.store.now())
    return removed_worker


def _removal(call: Call, worker_record: Worker) -> Command:
    """Return the command that removes a worker: GiveUp if it does not respond, else Shutdown."""
    if worker.MACHINE.changes(worker_record.state, worker.GiveUp):
        return worker.GiveUp(id=worker_record.id)
    return worker.Shutdown(id=worker_record.id, reason=worker.REMOVED, actor=call.actor)


async def _load_latest(call: Call) -> tuple[Incarnation, Worker]:
    worker_name = str(call.params["worker"])
    incarnation = await call.app.incarnations.latest(call.caller.tenant, worker_name)
    if incarnation.worker is None:
        raise not_found("worker", worker_name)
    return incarnation, incarnation.worker


async def _execute(call: Call, command: Command) -> api.Worker:
    try:
        worker_record = (await call.app.engine.do(command)).record
    except Refused as refused:
        if refused.code != "not_eligible":
            raise
        raise Refused("wrong_state", f"{refused.message}; then ask again") from refused
    assert isinstance(worker_record, Worker)
    return (await _serialize(call, [worker_record]))[0]


async def _serialize(call: Call, worker_records: Sequence[Worker]) -> list[api.Worker]:
    """Return the workers as the API shows them. Only the attempts of unresponsive ones are loaded."""
    fleet = call.app.fleet
    task_ids = [
        attempt_id
        for worker_record in worker_records
        if worker.is_unresponsive(worker_record)
        for attempt_id in worker_record.tasks
    ]
    attempt_records = await call.app.store.find_all(task_ids) if task_ids else []
    lease_ends = {attempt.id: attempt.reassign_at for attempt in attempt_records if isinstance(attempt, Attempt)}
    return [
        serializers.worker(
            worker_record,
            fleet.last_seen_at(worker_record),
            max((lease_ends.get(attempt_id, 0) for attempt_id in worker_record.tasks), default=0),
            is_missed=fleet.has_missed_checks(worker_record),
        )
        for worker_record in worker_records
    ]


async def make_token(call: Call) -> api.WorkerToken:
    """Create a token with which one runner of this name can register, once, for the caller's tenant."""
    token_input = call.body
    tokens = RegistrationTokens(call.app.engine, call.app.store, call.app.signer)
    token, expires_at = await tokens.issue(
        call.caller.tenant,
        token_input.name,
        token_input.expires_seconds,
        again=token_input.again,
        actor=call.actor,
    )
    return api.WorkerToken(name=token_input.name, token=token, expires_at=serializers.to_datetime(expires_at))


HANDLERS: Final[dict[str, Handler]] = {
    "listWorkers": list_workers,
    "readWorker": read_worker,
    "makeWorkerToken": make_token,
    "drainWorker": drain_worker,
    "resumeWorker": resume_worker,
    "removeWorker": remove_worker,
}
