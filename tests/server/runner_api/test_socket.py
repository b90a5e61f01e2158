"""Invalid input over a real socket: a clear refusal, no change, and no leak.

Both of uvicorn's parsers have to pass; rules that need no socket are in `test_http.py` and `test_messages.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn.protocols.http.auto as chosen
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deltaci.app import KEY_FILE
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.protocol import messages as wire
from deltaci.protocol.routes import REFUSALS
from deltaci.server.auth.credentials import Signer, load_server_key
from deltaci.server.connection import MAX_HEAD_BYTES, ConnectionGuard
from tests.contract.backends import on_loop
from tests.server.live import LiveServer, run_server

MB = 1024 * 1024
TIME = "2026-01-04T08:00:00Z"


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of those that uvicorn may choose."""
    monkeypatch.setattr(chosen, "AutoHTTPProtocol", request.param)
    return str(request.param.__name__)


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of a refusal, which is one of those that are listed and has its status."""
        told = json.loads(self.body)
        if told.get("type") == "StaleLease":
            assert self.status == 409
            return str(told["reason"])
        assert REFUSALS[told["code"]].status == self.status, self
        assert told["message"]
        return str(told["code"])


class Line:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """As it is. A server that hung up is no mistake of the sender."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer | None:
        """The next answer; None when there is none any more."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *rest = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        body = await self._reader.readexactly(int(headers["content-length"]))
        return Answer(int(first.split()[1]), headers, body)

    async def only(self) -> Answer:
        """The answer, which must be there."""
        found = await self.answer()
        assert found is not None
        return found


class Bench:
    """A server with a runner that holds a lease, and its neighbours."""

    def __init__(self, live: LiveServer) -> None:
        self.live = live
        self.signer = Signer(load_server_key(live.folder / KEY_FILE), time.time)
        self.secrets: list[str] = []
        self.credential = self.lease_id = ""

    def signed(self, *claims: Any) -> str:
        """A token of this server."""
        token = self.signer.sign(*claims)
        self.secrets.append(token)
        return token

    async def prepare(self) -> Bench:
        """w1 holds a job; w2 and another tenant's x1 are there too."""
        async with self.live.client() as caller:
            for id, tenant in (("w1", "default"), ("w2", "default"), ("x1", "other")):
                token = self.live.token(id, tenant)
                entered = await caller.run(caller.client.register, token, [], 2)
                self.secrets += [token, entered.credential]
                if id == "w1":
                    self.credential = entered.credential
            record = Attempt(id="q1", tenant="default", spec={"steps": ["true"]})
            await self.live.server.engine.do(NewRecord(id="q1", record=record))
            caller.client.token = self.credential
            [granted] = await caller.run(caller.client.lease, wire.LeaseRequest(runner_id="w1"))
            self.lease_id = granted.lease_id
            self.secrets.append(granted.lease_id)
        return self

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """A connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.live.port, limit=4 * MB)
        try:
            yield Line(reader, writer)
        finally:
            writer.transport.abort()

    def request(self, name: str, body: bytes = b"", *more: str, method: str = "POST", **changed: Any) -> bytes:
        """A request as a runner writes it, with changes; None leaves a header out."""
        headers = {
            "Host": "here",
            "Authorization": f"Bearer {self.credential}",
            "Content-Length": len(body),
            **{key.replace("_", "-"): value for key, value in changed.items()},
        }
        told = [f"{key}: {value}" for key, value in headers.items() if value is not None]
        head = "\r\n".join([f"{method} /runner/v1/{name} HTTP/1.1", *told, *more, "", ""])
        return head.encode("latin-1") + body

    def heartbeat(self, **changed: Any) -> bytes:
        """A message under the lease."""
        told = {"type": "Heartbeat", "lease_id": self.lease_id, "runner_id": "w1", "ts": TIME, **changed}
        return json.dumps(told).encode()

    async def ask(self, data: bytes) -> Answer:
        """One request, one answer."""
        async with self.line() as line:
            await line.send(data)
            return await line.only()

    async def is_well(self) -> None:
        """Check that a correct runner still gets its responses."""
        answer = await self.ask(self.request("messages", self.heartbeat()))
        assert (answer.status, json.loads(answer.body)["extend_lease"]) == (200, True)


@asynccontextmanager
async def bench(folder: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Bench]:
    """Provide a server on which nothing may change, and check that no secret was logged."""
    caplog.set_level(0)
    async with run_server(folder) as live:
        made = await Bench(live).prepare()
        log, record = await live.log(), await live.record("q1")
        yield made
        assert await live.log() == log
        assert await live.record("q1") == record
        await made.is_well()
        assert not [secret for secret in made.secrets if secret in caplog.text]
        assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


# -- messages


@on_loop
async def test_what_is_no_message_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unknown fields, wrong types, what is no JSON, no UTF-8, or has no bottom."""
    async with bench(tmp_path, caplog) as here:
        deep = b'{"type": "Complete", "output": ' + b"[" * 200_000
        for body, code in (
            (here.heartbeat(speed=9), "bad_message"),
            (here.heartbeat(ts=5), "bad_message"),
            (here.heartbeat(runner_id=["w1"]), "bad_message"),
            (here.heartbeat(lease_id="x" * 2001), "bad_message"),
            (here.heartbeat(progress={"percent": 101}), "bad_message"),
            (here.heartbeat(type="Lease"), "bad_message"),
            (b'{"type": "Heartbeat"}', "bad_message"),
            (b"", "bad_json"),
            (b"\xff\xfe", "bad_json"),
            (here.heartbeat()[:-1], "bad_json"),
            (here.heartbeat().replace(b"w1", b"\xc3\x28"), "bad_json"),
            (deep, "bad_json"),
            (b"[" * 200_000, "bad_message"),
        ):
            answer = await here.ask(here.request("messages", body))
            assert answer.code in (code, "bad_json"), (body[:80], answer)
            assert answer.headers["content-type"] == "application/json"
            assert here.lease_id.encode() not in answer.body


