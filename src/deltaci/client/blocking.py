"""The client for programs that wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
from deltaci.client.methods import asked, finished, streamed
from deltaci.client.patience import Patience
from deltaci.client.steps import Answer, Ask, Drive, Emit, Mind, Open, Pause, Read, Send, Stream, Talk

T = TypeVar("T")


class _Line:
    """At most one answer that is read as it comes."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url
        self._response: httpx.Response | None = None
        self._parts: Iterator[bytes] = iter(())

    def open(self, call: Call[Any], silence_seconds: float) -> Answer:
        """Begin to read; a refusal is read at once."""
        self.close()
        check_open(self._http)
        try:
            request = self._http.build_request(**stream_of(call, silence_seconds))
            self._response = response = self._http.send(request, stream=True)
            body = response.read() if response.is_error else b""
        except TROUBLES as error:
            raise trouble(self._url, error) from error
        if not response.is_error:
            self._parts = response.iter_raw()
        return Answer(response.status_code, response.headers, body)

    def read(self) -> bytes | None:
        """The next bytes, None at the end."""
        try:
            return next(self._parts, None)
        except TROUBLES as error:
            raise trouble(self._url, error) from error

    def close(self) -> None:
        """Read no more."""
        if self._response is not None:
            self._response.close()
        self._response, self._parts = None, iter(())

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """A server's API: `with deltaci.Client("https://ci.example.org", key) as client:`. Threads may share it.

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
        self._http = httpx.Client(**settings.options(timeout_seconds))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    # -- runs

    start = asked(calls.start)
    runs = asked(calls.runs)
    run = asked(calls.run)
    cancel = asked(calls.cancel)
    approve = asked(calls.approve)
    reject = asked(calls.reject)
    rerun = asked(calls.rerun)
    plan = asked(calls.plan)
    timeline = asked(calls.timeline)
    explain = finished(talks.explain)
    wait = finished(talks.wait)
    iter_runs = streamed(talks.iter_runs)

    # -- events

    events = asked(calls.events)
    iter_events = streamed(talks.iter_events)
    follow = streamed(talks.follow)

    # -- what runs leave behind

    artifacts = asked(calls.artifacts)
    outputs = asked(calls.outputs)
    costs = asked(calls.costs)
    transitions = asked(history.transitions)
    tests = asked(history.run_tests)

    # -- jobs and attempts

    jobs = asked(calls.jobs)
    job = asked(calls.job)
    cancel_job = asked(calls.cancel_job)
    attempts = asked(calls.attempts)
    attempt = asked(calls.attempt)
    log = asked(calls.log)
    log_index = asked(calls.log_index)
    iter_jobs = streamed(talks.iter_jobs)
    follow_log = streamed(logs.follow_log)

    # -- templates

    templates = asked(calls.templates)
    template = asked(calls.template)
    save_template = asked(calls.save_template)
    remove_template = asked(calls.remove_template)
    versions = asked(calls.versions)
    iter_templates = streamed(talks.iter_templates)
    iter_versions = streamed(talks.iter_versions)

    # -- projects and changes

    projects = asked(calls.projects)
    project = asked(calls.project)
    save_project = asked(calls.save_project)
    remove_project = asked(calls.remove_project)
    report_push = asked(calls.report_push)
    tell_pushes = report_push  # Deprecated name.
    changes = asked(calls.changes)
    change = asked(calls.change)
    iter_projects = streamed(talks.iter_projects)
    iter_changes = streamed(talks.iter_changes)

    # -- workstreams

    create_workstream = asked(streams.create_workstream)
    workstreams = asked(streams.workstreams)
    workstream = asked(streams.workstream)
    cancel_workstream = asked(streams.cancel_workstream)
    merge_queues = asked(streams.merge_queues)
    iter_workstreams = streamed(streams.iter_workstreams)

    # -- the queue, workers, keys, the tenant

    queue = asked(calls.queue)
    workers = asked(calls.workers)
    worker = asked(calls.worker)
    worker_token = asked(calls.worker_token)
    drain_worker = asked(calls.drain_worker)
    resume_worker = asked(calls.resume_worker)
    remove_worker = asked(calls.remove_worker)
    wait_idle = finished(talks.wait_idle)
    keys = asked(calls.keys)
    key = asked(calls.key)
    make_key = asked(calls.make_key)
    revoke_key = asked(calls.revoke_key)
    secrets = asked(calls.secret_page)
    set_secret = asked(calls.set_secret)
    remove_secret = asked(calls.remove_secret)
    failure_rules = asked(calls.failure_rules)
    set_failure_rules = asked(calls.set_failure_rules)
    flaky = asked(calls.flaky)
    me = asked(calls.me)
    tenant = asked(calls.tenant)
    set_quotas = asked(calls.set_quotas)
    iter_workers = streamed(talks.iter_workers)
    iter_keys = streamed(talks.iter_keys)
    iter_secrets = streamed(talks.iter_secrets)
    iter_flaky = streamed(talks.iter_flaky)

    def download(self, run_id: str, job: str, index: int, path: str, to: str | Path) -> Path:
        """Keep a file that an attempt left behind under this name: whole, or not at all."""
        with Draft(Path(to)) as draft:
            for part in self.stream(talks.artifact_bytes(run_id, job, index, path)):
                draft.write(part)
        return Path(to)

    # -- how talks are performed

    def finish(self, talk: Talk[T]) -> T:
        """Perform a talk; what it gives in the end."""
        drive = Drive(talk)
        with _Line(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                self._perform(step, drive, line)
        return drive.result  # type: ignore[return-value]

    def stream(self, talk: Stream[T]) -> Iterator[T]:
        """Perform a talk; what it gives on the way."""
        drive = Drive(talk)
        with _Line(self._http, self.url) as line:
            while (step := drive.step()) is not None:
                if isinstance(step, Emit):
                    yield step.item
                self._perform(step, drive, line)

    def _perform(self, step: Any, drive: Drive[Any], line: _Line) -> None:
        try:
            drive.give(self._done(step, line))
        except ClientError as error:
            drive.fail(error)

    def _done(self, step: Any, line: _Line) -> Any:
        match step:
            case Ask(call):
                return self.finish(talks.repeated(self.url, call, self._patience))
            case Send(call):
                return self._send(call)
            case Open(call, silence_seconds):
                return line.open(call, silence_seconds)
            case Read():
                return line.read()
            case Pause(seconds):
                return time.sleep(seconds)
            case Mind():
                return self._patience
        return None

    def _send(self, call: Call[Any]) -> Answer:
        check_open(self._http)
        try:
            response = self._http.request(**request_of(call))
        except TROUBLES as error:
            raise trouble(self.url, error) from error
        return Answer(response.status_code, response.headers, response.content)
