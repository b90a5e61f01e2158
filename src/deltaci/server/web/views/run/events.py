"""The events of a run, in the vocabulary of Delta CI and of each source document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from deltaci.api.routes import ROOT
from deltaci.api.schemas import records as api
from deltaci.api.schemas.history import Transition, TransitionPage
from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.projections.job_events import JobEventsExporter
from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.audit.projections.vocabularies import CANONICAL, VOCABULARIES, Vocabulary
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.core.instants import from_datetime
from deltaci.server.request import Send
from deltaci.server.rest.http.streaming import content_disposition, open_response
from deltaci.server.web.components import nothing, path, rows, seconds_text, sign
from deltaci.server.web.filters import MAX_OFFERED, box, choice, filters
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    code,
    details,
    div,
    join,
    nav,
    p,
    pre,
    span,
    summary,
    time,
)
from deltaci.server.web.page_request import EventStream, PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import onward
from deltaci.server.web.views.run.collapsible import STYLES, job_asked
from deltaci.server.web.views.run.frame import framed

PER_PAGE: Final = 50
AT_A_TIME: Final = 1000
MAX_METADATA_CHARS: Final = 3000
HEADINGS: Final = ("Event", "When", "What", "Change", "Trigger", "By", "Details")
# How each is called, and what it sees.
TITLES: Final = {
    "canonical": (
        "Delta CI",
        "Everything that was recorded, in the vocabulary of Delta CI: runs, jobs, attempts and leases.",
    ),
    "orchestration": ("Orchestration", "Document 000: who owns each step of runs, attempts and leases."),
    "steps": (
        "Steps",
        "Document 002: the coarse status of the run and its steps. This is the “status” on these pages.",
    ),
    "workstreams": ("Workstreams", "Document 003: a run is a workstream, a job a task. An approval is not a task."),
    "queue": (
        "Queue",
        "Document 004: an attempt is a job of the queue. An attempt that Delta CI ends itself is a takeover there.",
    ),
}


async def shown(visit: PageRequest) -> PageResponse:
    """A page of the log, as the address wants it."""
    run = await visit.ask("readRun", api.RunWithJobs, run=visit.params["run"])
    vocabulary = VOCABULARIES.get(visit.query.get("view", ""), CANONICAL)
    is_newest = visit.query.get("order") != "oldest"
    kind = visit.query.get("kind", "")
    asked: dict[str, Any] = {
        "view": vocabulary.name,
        "order": "newest" if is_newest else "oldest",
        "limit": PER_PAGE,
        "job": job_asked(visit),
        "kind": kind if kind in vocabulary.kinds else None,
    }
    place = "before" if is_newest else "after"
    if (at := visit.query.get("at", "")).isdecimal() and at.isascii():
        asked[place] = int(at[:15])
    try:
        page = await visit.ask("readTransitions", TransitionPage, query=asked, run=run.id)
    except Refused as refused:
        if refused.code != "too_large":
            raise
        page = None
    first, more = ("newest", "older") if is_newest else ("oldest", "newer")
    next = str(page.next) if page is not None and page.next is not None else None
    return framed(
        visit,
        run,
        "events",
        _chooser(visit, run.id, vocabulary),
        _filters(visit, run, vocabulary, is_newest=is_newest),
        _too_many(run.id)
        if page is None
        else _table(run, page.transitions)
        if page.transitions
        else _empty(visit, run.id),
        onward(visit, next, name="at", first=first, more=more),
        _taken_away(run.id, vocabulary),
        styles=STYLES,
    )


def _chooser(visit: PageRequest, run_id: str, chosen: Vocabulary) -> Markup:
    address = path("runs", run_id, "events")
    links = [
        a(
            TITLES[each.name][0],
            span(f" {each.document}", class_="quiet") if each.document else None,
            href=address + visit.same(view=None if each is CANONICAL else each.name, kind=None, at=None),
            aria_current="true" if each is chosen else None,
        )
        for each in VOCABULARIES.values()
    ]
    return div(nav(*links, class_="choices", aria_label="Vocabularies"), p(TITLES[chosen.name][1], class_="quiet"))


def _filters(visit: PageRequest, run: api.RunWithJobs, vocabulary: Vocabulary, *, is_newest: bool) -> Markup:
    order = "oldest" if is_newest else None
    other = a(f"{'Oldest' if is_newest else 'Newest'} first", href=visit.same(order=order, at=None), class_="button")
    kinds = [("", "everything"), *((each, each) for each in vocabulary.kinds)]
    jobs = [each.name for each in run.jobs[:MAX_OFFERED]]
    return filters(
        choice("kind", "Kind", kinds, visit.query.get("kind", "")),
        box("job", "Job", visit.query.get("job", ""), known=jobs, key="/"),
        to=path("runs", run.id, "events"),
        keeps={
            "view": vocabulary.name if vocabulary is not CANONICAL else "",
            "order": "" if is_newest else "oldest",
        },
        beside=other,
        title="Events",
    )


def _table(run: api.Run, transitions: list[Transition]) -> Markup:
    keys: list[str] = []
    counts: dict[int, int] = {}
    for each in transitions:
        counts[each.seq] = counts.get(each.seq, 0) + 1
        keys.append(f"e{each.seq}-{each.kind}-{counts[each.seq]}")
    return rows(HEADINGS, [_line(run, each) for each in transitions], caption="Events", keys=keys)


def _line(run: api.Run, each: Transition) -> list[Child]:
    at = datetime.fromisoformat(each.at)
    return [
        span(each.seq, class_="number"),
        time(
            f"+{seconds_text((at - run.created_at).total_seconds())}", datetime=each.at, title=each.at, class_="number"
        ),
        join([span(each.kind, class_="label"), " ", _entity(run.id, each)]),
        _change(each),
        code(each.trigger, class_=f"severity {each.severity}"),
        each.actor,
        _metadata(each),
    ]


def _entity(run_id: str, each: Transition) -> Child:
    if not each.job:
        return a("the run", href=path("runs", run_id))
    behind = each.entity_id.removeprefix(f"{run_id}/{each.job}").lstrip(".")
    attempt, _, lease = behind.partition("#")
    address = path("runs", run_id, "jobs", each.job) + (f"?attempt={attempt}" if attempt else "")
    return [
        a(each.job, href=address),
        span(f" attempt {attempt}", class_="quiet") if attempt else None,
        span(f", lease {lease}", class_="quiet") if lease else None,
    ]


def _change(each: Transition) -> Markup:
    # Only words of documents: they are shown as they are written there.
    begin = code(each.from_) if each.from_ is not None else span("new", class_="quiet")
    arrow = span(" → ", aria_hidden="true")
    to = span(sign(each.to), code(each.to), class_="state")
    return span(begin, arrow, span(" to ", class_="hidden"), to, class_="change")


def _metadata(each: Transition) -> Markup:
    told = {
        **({"rule": each.rule} if each.rule else {}),
        **({"transition reason": each.why} if each.why else {}),
        **each.metadata,
        "rev": each.rev,
        **({"request_id": each.request_id} if each.request_id else {}),
        "id": each.entity_id,
        "at": each.at,
    }
    text = msgspec.json.format(msgspec.json.encode(told), indent=2).decode()
    if len(text) > MAX_METADATA_CHARS:
        text = f"{text[:MAX_METADATA_CHARS]}\n… and {len(text) - MAX_METADATA_CHARS} characters more; see the API"
    return details(
        summary(each.rule or ("extended" if each.why else "details"), span(f" of {each.seq}", class_="hidden")),
        pre(text, class_="told", tabindex="0", role="region", aria_label=f"Details of {each.seq}"),
    )


def _empty(visit: PageRequest, run_id: str) -> Markup:
    if any(visit.query.get(name) for name in ("kind", "job", "at")):
        return nothing("No event matches.", a("All events of the run", href=path("runs", run_id, "events")))
    return nothing("There are no events in this vocabulary yet.", "New events appear here automatically.")


def _too_many(run_id: str) -> Markup:
    return nothing(
        "This run has too many events to show in this vocabulary or to filter.",
        join(["All events in the vocabulary of Delta CI: ", a("events", href=path("runs", run_id, "events")), "."]),
        join(["To export them: ", code(f"deltaci events export --run {run_id}")]),
    )


def _taken_away(run_id: str, vocabulary: Vocabulary) -> Markup:
    """To keep, and to check: the formats that the verifier reads."""
    name = vocabulary.name if vocabulary.name in EXPORTS else CANONICAL.name
    file = f"{run_id}.{name}.jsonl"
    return div(
        a("Download as JSON lines", href=f"{path('runs', run_id, 'events.jsonl')}?view={name}", download=file),
        span("verify it: ", code(f"deltaci verify {file}")),
        a("Read it from the API", href=f"{ROOT}{path('runs', run_id, 'transitions')}?view={vocabulary.name}"),
        class_="under-table",
    )


# -- the whole log, to be kept


Export = Callable[[Iterable[Event]], Iterator[bytes]]


def _encoded(export: Callable[[Iterable[Event]], Iterator[dict[str, Any]]]) -> Export:
    return lambda events: map(msgspec.json.Encoder().encode, export(events))


EXPORTS: Final[dict[str, Callable[[], Export]]] = {
    "canonical": lambda: canonical_lines,
    "workstreams": lambda: _encoded(TransitionsExporter().export),
    "queue": lambda: _encoded(JobEventsExporter().export),
}


async def exported(visit: PageRequest) -> PageResponse:
    """All events that there are now, one JSON object a line, as `deltaci verify` reads them."""
    run_id = visit.params["run"]
    await visit.ask("readRun", api.RunWithJobs, run=run_id)
    view = visit.query.get("view", "")
    name = view if view in EXPORTS else CANONICAL.name
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": content_disposition(f"{run_id}.{name}.jsonl"),
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }

    async def send(send: Send) -> None:
        async with open_response(send, visit.request) as out:
            await out.start(headers)
            write = EXPORTS[name]()
            async for page in _pages(visit, run_id):
                await out.write(b"".join(line + b"\n" for line in write(page)))

    return EventStream(send)


async def _pages(visit: PageRequest, run_id: str) -> AsyncIterator[list[Event]]:
    after = 0
    while True:
        page = await visit.ask("readRunEvents", dict, query={"after": after, "limit": AT_A_TIME}, run=run_id)
        if not page["events"]:
            return
        yield [_event(each) for each in page["events"]]
        after = page["last"]


def _event(raw: msgspec.Raw) -> Event:
    told = msgspec.json.decode(raw, type=api.Event)
    fields = {name: getattr(told, name) for name in told.__struct_fields__}
    return Event(**{**fields, "at": from_datetime(datetime.fromisoformat(told.at))})


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path="/runs/{run}/events", get=shown),
    PageRoute(path="/runs/{run}/events.jsonl", get=exported),
)