@on_loop
async def test_a_lease_of_another_runner_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One of another runner, of another tenant, an invented one: each gets the response of an unknown lease."""
    async with bench(tmp_path, caplog) as here:
        w2 = f"Bearer {here.signed('run', 'w2', 'default', 900)}"
        x1 = f"Bearer {here.signed('run', 'x1', 'other', 900)}"
        namesake = f"Bearer {here.signed('run', 'w1', 'other', 900)}"
        made_up = here.lease_id[:-4] + "AAAA"

        for said, code in (
            (here.request("messages", here.heartbeat(), Authorization=w2), "wrong_runner"),
            (here.request("messages", here.heartbeat(runner_id="w2"), Authorization=w2), "UNKNOWN_LEASE"),
            (here.request("messages", here.heartbeat(runner_id="x1"), Authorization=x1), "UNKNOWN_LEASE"),
            (here.request("messages", here.heartbeat(), Authorization=namesake), "UNKNOWN_LEASE"),
            (here.request("messages", here.heartbeat(lease_id=made_up)), "UNKNOWN_LEASE"),
            (here.request("messages", here.heartbeat(lease_id="nonsense")), "UNKNOWN_LEASE"),
            (here.request("log", b"x", Delta_Lease=here.lease_id, Delta_Offset=0, Authorization=w2), "UNKNOWN_LEASE"),
            (here.request("log", b"x", Delta_Lease=here.lease_id, Delta_Offset=0, Authorization=x1), "UNKNOWN_LEASE"),
            (here.request("log", b"x", Delta_Lease=made_up, Delta_Offset=0), "UNKNOWN_LEASE"),
            (here.request("log", b"x", Delta_Lease=here.lease_id, Delta_Offset="-1"), "bad_request"),
            (here.request("log", b"x", Delta_Lease=here.lease_id, Delta_Offset="9" * 5000), "bad_request"),
            (here.request("log", b"x", Delta_Offset=0), "bad_request"),
            (here.request("specs/q1", method="GET", Delta_Lease=here.lease_id, Authorization=x1), "UNKNOWN_LEASE"),
        ):
            assert (await here.ask(said)).code == code


@pytest.mark.proves("PRO-X3")
@on_loop
async def test_a_request_with_an_invalid_credential_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The response has no hints for an attacker, and never contains the token."""
    async with bench(tmp_path, caplog) as here:
        good = here.credential
        expired = here.signed("run", "w1", "default", -1)
        another_use = here.signed("register", "w1", "default", 900)
        for shown in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer  " + good,
            "bearer\t" + good,
            "Basic " + good,
            good,
            f"Bearer {good} {good}",
            f"Bearer {good[:-2]}",
            f"Bearer {expired}",
            f"Bearer {another_use}",
            "Bearer \xff\xfe\x80",
            "Bearer " + "A" * 40_000,
            "Bearer eyJhbGciOiJub25lIn0.e30.",
        ):
            answer = await here.ask(here.request("messages", here.heartbeat(), Authorization=shown))
            assert answer.code == ("expired_credential" if shown == f"Bearer {expired}" else "bad_credential"), shown
            assert answer.headers["www-authenticate"] == "Bearer"
            assert not [secret for secret in here.secrets if secret.encode() in answer.body]
        doubled = here.request("messages", here.heartbeat(), "Authorization: Bearer x")
        assert (await here.ask(doubled)).code == "bad_credential"


