"""What comes in from runners over HTTP: nearly valid messages, to the real application on every store.

Whatever comes, the answer is one of the documented ones, and a refusal has changed nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pytest
from hypothesis import strategies as st

from deltaci.protocol.routes import REFUSALS, ROOT
from tests.contract.backends import Backend
from tests.fuzz.json_texts import ODD_TEXTS, mutated
from tests.fuzz.profile import fuzzed
from tests.server.site import REQUIRED_FIELDS, RegisteredRunner, Reply, RunnerLease, Site, open_site

T = TypeVar("T")

MAX_SECONDS: Final = 10.0  # For one request.
LEASE: Final = "a live lease"
EXTRAS: Final[dict[str, dict[str, Any]]] = {
    "AckLease": {"job_id": "q1"},
    "Heartbeat": {
        "progress": {"percent": 5, "current_step": "x", "step_index": 0, "message": "m"},
        "log_cursor": {"bytes_sent": 1},
        "sequence_no": 1,
    },
    "Complete": {
        "timings": {
            "started_at": REQUIRED_FIELDS["Heartbeat"]["ts"],
            "finished_at": REQUIRED_FIELDS["Heartbeat"]["ts"],
        },
        "artifacts": [{"type": "log", "uri": "u", "name": "n", "bytes": 1}],
        "summary": "s",
        "error_code": "E",
        "signal": 9,
        "log_tail": ["l"],
        "steps": [{"index": 0, "exit_code": 1, "seconds": 0.5, "name": "n", "is_timed_out": False}],
        "tests": {"total": 1, "failed": 1, "seconds": 0.1, "failures": [{"name": "n", "message": "m"}]},
        "output": {"a": [1, 2.5, None]},
        "cost": {"wall_seconds": 1},
    },
    "CancelAck": {"artifacts": [], "summary": "s"},
}
SAID: Final = [
    {"type": kind, "lease_id": LEASE, "runner_id": "w1", **REQUIRED_FIELDS[kind], **more}
    for kind, more in EXTRAS.items()
]
ASKED: Final[dict[str, Any]] = {
    "lease": {"type": "Lease", "runner_id": "w1", "capabilities": ["x"], "slots": 1, "attempts": ["q1"]},
    "control": {"type": "Control", "runner_id": "w1", "lease_ids": [LEASE], "wait_seconds": 0},
    "renew": {"capabilities": ["x"], "slots": 2},
    "register": {"token": "dci_x", "capabilities": ["x"], "slots": 2, "request_id": "r"},
}


class Bench:
    """A site that lives through many examples, and one runner with a lease that is always live."""

    def __init__(self, loop: asyncio.Runner, site: Site, runner: RegisteredRunner) -> None:
        self._loop = loop
        self.site = site
        self.runner = runner
        self.held: RunnerLease | None = None
        self._count = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """On the loop of the site, and not for long."""
        return self._loop.run(asyncio.wait_for(work, MAX_SECONDS))

    async def lease(self) -> RunnerLease:
        """The lease, or another one if it is over."""
        if self.held is None or not await self._is_live(self.held):
            self._count += 1
            await self.site.server.enqueue(f"q{self._count}", spec={"steps": ["true"], "secrets": []})
            self.held = await self.runner.take()
        return self.held

    @staticmethod
    async def _is_live(held: RunnerLease) -> bool:
        return (await held.runner.request("GET", "log", delta_lease=held.id)).status == 200

    async def post(self, name: str, body: bytes) -> Reply:
        """Send it, with the live lease in its place. A refusal has changed nothing."""
        held = await self.lease()
        body = body.replace(json.dumps(LEASE).encode(), json.dumps(held.id).encode())
        before = await self.site.server.store.last_seq()
        reply = await self.runner.request("POST", name, body)
        if reply.status != 200:
            assert await self.site.server.store.last_seq() == before
        return reply


@pytest.fixture
def bench(backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    """The application over each of the stores."""
    with _open(backend, tmp_path, caplog) as found:
        yield found


@contextmanager
def _open(backend: Backend, folder: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    @asynccontextmanager
    async def whole() -> AsyncIterator[tuple[Site, RegisteredRunner]]:
        async with open_site(backend, folder / "logs", caplog) as site:
            yield site, await site.runner(slots=1000)

    with asyncio.Runner() as loop:
        entered = whole()
        site, runner = loop.run(entered.__aenter__())
        yield Bench(loop, site, runner)
        loop.run(entered.__aexit__(None, None, None))


def judged(reply: Reply) -> None:
    """One of the answers that the protocol has."""
    assert reply.status < 500, reply
    if reply.status != 200 and reply.body.get("type") != "StaleLease":
        assert set(reply.body) == {"code", "message"}
        assert reply.body["code"] in REFUSALS


@fuzzed(60, body=st.sampled_from(SAID).flatmap(mutated))
def test_a_message_that_is_nearly_right(bench: Bench, body: bytes) -> None:
    """A runner of somebody else, or one that is broken."""
    judged(bench.do(bench.post("messages", body)))


@fuzzed(25, bodies=st.lists(st.sampled_from(SAID).flatmap(mutated), max_size=6))
def test_a_batch_in_which_some_are_nearly_right(bench: Bench, bodies: list[bytes]) -> None:
    """One bad one does not hold up the others: as many answers as there are things in the list, if it is one."""
    body = b"[" + b",".join(bodies) + b"]"

    reply = bench.do(bench.post("batch", body))

    assert reply.status in (200, 400, 422), reply
    if reply.status == 200:
        count = len(msgspec.json.decode(body, type=list[msgspec.Raw]))
        assert [bool(each.get("type") or each.get("code") in REFUSALS) for each in reply.body] == [True] * count


@fuzzed(50, name=st.sampled_from(sorted(ASKED)), data=st.data())
def test_a_request_that_is_nearly_right(bench: Bench, name: str, data: st.DataObject) -> None:
    """The same for what is asked."""
    body = data.draw(mutated(ASKED[name]))

    judged(bench.do(bench.post(name, body)))


@fuzzed(
    60,
    method=st.sampled_from(("GET", "POST", "PUT", "DELETE", "HEAD", "X" * 50)),
    name=st.sampled_from(("log", "specs/", "artifacts/", "caches/", "secrets", "hand-back", "lease", "", "nothing")),
    rest=st.text(max_size=10) | st.sampled_from(ODD_TEXTS),
    headers=st.dictionaries(
        st.sampled_from(("authorization", "delta-lease", "delta-offset", "delta-sha256", "content-length")),
        st.binary(max_size=12) | st.sampled_from((b"Bearer ", b"bearer x", b"0", b"1" * 30, "²".encode(), b"9" * 15)),
    ),
    is_known=st.booleans(),
)
def test_headers_and_addresses_of_any_kind(
    bench: Bench, method: str, name: str, rest: str, headers: dict[str, bytes], is_known: bool
) -> None:
    """Whoever tries doors."""

    async def ask() -> tuple[int, bytes]:
        held = await bench.lease()
        known = {b"authorization": f"Bearer {bench.runner.credential}".encode(), b"delta-lease": held.id.encode()}
        told = (known if is_known else {}) | {key.encode(): value for key, value in headers.items()}
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        path = f"{ROOT}{name}{rest}"
        scope = {"type": "http", "method": method, "path": path, "headers": list(told.items())}
        await bench.site.app(scope, receive, send)
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])

    status, body = bench.do(ask())

    assert status < 500, body
    if status != 200:
        told = json.loads(body)
        assert told.get("type") == "StaleLease" or told["code"] in REFUSALS
