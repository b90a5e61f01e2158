"""Changes: what happened in repositories, and what came of it; and runs that somebody starts from one by hand."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import projects as wire
from deltaci.api.schemas.inputs import RunInput
from deltaci.controllers.change_records import FileOutcome, Kept, digest
from deltaci.controllers.changes import run_of
from deltaci.controllers.poller import HEADS, TAGS
from deltaci.controllers.projects import Project
from deltaci.core.errors import Refused
from deltaci.core.run import Run
from deltaci.forges.credentials import repository_path
from deltaci.git.command import GitFailed
from deltaci.git.mirrors import is_commit
from deltaci.pipeline.change import Change
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.request import Call, Handler, missing
from deltaci.server.rest.serializers import moment
from deltaci.storage.port import Unavailable


async def list_changes(call: Call) -> wire.ChangePage:
    """The newest first."""
    query: wire.ChangeQuery = call.query
    after = read(query.cursor) if query.cursor else ""
    found = await call.parts.repositories.changes.page(call.who.tenant, after, query.limit)
    return wire.ChangePage(
        changes=[shown(each) for _, each in found if query.project in (None, each.project)],
        next=written(found[-1][0]) if len(found) == query.limit else None,
    )


async def read_change(call: Call) -> wire.Change:
    """One of them."""
    id = str(call.params["change"])
    found = await call.parts.repositories.changes.find(call.who.tenant, id)
    if found is None:
        raise missing("change", id)
    return shown(found)


def shown(kept: Kept) -> wire.Change:
    """A change as people see it."""
    change = kept.change
    return wire.Change(
        id=kept.id,
        project=kept.project,
        status=kept.status,
        reason=kept.reason,
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
        delivery=kept.delivery,
        tries=kept.tries,
        files=[wire.HandledFile(file=each.file, run=each.run_id, reason=each.reason) for each in kept.files],
        superseded=list(kept.superseded),
        created_at=moment(kept.created_at),
        updated_at=moment(kept.updated_at),
    )


async def started(call: Call, asked: RunInput, record: Run) -> Run:
    """The run that somebody starts from a repository by hand, as it is to be born; what it is for is kept before."""
    project = await call.parts.repositories.projects.named(call.who.tenant, asked.repository)
    if project is None:
        raise missing("project", asked.repository)
    if asked.plan is not None or asked.version is not None:
        raise Refused("bad_request", "'version' belongs to a template; leave it out with a repository")
    change = await _by_hand(call, project, asked)
    now = await call.parts.store.now()
    kept = Kept(
        id=f"c{digest('manual', record.id)}",
        tenant=call.who.tenant,
        project=project.name,
        delivery=f"manual {record.id}",
        change=change,
        created_at=now,
        updated_at=now,
        status="handled",
        reason="somebody started it",
        files=(FileOutcome(asked.file, record.id, "somebody started it"),),
    )
    kept = await call.parts.repositories.changes.keep_handled(kept)
    made = run_of(record.id, kept, project, asked.file, asked=record.request_fingerprint, labels=asked.labels)
    origin = msgspec.structs.replace(
        made.origin,
        title=asked.title or made.origin.title,
        inputs=dict(asked.inputs),
        is_on_branch=bool(change.branch) and not asked.commit,  # Else only the caller says so.
    )
    return msgspec.structs.replace(made, origin=origin, started_by=record.started_by)


async def _by_hand(call: Call, project: Project, asked: RunInput) -> Change:
    """What is to be planned: the commit, or what the branch or tag has now."""
    branch = asked.branch.removeprefix(HEADS)
    commit, tag, default = asked.commit, "", project.default_branch
    if commit and not is_commit(commit):
        raise Refused("bad_request", f"{commit[:80]!r} is not the full name of a commit; give that, or a branch")
    if not commit:
        try:
            remote = await call.parts.repositories.mirrors.for_project(project).ls_remote()
        except GitFailed as error:
            raise Unavailable(f"the repository of {project.name!r} cannot be asked: {error}") from None
        default = default or remote.head.removeprefix(HEADS)
        branch = branch or default
        commit = remote.refs.get(f"{HEADS}{branch}", "")
        if not commit and f"{TAGS}{branch}" in remote.refs:
            commit, tag, branch = remote.refs[f"{TAGS}{branch}"], branch, ""
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
        default_branch=default,
        title=asked.title,
        actor=call.who.person,
        inputs=dict(asked.inputs),
    )


HANDLERS: Final[dict[str, Handler]] = {"listChanges": list_changes, "readChange": read_change}