# -- sizes


@pytest.mark.parametrize("name", ["messages", "lease", "batch", "renew", "register", "log"])
@on_loop
async def test_ten_megabytes_are_too_much_however_they_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """With their size in front, in chunks without any, or with a size that is a lie."""
    async with bench(tmp_path, caplog) as here:
        lease: dict[str, Any] = {"Delta_Lease": here.lease_id, "Delta_Offset": 0} if name == "log" else {}
        honest = here.request(name, b" " * (10 * MB), **lease)
        chunked = here.request(name, Content_Length=None, Transfer_Encoding="chunked", **lease)
        chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"

        assert (await here.ask(honest)).code == "too_large"
        async with here.line() as line:
            await line.send(chunked)
            sending = asyncio.create_task(line.send(chunk * 40 + b"0\r\n\r\n"))
            assert (await line.only()).code == "too_large"
            await asyncio.gather(sending, return_exceptions=True)
        huge = here.request(name, Content_Length=10**15, **lease)
        assert (await here.ask(huge)).code == "too_large"
        endless = here.request(name, Content_Length="9" * 40, **lease)
        assert (await here.ask(endless)).code in ("too_large", "bad_request")


@on_loop
async def test_a_size_that_is_none_or_two_is_no_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two readers of one request must never disagree about where it ends."""
    async with bench(tmp_path, caplog) as here:
        body = here.heartbeat()
        for said in (
            here.request("messages", body, Content_Length="-1"),
            here.request("messages", body, Content_Length="five"),
            here.request("messages", body, Content_Length="1e3"),
            here.request("messages", body, "Content-Length: 3"),
            here.request("messages", body, Transfer_Encoding="gzip, chunked", Content_Length=None),
            here.request("messages", b"xyz\r\n" + body, Transfer_Encoding="chunked", Content_Length=None),
        ):
            async with here.line() as line:
                await line.send(said)
                answer = await line.answer()
                assert answer is None or answer.code == "bad_request", said


@on_loop
async def test_a_body_that_is_longer_than_it_says_is_cut_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left is no request either, whichever of the two is noticed first."""
    async with bench(tmp_path, caplog) as here:
        answer = await here.ask(here.request("messages", here.heartbeat(), Content_Length=5))

        assert answer.code in ("bad_json", "bad_request")


