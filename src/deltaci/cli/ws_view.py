"""Print a workstream: its properties, and a row for each task by stage."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.api.schemas import workstreams as wire
from deltaci.cli.output import TableOutput, ago, facts, safe, span
from deltaci.cli.run_view import REASONS
from deltaci.client.run_status import is_completed
from deltaci.core.events import JOB, RUN
from deltaci.core.status.view import LEFT_OUT, SAME
from deltaci.core.status.workstreams import TASK_VIEW, WORKSTREAM_TRIGGERS, WORKSTREAM_VIEW

COMMIT_CHARS: Final = 10
NONE: Final = "none"
COLOURS: Final = {
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "running": "cyan",
    "executing": "cyan",
    "validating": "cyan",
    "retrying": "yellow",
    "pending": "dim",
    "planned": "dim",
}
MARKS: Final = {
    "completed": "✓",
    "failed": "✗",
    "cancelled": "■",
    "running": "●",
    "executing": "●",
    "validating": "◍",
    "retrying": "↻",
    "queued": "·",
    "ready": "·",
    "pending": "·",
    "planned": "·",
}
_VIEWS: Final = {JOB: TASK_VIEW.state_map, RUN: WORKSTREAM_VIEW.state_map}
_NOUNS: Final = {JOB: "task", RUN: "workstream"}


def stated(state: str) -> Text:
    """Return a state with its colour and symbol."""
    return Text(f"{MARKS.get(state, '')} {safe(state)}".strip(), style=COLOURS.get(state, ""))


def short(commit: str) -> str:
    """Return the abbreviated hash of a commit."""
    return commit[:COMMIT_CHARS]


def workstream_shown(found: wire.Workstream) -> RenderableType:
    """Return the properties of a workstream and the table of its tasks."""
    counts = ", ".join(f"{count} {state}" for state, count in found.counts.items())
    begins = f" at {short(found.base_commit)}" if found.base_commit else ""
    is_plain = found.derived_state == found.state or found.ended_at is not None
    head = facts(
        (
            ("workstream", f"{found.name}  ({found.id})"),
            ("title", found.title if found.title != found.name else ""),
            ("state", stated(found.state) + Text(f"  (run: {safe(found.run_state)})", style="dim")),
            ("by its tasks", "" if is_plain else found.derived_state),
            ("reason", found.reason),
            ("project", found.project),
            ("base", f"{found.base}{begins}" if found.base else ""),
            ("branch", found.branch and f"{found.branch}, now {short(found.tip)}"),
            ("tree", ", ".join(_trees(found))),
            ("started by", found.created_by),
            ("created", f"{ago(found.created_at)} ({found.created_at.astimezone():%Y-%m-%d %H:%M:%S})"),
            ("took", span(found.seconds) if found.seconds is not None else ""),
            ("tasks", counts),
            ("merge", _merge(found)),
        )
    )
    rows = TableOutput("STAGE", "TASK", "STATE", "~OURS", "~#TRIES", "~WORKER", "~#TOOK", "~ADDED", "~NEEDS", "~NOTE")
    tasks = {task.name: task for task in found.tasks}
    for number, names in enumerate(found.stages, 1):
        for position, name in enumerate(names):
            task = tasks[name]
            rows.add(
                str(number) if position == 0 else "",
                name,
                stated(task.state or "not planned"),
                Text(safe(task.job_state), style="dim"),
                f"{task.attempts}/{task.max_attempts}" if task.job_state else "",
                task.worker_id,
                span(task.seconds) if task.seconds is not None else "",
                _added(task),
                ", ".join(task.needs),
                note(task, found.tasks),
            )
    return Group(head, Text(), rows.table())


def _trees(found: wire.Workstream) -> list[str]:
    """Return the paths of the worktrees of failed tasks, or else of the workstream."""
    failed = [task.worktree_path for task in found.tasks if task.last_error is not None and task.worktree_path]
    return list(dict.fromkeys(failed)) or ([found.worktree_path] if found.worktree_path else [])


def outcome_told(found: wire.Workstream) -> RenderableType:
    """Return the outcome of a workstream, with the errors of its tasks and the state of its merge."""
    took = f" in {span(found.seconds)}" if found.seconds is not None else ""
    reason = f" ({safe(found.reason)})" if found.reason else ""
    lines = [Text(f"{safe(found.name)} ", style="bold") + stated(found.state) + Text(f"{took}{reason}")]
    for task in found.tasks:
        if task.last_error is not None:
            lines.append(Text(f"  {safe(task.name)}: {safe(note(task, found.tasks), 2000)}"))
    if trees := _trees(found):
        lines.append(Text(f"  worktree: {safe(', '.join(trees), 2000)}"))
    if merge := _merge(found):
        lines.append(Text(f"  merge: {safe(merge, 2000)}"))
    return Group(*lines)


def _merge(found: wire.Workstream) -> str:
    merge = found.merge
    if merge.commit:
        return f"{merge.method}: merged into {found.base} as {short(merge.commit)}"
    if merge.problem or merge.failed_rules:
        return "; ".join([*([merge.problem] if merge.problem else []), *_rules(merge.failed_rules)])
    if merge.method == NONE and not merge.position:
        return f"none; its branch {found.branch} is kept" if found.branch else NONE
    if found.ended_at is not None:
        return f"{merge.method}: nothing to merge" if is_completed(found) else f"{merge.method}: not merged"
    if not merge.position:
        return merge.method
    together = f" together with {', '.join(merge.tested_with)}" if merge.tested_with else ""
    by = f" by {merge.run_id}" if merge.run_id else ""
    told = f"{merge.doing}{by}{together}" if merge.doing else "waits to be tested"
    waits = f" ({merge.waits_for})" if merge.waits_for else ""
    return f"{merge.method}: number {merge.position} in the queue of {found.base}, {told}{waits}"


def _added(task: wire.WorkstreamTask) -> str:
    if task.added is not None and task.added.is_changed:
        return f"+{short(task.added.tip)}"
    is_good = task.completed_at is not None and task.last_error is None and not task.reason
    return "nothing" if is_good else ""


def _rules(failed: Iterable[wire.FailedRule]) -> list[str]:
    return [
        f"rule {each.rule}: found {each.actual or 'nothing'}, expected {each.expected or 'it to hold'}"
        for each in failed
    ]


def note(task: wire.WorkstreamTask, every: Iterable[wire.WorkstreamTask]) -> str:
    """Return a short explanation of a task: why it failed, or what it waits for."""
    if task.completed_at is not None:
        error = task.last_error
        if error is None:
            return REASONS.get(task.reason, task.reason)
        told = "; ".join(_rules(task.failed_rules)) or error.message or error.line or error.code
        return told if task.is_critical else f"{told} (not critical)"
    if task.next_run_at is not None:
        return f"next attempt {ago(task.next_run_at)}" + (f": {task.last_error.code}" if task.last_error else "")
    if task.waits_for:
        waits = task.waits_for
        return f"waits for {', '.join(waits[:5])}" + (f" and {len(waits) - 5} more" if len(waits) > 5 else "")
    if not task.job_state:
        return "not planned yet"
    if task.started_at is None:
        holder = next((each.name for each in every if _has_tree(each) and each.name != task.name), "")
        is_shared = task.worktree == "shared"
        return f"waits for the worktree, held by {holder}" if holder and is_shared else "waits for a worker"
    return ""


def _has_tree(task: wire.WorkstreamTask) -> bool:
    return task.worktree == "shared" and task.started_at is not None and task.completed_at is None


def event_told(event: api.Event, id: str) -> Text | None:
    """Return a change of the workstream or of a task as a line, or None for any other event."""
    view = _VIEWS.get(event.entity)
    if view is None:
        return None
    before, after = view.get(event.from_ or "", ""), view.get(event.to, "")
    if not after or after in (before, SAME) or LEFT_OUT in (before, after):
        return None
    before = "" if before == SAME else before  # A run that is being cancelled is in the state that it had before.
    at = datetime.fromisoformat(event.at).astimezone()
    name = event.entity_id.removeprefix(id).removeprefix("/") if event.entity == JOB else ""
    line = Text(f"{at:%H:%M:%S} ", style="dim")
    line.append(f"{_NOUNS[event.entity]:<10} {safe(name):<18} ", style="not dim")
    change = f"{before} → {after}" if before else after
    line.append(f"{change:<24} ", style=f"not dim {COLOURS.get(after, '')}")
    # Runs have document 000's words for what happened; of tasks, both documents say the same.
    trigger = WORKSTREAM_TRIGGERS.get((before, after)) if event.entity == RUN else None
    return line.append(safe(trigger or event.trigger))


def queue_shown(queue: wire.MergeQueue) -> RenderableType:
    """Return a merge queue as a table of its entries, followed by its batches and splits."""
    rows = TableOutput("#", "WORKSTREAM", "METHOD", "HEAD", "~BATCH", "WAITS", "~TITLE", "~NOTE")
    for each in queue.entries:
        waits, number = ago(each.since).removesuffix(" ago"), str(each.batch or "")
        note = _trouble(each.problem, each.not_before)
        rows.add(str(each.position), each.id, each.method, short(each.head), number, waits, each.title, note)
    head = Text(f"{safe(queue.project)}, {safe(queue.base)}", style="bold")
    parts: list[RenderableType] = [head, rows.table()]
    for batch in queue.batches:
        by = f" by {batch.run_id}" if batch.run_id else ""
        told = f"batch {batch.number}: {batch.doing}{by}: {', '.join(batch.members)}"
        told += f" on {short(batch.base_commit)}" if batch.base_commit else ""
        told += f"; {queue.base} would become {short(batch.commit)}" if batch.commit and batch.method != NONE else ""
        parts.append(Text(safe(f"{told}{_bracketed(_trouble(batch.problem, batch.not_before))}", 2000), style="dim"))
    for split in queue.splits:
        halves = f"split into {', '.join(split.first)} and {', '.join(split.second)}"
        parts.append(Text(safe(f"batch {split.number} failed, {halves}{_bracketed(split.problem)}", 2000), style="dim"))
    if trouble := _trouble(queue.problem, queue.not_before):
        parts.append(Text(safe(f"the whole queue waits: {trouble}", 2000), style="yellow"))
    return Group(*parts)


def _trouble(problem: str, again: datetime | None) -> str:
    return f"{problem}; next attempt {ago(again)}" if problem and again is not None else problem


def _bracketed(text: str) -> str:
    return f" ({text})" if text else ""
