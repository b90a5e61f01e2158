"""Generate mutants of legal logs that are certainly illegal.

A mutant that might be legal proves nothing, so each operator leaves out mutants without a reason why they are illegal.
For example, an event that is alone in its transaction and the last of its entity may be missing without a trace, and
two independent events of one transaction may have either order.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec

Line = dict[str, Any]

# Triggers of events that may also have their own, later transaction.
_DEFERRABLE = ("statuses_published", "registration_complete", "capabilities_registered")


class Mutant(NamedTuple):
    """A log with one change, and the description of the change."""

    description: str
    lines: list[Line]


class Log:
    """A legal log with lookups for the mutation operators."""

    def __init__(self, raw: list[bytes]) -> None:
        self.lines: list[Line] = [msgspec.json.decode(line) for line in raw]
        self.last = {line["entity_id"]: index for index, line in enumerate(self.lines)}
        self.workers = sorted(line["entity_id"] for line in self.lines if line["trigger"] == "registered")

    def has_validation(self, job_id: str) -> bool:
        """Return True if the job has a validation besides the runner's verdict."""
        creations = [line["metadata"] for line in self.lines if line["entity_id"] == job_id and line["from"] is None]
        return bool(creations and creations[0].get("has_validation"))

    def scope(self, index: int) -> str:
        """Return the id of the run, the worker or the plain attempt that the line belongs to."""
        line = self.lines[index]
        return str(line["run_id"] or line["entity_id"].partition("#")[0])

    def is_alone(self, index: int) -> bool:
        """Return True if the line is the only event of its transaction."""
        at, scope = self.lines[index]["at"], self.scope(index)
        transaction = [i for i, line in enumerate(self.lines) if line["at"] == at and self.scope(i) == scope]
        return transaction == [index]

    def is_first(self, index: int) -> bool:
        """Return True if the line is the first of its entity."""
        return all(self.lines[i]["entity_id"] != self.lines[index]["entity_id"] for i in range(index))

    def is_last(self, index: int) -> bool:
        """Return True if the line is the last of its entity."""
        return self.last[self.lines[index]["entity_id"]] == index

    def depends(self, first: int, second: int) -> bool:
        """Return True if two neighbouring lines must have this order: the same record, or cause and effect."""
        a, b = self.lines[first], self.lines[second]
        if a["entity_id"] == b["entity_id"] or "lease" in (a["entity"], b["entity"]):
            return True
        if self.scope(first) != self.scope(second):
            holder = a["metadata"].get("lease", {}).get("worker_id")
            return bool(holder == b["entity_id"] and b["metadata"].get("attempt_id") == a["entity_id"])
        if a["at"] != b["at"]:
            return False  # Two transactions may be independent.
        kinds = {a["entity"], b["entity"]}
        if kinds == {"job", "attempt"}:
            attempt = a if a["entity"] == "attempt" else b
            job = b if attempt is a else a
            return bool(attempt["entity_id"].rpartition(".")[0] == job["entity_id"])
        return kinds == {"run", "job"} and self._is_run_caused_by_job(a, b)

    @staticmethod
    def _is_run_caused_by_job(a: Line, b: Line) -> bool:
        """Return True if the change of one of a run and a job is the cause of the other's."""
        run, job = (a, b) if a["entity"] == "run" else (b, a)
        if run["to"] == "FAILED":
            return bool(run is b and run["metadata"].get("job_id") == job["entity_id"])
        if run["to"] in ("VALIDATING", "CANCELED", "QUEUED", "WAITING_APPROVAL"):
            return bool(run is b)
        return bool(run["to"] == "CANCEL_REQUESTED" and job["to"] == "CANCELED")


def mutants(raw: list[bytes]) -> Iterator[Mutant]:
    """Yield the illegal mutants of the log."""
    log = Log(raw)
    for index in range(len(log.lines)):
        yield from _dropped(log, index)
        yield from _doubled(log, index)
        yield from _swapped(log, index)
        yield from _changed_fields(log, index)


def _renumbered(lines: list[Line]) -> list[Line]:
    """Return the lines with consecutive seqs, to hide the change. A lease's line keeps the seq of its attempt's."""
    seq, renumbered = 0, []
    for line in lines:
        seq += line["entity"] != "lease"
        renumbered.append({**line, "seq": max(seq, 1)})
    return renumbered


def _dropped(log: Log, index: int) -> Iterator[Mutant]:
    if log.is_last(index) and (log.is_alone(index) or log.lines[index]["trigger"] in _DEFERRABLE):
        return  # The log looks as if the event had not happened yet.
    rest = log.lines[:index] + log.lines[index + 1 :]
    yield Mutant(f"drop {index + 1}", rest)
    yield Mutant(f"drop {index + 1} and renumber", _renumbered(rest))


def _doubled(log: Log, index: int) -> Iterator[Mutant]:
    twice = log.lines[: index + 1] + log.lines[index:]
    yield Mutant(f"double {index + 1}", twice)
    yield Mutant(f"double {index + 1} and renumber", _renumbered(twice))
    yield Mutant(f"repeat {index + 1} at the end", _renumbered([*log.lines, log.lines[index]]))


