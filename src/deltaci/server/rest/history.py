"""The transitions of a run in the vocabulary of one of the source documents.

The projection of an event depends on all earlier events of its record, so a page is computed from the first event of
the run; only the canonical vocabulary can start at the page itself. The cost is bounded: a run with more than
MAX_EVENTS_READ events must be exported instead. The newest events in the canonical vocabulary are found by binary
search in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Final

from deltaci.api.schemas.history import Transition, TransitionPage, TransitionQuery
from deltaci.audit.projections.vocabularies import CANONICAL, VOCABULARIES, ProjectedStep, VocabularyProjector, job_of
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.core.instants import rfc3339
from deltaci.server.rest.http.lookup import get_run
from deltaci.server.rest.http.request import Call, Handler

MAX_EVENTS_READ: Final = 50_000  # The limit for one page.
PAGE_SIZE: Final = 1000


async def read_transitions(call: Call) -> TransitionPage:
    """Return a page of transitions. All transitions of one event are on the same page."""
    query: TransitionQuery = call.query
    run = await get_run(call)
    matching_steps = _matching_steps(call, run.id, query, await _start(call, run.id, query))
    projected_steps, next = await (
        _newest_page(matching_steps, query.limit)
        if query.order == "newest"
        else _oldest_page(matching_steps, query.limit)
    )
    return TransitionPage(view=query.view, transitions=[_to_transition(step) for step in projected_steps], next=next)


async def _start(call: Call, run_id: str, query: TransitionQuery) -> int:
    """Return the seq after which the events of the run must be read to compute the requested page."""
    if query.view != CANONICAL.name:
        return 0
    if query.order == "oldest" or query.kind is not None or query.job is not None:
        return query.after
    store, needed_count = call.app.store, query.limit + 1  # One more shows whether there are earlier events.
    low_seq, high_seq = query.after, query.before or await store.last_seq() + 1
    if len(await store.events(low_seq, PAGE_SIZE, run_id=run_id)) < PAGE_SIZE:
        return low_seq
    while high_seq - low_seq > 1:
        middle_seq = (low_seq + high_seq) // 2
        events = await store.events(middle_seq, needed_count, run_id=run_id)
        is_enough = len(events) == needed_count and (not query.before or events[-1].seq < query.before)
        low_seq, high_seq = (middle_seq, high_seq) if is_enough else (low_seq, middle_seq)
    return low_seq


async def _matching_steps(
    call: Call, run_id: str, query: TransitionQuery, after_seq: int
) -> AsyncIterator[ProjectedStep]:
    """Yield the projected steps that match the query, in the order of the log."""
    projector = VocabularyProjector(VOCABULARIES[query.view])
    async for page in _pages(call, run_id, after_seq):
        for step in projector.project(page):
            if query.before and step.event.seq >= query.before:
                return
            is_match = query.kind in (None, step.kind) and query.job in (None, job_of(step.event))
            if step.event.seq > query.after and is_match:
                yield step


async def _pages(call: Call, run_id: str, after_seq: int) -> AsyncIterator[list[Event]]:
    """Yield the caller's events of a run in pages. Raise Refused if too many events have been read."""
    event_count = 0
    while events := await call.app.store.events(after_seq, PAGE_SIZE, run_id=run_id):
        after_seq = events[-1].seq
        event_count += len(events)
        if event_count > MAX_EVENTS_READ:
            raise Refused(
                "too_large",
                f"more than {MAX_EVENTS_READ} events would have to be read; read the canonical view, oldest first, "
                "after a later event, or export the events: deltaci events export --run",
            )
        yield [event for event in events if event.tenant == call.caller.tenant]


async def _oldest_page(
    matching_steps: AsyncIterator[ProjectedStep], limit: int
) -> tuple[list[ProjectedStep], int | None]:
    """Return the first `limit` steps, and the seq after which the next page begins, or None for the last page.

    All steps of one event are returned together, so there may be a few more than `limit`.
    """
    steps: list[ProjectedStep] = []
    async for step in matching_steps:
        if len(steps) >= limit and step.event.seq != steps[-1].event.seq:
            return steps, steps[-1].event.seq
        steps.append(step)
    return steps, None


async def _newest_page(
    matching_steps: AsyncIterator[ProjectedStep], limit: int
) -> tuple[list[ProjectedStep], int | None]:
    """Return the last `limit` steps, the newest first, and the seq before which the next page ends, or None.

    All steps of one event are returned together, so there may be a few more than `limit`.
    """
    steps: deque[ProjectedStep] = deque()
    step_counts: deque[int] = deque()  # The number of steps of each event in `steps`.
    has_more = False
    async for step in matching_steps:
        if steps and steps[-1].event.seq == step.event.seq:
            step_counts[-1] += 1
        else:
            step_counts.append(1)
        steps.append(step)
        while len(steps) - step_counts[0] >= limit:
            for _ in range(step_counts.popleft()):
                steps.popleft()
            has_more = True
    # Steps of one event are reversed too: the last one first.
    return list(reversed(steps)), steps[0].event.seq if has_more else None


def _to_transition(step: ProjectedStep) -> Transition:
    event = step.event
    return Transition(
        seq=event.seq,
        at=rfc3339(event.at),
        kind=step.kind,
        entity=event.entity,
        entity_id=event.entity_id,
        job=job_of(event),
        from_=step.source,
        to=step.target,
        trigger=step.trigger,
        actor=step.actor,
        severity=event.severity,
        rule=step.rule,
        why=step.why,
        request_id=event.request_id,
        rev=event.rev,
        metadata={**event.metadata, "takeover": step.takeover} if step.takeover else event.metadata,
    )


HANDLERS: Final[Mapping[str, Handler]] = {"readTransitions": read_transitions}
