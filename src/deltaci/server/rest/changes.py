"""Changes (pushes, pull requests and other triggers), the runs that they started, and manual runs of a repository."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import projects as wire
from deltaci.api.schemas.inputs import RunInput
from deltaci.controllers.projects import Project
from deltaci.controllers.repositories.change_records import ChangeRecord, FileOutcome, digest
from deltaci.controllers.repositories.changes import run_of
from deltaci.controllers.repositories.poller import HEADS, TAGS
from deltaci.core.errors import Refused
from deltaci.core.run import Run
from deltaci.forges.credentials import repository_path
from deltaci.forges.deliveries import DeliveryEntry, DeliveryLog
from deltaci.git.command import GitFailed
from deltaci.git.repository import is_commit
from deltaci.pipeline.change import Change
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler, not_found
from deltaci.server.rest.projects import get_project
from deltaci.server.rest.serializers import to_datetime
from deltaci.storage.port import Unavailable


async def list_changes(call: Call) -> wire.ChangePage:
    """Return a page of changes, the newest first."""
    query: wire.ChangeQuery = call.query
    after = decode_cursor(query.cursor) if query.cursor else ""
    change_page = await call.app.repositories.changes.page(call.caller.tenant, after, query.limit)
    return wire.ChangePage(
        changes=[
            serialize_change(change_record)
            for _, change_record in change_page
            if query.project in (None, change_record.project)
        ],
        next=encode_cursor(change_page[-1][0]) if len(change_page) == query.limit else None,
    )


async def read_change(call: Call) -> wire.Change:
    change_id = str(call.params["change"])
    change_record = await call.app.repositories.changes.find(call.caller.tenant, change_id)
    if change_record is None:
        raise not_found("change", change_id)
    return serialize_change(change_record)


async def redeliver_change(call: Call) -> wire.Change:
    """Let a change be handled now that could not be handled. Raise Refused if it was handled or is being handled."""
    change_id = str(call.params["change"])
    return serialize_change(await call.app.repositories.changes.retry(call.caller.tenant, change_id))


async def list_deliveries(call: Call) -> wire.DeliveryPage:
    """Return a page of the webhook deliveries to a project, the newest first."""
    query, tenant = call.query, call.caller.tenant
    project = await get_project(call)
    after = decode_cursor(query.cursor) if query.cursor else ""
    page = await DeliveryLog(call.app.store).page(tenant, project.name, after, query.limit)
    change_ids = {entry.change for _, entry in page if entry.change}
    records = {change_id: await call.app.repositories.changes.find(tenant, change_id) for change_id in change_ids}
    return wire.DeliveryPage(
        deliveries=[_serialize_delivery(entry, records.get(entry.change)) for _, entry in page],
        next=encode_cursor(page[-1][0]) if len(page) == query.limit else None,
    )


def _serialize_delivery(entry: DeliveryEntry, record: ChangeRecord | None) -> wire.Delivery:
    outcome = record.reason if record is not None and entry.result == "accepted" else ""
    return wire.Delivery(
        at=to_datetime(entry.at),
        delivery=entry.delivery,
        event=entry.event,
        ref=entry.ref,
        commit=entry.commit,
        result=entry.result,
        reason=outcome or entry.reason,
        change=entry.change,
        status=record.status if record is not None else "",
        runs=[handled.run_id for handled in record.files if handled.run_id] if record is not None else [],
    )


def serialize_change(change_record: ChangeRecord) -> wire.Change:
    change = change_record.change
    return wire.Change(
        id=change_record.id,
        project=change_record.project,
        status=change_record.status,
        reason=change_record.reason,
        event=change.event,
        action=change.action,
        commit=change.commit,
        ref=change.ref,
        branch=change.branch,
        number=change.number,
        is_fork=change.is_fork,
        title=change.title,
        actor=change.actor,
        cron=change.cron,
        delivery=change_record.delivery,
        tries=change_record.tries,
        files=[
            wire.HandledFile(file=outcome.file, run=outcome.run_id, reason=outcome.reason)
            for outcome in change_record.files
        ],
        superseded=list(change_record.superseded),
        created_at=to_datetime(change_record.created_at),
        updated_at=to_datetime(change_record.updated_at),
    )


async def new_manual_run(call: Call, run_input: RunInput, run_record: Run) -> Run:
    """Return the record of a manual run of a repository, after storing the change that it belongs to."""
    project = await call.app.repositories.projects.named(call.caller.tenant, run_input.repository)
    if project is None:
        raise not_found("project", run_input.repository)
    if run_input.plan is not None or run_input.version is not None:
        raise Refused("bad_request", "'version' belongs to a template; leave it out with a repository")
    change = await _manual_change(call, project, run_input)
    now = await call.app.store.now()
    change_record = ChangeRecord(
        id=f"c{digest('manual', run_record.id)}",
        tenant=call.caller.tenant,
        project=project.name,
        delivery=f"manual {run_record.id}",
        change=change,
        created_at=now,
        updated_at=now,
        status="handled",
        reason="somebody started it",
        files=(FileOutcome(run_input.file, run_record.id, "somebody started it"),),
    )
    change_record = await call.app.repositories.changes.keep_handled(change_record)
    planned_run = run_of(
        run_record.id,
        change_record,
        project,
        run_input.file,
        fingerprint=run_record.request_fingerprint,
        labels=run_input.labels,
    )
    origin = msgspec.structs.replace(
        planned_run.origin,
        title=run_input.title or planned_run.origin.title,
        inputs=dict(run_input.inputs),
        is_on_branch=bool(change.branch) and not run_input.commit,  # A given commit need not be on the branch.
    )
    return msgspec.structs.replace(planned_run, origin=origin, started_by=run_record.started_by)


async def _manual_change(call: Call, project: Project, run_input: RunInput) -> Change:
    """Return the change of a manual run: at the given commit, else at the present commit of the branch or tag.

    Without a branch or tag, the default branch is meant. Raise `Refused` if there is no such branch or tag.
    """
    branch = run_input.branch.removeprefix(HEADS)
    commit, tag, default_branch = run_input.commit, "", project.default_branch
    if commit and not is_commit(commit):
        raise Refused("bad_request", f"{commit[:80]!r} is not a full commit id; give one, or a branch")
    if not commit:
        try:
            remote_refs = await call.app.repositories.mirrors.for_project(project).ls_remote()
        except GitFailed as error:
            raise Unavailable(f"the repository of {project.name!r} cannot be read: {error}") from None
        default_branch = default_branch or remote_refs.head.removeprefix(HEADS)
        branch = branch or default_branch
        commit = remote_refs.refs.get(f"{HEADS}{branch}", "")
        if not commit and f"{TAGS}{branch}" in remote_refs.refs:
            commit, tag, branch = remote_refs.refs[f"{TAGS}{branch}"], branch, ""
        if not commit:
            raise Refused("bad_request", f"project {project.name!r} has no branch or tag {branch!r}")
    ref = f"{TAGS}{tag}" if tag else f"{HEADS}{branch}" if branch else ""
    return Change(
        event="manual",
        repository=repository_path(project.url),
        commit=commit,
        ref=ref,
        branch=branch,
        tag=tag,
        default_branch=default_branch,
        title=run_input.title,
        actor=call.caller.person,
        inputs=dict(run_input.inputs),
    )


HANDLERS: Final[dict[str, Handler]] = {
    "listChanges": list_changes,
    "readChange": read_change,
    "redeliverChange": redeliver_change,
    "listDeliveries": list_deliveries,
}
