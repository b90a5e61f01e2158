"""The lists on which a record appears, so that people find it without a scan of all records.

A list belongs to a tenant and has a name such as `run/branch=main`. The lists of a record are derived from it alone and
change only with its state.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from msgspec.structs import replace

from deltaci.core import run, worker
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.status.steps import run_status
from deltaci.core.status.workstreams import workstream_state
from deltaci.core.worker import Worker

RUNS: Final = "run"
WORKSTREAMS: Final = "run/workstream"
WORKERS: Final = "worker"
GONE_WORKERS: Final = "worker/gone"
PRESENT_WORKERS: Final = "worker/there"  # A list with workers of all tenants, for the supervision of the fleet.
UNREPORTED: Final = "run/unreported"  # A list with runs of all tenants, for the reporter to find runs that it missed.
UNPLANNED: Final = "run/unplanned"  # A list with the runs of all tenants that the planner has to plan.
ALL_TENANTS: Final = ""  # The tenant of lists that contain records of all tenants.

MAX_NAME: Final = 200  # Characters; a limit that an index of every store supports.

ListKey = tuple[str, str]  # The tenant and the name of a list.
_NO_LISTS: Final[frozenset[ListKey]] = frozenset()


def runs_in_state(state: str) -> str:
    """Return the name of the list of runs in this state."""
    return _list_name("state", state)


def runs_with_status(status: str) -> str:
    """Return the name of the list of runs with this status of document 002."""
    return _list_name("status", status)


def runs_of_project(project: str) -> str:
    """Return the name of the list of a project's runs."""
    return _list_name("project", project)


def runs_of_branch(branch: str) -> str:
    """Return the name of the list of a branch's runs."""
    return _list_name("branch", branch)


def runs_with_label(label: str) -> str:
    """Return the name of the list of runs with this label."""
    return _list_name("label", label)


def runs_started_by(person: str) -> str:
    """Return the name of the list of runs that this person started."""
    return _list_name("person", person)


def runs_of_template(name: str) -> str:
    """Return the name of the list of runs of this template, in any version."""
    return _list_name("template", name)


def workstreams_in_state(state: str) -> str:
    """Return the name of the list of workstreams in this state of document 003."""
    return _list_name("workstream", state)


def _list_name(field: str, value: str) -> str:
    """Return the name of the list of runs whose `field` has this value.

    A long or unprintable value is replaced by its hash.
    """
    if len(value) <= MAX_NAME and value.isprintable():
        return f"run/{field}={value}"
    return f"run/{field}#{blake2b(value.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def lists_of(record: Record) -> frozenset[ListKey]:
    """Return the tenant and name of each list on which the record appears in its current state."""
    if isinstance(record, Run):
        return frozenset({*_fixed_run_lists(record), *_run_state_lists(record)})
    if isinstance(record, Worker):
        return _worker_lists(record, record.state)
    return _NO_LISTS


def list_changes(record: Record, state_before: str) -> tuple[frozenset[ListKey], frozenset[ListKey]]:
    """Return the lists that a record joined and the lists that it left in its transition from `state_before`.

    `state_before` is an empty string if the record was just created.
    """
    if state_before == record.state:
        return _NO_LISTS, _NO_LISTS
    lists_now = lists_of(record)
    if not state_before:
        return lists_now, _NO_LISTS
    if isinstance(record, Run):
        lists_before = _run_state_lists(replace(record, state=state_before))
        lists_now = _run_state_lists(record)
        return lists_now - lists_before, lists_before - lists_now
    if isinstance(record, Worker):
        lists_before = _worker_lists(record, state_before)
        return lists_now - lists_before, lists_before - lists_now
    return _NO_LISTS, _NO_LISTS


def _worker_lists(worker_record: Worker, state: str) -> frozenset[ListKey]:
    if state in worker.TERMINAL:
        return frozenset({(worker_record.tenant, GONE_WORKERS)})
    return frozenset({(worker_record.tenant, WORKERS), (ALL_TENANTS, PRESENT_WORKERS)})


def _fixed_run_lists(run_record: Run) -> frozenset[ListKey]:
    origin = run_record.origin
    list_names = [
        RUNS,
        *([WORKSTREAMS] if origin.workstream else []),
        *(runs_with_label(label) for label in origin.labels),
    ]
    list_and_value_pairs = (
        (runs_of_project, origin.project),
        (runs_of_branch, origin.branch),
        (runs_started_by, run_record.started_by),
        (runs_of_template, origin.template),
    )
    list_names += [list_name(value) for list_name, value in list_and_value_pairs if value]
    return frozenset((run_record.tenant, name) for name in list_names)


def _run_state_lists(run_record: Run) -> frozenset[ListKey]:
    state = run_record.state
    lists = {(run_record.tenant, runs_in_state(state)), (run_record.tenant, runs_with_status(run_status(run_record)))}
    if run_record.origin.workstream:
        lists.add((run_record.tenant, workstreams_in_state(workstream_state(run_record))))
    if state in run.OVER:
        lists.add((ALL_TENANTS, UNREPORTED))
    if state in run.UNPLANNED and run_record.origin.event:
        lists.add((ALL_TENANTS, UNPLANNED))
    return frozenset(lists)
