"""Client operations that need more than one request: retries, paging, waiting, following events, downloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from deltaci.api.schemas import audit as api_audit
from deltaci.api.schemas import failures as api_failures
from deltaci.api.schemas import projects as api_projects
from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import MAX_EVENTS, MAX_PAGE
from deltaci.client import calls
from deltaci.client.calls import Call
from deltaci.client.effects import (
    Effect,
    EmitItem,
    GetRetryPolicy,
    HttpResponse,
    OpenStream,
    Operation,
    ReadChunk,
    SendRequest,
    SendWithRetry,
    Sleep,
    StreamOperation,
)
from deltaci.client.errors import ApiError, ClientError, Unreachable, refusal, unexpected
from deltaci.client.retry import Patience, RetryDelays
from deltaci.client.run_refs import RunRef, parse_refs
from deltaci.client.run_status import is_over, is_settled
from deltaci.client.sse import EventStreamReader

T = TypeVar("T")

RUN, JOB = "run", "job"  # Entities, as events name them.
PARTIAL: Final = 206
SIGN_OF_LIFE: Final = b":"
LOOK_SECONDS: Final = 0.5  # At something that tells nobody when it changes.
SILENCE_SECONDS: Final = 60.0  # Servers send a sign of life more often.

_event = msgspec.json.Decoder(api.Event)


def repeated(url: str, call: Call[T], patience: Patience) -> Operation[T]:
    """Send the request, with retries if that is safe, until a response arrives or the retry policy gives up."""
    waits = RetryDelays(patience, patience.give_up_seconds)
    while True:
        error: ClientError
        try:
            answer: HttpResponse = yield SendRequest(call)
            return understood(url, call, answer)
        except ApiError as refused:
            if not (refused.is_passing and call.is_repeatable):
                raise
            error = refused
        except Unreachable as unreachable:
            # Whoever was never connected has not been heard; otherwise only what is safe is said again.
            if not (call.is_repeatable or unreachable.is_unheard):
                raise
            error = unreachable
        yield Sleep(waits.after(error))


def understood(url: str, call: Call[T], answer: HttpResponse) -> T:
    """Return the decoded body of a response. Raises `ApiError` for an error response."""
    if answer.status >= 300:
        raise refusal(url, answer.status, answer.headers, answer.body)
    if call.reads is bytes:
        return answer.body  # type: ignore[return-value]
    try:
        return msgspec.json.decode(answer.body, type=call.reads)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise unexpected(url, answer.status, answer.headers, answer.body) from None


def ask(call: Call[T]) -> Operation[T]:
    """Send one request with retries, as part of an operation."""
    found: T = yield SendWithRetry(call)
    return found


def first_found(text: str, make: Callable[[RunRef], Call[T]]) -> Operation[T]:
    """Make the call for the first reading of a reference, or for the second one if nothing exists under the first."""
    first: ApiError | None = None
    for name in parse_refs(text):
        try:
            return (yield from ask(make(name)))
        except ApiError as error:
            if error.code != "not_found":
                raise
            first = first or error
    assert first is not None
    raise first  # The likelier reading is also what to complain about.


def explain(id: str) -> Operation[api.Explanation]:
    """Explain the state of a run, a job or an attempt: `RUN`, `RUN/JOB` or `RUN/JOB.N`."""
    return (yield from first_found(id, calls.explain_name))


# -- page by page


def iter_runs(
    *,
    state: str | None = None,
    status: str | None = None,
    project: str | None = None,
    branch: str | None = None,
    labels: Sequence[str] = (),
    person: str | None = None,
    template: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> StreamOperation[api.Run]:
    """Yield all runs that match all given filters, the newest first. Requests the next page when it is needed."""
    asked: dict[str, Any] = {"state": state, "status": status, "project": project, "branch": branch, "labels": labels}
    asked |= {"person": person, "template": template, "since": since, "until": until, "limit": MAX_PAGE}
    yield from _pages(lambda cursor: calls.runs(**asked, cursor=cursor), lambda page: page.runs)


def iter_jobs(run_id: str) -> StreamOperation[api.Job]:
    """Yield all jobs of a run, in the order of the plan."""
    yield from _pages(lambda cursor: calls.jobs(run_id, limit=MAX_PAGE, cursor=cursor), lambda page: page.jobs)


def iter_templates() -> StreamOperation[api.TemplateSummary]:
    """Yield all templates, ordered by name."""
    yield from _pages(lambda cursor: calls.templates(limit=MAX_PAGE, cursor=cursor), lambda page: page.templates)


def iter_versions(name: str) -> StreamOperation[api.TemplateSummary]:
    """Yield all versions of a template, the oldest first."""
    yield from _pages(lambda cursor: calls.versions(name, limit=MAX_PAGE, cursor=cursor), lambda page: page.templates)


def iter_projects() -> StreamOperation[api_projects.Project]:
    """Yield all projects, ordered by name."""
    yield from _pages(lambda cursor: calls.projects(limit=MAX_PAGE, cursor=cursor), lambda page: page.projects)


def iter_changes(*, project: str | None = None) -> StreamOperation[api_projects.Change]:
    """Yield all changes, the newest first."""
    yield from _pages(
        lambda cursor: calls.changes(project=project, limit=MAX_PAGE, cursor=cursor), lambda page: page.changes
    )


def iter_deliveries(project: str) -> StreamOperation[api_projects.Delivery]:
    """Yield the webhook deliveries to a project, the newest first."""
    yield from _pages(
        lambda cursor: calls.deliveries(project, limit=MAX_PAGE, cursor=cursor), lambda page: page.deliveries
    )


def iter_audit(
    *, kind: str | None = None, name: str | None = None, actor: str | None = None, since: datetime | None = None
) -> StreamOperation[api_audit.AuditEvent]:
    """Yield all changes of administrative objects that match all given filters, the newest first."""
    yield from _pages(
        lambda cursor: calls.audit(kind=kind, name=name, actor=actor, since=since, limit=MAX_PAGE, cursor=cursor),
        lambda page: page.events,
    )


def iter_workers(*, gone: bool = False) -> StreamOperation[api.Worker]:
    """Yield all workers, the newest first."""
    yield from _pages(lambda cursor: calls.workers(gone=gone, limit=MAX_PAGE, cursor=cursor), lambda page: page.workers)


def iter_keys() -> StreamOperation[api.Key]:
    """Yield all API keys."""
    yield from _pages(lambda cursor: calls.keys(limit=MAX_PAGE, cursor=cursor), lambda page: page.keys)


def iter_secrets() -> StreamOperation[api.Secret]:
    """Yield all secrets, without their values."""
    yield from _pages(lambda cursor: calls.secret_page(limit=MAX_PAGE, cursor=cursor), lambda page: page.secrets)


def iter_flaky(*, project: str | None = None) -> StreamOperation[api_failures.FlakyJob]:
    """Yield all jobs and tests that are known to be flaky."""
    yield from _pages(
        lambda cursor: calls.flaky(project=project, limit=MAX_PAGE, cursor=cursor), lambda page: page.jobs
    )


def _pages(make: Callable[[str], Call[Any]], items: Callable[[Any], list[T]]) -> StreamOperation[T]:
    cursor: str | None = ""
    while cursor is not None:
        page = yield from ask(make(cursor))
        for item in items(page):
            yield EmitItem(item)
        cursor = page.next


def iter_events(run_id: str = "", *, after: int = 0) -> StreamOperation[api.Event]:
    """Yield all present events of a run, or of the whole tenant, in the order of the log."""
    while True:
        page = yield from ask(calls.events(run_id, after=after, limit=MAX_EVENTS))
        for event in page.events:
            yield EmitItem(event)
        if page.last <= after:
            return
        after = page.last


def wait_idle(name: str, *, timeout_seconds: float | None = None) -> Operation[api.Worker]:
    """Wait until a worker has no leases and return it. Raises `TimeoutError` if that takes longer."""
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while True:
        found = yield from ask(calls.worker(name))
        if not found.tasks:
            return found
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(f"worker {name} still holds {', '.join(found.tasks)}")
        yield Sleep(LOOK_SECONDS)


# -- as it happens

Hearing = Callable[[api.Event], Generator[Effect | EmitItem[Any], Any, bool]]  # Whether this was the last one to hear.


def follow(run_id: str = "", *, after: int = 0) -> StreamOperation[api.Event]:
    """Yield the events of a run until it is over, or of the whole tenant for ever: the past ones, then new ones.

    After a lost connection, continue after the last received event.
    """
    if not run_id:
        yield from _listen("", after, _told)
        return
    seen = _FollowedRun((yield from ask(calls.run(run_id))))
    if not seen.is_settled:
        after = yield from _listen(run_id, after, seen.told_until_settled, seen.settled_meanwhile)
    yield from iter_events(run_id, after=after)


def _told(event: api.Event) -> Generator[Effect | EmitItem[Any], Any, bool]:
    yield EmitItem(event)
    return False


class _FollowedRun:
    """The last known state of a run that is being followed.

    It is read again only when an event may have changed its outcome.
    """

    def __init__(self, run: api.RunWithJobs) -> None:
        self.run = run

    @property
    def is_settled(self) -> bool:
        """Whether its outcome stands and none of its jobs is still being stopped."""
        return is_settled(self.run)

    def told_until_settled(self, event: api.Event) -> Generator[Effect | EmitItem[Any], Any, bool]:
        """Every event, until then."""
        yield EmitItem(event)
        yield from self._look(event)
        return self.is_settled

    def heard_until_over(self, event: api.Event) -> Operation[bool]:
        """Nothing, until the outcome stands."""
        yield from self._look(event)
        return is_over(self.run)

    def settled_meanwhile(self) -> Operation[bool]:
        """Whether that happened while nobody could be heard."""
        self.run = yield from ask(calls.run(self.run.id))
        return self.is_settled

    def over_meanwhile(self) -> Operation[bool]:
        """Whether the outcome came while nobody could be heard."""
        self.run = yield from ask(calls.run(self.run.id))
        return is_over(self.run)

    def _look(self, event: api.Event) -> Operation[None]:
        is_news = event.entity == RUN and event.rev > self.run.rev
        if event.from_ != event.to and (is_news or (event.entity == JOB and is_over(self.run))):
            self.run = yield from ask(calls.run(self.run.id))


def wait(run_id: str, *, timeout_seconds: float | None = None) -> Operation[api.RunWithJobs]:
    """Wait until the run is over and return it. Raises `TimeoutError` if that takes longer."""
    seen = _FollowedRun((yield from ask(calls.run(run_id))))
    if not is_over(seen.run):
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        # What it hears it keeps to itself, so there is nothing to emit.
        yield from _listen(run_id, 0, seen.heard_until_over, seen.over_meanwhile, until)  # type: ignore[misc]
    return seen.run


def _listen(
    run_id: str,
    after: int,
    heard: Hearing,
    meanwhile: Callable[[], Operation[bool]] | None = None,
    until: float | None = None,
) -> Generator[Effect | EmitItem[Any], Any, int]:
    """Tell of each event, until that is enough; then the last one's seq. Comes back when the connection is lost.

    What was to be asked when the connection broke was not asked: so whether it is enough by now is asked `meanwhile`.
    """
    patience: Patience = yield GetRetryPolicy()
    # Who was never there is given up sooner than who was, and comes back.
    waits = RetryDelays(patience, patience.give_up_seconds)
    is_back = False
    while True:
        silence = _left(until, run_id)
        try:
            if is_back and meanwhile is not None and (yield from meanwhile()):
                return after
            yield from opened(calls.event_stream(run_id, after), silence)
            waits.allow(patience.lost_seconds)
            reader = EventStreamReader()
            while (chunk := (yield ReadChunk())) is not None:
                events = _events(reader, chunk)
                for event in events:
                    after = event.seq
                    if (yield from heard(event)):
                        return after
                if events or chunk.startswith(SIGN_OF_LIFE):
                    waits.reset()
                _left(until, run_id)
            yield Sleep(waits.after(Unreachable("the server closes every event stream")))
        except ApiError as error:
            if not error.is_passing:
                raise
            yield Sleep(waits.after(error))
        except Unreachable as error:
            _left(until, run_id)
            yield Sleep(waits.after(error))
        is_back = True


def _events(reader: EventStreamReader, chunk: bytes) -> list[api.Event]:
    try:
        return [_event.decode(message.data) for message in reader.read(chunk)]
    except (ValueError, msgspec.DecodeError):
        raise unexpected("the event stream", 200, {"content-type": calls.EVENT_STREAM}, chunk) from None


def _left(until: float | None, run_id: str) -> float:
    """For how long silence is no trouble; raises when there is no time left."""
    if until is None:
        return SILENCE_SECONDS
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"run {run_id} is not over yet")
    return min(SILENCE_SECONDS, left)


def opened(call: Call[bytes], silence_seconds: float) -> Operation[HttpResponse]:
    """Open the streamed response of a request. Raises `ApiError` for an error response."""
    answer: HttpResponse = yield OpenStream(call, silence_seconds)
    if answer.status >= 300:
        raise refusal(call.path, answer.status, answer.headers, answer.body)
    return answer


def artifact_bytes(run_id: str, job: str, index: int, path: str) -> StreamOperation[bytes]:
    """Yield the bytes of an artifact in parts. After a lost connection, continue where it was lost."""
    patience: Patience = yield GetRetryPolicy()
    waits = RetryDelays(patience, patience.give_up_seconds)
    done = 0
    while True:
        try:
            answer = yield from opened(calls.artifact(run_id, job, index, path, done), SILENCE_SECONDS)
            if done and answer.status != PARTIAL:
                raise unexpected(path, answer.status, answer.headers, b"")
            while (chunk := (yield ReadChunk())) is not None:
                waits.reset()
                done += len(chunk)
                yield EmitItem(chunk)
            return
        except ApiError as error:
            if error.code == "bad_range" and done:
                return  # It broke behind the last byte.
            if not error.is_passing:
                raise
            yield Sleep(waits.after(error))
        except Unreachable as error:
            yield Sleep(waits.after(error))
