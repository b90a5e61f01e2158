"""One workstream: its branch, its tasks by stage, the progress of its merge, and why it is in its state."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas.records import Explanation
from deltaci.api.schemas.workstreams import MergeQueues, Workstream, WorkstreamTask
from deltaci.core import run as runs
from deltaci.core.ids import worker_name
from deltaci.server.web.components import action, badge, card, lasted, path, rows, top, when, words
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    code,
    dd,
    details,
    div,
    dl,
    dt,
    join,
    li,
    ol,
    p,
    span,
    summary,
    ul,
)
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.paging import pages, start_of
from deltaci.server.web.views.workstreams.components import (
    HERE,
    QUEUES,
    STYLES,
    bar,
    commit,
    link,
    listed,
    many,
    name_of,
    nth,
    rules,
    said_of,
    so_far,
    to_base,
)
from deltaci.server.web.views.workstreams.graph import MAX_DRAWN, graph

MAX_TASKS: Final = 200  # On one page.
HEADINGS: Final = ("Task", "State", "Attempts", "Worker", "Took", "Added", "Details")
METHODS: Final = {
    "merge": "one merge commit for all workstreams of a batch",
    "squash": "one commit with all changes of the workstream",
    "fast-forward": "its own commits, on top of the base",
    "none": "not merged: the branch is kept for manual use",
}
DOING: Final = {
    "building": "its commits are being built on top of the base and earlier batches",
    "testing": "its validation rules run on exactly the commits that the base would receive",
    "waiting": "its test is complete; it waits for earlier batches",
    "landing": "the base is being moved to the commit that was tested",
}


async def one(visit: PageRequest) -> PageResponse:
    """The page."""
    id = visit.params["workstream"]
    stream = await visit.ask("readWorkstream", Workstream, workstream=id)
    why = await visit.ask("explainRun", Explanation, run=id)
    others = await _titles(visit, stream)
    return HtmlPage(
        title=f"{name_of(stream)} · {stream.state}",
        here=HERE,
        # What waits with it to be merged is told by events of others.
        live={} if stream.ended_at is None else {"run": id},
        styles=STYLES,
        body=join(
            [
                top(name_of(stream), *_actions(visit, stream), under=_about(stream)),
                _why(why, stream),
                _tasks(visit, stream),
                div(_merge(stream, others), _branch(stream), class_="cards"),
            ]
        ),
    )


async def _titles(visit: PageRequest, stream: Workstream) -> dict[str, str]:
    """What those are called that are tested together with it."""
    if not stream.merge.tested_with:
        return {}
    found = await visit.ask("listMergeQueues", MergeQueues, query={"project": stream.project})
    return {entry.id: entry.title for queue in found.queues for entry in queue.entries}


# -- the head


def _actions(visit: PageRequest, stream: Workstream) -> list[Markup]:
    shown = [a("Show as run", href=path("runs", stream.id), class_="button")]
    if runs.MACHINE.changes(stream.run_state, runs.Cancel):
        asks = p(
            "Its tasks are stopped, it leaves the merge queue, and its worktree is removed. Merged changes stay merged."
        )
        to = path("workstreams", stream.id, "cancel")
        shown.append(
            action(
                visit,
                "cancel",
                "Cancel",
                route="cancelWorkstream",
                to=to,
                asks=asks,
                reason="reason",
                is_dangerous=True,
            )
        )
    return shown


def _about(stream: Workstream) -> Child:
    return [
        span(badge(stream.state, stream.run_state), id="ws-state", role="status"),
        span("derived from its tasks: ", stream.derived_state) if stream.derived_state != stream.state else None,
        span(to_base(stream)),
        span("by ", stream.created_by) if stream.created_by else None,
        span("created ", when(stream.created_at)),
        span("took ", lasted(stream.started_at, stream.ended_at)) if stream.started_at else None,
        span("reason: ", words(stream.reason)) if stream.reason else None,
        code(stream.id),
    ]


def _why(why: Explanation, stream: Workstream) -> Markup:
    more = [each.text for each in why.waiting if each.text != why.summary]
    return card(
        "Why",
        p(why.summary),
        ul(*(li(each) for each in more)) if more else None,
        p("It is the ", _place(stream), ".") if stream.merge.position else None,
        details(
            summary(f"History ({len(why.history)})"),
            ol(*(li(each.text, " ", when(each.at) if each.at else None) for each in why.history), class_="history"),
            id="history",
        )
        if why.history
        else None,
    )


# -- tasks


def _tasks(visit: PageRequest, stream: Workstream) -> Markup:
    level = {name: number for number, names in enumerate(stream.stages) for name in names}
    ordered = sorted(stream.tasks, key=lambda each: level[each.name])
    first = start_of(visit)
    shown = ordered[first : first + MAX_TASKS]
    return card(
        "Tasks",
        div(bar(stream.counts, len(ordered)), span(so_far(stream.counts, len(ordered))), class_="so-far wide"),
        graph(stream.tasks) if 1 < len(ordered) <= MAX_DRAWN else None,
        rows(
            HEADINGS,
            [_task(stream, each) for each in shown],
            caption="Tasks by stages",
            keys=[f"task-{each.name}" for each in shown],
        ),
        pages(visit, first, MAX_TASKS, len(ordered), what="tasks", at="tasks"),
        id="tasks",
    )


def _task(stream: Workstream, task: WorkstreamTask) -> list[Child]:
    about = [f"stage {task.stage}", "not critical" if not task.is_critical else "", _tree(task)]
    name: Child = task.name
    if task.job_state:
        name = a(task.name, href=path("runs", stream.id, "jobs", task.name), class_="name")
    return [
        join([name, span(" · ".join(each for each in about if each), class_="quiet")]),
        badge(task.state or "not planned", task.job_state),
        span(f"{task.attempts} of {task.max_attempts}", class_="number"),
        a(worker_name(task.worker_id), href=path("workers", worker_name(task.worker_id))) if task.worker_id else "",
        lasted(task.started_at, task.completed_at),
        _added(task),
        _note(task),
    ]


def _tree(task: WorkstreamTask) -> str:
    return "its own worktree" if task.worktree == "own" else ""


def _added(task: WorkstreamTask) -> Child:
    if task.added is None:
        return ""
    if not task.added.is_changed:
        return span("nothing", class_="quiet")
    return join([commit(task.added.start), span("…", class_="quiet"), commit(task.added.head)])


def _note(task: WorkstreamTask) -> Child:
    error = task.last_error
    said: list[Child] = [
        div("needs ", listed(task.needs), class_="quiet") if task.needs else None,
        div("waits for ", listed(task.waits_for)) if task.waits_for and task.started_at is None else None,
        div("next attempt ", when(task.next_run_at)) if task.next_run_at is not None else None,
        div(words(task.reason), class_="quiet") if task.reason and error is None else None,
        rules(task.failed_rules),
        div(error.message or error.line or error.code, class_="bad-ink said-of")
        if error is not None and not task.failed_rules
        else None,
        div("worktree: ", code(task.worktree_path), class_="quiet")
        if task.worktree_path and task.worktree == "own"
        else None,
    ]
    return [each for each in said if each is not None] or ""


# -- the merge, and the branch


def _merge(stream: Workstream, others: dict[str, str]) -> Markup:
    merge = stream.merge
    facts: list[tuple[str, Child]] = [("method", [words(merge.method), span(f": {METHODS.get(merge.method, '')}")])]
    if merge.position:
        facts.append(("place", _place(stream)))
    if merge.doing:
        facts.append(("now", [badge(merge.doing), span(f" {DOING.get(merge.doing, '')}", class_="quiet")]))
    if merge.run_id:
        facts.append(("tested by", a(merge.run_id, href=path("runs", merge.run_id))))
    if merge.tested_with:
        together = [li(link(id, others.get(id, id))) for id in merge.tested_with]
        facts.append((f"with {many(len(together), 'other')}", ul(*together, class_="plain")))
    if merge.waits_for:
        facts.append(("waits for", merge.waits_for))
    if merge.commit:
        facts.append(("merged as", commit(merge.commit)))
    return card(
        "Merge",
        dl(*(join([dt(name), dd(value)]) for name, value in facts), class_="facts"),
        p(said_of(merge.problem), class_="bad-ink said-of") if merge.problem else None,
        rules(merge.failed_rules),
        p(_not_yet(stream), class_="quiet") if not (merge.position or merge.commit or merge.problem) else None,
    )


def _place(stream: Workstream) -> Markup:
    ahead = f"behind {many(stream.merge.ahead, 'other')}" if stream.merge.ahead else "with nothing before it"
    text = f"{nth(stream.merge.position)} in the merge queue of {stream.base}"
    return join([a(text, href=f"{QUEUES}#{queue_id(stream.project, stream.base)}"), f", {ahead}"])


def _not_yet(stream: Workstream) -> str:
    if stream.ended_at is not None:
        return "Its branch is kept." if stream.merge.method == "none" else "It was not merged."
    return "It enters the merge queue when all of its critical tasks are completed."


def queue_id(project: str, base: str) -> str:
    """The id of a queue on its page."""
    return f"queue-{project}-{base}"


def _branch(stream: Workstream) -> Markup:
    facts: list[tuple[str, Child]] = [
        ("name", stream.name),
        ("branch", code(stream.branch) if stream.branch else "not made yet"),
        ("current commit", commit(stream.tip) if stream.tip else "–"),
        ("base", [code(stream.base), " at ", commit(stream.base_commit)] if stream.base_commit else stream.base or "–"),
        ("worktree", code(stream.worktree_path) if stream.worktree_path else "none, or already removed"),
    ]
    return card("Branch", dl(*(join([dt(name), dd(value)]) for name, value in facts), class_="facts"))


# -- what can be done


async def cancel(visit: PageRequest) -> PageResponse:
    """Stop it."""
    id = visit.params["workstream"]
    reason = visit.field("reason").strip()
    stopped = await visit.ask("cancelWorkstream", Workstream, body={"reason": reason} if reason else {}, workstream=id)
    return Redirect(to=path("workstreams", id), said=f"{name_of(stopped)} is being canceled.")


PAGES: Final = (
    PageRoute(path="/workstreams/{workstream}", get=one),
    PageRoute(path="/workstreams/{workstream}/cancel", post=cancel),
)
