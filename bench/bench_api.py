"""The API of one real server: runs started, read and found, and what a refusal gives away.

The server is the command `deltaci server` in a process of its own, and so are those who ask (`bench/asking.py`). Known
limits are measured in the same run: an address that needs no store (`GET /me`), the same uvicorn that only decodes and
encodes the same bytes (`bench/bare.py`), the write path by direct calls, and the store's statements alone, each
transaction durable (`bench/starts.py`).
"""

from __future__ import annotations

import http.client
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import past_runs, starts
from bench.asking import Ask, AskResult, Compare, ComparedRequest, request
from bench.bench_queue import all_heard, at_new_place
from bench.databases import KINDS, POSTGRES, BenchDatabase, DatabaseFactory, log_progress
from bench.figures import Figure
from bench.processes import Process, address, started
from deltaci.api.routes import ROOT
from deltaci.app import KEY_FILE
from deltaci.core.cascade import NewRecord
from deltaci.core.worker import Worker
from deltaci.engine import event_loop
from deltaci.engine.engine import Engine
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.server.rest.http.cursors import encode_position
from deltaci.storage import port
from tests.support.postgres_server import PostgresServer, ServerFailed

CONNECTIONS = 32
COUNT = 6000  # requests of each kind
ROUNDS = 3
PLANS = (1, 10)  # jobs
PASTS = (1000, 1_000_000)  # runs
PAGES = 300  # requests of each kind
REFUSALS = 1500  # requests of each kind
TENANT: Final = starts.TENANT
STRANGER: Final = "somebody-else"
WORKER: Final = "runner-1"
SECONDS: Final = 3600
LONG: Final = 900.0  # seconds, for what takes a while

QUERIES: Final = {
    "all": "",
    "status=": "?status=FAILED",
    "branch=": "?branch=main",
    "status= and branch=": "?status=FAILED&branch=main",
}


class Server:
    """A server with a store of its own, and what is asked of it."""

    def __init__(self, process: Process, data: Path) -> None:
        self.process = process
        self.port = int(address(process).rpartition(":")[2])
        self._signer = Signer(load_server_key(data / KEY_FILE), time.time)

    def token(self, tenant: str = TENANT) -> str:
        """A new key of this tenant that may do anything."""
        operator = self._signer.sign("operate", "bench", tenant, SECONDS)
        made = self.ask("POST", "/keys", operator, {"person": starts.PERSON, "scopes": ["admin"]})
        return str(made["token"])

    def ask(self, method: str, path: str, token: str, body: Any = None) -> Any:
        """One request that nobody measures."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
            line.request(method, f"{ROOT}{path}", sent, {"Authorization": f"Bearer {token}"})
            answer = line.getresponse()
            heard = answer.read()
            assert answer.status < 300, heard
            return msgspec.json.decode(heard)
        finally:
            line.close()


def run() -> list[Figure]:
    """Everything on every store that there is."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kinds = list(KINDS)
        server: PostgresServer | None = None
        try:
            server = stack.enter_context(PostgresServer())
        except ServerFailed as error:
            log_progress(f"without PostgreSQL: {error}")
            kinds.remove(POSTGRES)
        yard = DatabaseFactory(server, folder)
        crowd = stack.enter_context(started("-m", "bench.asking"))
        return [figure for kind in kinds for part in (requests, refusals, pages) for figure in part(yard, kind, crowd)]


@contextmanager
def served(yard: DatabaseFactory, place: BenchDatabase) -> Iterator[Server]:
    """A server on this place."""
    data = yard.folder / f"data-{Path(place.url).name.partition('?')[0]}"
    store = place.url if place.kind == POSTGRES else f"sqlite:{place.url}"
    command = ("-m", "deltaci", "server", "--store", store, "--data", str(data), "--port", "0")
    with started(*command) as process:
        yield Server(process, data)


# --- Requests per second -------------------------------------------------------------------------


class Rate(msgspec.Struct, frozen=True):
    """The best of some rounds."""

    asked: AskResult
    cpu: float  # of the server, in seconds for all requests

    @property
    def per_second(self) -> float:
        """Requests."""
        return COUNT / self.asked.seconds

    @property
    def shares(self) -> str:
        """Who used how much of a core meanwhile."""
        seconds = self.asked.seconds
        return f"CPU: {self.cpu / seconds:.0%} of a core in the server, {self.asked.cpu / seconds:.0%} in the load"


