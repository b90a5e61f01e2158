"""The client for programs that use asyncio. The same calls as the other, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import httpx

from deltaci.client import calls, history, logs, talks
from deltaci.client import workstreams as streams
from deltaci.client.calls import Call
from deltaci.client.connection import (
    ANSWER_SECONDS,
    TROUBLES,
    Key,
    Settings,
    check_open,
    request_of,
    stream_of,
    trouble,
)
from deltaci.client.drafts import Draft
from deltaci.client.errors import ClientError
from deltaci.client.methods import aasked, afinished, astreamed
from deltaci.client.patience import Patience
from deltaci.client.steps import Answer, Ask, Drive, Emit, Mind, Open, Pause, Read, Send, Stream, Talk

T = TypeVar("T")


class _Line:
    """At most one answer that is read as it comes."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._response: httpx.Response | None = None
        self._parts: AsyncIterator[bytes] | None = None

    async def open(self, call: Call[Any], silence_seconds: float) -> Answer:
        """Begin to read; a refusal is read at once."""
        await self.close()
        check_open(self._http)
        try:
            request = self._http.build_request(**stream_of(call, silence_seconds))
            self._response = response = await self._http.send(request, stream=True)
            body = await response.aread() if response.is_error else b""
        except TROUBLES as error:
            raise trouble(self._url, error) from error
        if not response.is_error:
            self._parts = response.aiter_raw()
        return Answer(response.status_code, response.headers, body)

    async def read(self) -> bytes | None:
        """The next bytes, None at the end."""
        try:
            return None if self._parts is None else await anext(self._parts, None)
        except TROUBLES as error:
            raise trouble(self._url, error) from error

    async def close(self) -> None:
        """Read no more."""
        if self._response is not None:
            await self._response.aclose()
        self._response, self._parts = None, None

    async def __aenter__(self) -> _Line:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncClient:
    """A server's API: `async with deltaci.AsyncClient("https://ci.example.org", key) as client:`.

    Without a server, DELTACI_SERVER or the one whose folder `.state` is here; without a key, DELTACI_KEY.
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
        settings = Settings(server, key, ca)
        self.url = settings.url
        self._patience = patience or Patience()
        self._http = httpx.AsyncClient(**settings.options(timeout_seconds))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    # -- runs

    start = aasked(calls.start)
    runs = aasked(calls.runs)
    run = aasked(calls.run)
    cancel = aasked(calls.cancel)
    approve = aasked(calls.approve)
    reject = aasked(calls.reject)
    rerun = aasked(calls.rerun)
    plan = aasked(calls.plan)
    timeline = aasked(calls.timeline)
    explain = afinished(talks.explain)
    wait = afinished(talks.wait)
    iter_runs = astreamed(talks.iter_runs)

    # -- events

    events = aasked(calls.events)
    iter_events = astreamed(talks.iter_events)
    follow = astreamed(talks.follow)

    # -- what runs leave behind

    artifacts = aasked(calls.artifacts)
    outputs = aasked(calls.outputs)
    costs = aasked(calls.costs)
    transitions = aasked(history.transitions)
    tests = aasked(history.run_tests)

    # -- jobs and attempts

    jobs = aasked(calls.jobs)
    job = aasked(calls.job)
    cancel_job = aasked(calls.cancel_job)
    attempts = aasked(calls.attempts)
    attempt = aasked(calls.attempt)
    log = aasked(calls.log)
    log_index = aasked(calls.log_index)
    iter_jobs = astreamed(talks.iter_jobs)
    follow_log = astreamed(logs.follow_log)

    # -- templates

    templates = aasked(calls.templates)
    template = aasked(calls.template)
    save_template = aasked(calls.save_template)
    remove_template = aasked(calls.remove_template)
    versions = aasked(calls.versions)
    iter_templates = astreamed(talks.iter_templates)
    iter_versions = astreamed(talks.iter_versions)

    # -- projects and changes

    projects = aasked(calls.projects)
    project = aasked(calls.project)
    save_project = aasked(calls.save_project)
    remove_project = aasked(calls.remove_project)
    report_push = aasked(calls.report_push)
    tell_pushes = report_push  # Deprecated name.
    changes = aasked(calls.changes)
    change = aasked(calls.change)
    iter_projects = astreamed(talks.iter_projects)
    iter_changes = astreamed(talks.iter_changes)

    # -- workstreams

    create_workstream = aasked(streams.create_workstream)
    workstreams = aasked(streams.workstreams)
    workstream = aasked(streams.workstream)
    cancel_workstream = aasked(streams.cancel_workstream)
    merge_queues = aasked(streams.merge_queues)
    iter_workstreams = astreamed(streams.iter_workstreams)

    # -- the queue, workers, keys, the tenant

    queue = aasked(calls.queue)
    workers = aasked(calls.workers)
    worker = aasked(calls.worker)
    worker_token = aasked(calls.worker_token)
    drain_worker = aasked(calls.drain_worker)
    resume_worker = aasked(calls.resume_worker)
    remove_worker = aasked(calls.remove_worker)
    wait_idle = afinished(talks.wait_idle)
    keys = aasked(calls.keys)
    key = aasked(calls.key)
    make_key = aasked(calls.make_key)
    revoke_key = aasked(calls.revoke_key)
    secrets = aasked(calls.secret_page)
    set_secret = aasked(calls.set_secret)
    remove_secret = aasked(calls.remove_secret)
    failure_rules = aasked(calls.failure_rules)
    set_failure_rules = aasked(calls.set_failure_rules)
    flaky = aasked(calls.flaky)
    me = aasked(calls.me)
    tenant = aasked(calls.tenant)
    set_quotas = aasked(calls.set_quotas)
    iter_workers = astreamed(talks.iter_workers)
    iter_keys = astreamed(talks.iter_keys)
    iter_secrets = astreamed(talks.iter_secrets)
    iter_flaky = astreamed(talks.iter_flaky)

    async def download(self, run_id: str, job: str, index: int, path: str, to: str | Path) -> Path:
        """Keep a file that an attempt left behind under this name: whole, or not at all."""
        with Draft(Path(to)) as draft:
            async with aclosing(self.stream(talks.artifact_bytes(run_id, job, index, path))) as parts:
                async for part in parts:
                    await asyncio.to_thread(draft.write, part)
        return Path(to)

    # -- how talks are performed

    async def finish(self, talk: Talk[T]) -> T:
        """Perform a talk; what it gives in the end."""
        drive = Drive(talk)
        async with _Line(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                await self._perform(step, drive, line)
        return drive.result  # type: ignore[return-value]

    async def stream(self, talk: Stream[T]) -> AsyncGenerator[T, None]:
        """Perform a talk; what it gives on the way."""
        drive = Drive(talk)
        async with _Line(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                if isinstance(step, Emit):
                    yield step.item
                await self._perform(step, drive, line)

    async def _perform(self, step: Any, drive: Drive[Any], line: _Line) -> None:
        try:
            drive.give(await self._done(step, line))
        except ClientError as error:
            drive.fail(error)

    async def _done(self, step: Any, line: _Line) -> Any:
        match step:
            case Ask(call):
                return await self.finish(talks.repeated(self.url, call, self._patience))
            case Send(call):
                return await self._send(call)
            case Open(call, silence_seconds):
                return await line.open(call, silence_seconds)
            case Read():
                return await line.read()
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Mind():
                return self._patience
        return None

    async def _send(self, call: Call[Any]) -> Answer:
        check_open(self._http)
        try:
            response = await self._http.request(**request_of(call))
        except TROUBLES as error:
            raise trouble(self.url, error) from error
        return Answer(response.status_code, response.headers, response.content)