@on_loop
async def test_a_head_without_end_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture, parser: str) -> None:
    """Memory is what a stranger can take most easily, and a head comes before any credential."""
    async with bench(tmp_path, caplog) as here:
        for start in (b"POST /runner/v1/lease HTTP/1.1\r\nX: ", b"POST /" + b"x" * 1000):
            async with here.line() as line:
                sending = asyncio.create_task(line.send(start + b"x" * (8 * MB)))
                answer = await line.answer()
                # Hanging up on somebody who still sends may cost the answer; it must never cost memory.
                assert answer is None or answer.code in ("too_large", "bad_request")
                await asyncio.wait({sending})
                sending.exception()
        many = here.request("lease", b"", *(f"X-{n}: {n}" for n in range(MAX_HEAD_BYTES // 8)))
        async with here.line() as line:
            await line.send(many)
            answer = await line.answer()
            assert answer is None or 400 <= answer.status < 500


# -- time


@on_loop
async def test_an_interrupted_request_is_answered_and_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the head, in the body, in a body that was answered already, or before the first byte."""
    monkeypatch.setattr("deltaci.server.request.BODY_SECONDS", 1.0)
    monkeypatch.setattr(ConnectionGuard, "head_seconds", 1.0)
    async with bench(tmp_path, caplog) as here:
        whole = here.request("messages", here.heartbeat())
        head = whole.partition(b"\r\n\r\n")[0]
        for part in (b"", whole[:1], head, whole[:-1], here.request("renew", Content_Length=3)):
            async with here.line() as line:
                await line.send(part)
                assert (await line.only()).code == "too_slow", part[:20]
                assert await line.answer() is None
        async with here.line() as line:
            await line.send(here.request("messages", b"{", Content_Length=5 * MB))
            assert (await line.only()).code == "too_large"
            await line.send(b"x")
            assert await line.answer() is None
        monkeypatch.setattr(ConnectionGuard, "head_seconds", 60.0)
        async with here.line() as line:  # One that is only idle between two requests is no trouble.
            await line.send(here.request("renew"))
            assert (await line.only()).status == 200
            monkeypatch.setattr(ConnectionGuard, "head_seconds", 1.0)
            await line.send(whole[:10])
            assert (await line.only()).code == "too_slow"
        async with here.line() as line:  # Nor is one that is still being answered, whatever it has begun meanwhile.
            asked = json.dumps({"type": "Lease", "runner_id": "w1", "wait_seconds": 1}).encode()
            await line.send(here.request("lease", asked) + whole[:10])
            assert (await line.only()).status == 200


@on_loop
async def test_a_request_that_breaks_off_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At every tenth byte of it; half a completion is no completion."""
    async with bench(tmp_path, caplog) as here:
        told = {"type": "Complete", "lease_id": here.lease_id, "runner_id": "w1", "status": "SUCCEEDED"}
        whole = here.request("messages", json.dumps({**told, "exit_code": 0}).encode())
        for size in range(0, len(whole), 10):
            async with here.line() as line:
                await line.send(whole[:size])
                if size % 20:
                    line.writer.write_eof()
                    answer = await line.answer()
                    assert answer is None or answer.status == 400


# -- HTTP itself


@on_loop
async def test_what_is_no_http_gets_a_problem_like_any_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another protocol, a typo, bytes: the connection ends, and says so."""
    async with bench(tmp_path, caplog) as here:
        for said in (
            b"hello\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"POST /runner/v1/lease HTTP/1.1\r\nHost: here\r\nbad header\r\n\r\n",
            b"POST /runner/v1/lease HTTP/1.1\r\nHost: here\r\nX: a\x00b\r\n\r\n",
            b"POST /runner\xff/v1/lease HTTP/1.1\r\nHost: here\r\n\r\n",
        ):
            async with here.line() as line:
                await line.send(said)
                answer = await line.only()
                assert answer.code == "bad_request", said
                assert "Invalid" not in answer.body.decode()
                assert await line.answer() is None


@pytest.mark.parametrize(
    "target",
    [
        "/lease",
        "/runner/v1/../v1/lease",
        "/runner/v1//lease",
        "/runner/v1/lease/",
        "/runner/v1/le%61se%00",
        "/runner/v1/%2e%2e/lease",
        "/runner/v1/" + "x" * 20_000,
        "/runner/v1/%ff%fe",
        "/metrics?token=x",
    ],
)
@on_loop
async def test_an_address_has_one_spelling(tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str) -> None:
    """Nothing below it is ever reached by another."""
    async with bench(tmp_path, caplog) as here:
        said = here.request("lease", b"{}").replace(b"/runner/v1/lease", target.encode(), 1)
        assert (await here.ask(said)).code == "not_found"


@on_loop
async def test_the_responses_to_other_methods_name_the_right_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also to those that have a meaning for proxies."""
    async with bench(tmp_path, caplog) as here:
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = await here.ask(here.request("lease", method=method))
            assert (answer.code, answer.headers["allow"]) == ("wrong_method", "POST")
        async with here.line() as line:
            await line.send(here.request("lease", method="HEAD"))
            head = await line._reader.readuntil(b"\r\n\r\n")
            assert b" 405 " in head.partition(b"\r\n")[0]


@on_loop
async def test_old_http_and_requests_in_a_row_are_answered_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each by itself: a bad one between two good ones spoils neither."""
    async with bench(tmp_path, caplog) as here:
        good = here.request("renew")
        bad = here.request("messages", b"{}", Authorization="Bearer x")
        async with here.line() as line:
            await line.send(good.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            assert (await line.only()).status == 200
            assert await line.answer() is None
        async with here.line() as line:
            await line.send(good + bad + good)
            assert [(await line.only()).status for _ in range(3)] == [200, 401, 200]
        async with here.line() as line:
            await line.send(here.request("messages", b"", Expect="100-continue", Content_Length=10 * MB))
            assert (await line.only()).code == "too_large"


@on_loop
async def test_an_upgrade_to_another_protocol_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There is no second protocol behind this port."""
    async with bench(tmp_path, caplog) as here:
        for protocol in ("websocket", "h2c"):
            upgrade = here.request(
                "renew", method="GET", Upgrade=protocol, Connection="Upgrade", Sec_WebSocket_Version=13,
                Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==", Content_Length=None,
            )  # fmt: skip
            answer = await here.ask(upgrade)
            assert 400 <= answer.status < 500


@on_loop
async def test_a_hundred_strangers_at_once_do_not_keep_a_runner_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each with half a request in the air."""
    async with bench(tmp_path, caplog) as here:
        half = here.request("register", b'{"token": ', Authorization=None, Content_Length=1000)
        writers = []
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", here.live.port)
            writer.write(half)
            writers.append(writer)

        assert (await here.ask(here.request("renew"))).status == 200

        for writer in writers:
            writer.transport.abort()