def requests(yard: DatabaseFactory, kind: str, crowd: Process) -> list[Figure]:
    """Start runs, read them, repeat a start; 32 at the same time."""
    place = yard.new(kind)
    try:
        with served(yard, place) as server:
            token = server.token()
            runs = {jobs: server.ask("POST", "/runs", token, starts.body(jobs))["id"] for jobs in PLANS}
            answers = {f"GET /runs/{id}": server.ask("GET", f"/runs/{id}", token) for id in runs.values()}
            posted = server.ask("POST", "/runs", token, starts.body(1))
            wanted = _wanted(runs, token)
            crowd_rates = _rates(crowd, server.process, server.port, wanted)
    finally:
        yard.drop(place)
    with started("-m", "bench.bare") as bare:
        texts = {name: msgspec.json.encode(value).decode() for name, value in answers.items()}
        bare.send({**texts, "POST /runs": msgspec.json.encode(posted).decode()})
        port = int(address(bare).rpartition(":")[2])
        known = {name: each for name, each in wanted.items() if name.startswith(("POST", "GET /runs"))}
        limits = _rates(crowd, bare, port, known)
    return _told(yard, kind, crowd_rates, limits)


def _wanted(runs: dict[int, str], token: str) -> dict[str, tuple[bytes, int]]:
    """Requests by name, each with the status of its answer."""
    found = {"GET /me": (request("GET", "/me", token), 200)}
    for jobs, id in runs.items():
        found[f"POST /runs, {_jobs(jobs)}"] = (request("POST", "/runs", token, starts.body(jobs)), 201)
        found[f"GET /runs/{{run}}, {_jobs(jobs)}"] = (request("GET", f"/runs/{id}", token), 200)
    found["a repeat of POST /runs"] = (request("POST", "/runs", token, starts.body(1), key="once"), 200)
    return found


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _rates(crowd: Process, process: Process, port: int, wanted: dict[str, tuple[bytes, int]]) -> dict[str, Rate]:
    """Each of them in turn, some rounds; the fastest counts, since others use this machine too."""
    best: dict[str, Rate] = {}
    for number in range(ROUNDS):
        for name, (sent, status) in wanted.items():
            if number == 0:
                crowd.send(Ask(port, 1, 1, [sent], 201 if sent.startswith(b"POST") else 200))
                crowd.receive()
            cpu = process.cpu()
            crowd.send(Ask(port, CONNECTIONS, COUNT, [sent], status))
            rate = Rate(msgspec.convert(crowd.receive(LONG), AskResult), process.cpu() - cpu)
            if name not in best or rate.asked.seconds < best[name].asked.seconds:
                best[name] = rate
    return best


def _told(yard: DatabaseFactory, kind: str, rates: dict[str, Rate], limits: dict[str, Rate]) -> list[Figure]:
    figures = []
    for name, rate in rates.items():
        ratios = {}
        if name != "GET /me":
            ratios["GET /me"] = rate.per_second / rates["GET /me"].per_second
        if name in limits:
            ratios["uvicorn that only decodes and encodes"] = rate.per_second / limits[name].per_second
        if name.startswith("POST"):
            jobs = next(plan for plan in PLANS if name.endswith(f" {_jobs(plan)}"))
            inside = COUNT / at_new_place(yard, kind, starts.start, CONNECTIONS, jobs, COUNT)
            alone = COUNT / starts.limit(yard, kind, CONNECTIONS, jobs, COUNT)
            ratios |= {"direct calls": rate.per_second / inside, "the store alone": rate.per_second / alone}
        log_progress(f"{kind}, {name}: {rate.per_second:,.0f} requests/s. {rate.shares}")
        figures += [
            Figure(f"{kind}, {name}", rate.per_second, "requests/s", ratios),
            Figure(f"{kind}, {name}: p50", rate.asked.p50 * 1e3, "ms"),
            Figure(f"{kind}, {name}: p99", rate.asked.p99 * 1e3, "ms"),
            Figure(f"{kind}, {name}: server CPU", rate.cpu / COUNT * 1e6, "µs/request"),
        ]
    return figures


# --- What is another tenant's --------------------------------------------------------------------


