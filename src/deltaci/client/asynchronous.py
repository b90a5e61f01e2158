"""The asyncio client. It has the same methods as the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import httpx

from deltaci.client import calls, history, logs, operations
from deltaci.client import workstreams as streams
from deltaci.client.atomic_file import AtomicFile
from deltaci.client.calls import Call
from deltaci.client.connection import (
    ANSWER_SECONDS,
    HTTP_ERRORS,
    ConnectionSettings,
    Key,
    check_open,
    connection_error,
    request_of,
    stream_of,
)
from deltaci.client.effects import (
    EmitItem,
    GetRetryPolicy,
    HttpResponse,
    OpenStream,
    Operation,
    OperationDriver,
    ReadChunk,
    SendRequest,
    SendWithRetry,
    Sleep,
    StreamOperation,
)
from deltaci.client.errors import ClientError
from deltaci.client.methods import async_call_method, async_operation_method, async_stream_method
from deltaci.client.retry import Patience

T = TypeVar("T")


class _OpenResponse:
    """The response that is being streamed, at most one at a time."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._response: httpx.Response | None = None
        self._parts: AsyncIterator[bytes] | None = None

    async def open(self, call: Call[Any], silence_seconds: float) -> HttpResponse:
        """Send the request and open its response for reading. The body of an error response is read at once."""
        await self.close()
        check_open(self._http)
        try:
            request = self._http.build_request(**stream_of(call, silence_seconds))
            self._response = response = await self._http.send(request, stream=True)
            body = await response.aread() if response.is_error else b""
        except HTTP_ERRORS as error:
            raise connection_error(self._url, error) from error
        if not response.is_error:
            self._parts = response.aiter_raw()
        return HttpResponse(response.status_code, response.headers, body)

    async def read(self) -> bytes | None:
        """Return the next bytes of the response, or None at its end."""
        try:
            return None if self._parts is None else await anext(self._parts, None)
        except HTTP_ERRORS as error:
            raise connection_error(self._url, error) from error

    async def close(self) -> None:
        """Close the response."""
        if self._response is not None:
            await self._response.aclose()
        self._response, self._parts = None, None

    async def __aenter__(self) -> _OpenResponse:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncClient:
    """The API of a server: `async with deltaci.AsyncClient("https://ci.example.org", key) as client:`.

    The server defaults to DELTACI_SERVER or to the one of the folder `.state`, the key to DELTACI_KEY.
    """

    def __init__(
        self,
        server: str | None = None,
        key: Key | None = None,
        *,
        ca: str | Path | None = None,
        timeout_seconds: float = ANSWER_SECONDS,
        patience: Patience | None = None,
    ) -> None:
        settings = ConnectionSettings(server, key, ca)
        self.url = settings.url
        self._patience = patience or Patience()
        self._http = httpx.AsyncClient(**settings.options(timeout_seconds))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    # -- runs

    start = async_call_method(calls.start)
    runs = async_call_method(calls.runs)
    run = async_call_method(calls.run)
    cancel = async_call_method(calls.cancel)
    approve = async_call_method(calls.approve)
    reject = async_call_method(calls.reject)
    rerun = async_call_method(calls.rerun)
    plan = async_call_method(calls.plan)
    timeline = async_call_method(calls.timeline)
    explain = async_operation_method(operations.explain)
    wait = async_operation_method(operations.wait)
    iter_runs = async_stream_method(operations.iter_runs)

    # -- events

    events = async_call_method(calls.events)
    iter_events = async_stream_method(operations.iter_events)
    follow = async_stream_method(operations.follow)

    # -- what runs leave behind

    artifacts = async_call_method(calls.artifacts)
    outputs = async_call_method(calls.outputs)
    costs = async_call_method(calls.costs)
    transitions = async_call_method(history.transitions)
    tests = async_call_method(history.run_tests)

    # -- jobs and attempts

    jobs = async_call_method(calls.jobs)
    job = async_call_method(calls.job)
    cancel_job = async_call_method(calls.cancel_job)
    attempts = async_call_method(calls.attempts)
    attempt = async_call_method(calls.attempt)
    log = async_call_method(calls.log)
    log_index = async_call_method(calls.log_index)
    iter_jobs = async_stream_method(operations.iter_jobs)
    follow_log = async_stream_method(logs.follow_log)

    # -- templates

    templates = async_call_method(calls.templates)
    template = async_call_method(calls.template)
    save_template = async_call_method(calls.save_template)
    remove_template = async_call_method(calls.remove_template)
    versions = async_call_method(calls.versions)
    iter_templates = async_stream_method(operations.iter_templates)
    iter_versions = async_stream_method(operations.iter_versions)

    # -- projects and changes

    projects = async_call_method(calls.projects)
    project = async_call_method(calls.project)
    save_project = async_call_method(calls.save_project)
    remove_project = async_call_method(calls.remove_project)
    report_push = async_call_method(calls.report_push)
    tell_pushes = report_push  # Deprecated name.
    changes = async_call_method(calls.changes)
    change = async_call_method(calls.change)
    redeliver = async_call_method(calls.redeliver)
    deliveries = async_call_method(calls.deliveries)
    iter_projects = async_stream_method(operations.iter_projects)
    iter_changes = async_stream_method(operations.iter_changes)
    iter_deliveries = async_stream_method(operations.iter_deliveries)

    # -- workstreams

    create_workstream = async_call_method(streams.create_workstream)
    workstreams = async_call_method(streams.workstreams)
    workstream = async_call_method(streams.workstream)
    cancel_workstream = async_call_method(streams.cancel_workstream)
    merge_queues = async_call_method(streams.merge_queues)
    iter_workstreams = async_stream_method(streams.iter_workstreams)

    # -- the queue, workers, keys, the tenant

    queue = async_call_method(calls.queue)
    workers = async_call_method(calls.workers)
    worker = async_call_method(calls.worker)
    worker_token = async_call_method(calls.worker_token)
    drain_worker = async_call_method(calls.drain_worker)
    resume_worker = async_call_method(calls.resume_worker)
    remove_worker = async_call_method(calls.remove_worker)
    wait_idle = async_operation_method(operations.wait_idle)
    keys = async_call_method(calls.keys)
    key = async_call_method(calls.key)
    make_key = async_call_method(calls.make_key)
    revoke_key = async_call_method(calls.revoke_key)
    secrets = async_call_method(calls.secret_page)
    set_secret = async_call_method(calls.set_secret)
    remove_secret = async_call_method(calls.remove_secret)
    failure_rules = async_call_method(calls.failure_rules)
    set_failure_rules = async_call_method(calls.set_failure_rules)
    flaky = async_call_method(calls.flaky)
    me = async_call_method(calls.me)
    tenant = async_call_method(calls.tenant)
    set_quotas = async_call_method(calls.set_quotas)
    iter_workers = async_stream_method(operations.iter_workers)
    audit = async_call_method(calls.audit)
    iter_audit = async_stream_method(operations.iter_audit)
    iter_keys = async_stream_method(operations.iter_keys)
    iter_secrets = async_stream_method(operations.iter_secrets)
    iter_flaky = async_stream_method(operations.iter_flaky)

    async def download(self, run_id: str, job: str, index: int, path: str, to: str | Path) -> Path:
        """Save an artifact of an attempt as the file `to` and return its path. An error leaves no incomplete file."""
        with AtomicFile(Path(to)) as draft:
            async with aclosing(self.stream(operations.artifact_bytes(run_id, job, index, path))) as parts:
                async for part in parts:
                    await asyncio.to_thread(draft.write, part)
        return Path(to)

    # -- performing operations

    async def finish(self, operation: Operation[T]) -> T:
        """Perform an operation and return its result."""
        drive = OperationDriver(operation)
        async with _OpenResponse(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                await self._perform(step, drive, line)
        return drive.result  # type: ignore[return-value]

    async def stream(self, operation: StreamOperation[T]) -> AsyncGenerator[T, None]:
        """Perform an operation and yield its items."""
        drive = OperationDriver(operation)
        async with _OpenResponse(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                if isinstance(step, EmitItem):
                    yield step.item
                await self._perform(step, drive, line)

    async def _perform(self, step: Any, drive: OperationDriver[Any], line: _OpenResponse) -> None:
        try:
            drive.give(await self._done(step, line))
        except ClientError as error:
            drive.fail(error)

    async def _done(self, step: Any, line: _OpenResponse) -> Any:
        match step:
            case SendWithRetry(call):
                return await self.finish(operations.repeated(self.url, call, self._patience))
            case SendRequest(call):
                return await self._send(call)
            case OpenStream(call, silence_seconds):
                return await line.open(call, silence_seconds)
            case ReadChunk():
                return await line.read()
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
            case GetRetryPolicy():
                return self._patience
        return None

    async def _send(self, call: Call[Any]) -> HttpResponse:
        check_open(self._http)
        try:
            response = await self._http.request(**request_of(call))
        except HTTP_ERRORS as error:
            raise connection_error(self.url, error) from error
        return HttpResponse(response.status_code, response.headers, response.content)
