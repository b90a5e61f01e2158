"""The scripted orchestrator speaks HTTP as other programs do, and answers like a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from deltaci.conformance.http_server import HttpServer
from deltaci.conformance.orchestrator import ScriptedOrchestrator
from deltaci.conformance.scripted_job import ScriptedJob
from deltaci.protocol.routes import ROOT
from tests.contract.places import on_loop


class Line:
    """One connection to it, on which bytes are sent as they are."""

    def __init__(self, server: ScriptedOrchestrator, url: str) -> None:
        self.server = server
        self.port = int(url.rpartition(":")[2])
        self.credential = ""
        self.runner_id = ""

    async def send(self, *parts: str) -> tuple[int, Any]:
        """Send these bytes; the last answer, None when it hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in parts:
                writer.write(part.encode())
            writer.write_eof()
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        if not answer:
            return 0, None
        head, _, body = answer.rpartition(b"\r\n\r\n")
        return int(head.rpartition(b"HTTP/1.1 ")[2].split()[0]), json.loads(body)

    async def ask(self, method: str, name: str, body: Any = "", *headers: str) -> tuple[int, Any]:
        """A plain request with the credential."""
        data = body if isinstance(body, str) else json.dumps(body)
        told = (f"Authorization: Bearer {self.credential}", f"Content-Length: {len(data)}", *headers)
        return await self.send(
            f"{method} {ROOT}{name} HTTP/1.1\r\n", "".join(f"{each}\r\n" for each in told), "\r\n", data
        )

    async def register(self) -> None:
        """Come in."""
        _, told = await self.ask("POST", "register", {"token": self.server.token()})
        self.credential, self.runner_id = told["credential"], told["runner_id"]

    async def say(self, job: ScriptedJob, type: str, **fields: Any) -> tuple[int, str]:
        """Say something under a lease; the status, and one word of the answer."""
        told = {"type": type, "lease_id": job.lease_id, "runner_id": self.runner_id, **fields}
        status, body = await self.ask("POST", "messages", told)
        return status, body.get("code") or body.get("reason") or body["type"]

    async def take(self, **options: Any) -> ScriptedJob:
        """A job whose lease is held."""
        job = self.server.job(f"job-{len(self.server.transcript.secrets)}", **options)
        self.server.grant(job)
        _, found = await self.ask("POST", "lease", {"type": "Lease", "runner_id": self.runner_id, "wait_seconds": 5})
        assert [each["lease_id"] for each in found["leases"]] == [job.lease_id]
        return job


class Open:
    """The orchestrator and a line to it."""

    def __init__(self, folder: Path) -> None:
        self._server = ScriptedOrchestrator("test", folder)
        self._listening = HttpServer(self._server.handle)

    async def __aenter__(self) -> Line:
        await self._listening.__aenter__()
        line = Line(self._server, self._listening.url)
        await line.register()
        return line

    async def __aexit__(self, *_: object) -> None:
        await self._listening.__aexit__()
        self._server.close()


@pytest.mark.parametrize("name", ["control", "artifacts/report.xml", "lease/more", "../v2/lease"])
@on_loop
async def test_what_a_newer_runner_may_try_is_answered_with_not_found(tmp_path: Path, name: str) -> None:
    """It must cope with that, and the rest can still be shown."""
    async with Open(tmp_path) as line:
        status, body = await line.ask("POST", name)

        assert (status, body["code"]) == (404, "not_found")


@on_loop
async def test_a_token_is_good_once_and_every_runner_has_its_own_name(tmp_path: Path) -> None:
    """One that leaves after a job and is started again is another one."""
    async with Open(tmp_path) as line:
        token, first = line.server.token(), line.runner_id

        assert (await line.ask("POST", "register", {"token": token}))[1]["runner_id"] != first
        assert (await line.ask("POST", "register", {"token": token}))[0] == 401


@on_loop
async def test_bad_requests_are_refused_and_written_down(tmp_path: Path) -> None:
    """They are what PRO-M11 is judged by."""
    async with Open(tmp_path) as line:
        job = await line.take()

        assert (await line.ask("GET", "lease"))[0] == 405
        assert (await line.ask("POST", "messages", "{"))[0] == 400
        assert await line.say(job, "Heartbeat", ts="now") == (422, "bad_message")
        assert (await line.send("POST /x HTTP/1.1\r\nContent-Length: x\r\n\r\n"))[0] == 400
        assert (await line.send("hello\r\n\r\n"))[0] == 400
        line.credential = "another"
        assert (await line.ask("POST", "renew"))[0] == 401

        assert len(line.server.transcript.received("refused")) == 3


@on_loop
async def test_bodies_come_in_chunks_too_and_who_asks_first_is_told_to_go_on(tmp_path: Path) -> None:
    """Other languages' clients do that by themselves."""
    async with Open(tmp_path) as line:
        job = await line.take()
        head = f"POST {ROOT}log HTTP/1.1\r\nAuthorization: Bearer {line.credential}\r\nDelta-Lease: {job.lease_id}\r\n"

        first = await line.send(
            head,
            "Delta-Offset: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "5\r\nhello\r\n",
            "1;x=y\r\n \r\n",
            "0\r\n\r\n",
        )
        second = await line.send(head, "Delta-Offset: 6\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", "world")

        assert (first, second) == ((200, {"size": 6}), (200, {"size": 11}))
        assert job.log == b"hello world"


@on_loop
async def test_a_lease_lives_and_ends_as_with_a_server(tmp_path: Path) -> None:
    """The runner must not be able to tell the difference."""
    now, result = "2026-01-04T08:00:00Z", {"status": "SUCCEEDED", "exit_code": 0}
    async with Open(tmp_path) as line:
        job = await line.take()

        assert await line.say(job, "AckLease", job_id="another", accepted_at=now) == (400, "bad_request")
        assert await line.say(job, "AckLease", job_id=job.job_id, accepted_at=now) == (200, "HeartbeatAck")
        assert await line.say(job, "CancelAck", final_status="CANCELED", ts=now) == (409, "cancel_not_requested")
        assert await line.say(job, "Complete", **result) == (200, "CompleteAck")
        assert await line.say(job, "Complete", **result, sequence_no=5) == (200, "CompleteAck")
        assert await line.say(job, "Complete", status="FAILED", exit_code=1) == (409, "LEASE_COMPLETED")
        assert await line.say(job, "Heartbeat", ts=now) == (409, "LEASE_COMPLETED")

        canceled = await line.take()
        canceled.cancel_deadline_seconds = 5
        assert await line.say(canceled, "Heartbeat", ts=now) == (200, "RUN_CANCELED")
        assert await line.say(canceled, "Complete", **result) == (200, "CANCEL_REQUESTED")
        assert await line.say(canceled, "CancelAck", final_status="CANCELED", ts=now) == (200, "CancelAcked")
        assert await line.say(canceled, "Complete", **result) == (409, "LEASE_CANCELED")

        expired = await line.take(ttl_seconds=0)
        assert await line.say(expired, "Complete", **result) == (409, "LEASE_EXPIRED")


@on_loop
async def test_a_server_that_is_cut_off_hears_everything_and_answers_nothing(tmp_path: Path) -> None:
    """What was said in that time is the evidence."""
    async with Open(tmp_path) as line:
        job = await line.take()
        line.server.is_cut_off = True

        told = {
            "type": "Heartbeat",
            "lease_id": job.lease_id,
            "runner_id": line.runner_id,
            "ts": "2026-01-04T08:00:00Z",
        }
        assert await line.ask("POST", "messages", told) == (0, None)

        assert line.server.transcript.answered("Heartbeat", "cut", job.name)
