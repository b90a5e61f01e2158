"""The fleet: who is there, and how somebody new comes in."""

from __future__ import annotations

from typing import Final

from deltaci.core.instants import SECOND
from deltaci.core.listing import GONE_WORKERS, WORKERS
from deltaci.core.worker import Worker
from deltaci.server.api import shown
from deltaci.server.api.calls import Call, Handler, missing, own
from deltaci.server.api.cursors import cursor, place
from deltaci.store.port import Search
from deltaci.wire import api


async def list_workers(call: Call) -> api.WorkerPage:
    """The newest first."""
    query = call.query
    lists = [GONE_WORKERS if query.gone else WORKERS]
    search = Search(tenant=call.who.tenant, lists=lists, before=place(query.cursor), limit=query.limit)
    page = await call.parts.store.page(search)
    found = [shown.worker(each) for each in page.records if isinstance(each, Worker)]
    return api.WorkerPage(workers=found, next=cursor(page.next))


async def read_worker(call: Call) -> api.Worker:
    """One of them."""
    id = str(call.params["worker"])
    record = own(call, await call.parts.store.find(id), "worker", id)
    if not isinstance(record, Worker):
        raise missing("worker", id)
    return shown.worker(record)


async def make_token(call: Call) -> api.WorkerToken:
    """It is good once, for a runner of this name, for the caller's tenant."""
    asked = call.body
    token = call.parts.signer.sign("register", asked.name, call.who.tenant, asked.expires_seconds, again=asked.again)
    expires_at = call.parts.keys.now() + asked.expires_seconds * SECOND
    return api.WorkerToken(name=asked.name, token=token, expires_at=shown.moment(expires_at))


HANDLERS: Final[dict[str, Handler]] = {
    "listWorkers": list_workers,
    "readWorker": read_worker,
    "makeWorkerToken": make_token,
}
