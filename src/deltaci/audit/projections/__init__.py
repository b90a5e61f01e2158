"""Convert events to the vocabularies of the specification documents.

A view (`core.status.view.View`) converts one kind of record to one document's states. `canonical`, `transitions` and
`job_events` write the three export formats; `vocabularies` converts all events of a run for the web interface and API.
Imports `core` only. Start reading at `vocabularies.py`.
"""

from __future__ import annotations

from typing import Final

from deltaci.audit.projections import orchestration
from deltaci.core.status import queue, steps, workstreams
from deltaci.core.status.view import View

VIEWS: Final[tuple[View, ...]] = (
    orchestration.RUN_VIEW,
    orchestration.ATTEMPT_VIEW,
    orchestration.LEASE_VIEW,
    steps.RUN_VIEW,
    steps.STEP_VIEW,
    workstreams.TASK_VIEW,
    workstreams.WORKSTREAM_VIEW,
    workstreams.WORKER_VIEW,
    queue.JOB_VIEW,
)


def views_of(entity: str) -> tuple[View, ...]:
    """Return the views, of all documents, that show this kind of record."""
    return tuple(view for view in VIEWS if view.entity == entity)
