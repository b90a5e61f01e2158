"""A run's events in the words of each document.

What a record is shown as depends on all that happened to it, so a page is read from the run's beginning on; in our own
words only from where it begins. The cost is bounded: a run with more events than are looked through here is exported.
Its newest events, in our own words, are always found: by halving the log.
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
from deltaci.server.rest.http.lookup import run_of
from deltaci.server.rest.http.request import Call, Handler

MAX_LOOKED_AT: Final = 50_000  # Events, for one page.
AT_A_TIME: Final = 1000


async def read_transitions(call: Call) -> TransitionPage:
    """A page of them, whole events only."""
    query: TransitionQuery = call.query
    run = await run_of(call)
    found = _seen(call, run.id, query, await _start(call, run.id, query))
    steps, next = await (_newest(found, query.limit) if query.order == "newest" else _oldest(found, query.limit))
    return TransitionPage(view=query.view, transitions=[_shown(each) for each in steps], next=next)


async def _start(call: Call, run_id: str, query: TransitionQuery) -> int:
    """The seq behind which the run must be read."""
    if query.view != CANONICAL.name:
        return 0
    if query.order == "oldest" or query.kind is not None or query.job is not None:
        return query.after
    store, wanted = call.parts.store, query.limit + 1  # One more: whether there are others before them.
    low, high = query.after, query.before or await store.last_seq() + 1
    if len(await store.events(low, AT_A_TIME, run_id=run_id)) < AT_A_TIME:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        page = await store.events(middle, wanted, run_id=run_id)
        is_enough = len(page) == wanted and (not query.before or page[-1].seq < query.before)
        low, high = (middle, high) if is_enough else (low, middle)
    return low


async def _seen(call: Call, run_id: str, query: TransitionQuery, start: int) -> AsyncIterator[ProjectedStep]:
    """All that fits, in the order of the log."""
    projector = VocabularyProjector(VOCABULARIES[query.view])
    async for page in _pages(call, run_id, start):
        for each in projector.project(page):
            if query.before and each.event.seq >= query.before:
                return
            is_wanted = query.kind in (None, each.kind) and query.job in (None, job_of(each.event))
            if each.event.seq > query.after and is_wanted:
                yield each


async def _pages(call: Call, run_id: str, after: int) -> AsyncIterator[list[Event]]:
    count = 0
    while page := await call.parts.store.events(after, AT_A_TIME, run_id=run_id):
        after = page[-1].seq
        count += len(page)
        if count > MAX_LOOKED_AT:
            raise Refused(
                "too_large",
                f"more than {MAX_LOOKED_AT} events would have to be read; ask for the events that come after one of "
                "them, in our own words and the oldest first, or export them: deltaci events export --run",
            )
        yield [event for event in page if event.tenant == call.who.tenant]


async def _oldest(found: AsyncIterator[ProjectedStep], limit: int) -> tuple[list[ProjectedStep], int | None]:
    steps: list[ProjectedStep] = []
    async for each in found:
        if len(steps) >= limit and each.event.seq != steps[-1].event.seq:
            return steps, steps[-1].event.seq
        steps.append(each)
    return steps, None


async def _newest(found: AsyncIterator[ProjectedStep], limit: int) -> tuple[list[ProjectedStep], int | None]:
    """The last ones. Of an event nothing is cut off, so there may be a few more."""
    steps: deque[ProjectedStep] = deque()
    sizes: deque[int] = deque()  # How many steps each event has that is kept.
    is_more = False
    async for each in found:
        if steps and steps[-1].event.seq == each.event.seq:
            sizes[-1] += 1
        else:
            sizes.append(1)
        steps.append(each)
        while len(steps) - sizes[0] >= limit:
            for _ in range(sizes.popleft()):
                steps.popleft()
            is_more = True
    # Steps of one moment stay in the order in which they follow from each other, the last one first.
    return list(reversed(steps)), steps[0].event.seq if is_more else None


def _shown(step: ProjectedStep) -> Transition:
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
        metadata=event.metadata,
    )


HANDLERS: Final[Mapping[str, Handler]] = {"readTransitions": read_transitions}
