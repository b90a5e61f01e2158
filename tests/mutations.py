"""Mutants of legal logs, and an argument for each why it is illegal.

A mutant that might be legal proves nothing, so each operator leaves out what it cannot argue: an event that
was alone in its transaction and the last of its entity may be missing without a trace; two events of one
transaction that do not depend on each other may stand in either order.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec

Line = dict[str, Any]

# These may come in a transaction of their own, any time later, whatever stands beside them here.
_LATER = ("statuses_published", "registration_complete")


class Mutant(NamedTuple):
    """A log with one change, and what the change was."""

    what: str
    lines: list[Line]


class Log:
    """A legal log with what is needed to argue about it."""

    def __init__(self, raw: list[bytes]) -> None:
        self.lines: list[Line] = [msgspec.json.decode(line) for line in raw]
        self.last = {line["entity_id"]: index for index, line in enumerate(self.lines)}
        self.workers = sorted(line["entity_id"] for line in self.lines if line["trigger"] == "registered")

    def has_validation(self, job_id: str) -> bool:
        """Whether somebody beside its runner validates this job."""
        born = [line["metadata"] for line in self.lines if line["entity_id"] == job_id and line["from"] is None]
        return bool(born and born[0].get("has_validation"))

    def scope(self, index: int) -> str:
        """What changes together: a run, a worker, or an attempt on its own."""
        line = self.lines[index]
        return str(line["run_id"] or line["entity_id"].partition("#")[0])

    def is_alone(self, index: int) -> bool:
        """The only event of its transaction."""
        here, scope = self.lines[index]["at"], self.scope(index)
        together = [i for i, line in enumerate(self.lines) if line["at"] == here and self.scope(i) == scope]
        return together == [index]

    def is_first(self, index: int) -> bool:
        """Nothing of its entity stands before it."""
        return all(self.lines[i]["entity_id"] != self.lines[index]["entity_id"] for i in range(index))

    def is_last(self, index: int) -> bool:
        """Nothing more is heard of its entity."""
        return self.last[self.lines[index]["entity_id"]] == index

    def depends(self, first: int, second: int) -> bool:
        """Whether the second of two neighbours is there because of the first, or belongs to the same record."""
        a, b = self.lines[first], self.lines[second]
        if a["entity_id"] == b["entity_id"] or "lease" in (a["entity"], b["entity"]):
            return True
        if self.scope(first) != self.scope(second):
            holder = a["metadata"].get("lease", {}).get("worker_id")
            return bool(holder == b["entity_id"] and b["metadata"].get("attempt_id") == a["entity_id"])
        if a["at"] != b["at"]:
            return False  # Two transactions; which of their effects depend on each other cannot be argued here.
        kinds = {a["entity"], b["entity"]}
        if kinds == {"job", "attempt"}:
            of = a if a["entity"] == "attempt" else b
            other = b if of is a else a
            return bool(of["entity_id"].rpartition(".")[0] == other["entity_id"])
        return kinds == {"run", "job"} and self._decides(a, b)

    @staticmethod
    def _decides(a: Line, b: Line) -> bool:
        """The job's change is what the run's rests on, or the other way round."""
        run_, job_ = (a, b) if a["entity"] == "run" else (b, a)
        if run_["to"] == "FAILED":
            return bool(run_ is b and run_["metadata"].get("job_id") == job_["entity_id"])
        if run_["to"] in ("VALIDATING", "CANCELED", "QUEUED", "WAITING_APPROVAL"):
            return bool(run_ is b)
        return bool(run_["to"] == "CANCEL_REQUESTED" and job_["to"] == "CANCELED")


def mutants(raw: list[bytes]) -> Iterator[Mutant]:
    """Every mutant of the log that is surely illegal."""
    log = Log(raw)
    for index in range(len(log.lines)):
        yield from _drops(log, index)
        yield from _doubles(log, index)
        yield from _swaps(log, index)
        yield from _alterations(log, index)


def _renumbered(lines: list[Line]) -> list[Line]:
    """The same lines with seqs that hide the change: a lease's line keeps its attempt's."""
    seq, out = 0, []
    for line in lines:
        seq += line["entity"] != "lease"
        out.append({**line, "seq": max(seq, 1)})
    return out


def _drops(log: Log, index: int) -> Iterator[Mutant]:
    if log.is_last(index) and (log.is_alone(index) or log.lines[index]["trigger"] in _LATER):
        return  # Gone without a trace, as if it had not happened yet.
    rest = log.lines[:index] + log.lines[index + 1 :]
    yield Mutant(f"drop {index + 1}", rest)
    yield Mutant(f"drop {index + 1} and renumber", _renumbered(rest))


def _doubles(log: Log, index: int) -> Iterator[Mutant]:
    twice = log.lines[: index + 1] + log.lines[index:]
    yield Mutant(f"double {index + 1}", twice)
    yield Mutant(f"double {index + 1} and renumber", _renumbered(twice))
    yield Mutant(f"repeat {index + 1} at the end", _renumbered([*log.lines, log.lines[index]]))


def _swaps(log: Log, index: int) -> Iterator[Mutant]:
    if index + 1 < len(log.lines):
        swapped = [*log.lines[:index], log.lines[index + 1], log.lines[index], *log.lines[index + 2 :]]
        yield Mutant(f"swap {index + 1} with the next", swapped)
        if log.depends(index, index + 1):
            yield Mutant(f"swap {index + 1} with the next and renumber", _renumbered(swapped))


_OTHER = {
    "entity": {"run": "job", "job": "attempt", "attempt": "job", "lease": "attempt", "worker": "run"},
    "severity": {"info": "error", "warning": "info", "error": "warning", "critical": "info"},
}
_NUMBERS = (
    *("claims", "lost_leases", "index", "attempt_index", "retry_count", "max_retries", "jobs", "tasks"),
    *("approvals", "needed", "troubles"),
)
_LEASE = ("number", "worker_id", "from", "to", "expires_at")
_STATES = ("QUEUED", "RUNNING", "SUCCEEDED", "CANCELED", "FAILED", "IDLE", "ACTIVE", "REPORTED", "STALE")
_TRIGGERS = ("heartbeat", "claimed", "validation_passed", "task_completed", "cancel_requested", "created", "stalled")
_ACTORS = ("orchestrator", "user:mallory", "worker:mallory", "reporter")


def _alterations(log: Log, index: int) -> Iterator[Mutant]:
    line = log.lines[index]
    for field, values in (("from", (*_STATES, None)), ("to", _STATES), ("trigger", _TRIGGERS), ("actor", _ACTORS)):
        for value in values:
            if line[field] != value and not _may_act(line, field, value):
                yield _altered(log, index, field, value)
    yield _altered(log, index, "entity", _OTHER["entity"][line["entity"]])
    yield _altered(log, index, "severity", _OTHER["severity"][line["severity"]])
    yield _altered(log, index, "rev", line["rev"] + 1)
    yield _altered(log, index, "rev", line["rev"] - 1)
    yield _altered(log, index, "entity_id", f"{line['entity_id']}x")
    yield _altered(log, index, "seq", line["seq"] - 1)
    if not (line["rev"] == 1 and log.is_last(index)):
        yield _altered(log, index, "tenant", "mallory")
    if line["run_id"]:
        yield _altered(log, index, "run_id", "another")
    if not log.is_alone(index) and line["trigger"] not in _LATER:
        yield _altered(log, index, "at", "2031-01-01T00:00:00.000000Z")
    if not log.is_first(index):
        yield _altered(log, index, "at", "2001-01-01T00:00:00.000000Z")
    yield from _told(log, index)
    for field in line:
        yield _altered(log, index, field, ["nonsense"])


def _may_act(line: Line, field: str, value: Any) -> bool:
    """People may do by hand some of what the orchestrator does by itself."""
    return (
        field == "actor"
        and str(value).partition(":")[0] in ("user", "orchestrator", "worker")
        and _by_hand(line, str(value))
    )


def _by_hand(line: Line, actor: str) -> bool:
    kind = actor.partition(":")[0]
    if line["entity"] == "lease":
        return False
    either = {"orchestrator", "user"}
    if line["trigger"] in ("registered", "registration_complete", "capabilities_registered", "health_check_recovered"):
        return kind in ("orchestrator", "worker")
    if line["trigger"] in ("approved", "rejected"):
        # Another person may decide as well, unless the event names them all.
        is_named = line["trigger"] == "approved" and "approvers" in line["metadata"]
        return kind == "user" and line["actor"].startswith("user:") and not is_named
    if line["trigger"] in ("drained", "resumed"):
        return kind in either
    if line["trigger"] == "shutdown_requested":
        return bool(line["to"] != "SHUTDOWN" or line["from"] == "IDLE")
    if line["from"] == "STALE" and line["trigger"] == "failed":
        return kind in either  # Who requeues what was lost too often has it failed.
    by_people = line["entity"] in ("run", "job", "attempt") and line["trigger"] in (
        "created", "cancel_requested", "user_cancelled", "enqueued", "requeued", "stalled",
    )  # fmt: skip
    return by_people and kind in either and not (line["entity"] == "job" and line["trigger"] == "created")


def _told(log: Log, index: int) -> Iterator[Mutant]:
    told = log.lines[index]["metadata"]
    for key in _NUMBERS:
        if isinstance(told.get(key), int):
            yield _retold(log, index, (key,), told[key] + 1)
    for key in _LEASE if "lease" in told else ():
        value = told["lease"].get(key)
        if value is not None or key == "from":
            yield _retold(log, index, ("lease", key), _wrong(value))
    for key in ("worker_id", "attempt_id", "conclusion", "failure_class", "kind", "hold", "was"):
        if isinstance(told.get(key), str):
            yield _retold(log, index, (key,), _wrong(told[key]))
    for key in ("is_forced", "is_reclaim"):
        if key in told:
            yield _retold(log, index, (key,), not told[key])
    if "next_run_at" in told:
        yield _retold(log, index, ("next_run_at",), "2001-01-01T00:00:00.000000Z")
    if "needs" in told:
        yield _retold(log, index, ("needs",), [*told["needs"], "nobody"])
    yield from _gated(log, index)
    yield from _judged(log, index)
    yield _retold(log, index, ("surprise",), 1)


def _judged(log: Log, index: int) -> Iterator[Mutant]:
    """Another verdict than the one that its job followed, another reason for it, or one where there can be none."""
    line = log.lines[index]
    if line["entity"] != "attempt":
        return
    told = line["metadata"].get("verdict")
    if line["to"] != "SUCCEEDED":
        yield _retold(log, index, ("verdict",), {"is_passed": True})
    elif told is None or told["is_passed"]:
        yield _retold(log, index, ("verdict",), {"is_passed": False, "details": "another"})
    else:
        yield _retold(log, index, ("verdict", "details"), "another")
        # Where somebody else validates too, that one may have failed it at the same moment.
        if not log.has_validation(line["metadata"].get("job_id") or line["entity_id"].rpartition(".")[0]):
            yield _retold(log, index, ("verdict",), {"is_passed": True})
            yield _retold(log, index, ("verdict",), None)


def _gated(log: Log, index: int) -> Iterator[Mutant]:
    """Decisions about another plan, or that name others; gates that ask for more than whom they were approved by."""
    line = log.lines[index]
    told = line["metadata"]
    if line["entity"] == "job" and line["from"] == "WAITING_APPROVAL":
        if "plan_hash" in told:
            yield _retold(log, index, ("plan_hash",), "another")
        if "approvers" in told:
            yield _retold(log, index, ("approvers",), [*told["approvers"], "mallory"])
            yield _retold(log, index, ("approvers",), None)
    if told.get("kind") == "approval":
        after = (other for other in log.lines[index:] if other["entity_id"] == line["entity_id"])
        for other in after:
            if other["trigger"] == "approved":
                yield _retold(log, index, ("approvers",), told.get("approvers", 1) + 1)
                yield _retold(log, index, ("approvers",), max(told.get("approvers", 1) - 1, 0))
                starter = {"not_by_starter": True, "started_by": other["actor"].partition(":")[2]}
                yield _altered(log, index, "metadata", {**told, **starter})


def _wrong(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str) and value.startswith("20"):
        return "2001-01-01T00:00:00.000000Z"
    return {"task": "approval", "approval": "task", "USER": "INFRA", "INFRA": "USER"}.get(str(value), "mallory")


def _altered(log: Log, index: int, field: str, value: Any) -> Mutant:
    lines = list(log.lines)
    lines[index] = {**lines[index], field: value}
    return Mutant(f"{field} of {index + 1} becomes {value!r}", lines)


def _retold(log: Log, index: int, path: tuple[str, ...], value: Any) -> Mutant:
    lines = list(log.lines)
    lines[index] = deepcopy(lines[index])
    inner = lines[index]["metadata"]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return Mutant(f"metadata {'.'.join(path)} of {index + 1} becomes {value!r}", lines)


def simple_mutants(raw: list[bytes], id_field: str, fields: dict[str, tuple[Any, ...]]) -> Iterator[Mutant]:
    """Mutants of the exported formats, which have no seq: what is not the last of its entity leaves a trace."""
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