def _swapped(log: Log, index: int) -> Iterator[Mutant]:
    if index + 1 < len(log.lines):
        swapped = [*log.lines[:index], log.lines[index + 1], log.lines[index], *log.lines[index + 2 :]]
        yield Mutant(f"swap {index + 1} with the next", swapped)
        if log.depends(index, index + 1):
            yield Mutant(f"swap {index + 1} with the next and renumber", _renumbered(swapped))


_REPLACEMENTS = {
    "entity": {"run": "job", "job": "attempt", "attempt": "job", "lease": "attempt", "worker": "run"},
    "severity": {"info": "error", "warning": "info", "error": "warning", "critical": "info"},
}
_NUMBER_KEYS = (
    *("claims", "lost_leases", "index", "attempt_index", "retry_count", "max_retries", "jobs", "tasks"),
    *("approvals", "needed", "troubles"),
)
_LEASE_KEYS = ("number", "worker_id", "from", "to", "expires_at")
_STATES = ("QUEUED", "RUNNING", "SUCCEEDED", "CANCELED", "FAILED", "IDLE", "ACTIVE", "REPORTED", "STALE")
_TRIGGERS = ("heartbeat", "claimed", "validation_passed", "task_completed", "cancel_requested", "created", "stalled")
_ACTORS = ("orchestrator", "user:mallory", "worker:mallory", "reporter")


def _changed_fields(log: Log, index: int) -> Iterator[Mutant]:
    line = log.lines[index]
    for field, values in (("from", (*_STATES, None)), ("to", _STATES), ("trigger", _TRIGGERS), ("actor", _ACTORS)):
        for value in values:
            if line[field] != value and not _is_legal_actor_change(line, field, value):
                yield _with_field(log, index, field, value)
    yield _with_field(log, index, "entity", _REPLACEMENTS["entity"][line["entity"]])
    yield _with_field(log, index, "severity", _REPLACEMENTS["severity"][line["severity"]])
    yield _with_field(log, index, "rev", line["rev"] + 1)
    yield _with_field(log, index, "rev", line["rev"] - 1)
    yield _with_field(log, index, "entity_id", f"{line['entity_id']}x")
    yield _with_field(log, index, "seq", line["seq"] - 1)
    if not (line["rev"] == 1 and log.is_last(index)):
        yield _with_field(log, index, "tenant", "mallory")
    if line["run_id"]:
        yield _with_field(log, index, "run_id", "another")
    if not log.is_alone(index) and line["trigger"] not in _DEFERRABLE:
        yield _with_field(log, index, "at", "2031-01-01T00:00:00.000000Z")
    if not log.is_first(index):
        yield _with_field(log, index, "at", "2001-01-01T00:00:00.000000Z")
    yield from _changed_metadata(log, index)
    for field in line:
        yield _with_field(log, index, field, ["nonsense"])


def _is_legal_actor_change(line: Line, field: str, value: Any) -> bool:
    """Return whether another actor may cause the event, too:

    some events may be caused by people and the orchestrator.
    """
    return (
        field == "actor"
        and str(value).partition(":")[0] in ("user", "orchestrator", "worker")
        and _may_cause(line, str(value))
    )


def _may_cause(line: Line, actor: str) -> bool:
    kind = actor.partition(":")[0]
    if line["entity"] == "lease":
        return False
    orchestrator_or_user = {"orchestrator", "user"}
    if line["trigger"] in ("registered", "registration_complete", "capabilities_registered", "health_check_recovered"):
        return kind in ("orchestrator", "worker")
    if line["trigger"] in ("approved", "rejected"):
        # Another person may decide as well, unless the event lists all approvers.
        has_approvers = line["trigger"] == "approved" and "approvers" in line["metadata"]
        return kind == "user" and line["actor"].startswith("user:") and not has_approvers
    if line["trigger"] in ("drained", "resumed"):
        return kind in orchestrator_or_user
    if line["trigger"] == "shutdown_requested":
        return bool(line["to"] != "SHUTDOWN" or line["from"] == "IDLE")
    if line["from"] == "STALE" and line["trigger"] == "failed":
        return kind in orchestrator_or_user  # Requeueing an attempt that was lost too often fails it.
    is_user_trigger = line["entity"] in ("run", "job", "attempt") and line["trigger"] in (
        "created", "cancel_requested", "user_cancelled", "enqueued", "requeued", "stalled",
    )  # fmt: skip
    return (
        is_user_trigger
        and kind in orchestrator_or_user
        and not (line["entity"] == "job" and line["trigger"] == "created")
    )


