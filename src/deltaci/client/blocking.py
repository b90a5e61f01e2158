"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
from deltaci.client.methods import call_method, operation_method, stream_method
from deltaci.client.retry import Patience

T = TypeVar("T")


class _OpenResponse:
    """The response that is being streamed, at most one at a time."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url
        self._response: httpx.Response | None = None
        self._parts: Iterator[bytes] = iter(())

    def open(self, call: Call[Any], silence_seconds: float) -> HttpResponse:
        """Send the request and open its response for reading. The body of an error response is read at once."""
        self.close()
        check_open(self._http)
        try:
            request = self._http.build_request(**stream_of(call, silence_seconds))
            self._response = response = self._http.send(request, stream=True)
            body = response.read() if response.is_error else b""
        except HTTP_ERRORS as error:
            raise connection_error(self._url, error) from error
        if not response.is_error:
            self._parts = response.iter_raw()
        return HttpResponse(response.status_code, response.headers, body)

    def read(self) -> bytes | None:
        """Return the next bytes of the response, or None at its end."""
        try:
            return next(self._parts, None)
        except HTTP_ERRORS as error:
            raise connection_error(self._url, error) from error

    def close(self) -> None:
        """Close the response."""
        if self._response is not None:
            self._response.close()
        self._response, self._parts = None, iter(())

    def __enter__(self) -> _OpenResponse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """The API of a server: `with deltaci.Client("https://ci.example.org", key) as client:`. Threads may share it.

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
        self._http = httpx.Client(**settings.options(timeout_seconds))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # -- runs

    start = call_method(calls.start)
    runs = call_method(calls.runs)
    run = call_method(calls.run)
    cancel = call_method(calls.cancel)
    approve = call_method(calls.approve)
    reject = call_method(calls.reject)
    rerun = call_method(calls.rerun)
    plan = call_method(calls.plan)
    timeline = call_method(calls.timeline)
    explain = operation_method(operations.explain)
    wait = operation_method(operations.wait)
    iter_runs = stream_method(operations.iter_runs)

    # -- events

    events = call_method(calls.events)
    iter_events = stream_method(operations.iter_events)
    follow = stream_method(operations.follow)

    # -- what runs leave behind

    artifacts = call_method(calls.artifacts)
    outputs = call_method(calls.outputs)
    costs = call_method(calls.costs)
    transitions = call_method(history.transitions)
    tests = call_method(history.run_tests)

    # -- jobs and attempts

    jobs = call_method(calls.jobs)
    job = call_method(calls.job)
    cancel_job = call_method(calls.cancel_job)
    attempts = call_method(calls.attempts)
    attempt = call_method(calls.attempt)
    log = call_method(calls.log)
    log_index = call_method(calls.log_index)
    iter_jobs = stream_method(operations.iter_jobs)
    follow_log = stream_method(logs.follow_log)

    # -- templates

    templates = call_method(calls.templates)
    template = call_method(calls.template)
    save_template = call_method(calls.save_template)
    remove_template = call_method(calls.remove_template)
    versions = call_method(calls.versions)
    iter_templates = stream_method(operations.iter_templates)
    iter_versions = stream_method(operations.iter_versions)

    # -- projects and changes

    projects = call_method(calls.projects)
    project = call_method(calls.project)
    save_project = call_method(calls.save_project)
    remove_project = call_method(calls.remove_project)
    report_push = call_method(calls.report_push)
    tell_pushes = report_push  # Deprecated name.
    changes = call_method(calls.changes)
    change = call_method(calls.change)
    redeliver = call_method(calls.redeliver)
    deliveries = call_method(calls.deliveries)
    iter_projects = stream_method(operations.iter_projects)
    iter_changes = stream_method(operations.iter_changes)
    iter_deliveries = stream_method(operations.iter_deliveries)

    # -- workstreams

    create_workstream = call_method(streams.create_workstream)
    workstreams = call_method(streams.workstreams)
    workstream = call_method(streams.workstream)
    cancel_workstream = call_method(streams.cancel_workstream)
    merge_queues = call_method(streams.merge_queues)
    iter_workstreams = stream_method(streams.iter_workstreams)

    # -- the queue, workers, keys, the tenant

    queue = call_method(calls.queue)
    workers = call_method(calls.workers)
    worker = call_method(calls.worker)
    worker_token = call_method(calls.worker_token)
    drain_worker = call_method(calls.drain_worker)
    resume_worker = call_method(calls.resume_worker)
    remove_worker = call_method(calls.remove_worker)
    wait_idle = operation_method(operations.wait_idle)
    keys = call_method(calls.keys)
    key = call_method(calls.key)
    make_key = call_method(calls.make_key)
    revoke_key = call_method(calls.revoke_key)
    secrets = call_method(calls.secret_page)
    set_secret = call_method(calls.set_secret)
    remove_secret = call_method(calls.remove_secret)
    failure_rules = call_method(calls.failure_rules)
    set_failure_rules = call_method(calls.set_failure_rules)
    flaky = call_method(calls.flaky)
    me = call_method(calls.me)
    tenant = call_method(calls.tenant)
    set_quotas = call_method(calls.set_quotas)
    iter_workers = stream_method(operations.iter_workers)
    audit = call_method(calls.audit)
    iter_audit = stream_method(operations.iter_audit)
    iter_keys = stream_method(operations.iter_keys)
    iter_secrets = stream_method(operations.iter_secrets)
    iter_flaky = stream_method(operations.iter_flaky)

    def download(self, run_id: str, job: str, index: int, path: str, to: str | Path) -> Path:
        """Save an artifact of an attempt as the file `to` and return its path. An error leaves no incomplete file."""
        with AtomicFile(Path(to)) as draft:
            for part in self.stream(operations.artifact_bytes(run_id, job, index, path)):
                draft.write(part)
        return Path(to)

    # -- performing operations

    def finish(self, operation: Operation[T]) -> T:
        """Perform an operation and return its result."""
        drive = OperationDriver(operation)
        with _OpenResponse(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                self._perform(step, drive, line)
        return drive.result  # type: ignore[return-value]

    def stream(self, operation: StreamOperation[T]) -> Iterator[T]:
        """Perform an operation and yield its items."""
        drive = OperationDriver(operation)
        with _OpenResponse(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                if isinstance(step, EmitItem):
                    yield step.item
                self._perform(step, drive, line)

    def _perform(self, step: Any, drive: OperationDriver[Any], line: _OpenResponse) -> None:
        try:
            drive.give(self._done(step, line))
        except ClientError as error:
            drive.fail(error)

    def _done(self, step: Any, line: _OpenResponse) -> Any:
        match step:
            case SendWithRetry(call):
                return self.finish(operations.repeated(self.url, call, self._patience))
            case SendRequest(call):
                return self._send(call)
            case OpenStream(call, silence_seconds):
                return line.open(call, silence_seconds)
            case ReadChunk():
                return line.read()
            case Sleep(seconds):
                return time.sleep(seconds)
            case GetRetryPolicy():
                return self._patience
        return None

    def _send(self, call: Call[Any]) -> HttpResponse:
        check_open(self._http)
        try:
            response = self._http.request(**request_of(call))
        except HTTP_ERRORS as error:
            raise connection_error(self.url, error) from error
        return HttpResponse(response.status_code, response.headers, response.content)
