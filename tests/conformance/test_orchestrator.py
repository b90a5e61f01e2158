"""The scripted orchestrator supports HTTP as real clients use it, and answers like a server."""

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
from tests.contract.backends import on_loop


class RawClient:
    """A registered runner that sends raw bytes to the orchestrator."""

    def __init__(self, server: ScriptedOrchestrator, url: str) -> None:
        self.server = server
        self.port = int(url.rpartition(":")[2])
        self.credential = ""
        self.runner_id = ""

    async def send(self, *parts: str) -> tuple[int, Any]:
        """Send these bytes. Return status and body of the last answer; 0 and None if the connection was closed."""
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

    async def request(self, method: str, name: str, body: Any = "", *headers: str) -> tuple[int, Any]:
        """Send a request with the credential."""
        data = body if isinstance(body, str) else json.dumps(body)
        sent_headers = (f"Authorization: Bearer {self.credential}", f"Content-Length: {len(data)}", *headers)
        return await self.send(
            f"{method} {ROOT}{name} HTTP/1.1\r\n", "".join(f"{header}\r\n" for header in sent_headers), "\r\n", data
        )

    async def register(self) -> None:
        """Register with a new token."""
        _, registered = await self.request("POST", "register", {"token": self.server.token()})
        self.credential, self.runner_id = registered["credential"], registered["runner_id"]

    async def send_message(self, job: ScriptedJob, type: str, **fields: Any) -> tuple[int, str]:
        """Send a message under a lease. Return the status, and the code, reason or type of the answer."""
        message = {"type": type, "lease_id": job.lease_id, "runner_id": self.runner_id, **fields}
        status, body = await self.request("POST", "messages", message)
        return status, body.get("code") or body.get("reason") or body["type"]

    async def request_lease(self, **options: Any) -> ScriptedJob:
        """Create a job and request its lease."""
        job = self.server.job(f"job-{len(self.server.transcript.secrets)}", **options)
        self.server.grant(job)
        _, response = await self.request(
            "POST", "lease", {"type": "Lease", "runner_id": self.runner_id, "wait_seconds": 5}
        )
        assert [lease["lease_id"] for lease in response["leases"]] == [job.lease_id]
        return job


class RunningOrchestrator:
    """An orchestrator that is served over HTTP; the context manager returns a registered client."""

    def __init__(self, folder: Path) -> None:
        self._server = ScriptedOrchestrator("test", folder)
        self._http_server = HttpServer(self._server.handle)

    async def __aenter__(self) -> RawClient:
        await self._http_server.__aenter__()
        client = RawClient(self._server, self._http_server.url)
        await client.register()
        return client

    async def __aexit__(self, *_: object) -> None:
        await self._http_server.__aexit__()
        self._server.close()


@pytest.mark.parametrize("name", ["control", "artifacts/report.xml", "lease/more", "../v2/lease"])
@on_loop
async def test_an_unknown_route_is_answered_with_not_found(tmp_path: Path, name: str) -> None:
    """A newer runner may try more routes than the kit implements."""
    async with RunningOrchestrator(tmp_path) as client:
        status, body = await client.request("POST", name)

        assert (status, body["code"]) == (404, "not_found")


@on_loop
async def test_a_token_is_good_once_and_every_runner_has_its_own_name(tmp_path: Path) -> None:
    """A runner that exits after a job and is started again is a new runner."""
    async with RunningOrchestrator(tmp_path) as client:
        token, first = client.server.token(), client.runner_id

        assert (await client.request("POST", "register", {"token": token}))[1]["runner_id"] != first
        assert (await client.request("POST", "register", {"token": token}))[0] == 401


@on_loop
async def test_invalid_requests_are_refused_and_recorded(tmp_path: Path) -> None:
    """PRO-M11 is checked with these entries."""
    async with RunningOrchestrator(tmp_path) as client:
        job = await client.request_lease()

        assert (await client.request("GET", "lease"))[0] == 405
        assert (await client.request("POST", "messages", "{"))[0] == 400
        assert await client.send_message(job, "Heartbeat", ts="now") == (422, "bad_message")
        assert (await client.send("POST /x HTTP/1.1\r\nContent-Length: x\r\n\r\n"))[0] == 400
        assert (await client.send("hello\r\n\r\n"))[0] == 400
        client.credential = "another"
        assert (await client.request("POST", "renew"))[0] == 401

        assert len(client.server.transcript.received("refused")) == 3


@on_loop
async def test_chunked_bodies_and_expect_continue_are_supported(tmp_path: Path) -> None:
    """HTTP clients of other languages use both by default."""
    async with RunningOrchestrator(tmp_path) as client:
        job = await client.request_lease()
        head = (
            f"POST {ROOT}log HTTP/1.1\r\nAuthorization: Bearer {client.credential}\r\nDelta-Lease: {job.lease_id}\r\n"
        )

        first = await client.send(
            head,
            "Delta-Offset: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "5\r\nhello\r\n",
            "1;x=y\r\n \r\n",
            "0\r\n\r\n",
        )
        second = await client.send(
            head, "Delta-Offset: 6\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", "world"
        )

        assert (first, second) == ((200, {"size": 6}), (200, {"size": 11}))
        assert job.log == b"hello world"


@on_loop
async def test_a_lease_behaves_as_on_a_real_server(tmp_path: Path) -> None:
    """The runner must not be able to tell the difference."""
    now, result = "2026-01-04T08:00:00Z", {"status": "SUCCEEDED", "exit_code": 0}
    async with RunningOrchestrator(tmp_path) as client:
        job = await client.request_lease()

        assert await client.send_message(job, "AckLease", job_id="another", accepted_at=now) == (400, "bad_request")
        assert await client.send_message(job, "AckLease", job_id=job.job_id, accepted_at=now) == (200, "HeartbeatAck")
        assert await client.send_message(job, "CancelAck", final_status="CANCELED", ts=now) == (
            409,
            "cancel_not_requested",
        )
        assert await client.send_message(job, "Complete", **result) == (200, "CompleteAck")
        assert await client.send_message(job, "Complete", **result, sequence_no=5) == (200, "CompleteAck")
        assert await client.send_message(job, "Complete", status="FAILED", exit_code=1) == (409, "LEASE_COMPLETED")
        assert await client.send_message(job, "Heartbeat", ts=now) == (409, "LEASE_COMPLETED")

        canceled = await client.request_lease()
        canceled.cancel_deadline_seconds = 5
        assert await client.send_message(canceled, "Heartbeat", ts=now) == (200, "RUN_CANCELED")
        assert await client.send_message(canceled, "Complete", **result) == (200, "CANCEL_REQUESTED")
        assert await client.send_message(canceled, "CancelAck", final_status="CANCELED", ts=now) == (200, "CancelAcked")
        assert await client.send_message(canceled, "Complete", **result) == (409, "LEASE_CANCELED")

        expired = await client.request_lease(ttl_seconds=0)
        assert await client.send_message(expired, "Complete", **result) == (409, "LEASE_EXPIRED")


@on_loop
async def test_a_cut_off_server_records_everything_and_answers_nothing(tmp_path: Path) -> None:
    """Checks need the messages that the runner sent in that time."""
    async with RunningOrchestrator(tmp_path) as client:
        job = await client.request_lease()
        client.server.is_cut_off = True

        heartbeat = {
            "type": "Heartbeat",
            "lease_id": job.lease_id,
            "runner_id": client.runner_id,
            "ts": "2026-01-04T08:00:00Z",
        }
        assert await client.request("POST", "messages", heartbeat) == (0, None)

        assert client.server.transcript.answered("Heartbeat", "cut", job.name)