def _changed_metadata(log: Log, index: int) -> Iterator[Mutant]:
    metadata = log.lines[index]["metadata"]
    for key in _NUMBER_KEYS:
        if isinstance(metadata.get(key), int):
            yield _with_metadata(log, index, (key,), metadata[key] + 1)
    for key in _LEASE_KEYS if "lease" in metadata else ():
        value = metadata["lease"].get(key)
        if value is not None or key == "from":
            yield _with_metadata(log, index, ("lease", key), _wrong_value(value))
    for key in ("worker_id", "attempt_id", "conclusion", "failure_class", "kind", "hold", "was"):
        if isinstance(metadata.get(key), str):
            yield _with_metadata(log, index, (key,), _wrong_value(metadata[key]))
    for key in ("is_forced", "is_reclaim"):
        if key in metadata:
            yield _with_metadata(log, index, (key,), not metadata[key])
    if "next_run_at" in metadata:
        yield _with_metadata(log, index, ("next_run_at",), "2001-01-01T00:00:00.000000Z")
    if "optional_until" in metadata:
        yield _with_metadata(log, index, ("optional_until",), "2001-01-01T00:00:00.000000Z")
        yield _with_metadata(log, index, ("job_id",), "mallory")
    if metadata.get("cause") == "no_worker":
        yield _with_metadata(log, index, ("cause",), "wait_over")
    if "needs" in metadata:
        yield _with_metadata(log, index, ("needs",), [*metadata["needs"], "nobody"])
    yield from _changed_decision(log, index)
    yield from _changed_verdict(log, index)
    yield _with_metadata(log, index, ("surprise",), 1)


def _changed_verdict(log: Log, index: int) -> Iterator[Mutant]:
    """Yield mutants with another verdict, with other details, or with a verdict of an attempt that did not succeed."""
    line = log.lines[index]
    if line["entity"] != "attempt":
        return
    verdict = line["metadata"].get("verdict")
    if line["to"] != "SUCCEEDED":
        yield _with_metadata(log, index, ("verdict",), {"is_passed": True})
    elif verdict is None or verdict["is_passed"]:
        yield _with_metadata(log, index, ("verdict",), {"is_passed": False, "details": "another"})
    else:
        yield _with_metadata(log, index, ("verdict", "details"), "another")
        # A further validation may have failed the job at the same time.
        if not log.has_validation(line["metadata"].get("job_id") or line["entity_id"].rpartition(".")[0]):
            yield _with_metadata(log, index, ("verdict",), {"is_passed": True})
            yield _with_metadata(log, index, ("verdict",), None)


def _changed_decision(log: Log, index: int) -> Iterator[Mutant]:
    """Yield mutants with decisions about another plan or by other people, and gates with other settings."""
    line = log.lines[index]
    metadata = line["metadata"]
    if line["entity"] == "job" and line["from"] == "WAITING_APPROVAL":
        if "plan_hash" in metadata:
            yield _with_metadata(log, index, ("plan_hash",), "another")
        if "approvers" in metadata:
            yield _with_metadata(log, index, ("approvers",), [*metadata["approvers"], "mallory"])
            yield _with_metadata(log, index, ("approvers",), None)
    if metadata.get("kind") == "approval":
        events = (event for event in log.lines[index:] if event["entity_id"] == line["entity_id"])
        for event in events:
            if event["trigger"] == "approved":
                yield _with_metadata(log, index, ("approvers",), metadata.get("approvers", 1) + 1)
                yield _with_metadata(log, index, ("approvers",), max(metadata.get("approvers", 1) - 1, 0))
                starter = {"not_by_starter": True, "started_by": event["actor"].partition(":")[2]}
                yield _with_field(log, index, "metadata", {**metadata, **starter})


def _wrong_value(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str) and value.startswith("20"):
        return "2001-01-01T00:00:00.000000Z"
    return {"task": "approval", "approval": "task", "USER": "INFRA", "INFRA": "USER"}.get(str(value), "mallory")


def _with_field(log: Log, index: int, field: str, value: Any) -> Mutant:
    lines = list(log.lines)
    lines[index] = {**lines[index], field: value}
    return Mutant(f"{field} of {index + 1} becomes {value!r}", lines)


def _with_metadata(log: Log, index: int, path: tuple[str, ...], value: Any) -> Mutant:
    lines = list(log.lines)
    lines[index] = deepcopy(lines[index])
    parent = lines[index]["metadata"]
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return Mutant(f"metadata {'.'.join(path)} of {index + 1} becomes {value!r}", lines)


def simple_mutants(raw: list[bytes], id_field: str, fields: dict[str, tuple[Any, ...]]) -> Iterator[Mutant]:
    """Yield mutants of an export format, which has no seq. A missing line is illegal if its entity has a later one."""
    lines: list[Line] = [msgspec.json.decode(line) for line in raw]
    last = {line[id_field]: index for index, line in enumerate(lines)}
    for index, line in enumerate(lines):
        if last[line[id_field]] != index:
            yield Mutant(f"drop {index + 1}", lines[:index] + lines[index + 1 :])
        yield Mutant(f"double {index + 1}", lines[: index + 1] + lines[index:])
        following = next((i for i in range(index + 1, len(lines)) if lines[i][id_field] == line[id_field]), None)
        if following is not None:
            swapped = list(lines)
            swapped[index], swapped[following] = lines[following], line
            yield Mutant(f"swap {index + 1} with {following + 1}", swapped)
        for field, values in fields.items():
            for value in values:
                if line.get(field) != value:
                    changed = [*lines[:index], {**line, field: value}, *lines[index + 1 :]]
                    yield Mutant(f"{field} of {index + 1} becomes {value!r}", changed)
