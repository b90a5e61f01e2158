"""The merge queues: for each base branch the batches under test and the waiting workstreams."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from deltaci.api.schemas.workstreams import MergeBatch, MergeQueue, MergeQueues, MergeSplit, QueuedMerge, Workstream
from deltaci.core.errors import Refused
from deltaci.server.web.components import badge, nothing, path, rows, top, when
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    code,
    div,
    h2,
    h3,
    join,
    li,
    ol,
    p,
    section,
    span,
)
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views.workstreams.components import HERE, QUEUES, STYLES, commit, link, many, name_of, said_of
from deltaci.server.web.views.workstreams.show import DOING, queue_id

MAX_LOOKED_UP: Final = 24  # Of those who left a queue in which a split still matters.
HEADINGS: Final = ("Workstream", "Method", "Batch", "Since", "Commit", "Waiting for")
HELP: Final = (
    "A base receives only commits that were tested as a whole. Waiting workstreams are grouped into batches; each "
    "batch is tested on top of the batches before it, and the base moves to exactly the tested commit. "
    "A failing batch is split until the failing workstream is found."
)


class NamedWorkstream(msgspec.Struct, frozen=True):
    """The title of a workstream in a queue, with its state if it has left the queue."""

    title: str
    state: str = ""


Names = dict[str, NamedWorkstream]


async def queues(visit: PageRequest) -> PageResponse:
    """All queues in which something waits."""
    wanted = visit.query.get("project", "")
    found = await visit.ask("listMergeQueues", MergeQueues, query={"project": wanted} if wanted else {})
    names = await _names(visit, found)
    return HtmlPage(
        title="Merge queues",
        here=HERE,
        live={},
        styles=STYLES,
        body=join(
            [
                top("Merge queues", a("The board", href=HERE, class_="button")),
                p(HELP, class_="quiet help-line"),
                *(_queue(each, names) for each in found.queues),
                _empty(wanted) if not found.queues else None,
            ]
        ),
    )


async def _names(visit: PageRequest, found: MergeQueues) -> Names:
    names: Names = {each.id: NamedWorkstream(each.title or each.id) for queue in found.queues for each in queue.entries}
    split = [id for queue in found.queues for each in queue.splits for id in (*each.first, *each.second)]
    gone = [id for id in dict.fromkeys(split) if id not in names][:MAX_LOOKED_UP]
    for id, named in zip(gone, await asyncio.gather(*(_look_up(visit, id) for id in gone)), strict=True):
        names[id] = named
    return names


async def _look_up(visit: PageRequest, id: str) -> NamedWorkstream:
    try:
        stream = await visit.ask("readWorkstream", Workstream, workstream=id)
    except Refused:
        return NamedWorkstream(id)
    return NamedWorkstream(name_of(stream), stream.state)


def _empty(project: str) -> Markup:
    where = f" in {project}" if project else ""
    return nothing(
        f"No workstream waits to be merged{where}.",
        join(["A workstream enters the merge queue when its tasks are completed: ", a("the board", href=HERE), "."]),
        a("All merge queues", href=QUEUES) if project else None,
    )


def _queue(queue: MergeQueue, names: Names) -> Markup:
    id = queue_id(queue.project, queue.base)
    return section(
        h2(
            queue.project,
            " → ",
            code(queue.base),
            " ",
            span(f"{len(queue.entries)} waiting", class_="count"),
            id=f"{id}-title",
        ),
        _problem(queue.problem, queue),
        _chain(queue, names),
        _splits(queue, names),
        rows(
            HEADINGS,
            [_entry(each) for each in queue.entries],
            caption=f"The merge queue for {queue.base} of {queue.project}",
            keys=[f"entry-{each.id}" for each in queue.entries],
        ),
        id=id,
        class_="card ws-queue",
        aria_labelledby=f"{id}-title",
    )


def _problem(problem: str, of: MergeQueue | MergeBatch | QueuedMerge) -> Markup | None:
    if not problem:
        return None
    again = join([" Next attempt ", when(of.not_before), "."]) if of.not_before is not None else None
    return p(said_of(problem), again, class_="held-ink said-of")


# -- the batches, each on top of the one before


def _chain(queue: MergeQueue, names: Names) -> Markup:
    start = queue.batches[0].base_commit if queue.batches else ""
    free = [each for each in queue.entries if not each.batch]
    return ol(
        li(
            h3(queue.base),
            p("current commit", ": ", commit(start)) if start else p("current commit"),
            class_="link base",
        ),
        *(_batch(each, at, queue, names) for at, each in enumerate(queue.batches)),
        li(h3("Next"), p(many(len(free), "workstream"), " without a batch yet"), class_="link next") if free else None,
        class_="chain",
        aria_label="Batches under test, each on top of the previous one",
    )


def _batch(batch: MergeBatch, at: int, queue: MergeQueue, names: Names) -> Markup:
    below = f"on top of {queue.base}" if at == 0 else f"on top of batch {queue.batches[at - 1].number}"
    verdict = None if batch.is_good is None else badge("good" if batch.is_good else "bad")
    return li(
        div(h3(f"Batch {batch.number}"), badge(batch.doing), verdict, class_="actions"),
        p(DOING.get(batch.doing, batch.doing), class_="quiet"),
        p(below, ", method ", batch.method, [": ", commit(batch.commit)] if batch.commit else None, class_="quiet"),
        _members(batch.members, names),
        p(
            "Tested by ",
            a("this run", href=path("runs", batch.run_id), aria_label=f"The run that tests batch {batch.number}"),
        )
        if batch.run_id
        else None,
        _problem(batch.problem, batch),
        id=f"batch-{queue.project}-{queue.base}-{batch.number}",
        class_="link batch",
    )


def _members(ids: list[str], names: Names) -> Markup:
    return ol(*(_member(id, names.get(id, NamedWorkstream(id))) for id in ids), class_="members")


def _member(id: str, named: NamedWorkstream) -> Markup:
    return li(link(id, named.title), [" ", badge(named.state)] if named.state else None)


# -- how a bad one is looked for


def _splits(queue: MergeQueue, names: Names) -> Markup | None:
    if not queue.splits:
        return None
    return div(
        h3("Looking for the failing workstream"),
        ol(*(_split(each, names) for each in queue.splits), class_="splits"),
        class_="bisecting",
    )


def _split(split: MergeSplit, names: Names) -> Markup:
    return li(
        p(badge("bad"), f" Batch {split.number} failed and was split in two."),
        p(said_of(split.problem), class_="said-of quiet") if split.problem else None,
        div(
            div(h3("First half"), _members(split.first, names), class_="half"),
            div(h3("Second half"), _members(split.second, names), class_="half"),
            class_="halves",
        ),
        id=f"split-{split.number}",
    )


# -- the line


def _entry(entry: QueuedMerge) -> list[Child]:
    return [
        join([span(f"{entry.position}. ", class_="number quiet"), link(entry.id, entry.title)]),
        entry.method,
        f"batch {entry.batch}" if entry.batch else span("none yet", class_="quiet"),
        when(entry.since),
        commit(entry.head),
        _problem(entry.problem, entry) or "",
    ]


PAGES: Final = (PageRoute(path=QUEUES, get=queues),)
