"""Workstreams and merge queues: their calls, and the operations that need more than one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaci.api.schemas import inputs as api_input
from deltaci.api.schemas import workstreams as wire
from deltaci.api.schemas.inputs import MAX_PAGE
from deltaci.client import calls, operations
from deltaci.client.calls import Call, _call, _given
from deltaci.client.effects import StreamOperation


def create_workstream(
    file: str | None = None,
    *,
    spec: Mapping[str, Any] | None = None,
    name: str = "",
    project: str = "",
    base: str = "",
    idempotency_key: str = "",
) -> Call[wire.Workstream]:
    """Create a workstream from the text of its file, or from the same contents as an object.

    Safe to repeat, like `start`.
    """
    body = _given(file=file, spec=spec, name=name, project=project, base=base)
    return _call("createWorkstream", wire.Workstream, body=body, once=idempotency_key or calls.new_key())


def workstreams(
    *,
    state: str | None = None,
    project: str | None = None,
    person: str | None = None,
    progress: bool | None = None,
    limit: int = api_input.DEFAULT_PAGE,
    cursor: str = "",
) -> Call[wire.WorkstreamPage]:
    """Return a page of the workstreams that match all given filters, the newest first.

    With `progress`, each includes its progress.
    """
    query = {
        **{"state": state, "project": project, "person": person},
        **{"progress": progress, "limit": limit, "cursor": cursor},
    }
    return _call("listWorkstreams", wire.WorkstreamPage, query=query)


def workstream(workstream_id: str) -> Call[wire.Workstream]:
    """Return a workstream with its tasks."""
    return _call("readWorkstream", wire.Workstream, workstream=workstream_id)


def cancel_workstream(workstream_id: str, reason: str = "") -> Call[wire.Workstream]:
    """Cancel a workstream. Safe to repeat."""
    return _call("cancelWorkstream", wire.Workstream, body=_given(reason=reason), workstream=workstream_id)


def merge_queues(*, project: str | None = None) -> Call[wire.MergeQueues]:
    """Return the merge queues: the waiting merges, and the batches that are being tested."""
    return _call("listMergeQueues", wire.MergeQueues, query={"project": project})


def iter_workstreams(
    *, state: str | None = None, project: str | None = None, person: str | None = None
) -> StreamOperation[wire.WorkstreamSummary]:
    """Yield all workstreams that match all given filters, the newest first.

    Requests the next page when it is needed.
    """
    asked: dict[str, Any] = {"state": state, "project": project, "person": person, "limit": MAX_PAGE}
    yield from operations._pages(lambda cursor: workstreams(**asked, cursor=cursor), lambda page: page.workstreams)
