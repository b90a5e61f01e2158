"""Who lost its lease, who stole one, who forged a credential: refused on every route; and a lease delivered twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from chaos import liar
from chaos.deployment import Deployment, deployed
from chaos.jobs import over
from chaos.rows import Row, measured
from chaos.stage import Stage
from deltaci.app import BLOBS_FOLDER, KEY_FILE
from deltaci.conformance.http_client import HttpClient, Reply
from deltaci.conformance.scripted_runner import HeldLease, ScriptedRunner
from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.server.auth.credentials import load_server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.blobs import open_blob_store
from tests.e2e.proxy import Exchange, Proxy

FAULT: Final = "zombie after expiry"
STOLEN: Final = "stolen lease id"
FORGED: Final = "forged, altered or expired credential"
TWICE: Final = "a lease delivered twice"
TTL_SECONDS: Final = 3
SPEC: Final = {"steps": ["true"], "secrets": ["CHAOS_TOKEN"]}
NOTHING: Final = "nothing is accepted, kept or told"


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Against a real server, by hand."""
    async with deployed(stage, "liars", ttl_seconds=TTL_SECONDS) as deployment:
        secrets = Secrets(
            open_blob_store(str(deployment.data / BLOBS_FOLDER)), load_server_key(deployment.data / KEY_FILE)
        )
        secrets.set("default", "CHAOS_TOKEN", "a secret for the rightful one")
        caller = HttpClient(f"http://127.0.0.1:{deployment.ports()[0]}")
        names = {"honest": "default", "zombie": "default", "thief": "default", "stranger": "other"}
        who = {name: liar.register_runner(caller, deployment.data, name, tenant) for name, tenant in names.items()}
        yield await rightful(deployment, who["honest"])
        async for row in zombie(stage, deployment, who["zombie"], who["honest"]):
            yield row
        for thief in ("thief", "stranger"):
            async for row in stolen(deployment, who["honest"], who[thief]):
                yield row
        yield await forgeries(deployment, caller, who["honest"])
        yield (await deployment.verdict()).row(FAULT, "all of these")
    async with deployed(stage, "twice", ttl_seconds=11) as deployment:
        async for row in twice(stage, deployment):
            yield row


async def rightful(deployment: Deployment, honest: ScriptedRunner) -> Row:
    """The same requests in the name of the one who may: otherwise all refusals would show nothing."""
    await deployment.work.ask(SPEC)
    held = await asyncio.to_thread(liar.lease_job, honest)
    lease = {"Delta_Lease": held.granted.lease_id}
    asked = [
        held.send("Heartbeat"),
        held.log(0, b"true\n"),
        honest.request("PUT", "artifacts/true.txt", b"true", **lease),
        honest.request("PUT", "caches/known", b"true", **lease),
        honest.request("GET", "secrets", **lease),
        held.send("Complete"),
    ]
    refused = [reply for reply in asked if reply.status != 200]
    note = "; ".join(map(str, refused)) or f"{len(asked)} routes"
    return measured(FAULT, "none: the holder of a live lease", "who may, can", len(refused), "refused", 0, note)


async def zombie(
    stage: Stage, deployment: Deployment, dead: ScriptedRunner, successor: ScriptedRunner
) -> AsyncIterator[Row]:
    """It slept past its lease: before anybody else has the job, while somebody has, and when that one is done."""
    id = await deployment.work.ask(SPEC)
    held = await asyncio.to_thread(liar.lease_job, dead)
    stage.log("a runner sleeps past its lease")
    await deployment.event(lambda event: event.entity_id == id and event.to == attempt.STALE, "the lease is lost")
    yield _judged(FAULT, "after expiry, nobody has the job", await asyncio.to_thread(_all, held, dead))

    other = await asyncio.to_thread(liar.lease_job, successor)
    assert other.granted.job_id == held.granted.job_id
    yield _judged(FAULT, "after expiry, a successor has the job", await asyncio.to_thread(_all, held, dead))
    beat = await asyncio.to_thread(other.send, "Heartbeat")
    done = await asyncio.to_thread(other.send, "Complete")
    yield _judged(FAULT, "after its successor completed", await asyncio.to_thread(_all, held, dead))
    record = await over(deployment, id)
    unharmed = "the successor works on and its result stands"
    wrong = _harmed(deployment, record, [beat, done])
    yield measured(FAULT, "all of that", unharmed, len(wrong), "violations", 0, "; ".join(wrong))