def refusals(yard: DatabaseFactory, kind: str, crowd: Process) -> list[Figure]:
    """How long the answer takes that there is no such thing: when there is none, and when it is another tenant's."""
    place = yard.new(kind)
    try:
        event_loop.run(_register(place))
        with served(yard, place) as server:
            theirs, mine = server.token(STRANGER), server.token()
            pairs = _pairs(server, theirs)
            wanted = [
                ComparedRequest(server.port, request("GET", path, mine), 404)
                for pair in pairs.values()
                for path in pair
            ]
            crowd.send(Compare(wanted, REFUSALS))
            medians = crowd.receive(LONG)
    finally:
        yard.drop(place)
    figures = []
    for number, name in enumerate(pairs):
        there, nowhere = medians[2 * number : 2 * number + 2]
        log_progress(f"{kind}, 404 for {name}: {there * 1e6:.0f} µs for another tenant's, {nowhere * 1e6:.0f} for none")
        ratios = {"one that does not exist": there / nowhere}
        figures.append(Figure(f"{kind}, 404 for another tenant's {name}, median", there * 1e6, "µs", ratios))
    return figures


async def _register(place: BenchDatabase) -> None:
    store = place.store()
    await store.open()
    engine = Engine(store)
    await engine.start()
    try:
        all_heard(await engine.do_all([NewRecord(id=WORKER, record=Worker(id=WORKER, tenant=STRANGER))]))
    finally:
        await engine.stop()
        await store.close()


def _pairs(server: Server, token: str) -> dict[str, tuple[str, str]]:
    """Addresses of what is theirs, each beside one of nothing that is as long."""
    id = str(server.ask("POST", "/runs", token, starts.body(10))["id"])
    key = str(server.ask("GET", "/me", token)["key_id"])
    plan = msgspec.json.decode(starts.body(1))["plan"]
    server.ask("PUT", "/templates/deploy", token, {"plan": plan})
    none = f"r{'0' * (len(id) - 1)}"
    return {
        "run": (f"/runs/{id}", f"/runs/{none}"),
        "job": (f"/runs/{id}/jobs/build", f"/runs/{none}/jobs/build"),
        "worker": (f"/workers/{WORKER}", "/workers/runner-2"),
        "key": (f"/keys/{key}", f"/keys/{'0' * len(key)}"),
        "template": ("/templates/deploy", "/templates/deplox"),
    }


# --- Pages of lists ------------------------------------------------------------------------------


def pages(yard: DatabaseFactory, kind: str, crowd: Process) -> list[Figure]:
    """The first page of runs, and one from the middle, with a short past and with a long one."""
    places = [yard.new(kind) for _ in PASTS]
    try:
        with ExitStack() as stack:
            wanted: list[ComparedRequest] = []
            for place, count in zip(places, PASTS, strict=True):
                log_progress(f"{kind}: {count:,} runs are written")
                middle = event_loop.run(_past(place, count))
                server = stack.enter_context(served(yard, place))
                token = server.token()
                for query in (*QUERIES.values(), f"?cursor={encode_position(middle)}"):
                    wanted.append(ComparedRequest(server.port, request("GET", f"/runs{query}", token)))
            crowd.send(Compare(wanted, PAGES))
            medians = crowd.receive(LONG)
    finally:
        for place in places:
            yard.drop(place)
    return _compared(kind, medians)


async def _past(place: BenchDatabase, count: int) -> port.ListPosition:
    store = place.store()
    await store.open()
    try:
        middle = await past_runs.write_past_runs(store, count)
    finally:
        await store.close()
    await place.query("ANALYZE" if place.kind == POSTGRES else "PRAGMA wal_checkpoint(TRUNCATE)")
    return middle


def _compared(kind: str, medians: list[float]) -> list[Figure]:
    few, many = PASTS
    names = [*(f"the first page, {name}" for name in QUERIES), "a page from the middle"]
    short, long = medians[: len(names)], medians[len(names) :]
    figures = []
    for name, before, now in zip(names, short, long, strict=True):
        log_progress(f"{kind}, {name}: {before * 1e3:.2f} ms with {few:,} runs, {now * 1e3:.2f} with {many:,}")
        ratios = {f"with {few:,} runs": now / before}
        if name == names[-1]:
            ratios["the first page"] = now / long[0]
        figures.append(Figure(f"{kind}, GET /runs with {many:,} runs, {name}", now * 1e3, "ms", ratios))
    return figures
