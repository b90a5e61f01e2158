"""Under which names a record is listed, so that people find it without a walk through everything.

A list belongs to a tenant and has a name such as `run/branch=main`. What is listed where follows from the record alone;
a record moves between lists only when its state changes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from deltaci.core import run, worker
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.status.steps import RUN_VIEW, run_status
from deltaci.core.status.workstreams import WORKSTREAM_VIEW, workstream_state
from deltaci.core.worker import Worker

RUNS: Final = "run"
WORKSTREAMS: Final = "run/workstream"
WORKERS: Final = "worker"
GONE_WORKERS: Final = "worker/gone"
PRESENT_WORKERS: Final = "worker/there"  # Of all tenants together: whoever looks after the fleet begins with these.
UNREPORTED: Final = "run/unreported"  # Of all tenants together: whoever reports looks here for what nobody told it.
UNPLANNED: Final = "run/unplanned"  # The same for whoever plans: runs of repositories that have no plan yet.
ALL_TENANTS: Final = ""  # The tenant of lists that are nobody's own.

MAX_NAME: Final = 200  # Characters that a name may say in full; every store can keep so many in an index.

ListKey = tuple[str, str]  # The tenant and the name of a list.
_NO_LISTS: Final[frozenset[ListKey]] = frozenset()


def runs_in_state(state: str) -> str:
    """The list of runs in this state."""
    return _list_name("state", state)


def runs_with_status(status: str) -> str:
    """The list of runs of this status."""
    return _list_name("status", status)


def runs_of_project(project: str) -> str:
    """The list of a project's runs."""
    return _list_name("project", project)


def runs_of_branch(branch: str) -> str:
    """The list of a branch's runs."""
    return _list_name("branch", branch)


def runs_with_label(label: str) -> str:
    """The list of runs with this label."""
    return _list_name("label", label)


def runs_started_by(person: str) -> str:
    """The list of runs that this person started."""
    return _list_name("person", person)


def runs_of_template(name: str) -> str:
    """The list of runs made from this template, of whatever version."""
    return _list_name("template", name)


def workstreams_in_state(state: str) -> str:
    """The list of workstreams in this state, as document 003 names it."""
    return _list_name("workstream", state)


def _list_name(what: str, value: str) -> str:
    """What is too long for a name, or cannot be in one, is told by its fingerprint."""
    if len(value) <= MAX_NAME and value.isprintable():
        return f"run/{what}={value}"
    return f"run/{what}#{blake2b(value.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def lists_of(record: Record) -> frozenset[ListKey]:
    """Every list that the record is on as it is now."""
    if isinstance(record, Run):
        return frozenset({*_fixed_run_lists(record), *_run_state_lists(record)})
    if isinstance(record, Worker):
        return _worker_lists(record, record.state)
    return _NO_LISTS


def list_changes(record: Record, before: str) -> tuple[frozenset[ListKey], frozenset[ListKey]]:
    """Which lists it joined and which it left when it came here from the state `before`; a birth is the empty one."""
    if before == record.state:
        return _NO_LISTS, _NO_LISTS
    now = lists_of(record)
    if not before:
        return now, _NO_LISTS
    if isinstance(record, Run):
        then = _run_lists_for_state(record, before, RUN_VIEW.state_map[before], WORKSTREAM_VIEW.state_map[before])
        moving = _run_state_lists(record)
        return moving - then, then - moving
    if isinstance(record, Worker):
        then = _worker_lists(record, before)
        return now - then, then - now
    return _NO_LISTS, _NO_LISTS


def _worker_lists(record: Worker, state: str) -> frozenset[ListKey]:
    if state in worker.TERMINAL:
        return frozenset({(record.tenant, GONE_WORKERS)})
    return frozenset({(record.tenant, WORKERS), (ALL_TENANTS, PRESENT_WORKERS)})


def _fixed_run_lists(record: Run) -> frozenset[ListKey]:
    origin = record.origin
    names = [RUNS, *([WORKSTREAMS] if origin.workstream else []), *(runs_with_label(label) for label in origin.labels)]
    named = (
        (runs_of_project, origin.project),
        (runs_of_branch, origin.branch),
        (runs_started_by, record.started_by),
        (runs_of_template, origin.template),
    )
    names += [name(value) for name, value in named if value]
    return frozenset((record.tenant, name) for name in names)


def _run_state_lists(record: Run) -> frozenset[ListKey]:
    return _run_lists_for_state(record, record.state, run_status(record), workstream_state(record))


def _run_lists_for_state(record: Run, state: str, status: str, stream: str) -> frozenset[ListKey]:
    found = {(record.tenant, runs_in_state(state)), (record.tenant, runs_with_status(status))}
    if record.origin.workstream:
        found.add((record.tenant, workstreams_in_state(stream)))
    if state in run.OVER:
        found.add((ALL_TENANTS, UNREPORTED))
    if state in run.UNPLANNED and record.origin.event:
        found.add((ALL_TENANTS, UNPLANNED))
    return frozenset(found)
