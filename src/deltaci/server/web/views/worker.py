"""One worker: its state, jobs and facts, and actions on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from deltaci.api.schemas.queue import Queue, RunningEntry
from deltaci.api.schemas.records import Worker
from deltaci.core import worker as core
from deltaci.core.machine import Command
from deltaci.server.web.components import action, badge, card, lasted, nothing, path, rows, sign, top, when, words
from deltaci.server.web.markup import Child, Markup, a, code, dd, div, dl, dt, join, p, span
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.views import register_runner

STYLES: Final = ("fleet.css",)
WHY_GONE: Final = {
    core.LEFT: "It left by itself.",
    core.PRESUMED_GONE: "It was idle and sent no heartbeat for too long.",
    core.REMOVED: "Somebody removed it.",
    "": "It sent no heartbeat for too long.",
}


async def running_now(visit: PageRequest) -> dict[str, RunningEntry]:
    """What workers have, by the attempt."""
    queue = await visit.ask("listQueue", Queue, query={"part": "running"})
    return {each.id: each for each in queue.running}


# -- what is said of one


def labels_of(names: Iterable[str]) -> Markup | None:
    """Labels, one beside the other."""
    found = [span(each, class_="label") for each in names]
    return span(*found, class_="labels") if found else None


def why_gone(worker: Worker) -> str:
    """Why it is not there any more."""
    return WHY_GONE.get(worker.shutdown_reason, worker.shutdown_reason)


# -- one of them


async def shown(visit: PageRequest) -> PageResponse:
    """All that is known of a worker."""
    worker = await visit.ask("readWorker", Worker, worker=visit.params["worker"])
    running = await running_now(visit) if worker.tasks else {}
    return HtmlPage(
        title=f"{worker.name} · {worker.condition}",
        here="/workers",
        live={},
        styles=STYLES,
        body=join(
            [
                top(
                    worker.name,
                    *actions(visit, worker, back="", is_whole=True),
                    under=[
                        span(badge(worker.condition), id="worker-state", role="status"),
                        span("seen ", when(worker.last_seen_at)) if worker.condition != core.GONE else None,
                        span("registered ", when(worker.created_at)),
                    ],
                ),
                _notice(worker),
                div(
                    card("Current jobs", _now(worker, running), id="does"),
                    card("About", _facts(worker), id="about"),
                    class_="cards",
                ),
            ]
        ),
    )


def _notice(worker: Worker) -> Markup | None:
    """What is out of the ordinary, and what follows from it."""
    said = NOTICES.get(worker.condition)
    if said is None:
        return None
    tone = "bad" if worker.condition == core.SILENT else "held"
    why = why_gone(worker) if worker.condition == core.GONE else ""
    parts: list[Child] = [why, " ", said] if why else [said]
    if worker.reassign_at is not None:
        parts += [" The last lease ends ", when(worker.reassign_at), "."]
    return div(sign(worker.condition), div(p(*parts)), class_=f"notice {tone}", id="notice")


NOTICES: Final = {
    "drained": "It is drained: it finishes its current jobs and takes no new ones until somebody resumes it.",
    "quarantined": "It is quarantined: too many consecutive jobs failed because of its machine. It takes no new jobs"
    " until it is resumed or registers again; after a while it is tried with one job.",
    core.SILENT: "It sends no heartbeats and gets no new jobs. It keeps the jobs that it has until their leases end;"
    " then they go to other workers. A heartbeat before that renews the leases and makes it available again.",
    core.LEAVING: "It is shutting down: it finishes its current jobs and takes no new ones.",
    core.GONE: "It left, was removed, or sent no heartbeat for too long. Its runner may register again under the same"
    " name, unless somebody removed it.",
}


def _now(worker: Worker, running: Mapping[str, RunningEntry]) -> Markup:
    if not worker.tasks:
        return nothing("No jobs at the moment.")
    known = [(id, running.get(id)) for id in worker.tasks]
    lines = [
        [
            a(each.job, href=path("runs", each.run_id, "jobs", each.job), class_="name")
            if each is not None and each.run_id
            else code(id),
            a(each.title, href=path("runs", each.run_id)) if each is not None and each.run_id else None,
            join([badge(each.state), *(div(reason.text, class_="because quiet") for reason in each.reasons)])
            if each is not None
            else None,
            lasted(each.since, None) if each is not None else None,
        ]
        for id, each in known
    ]
    keys = [f"task-{quote(id, safe='')}" for id in worker.tasks]
    return rows(("Job", "Run", "State", "Duration"), lines, caption="Current jobs", keys=keys)


def _facts(worker: Worker) -> Markup:
    is_gone = worker.condition == core.GONE
    held = join([badge(worker.hold), " since ", when(worker.hold_started_at)]) if worker.hold else "no"
    facts: list[tuple[str, Child]] = [
        ("State", join([code(worker.state), " · in document 003 ", code(worker.status)])),
        ("Slots", f"{len(worker.tasks)} of {worker.slots} in use"),
        ("Labels", labels_of(worker.labels) or "none"),
        ("On hold", held),
        ("Reason", worker.hold_reason and words_of(worker.hold_reason)),
        ("Infrastructure failures", f"{worker.infra_failures} consecutive" if worker.infra_failures else "none"),
        ("Left because" if is_gone else "Shutdown reason", why_gone(worker) if is_gone else worker.shutdown_reason),
        ("Last seen", when(worker.last_seen_at)),
        ("Registered", when(worker.created_at)),
        ("Changed", when(worker.updated_at)),
        ("Incarnation", code(worker.id)),
        ("Revision", worker.rev),
    ]
    return dl(*(join([dt(name), dd(value)]) for name, value in facts if value), class_="facts")


def words_of(reason: str) -> str:
    """A reason of ours as people say it; what somebody wrote stays as it is."""
    return words(reason) if reason == core.REPEATED_INFRA_FAILURES else reason


# -- what people can want of one


class WorkerAction(msgspec.Struct, frozen=True):
    """An action on a worker: drain, resume or remove."""

    name: str
    order: type[Command]
    title: str
    asks: str
    done: str


WORKER_ACTIONS: Final = (
    WorkerAction(
        "resume",
        core.Resume,
        "Resume",
        "The worker takes jobs again, and its count of infrastructure failures is reset.",
        "{} takes jobs again.",
    ),
    WorkerAction(
        "drain",
        core.Drain,
        "Drain",
        "The worker finishes its current jobs and takes no new ones until somebody resumes it.",
        "{} takes no new jobs.",
    ),
    WorkerAction(
        "remove",
        core.Shutdown,
        "Remove",
        "The worker shuts down after its current jobs. It can only register again with a new token.",
        "{} shuts down after its current jobs.",
    ),
)


def actions(visit: PageRequest, worker: Worker, *, back: str, is_whole: bool = False) -> list[Markup]:
    """What makes sense for this one now."""
    able = core.available_commands(
        worker.state, worker.hold, is_leaving=bool(worker.shutdown_reason), tasks=len(worker.tasks)
    )
    found = [
        action(
            visit,
            f"{each.name}-{quote(worker.name, safe='')}",
            each.title,
            route=f"{each.name}Worker",
            to=path("workers", worker.name, each.name),
            asks=join([p(span(worker.name, class_="mono strong"), ": ", each.asks)]),
            values={"back": visit.same()} if back else {},
            reason="reason" if each.order is core.Drain else "",
            is_dangerous=each.order is core.Shutdown,
        )
        for each in WORKER_ACTIONS
        if each.order in able
    ]
    if is_whole and visit.may("makeWorkerToken"):
        again = {} if worker.condition == core.GONE else {"again": "1"}
        to = f"{register_runner.PATH}?{urlencode({'name': worker.name, **again})}"
        found.append(a("New token", href=to, class_="button"))
    return found


async def drain(visit: PageRequest) -> PageResponse:
    """It takes nothing new."""
    reason = visit.field("reason").strip()
    await visit.ask("drainWorker", Worker, body={"reason": reason} if reason else {}, worker=visit.params["worker"])
    return _done(visit, "drain")


async def resume(visit: PageRequest) -> PageResponse:
    """It takes work again."""
    await visit.ask("resumeWorker", Worker, worker=visit.params["worker"])
    return _done(visit, "resume")


async def remove(visit: PageRequest) -> PageResponse:
    """It goes."""
    await visit.ask("removeWorker", Worker, worker=visit.params["worker"])
    return _done(visit, "remove")


def _done(visit: PageRequest, name: str) -> Redirect:
    """Back to where the form was: the list as it was filtered, or the worker's own page."""
    worker, back = visit.params["worker"], visit.field("back")
    wish = next(each for each in WORKER_ACTIONS if each.name == name)
    to = f"/workers{back.rstrip('?')}" if back.startswith("?") else path("workers", worker)
    return Redirect(to=to, said=wish.done.format(worker))


PAGES: Final[tuple[PageRoute, ...]] = (
    PageRoute(path="/workers/{worker}", get=shown),
    PageRoute(path="/workers/{worker}/drain", post=drain),
    PageRoute(path="/workers/{worker}/resume", post=resume),
    PageRoute(path="/workers/{worker}/remove", post=remove),
)
