"""The fleet: who is there, who gets work, and how somebody comes in or is sent away.

People name a worker; what they want is for its latest life.
"""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas import records as api
from deltaci.core import worker
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.listing import GONE_WORKERS, WORKERS
from deltaci.core.machine import Command
from deltaci.core.worker import Worker
from deltaci.fleet.incarnations import Incarnation
from deltaci.server.rest import serializers
from deltaci.server.rest.http.cursors import cursor, place
from deltaci.server.rest.http.request import Call, Handler, missing
from deltaci.storage.port import ListQuery


async def list_workers(call: Call) -> api.WorkerPage:
    """The newest first."""
    query = call.query
    lists = [GONE_WORKERS if query.gone else WORKERS]
    search = ListQuery(tenant=call.who.tenant, lists=lists, before=place(query.cursor), limit=query.limit)
    page = await call.parts.store.page(search)
    found = [_shown(call, each) for each in page.records if isinstance(each, Worker)]
    return api.WorkerPage(workers=found, next=cursor(page.next))


async def read_worker(call: Call) -> api.Worker:
    """One of them."""
    _, record = await _life(call)
    return _shown(call, record)


async def drain_worker(call: Call) -> api.Worker:
    """Safe to repeat: the first reason stays."""
    _, record = await _life(call)
    return await _done(call, worker.Drain(id=record.id, reason=call.body.reason, actor=call.actor))


async def resume_worker(call: Call) -> api.Worker:
    """Safe to repeat."""
    _, record = await _life(call)
    return await _done(call, worker.Resume(id=record.id, actor=call.actor))


async def remove_worker(call: Call) -> api.Worker:
    """Safe to repeat; also for one that is gone already, which then does not come back by itself."""
    life, record = await _life(call)
    found = _shown(call, record)
    if not life.is_over:
        found = await _done(call, _removal(call, record))
    await call.parts.lives.mark_removed(call.who.tenant, life, call.actor, await call.parts.store.now())
    return found


def _removal(call: Call, record: Worker) -> Command:
    """The order by which it goes. Nobody can ask one to go that does not answer: it is given up instead."""
    if worker.MACHINE.changes(record.state, worker.GiveUp):
        return worker.GiveUp(id=record.id)
    return worker.Shutdown(id=record.id, reason=worker.REMOVED, actor=call.actor)


async def _life(call: Call) -> tuple[Incarnation, Worker]:
    name = str(call.params["worker"])
    life = await call.parts.lives.latest(call.who.tenant, name)
    if life.worker is None:
        raise missing("worker", name)
    return life, life.worker


async def _done(call: Call, order: Command) -> api.Worker:
    try:
        record = (await call.parts.engine.do(order)).record
    except Refused as refused:
        if refused.code != "not_eligible":
            raise
        raise Refused("wrong_state", f"{refused.message}; then ask again") from refused
    assert isinstance(record, Worker)
    return _shown(call, record)


def _shown(call: Call, record: Worker) -> api.Worker:
    fleet = call.parts.fleet
    return serializers.worker(record, fleet.last_seen_at(record), is_missed=fleet.has_missed_checks(record))


async def make_token(call: Call) -> api.WorkerToken:
    """It is good once, for a runner of this name, for the caller's tenant."""
    asked = call.body
    token = call.parts.signer.sign("register", asked.name, call.who.tenant, asked.expires_seconds, again=asked.again)
    expires_at = call.parts.keys.now() + asked.expires_seconds * SECOND
    return api.WorkerToken(name=asked.name, token=token, expires_at=serializers.moment(expires_at))


HANDLERS: Final[dict[str, Handler]] = {
    "listWorkers": list_workers,
    "readWorker": read_worker,
    "makeWorkerToken": make_token,
    "drainWorker": drain_worker,
    "resumeWorker": resume_worker,
    "removeWorker": remove_worker,
}
