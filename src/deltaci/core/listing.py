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
THERE: Final = "worker/there"  # Of all tenants together: whoever looks after the fleet begins with these.
UNREPORTED: Final = "run/unreported"  # Of all tenants together: whoever reports looks here for what nobody told it.
UNPLANNED: Final = "run/unplanned"  # The same for whoever plans: runs of repositories that have no plan yet.
EVERYBODY: Final = ""  # The tenant of lists that are nobody's own.

MAX_NAME: Final = 200  # Characters that a name may say in full; every store can keep so many in an index.

Listed = tuple[str, str]  # The tenant and the name of a list.
_NOWHERE: Final[frozenset[Listed]] = frozenset()


def state_is(state: str) -> str:
    """The list of runs in this state."""
    return _named("state", state)


def status_is(status: str) -> str:
    """The list of runs of this status."""
    return _named("status", status)


def project_is(project: str) -> str:
    """The list of a project's runs."""
    return _named("project", project)


def branch_is(branch: str) -> str:
    """The list of a branch's runs."""
    return _named("branch", branch)


def label_is(label: str) -> str:
    """The list of runs with this label."""
    return _named("label", label)


def person_is(person: str) -> str:
    """The list of runs that this person started."""
    return _named("person", person)


def template_is(name: str) -> str:
    """The list of runs made from this template, of whatever version."""
    return _named("template", name)


def workstream_is(state: str) -> str:
    """The list of workstreams in this state, as document 003 names it."""
    return _named("workstream", state)


def _named(what: str, value: str) -> str:
    """What is too long for a name, or cannot be in one, is told by its fingerprint."""
    if len(value) <= MAX_NAME and value.isprintable():
        return f"run/{what}={value}"
    return f"run/{what}#{blake2b(value.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def lists(record: Record) -> frozenset[Listed]:
    """Every list that the record is on as it is now."""
    if isinstance(record, Run):
        return frozenset({*_always(record), *_moving(record)})
    if isinstance(record, Worker):
        return _worker_lists(record, record.state)
    return _NOWHERE


def moved(record: Record, before: str) -> tuple[frozenset[Listed], frozenset[Listed]]:
    """Which lists it joined and which it left when it came here from the state `before`; a birth is the empty one."""
    if before == record.state:
        return _NOWHERE, _NOWHERE
    now = lists(record)
    if not before:
        return now, _NOWHERE
    if isinstance(record, Run):
        then = _lists_by_state(record, before, RUN_VIEW.shows[before], WORKSTREAM_VIEW.shows[before])
        moving = _moving(record)
        return moving - then, then - moving
    if isinstance(record, Worker):
        then = _worker_lists(record, before)
        return now - then, then - now
    return _NOWHERE, _NOWHERE


def _worker_lists(record: Worker, state: str) -> frozenset[Listed]:
    if state in worker.TERMINAL:
        return frozenset({(record.tenant, GONE_WORKERS)})
    return frozenset({(record.tenant, WORKERS), (EVERYBODY, THERE)})


def _always(record: Run) -> frozenset[Listed]:
    origin = record.origin
    names = [RUNS, *([WORKSTREAMS] if origin.workstream else []), *(label_is(label) for label in origin.labels)]
    named = (
        (project_is, origin.project),
        (branch_is, origin.branch),
        (person_is, record.started_by),
        (template_is, origin.template),
    )
    names += [name(value) for name, value in named if value]
    return frozenset((record.tenant, name) for name in names)


def _moving(record: Run) -> frozenset[Listed]:
    return _lists_by_state(record, record.state, run_status(record), workstream_state(record))


def _lists_by_state(record: Run, state: str, status: str, stream: str) -> frozenset[Listed]:
    found = {(record.tenant, state_is(state)), (record.tenant, status_is(status))}
    if record.origin.workstream:
        found.add((record.tenant, workstream_is(stream)))
    if state in run.OVER:
        found.add((EVERYBODY, UNREPORTED))
    if state in run.UNPLANNED and record.origin.event:
        found.add((EVERYBODY, UNPLANNED))
    return frozenset(found)