def _harmed(deployment: Deployment, record: Attempt, replies: Iterable[Reply]) -> list[str]:
    wrong = [f"the successor was answered {reply}" for reply in replies if reply.status != 200]
    if (record.state, record.claims) != (attempt.SUCCEEDED, 2):
        wrong.append(f"the job is {record.state} after {record.claims} claims")
    for path in (deployment.data / "logs", deployment.data / BLOBS_FOLDER):
        wrong += [f"a lie is kept in {each}" for each in path.rglob("*") if each.is_file() and b"a lie" in _read(each)]
    return wrong


async def stolen(deployment: Deployment, owner: ScriptedRunner, thief: ScriptedRunner) -> AsyncIterator[Row]:
    """A live lease's id in the hands of another runner, and of another tenant's."""
    whose = "another tenant's runner" if thief.runner_id == "stranger" else "another runner"
    id = await deployment.work.ask(SPEC)
    held = await asyncio.to_thread(liar.lease_job, owner)
    yield _judged(STOLEN, f"a live lease, by {whose}", await asyncio.to_thread(_all, held, thief))
    in_its_name = [(kind, await asyncio.to_thread(held.send, kind, thief)) for kind in ("Heartbeat", "Complete")]
    yield _judged(STOLEN, f"a live lease, by {whose} in the owner's name", in_its_name)
    await deployment.work.cancel(id)
    yield _judged(STOLEN, f"one that is asked to stop, by {whose}", await asyncio.to_thread(_all, held, thief))
    told = await asyncio.to_thread(held.send, "CancelAck")
    record = await over(deployment, id)
    wrong = [] if (told.status, record.state) == (200, attempt.CANCELED) else [f"{told}, {record.state}"]
    yield measured(STOLEN, f"by {whose}", "the owner is unharmed", len(wrong), "violations", 0, "; ".join(wrong))


async def forgeries(deployment: Deployment, caller: HttpClient, honest: ScriptedRunner) -> Row:
    """Every credential that is none, on every route."""
    answers: list[tuple[str, Reply]] = []
    for name, credential in liar.forged_credentials(deployment.data, honest).items():
        for method, route in liar.ROUTES:
            lease = {"Delta_Lease": "x", "Delta_Offset": "0"}
            body = {"type": "Lease", "runner_id": honest.runner_id}
            sent = credential.encode("utf-8").decode("latin-1")
            reply = await asyncio.to_thread(caller.request, method, route, body, sent, **lease)
            answers.append((f"{name} on {route}", reply))
    other = [f"{what}: {reply}" for what, reply in answers if reply.status != 401]
    note = "; ".join(other[:3]) or f"{len(answers)} requests, always 401"
    return measured(FORGED, "17 kinds on 13 routes", "always 401", len(other), "other answers", 0, note)


class Again:
    """Gives the first grant to whoever asks next, and once more when the job is done."""

    def __init__(self) -> None:
        self.grants = b""
        self.given = 0
        self.is_done = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> bytes:
        if not self.grants or self.given == 2:
            answer = await exchange.forward()
            if b'"leases":[{' in answer:
                self.grants = self.grants or answer
            return answer
        self.given += 1
        if self.given == 2:
            await self.is_done.wait()
        return self.grants


async def twice(stage: Stage, deployment: Deployment) -> AsyncIterator[Row]:
    """The answer to a request for work comes again, while the job runs and after it."""
    async with Proxy(deployment.ports) as way:
        again = way.on("lease", Again(), times=50)
        deployment.add_runner("r1", slots=3, url=way.url)
        [id] = await deployment.work.enqueue_recorded(1, 2.0)
        await over(deployment, id)
        again.is_done.set()
        [next_id] = await deployment.work.enqueue_recorded(1, 0.2)
        await over(deployment, next_id)
        stage.log(f"the same lease was given {again.given} times more")
        found = await deployment.verdict()
        executions = len(deployment.work.witness.executions()[deployment.work.acknowledged[id]])
    injected = f"the same grant {again.given} times more"
    yield measured(TWICE, injected, "one right to run, not two", executions - 1, "executions too many", 0)
    yield found.row(TWICE, injected)


def _all(held: HeldLease, by: ScriptedRunner) -> list[tuple[str, Reply]]:
    return list(liar.send_everything(held, by))


def _judged(fault: str, injected: str, answers: list[tuple[str, Reply]]) -> Row:
    accepted = [f"{what}: {reply}" for what, reply in answers if liar.is_accepted(what, reply)]
    broken = [f"{what}: {reply}" for what, reply in answers if reply.status >= 500]
    note = "; ".join([*accepted, *broken]) or f"{len(answers)} kinds of requests refused"
    return measured(fault, injected, NOTHING, len(accepted) + len(broken), "accepted", 0, note)


def _read(path: object) -> bytes:
    with open(str(path), "rb") as file:
        return file.read(1 << 20)
