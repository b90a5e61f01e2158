"""The worker: the record of a registered runner, with its state, its tasks and whether it is on hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.events import ERROR, ORCHESTRATOR, RUNNER, USER, WARNING, WORKER
from deltaci.core.ids import first_incarnation_id
from deltaci.core.machine import ABSENT, Command, Machine, Record, Rule, Target, Transition, no_change

INITIALIZING: Final = "INITIALIZING"
IDLE: Final = "IDLE"
BUSY: Final = "BUSY"
UNRESPONSIVE: Final = "UNRESPONSIVE"
SHUTDOWN: Final = "SHUTDOWN"

# Why a live worker is on hold, which means that it gets no new work: by an operator, or because it is not trusted.
DRAINED: Final = "DRAINED"
QUARANTINED: Final = "QUARANTINED"

MAX_INFRA_FAILURES: Final = 3  # After so many in a row the worker is quarantined.
MAX_AVOIDED: Final = 8  # Only the latest are kept: an old failure says little about a worker.
MAX_REASON: Final = 500  # Characters of a reason that is derived from an earlier one.
REPEATED_INFRA_FAILURES: Final = "REPEATED_TROUBLES"  # The reason of this automatic quarantine, and of no other.


class Worker(Record, frozen=True, kw_only=True):
    """The record of a registered runner.

    `tasks` are the attempts of its live leases: their ids, because a counter could drift. `infra_failures` counts the
    tasks in a row that failed because of the worker's infrastructure. The tasks that it held at the time of such a
    failure are `excused`: the same cause may end these tasks too, so that it counts once.
    """

    labels: tuple[str, ...] = ()
    max_concurrent_tasks: int = 1
    tasks: tuple[str, ...] = ()
    shutdown_reason: str = ""
    token_at: int = 0  # When the token of its latest registration was issued.
    hold: str = ""  # DRAINED, QUARANTINED or empty: on hold it finishes its tasks and gets no new ones.
    hold_reason: str = ""
    held_at: int = 0
    infra_failures: int = 0
    excused: tuple[str, ...] = ()


class Register(Command, frozen=True, kw_only=True):
    """Create the record of a runner that registers."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})


class CompleteRegistration(Command, frozen=True, kw_only=True):
    """Finish the registration: the worker is idle and may be given work."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})


class UpdateCapabilities(Command, frozen=True, kw_only=True):
    """Change the labels or the number of slots; None keeps the current value.

    `token_at` is when the token of a new registration was issued; 0 if the runner does not register again.
    """

    stored_name: ClassVar[str] = "Offer"
    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})

    tenant: str
    labels: tuple[str, ...] | None = None
    slots: int | None = msgspec.field(default=None, name="places")
    token_at: int = 0


class Assign(Command, frozen=True, kw_only=True):
    """Add the attempt of a newly granted lease to the worker's tasks. `queue_key` names the labels that it requires."""

    attempt_id: str
    queue_key: str = ""


class Release(Command, frozen=True, kw_only=True):
    """Remove the attempt of an ended lease from the worker's tasks.

    `is_infra_failure` says whether the worker's infrastructure caused the end of the lease; None if that is unknown.
    """

    attempt_id: str
    is_infra_failure: bool | None = msgspec.field(default=None, name="trouble")


class MissHealthChecks(Command, frozen=True, kw_only=True):
    """Mark the worker as unresponsive, because it missed too many health checks in a row. It keeps its leases."""


class Recover(Command, frozen=True, kw_only=True):
    """Mark an unresponsive worker as idle, because it answers again."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})


class ResumeTasks(Command, frozen=True, kw_only=True):
    """Make a recovered worker that still holds leases busy again."""

    stored_name: ClassVar[str] = "TakeUp"


class GiveUp(Command, frozen=True, kw_only=True):
    """Shut down an unresponsive worker that did not recover within the maximum time."""


class Shutdown(Command, frozen=True, kw_only=True):
    """Shut the worker down: at once when idle, after its tasks when busy."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER, USER})

    reason: str = "REQUESTED"


class Drain(Command, frozen=True, kw_only=True):
    """Put the worker on hold until it is resumed; it finishes its tasks."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str


class Quarantine(Command, frozen=True, kw_only=True):
    """Put an untrusted worker on hold until it is resumed or its runner registers again."""

    reason: str


class Resume(Command, frozen=True, kw_only=True):
    """End the hold, so that the worker gets work again, and reset its count of infrastructure failures."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


def queue_key(labels: Iterable[str]) -> str:
    """Return the name of the queue for a set of required labels: the labels, sorted and joined with commas."""
    return ",".join(sorted(set(labels)))


def required_labels(key: str) -> set[str]:
    """Return the labels that a worker must have to claim from the queue with this key."""
    return set(key.split(",")) if key else set()


def with_avoided(avoided_ids: tuple[str, ...], worker_id: str) -> tuple[str, ...]:
    """Return the avoided workers with this one added as the latest; at most MAX_AVOIDED are kept.

    All incarnations of a worker count as one, because the machine is the same.
    """
    avoided_id = first_incarnation_id(worker_id)
    return (*(id for id in avoided_ids if id != avoided_id), avoided_id)[-MAX_AVOIDED:]


def _register(worker: Worker, _command: Register, at: int) -> Transition:
    return INITIALIZING, {"created_at": at}, {}


def _check_slots(worker: Worker, slots: int) -> None:
    if slots < 1:
        raise Refused("bad_request", f"worker {worker.id} offers {slots} slots; it needs at least one")


def _complete_registration(worker: Worker, _command: CompleteRegistration, _at: int) -> Transition:
    _check_slots(worker, worker.max_concurrent_tasks)
    return IDLE, {}, {"labels": list(worker.labels), "max_concurrent_tasks": worker.max_concurrent_tasks}


def _update_capabilities(worker: Worker, command: UpdateCapabilities, _at: int) -> Transition | None:
    if command.tenant != worker.tenant:
        raise Refused("not_found", f"there is no worker {worker.id!r}; check the id")
    labels = worker.labels if command.labels is None else command.labels
    offered_slots = worker.max_concurrent_tasks if command.slots is None else command.slots
    _check_slots(worker, offered_slots)
    # It keeps its live leases: until they end, it has at least as many slots as tasks.
    slots = max(offered_slots, len(worker.tasks))
    changes: dict[str, Any] = {"labels": labels, "max_concurrent_tasks": slots}
    if command.token_at:
        if command.token_at <= worker.token_at:
            raise Refused(
                "bad_credential",
                f"runner {worker.id} registered with a token at least as new as this one; issue a new token",
            )
        changes["token_at"] = command.token_at
    elif (labels, slots) == (worker.labels, worker.max_concurrent_tasks):
        return None
    metadata: dict[str, Any] = {"labels": list(labels), "max_concurrent_tasks": slots}
    if command.token_at and worker.hold == QUARANTINED:
        # A runner that was set up again is trusted again. A drain by an operator stays.
        changes.update(_RESUMED)
        metadata.update(hold="", was=worker.hold)
    return worker.state, changes, metadata


def _assign(worker: Worker, command: Assign, _at: int) -> Transition | None:
    if command.attempt_id in worker.tasks:
        return None
    if worker.shutdown_reason:
        raise Refused("not_eligible", f"worker {worker.id} is shutting down; it gets no new work")
    if worker.hold:
        raise Refused("not_eligible", f"worker {worker.id} {_hold_description(worker)}")
    missing_labels = required_labels(command.queue_key) - set(worker.labels)
    if missing_labels:
        raise Refused(
            "not_eligible",
            f"worker {worker.id} lacks {', '.join(sorted(missing_labels))}; choose a worker that has them",
        )
    if len(worker.tasks) >= worker.max_concurrent_tasks:
        raise Refused(
            "worker_full",
            f"worker {worker.id} has {len(worker.tasks)} of {worker.max_concurrent_tasks} tasks; wait for one to end",
        )
    tasks = (*worker.tasks, command.attempt_id)
    return BUSY, {"tasks": tasks}, {"attempt_id": command.attempt_id, "tasks": len(tasks)}


def _release(worker: Worker, command: Release, _at: int) -> Transition | None:
    if command.attempt_id not in worker.tasks:
        return None
    tasks = tuple(task for task in worker.tasks if task != command.attempt_id)
    changes: dict[str, Any] = {"tasks": tasks}
    metadata: dict[str, Any] = {"attempt_id": command.attempt_id, "tasks": len(tasks)}
    infra_failures = _infra_failures_after(worker, command)
    if infra_failures != worker.infra_failures:
        changes["infra_failures"] = metadata["troubles"] = infra_failures
    if infra_failures > worker.infra_failures:
        changes["excused"] = tasks
    elif worker.excused:
        changes["excused"] = tuple(task for task in worker.excused if task != command.attempt_id)
    if tasks or worker.state == UNRESPONSIVE:
        return worker.state, changes, metadata
    if worker.shutdown_reason:
        return SHUTDOWN, changes, {**metadata, "reason": worker.shutdown_reason}
    return IDLE, changes, metadata


def _infra_failures_after(worker: Worker, release: Release) -> int:
    if release.is_infra_failure is None:
        return worker.infra_failures
    if not release.is_infra_failure:
        return 0
    return worker.infra_failures + (release.attempt_id not in worker.excused)


def should_quarantine(worker: Worker, release: Release) -> bool:
    """Return whether the worker must be quarantined because of this release.

    It must if the release is one more infrastructure failure in a row and MAX_INFRA_FAILURES is reached, unless the
    worker gets no new work anyway.
    """
    return (
        not worker.hold
        and not worker.shutdown_reason
        and release.attempt_id in worker.tasks
        and worker.infra_failures < _infra_failures_after(worker, release) >= MAX_INFRA_FAILURES
    )


def _miss_health_checks(worker: Worker, _command: MissHealthChecks, _at: int) -> Transition:
    return UNRESPONSIVE, {}, {"attempts": list(worker.tasks)}


def _recover(_worker: Worker, _command: Recover, _at: int) -> Transition:
    return IDLE, {}, {}


def _resume_tasks(worker: Worker, _command: ResumeTasks, _at: int) -> Transition:
    if not worker.tasks:
        raise Refused("not_eligible", f"worker {worker.id} holds no lease that it could resume; assign it an attempt")
    return BUSY, {}, {"attempt_id": worker.tasks[0], "tasks": len(worker.tasks)}


def _give_up(worker: Worker, _command: GiveUp, _at: int) -> Transition:
    if worker.tasks:
        raise Refused(
            "not_eligible", f"worker {worker.id} still holds {', '.join(worker.tasks)}; wait for those leases to end"
        )
    return SHUTDOWN, {}, {"reason": "MAX_TIMEOUT_EXCEEDED"}


def _shut_down(_worker: Worker, command: Shutdown, _at: int) -> Transition:
    return SHUTDOWN, {"shutdown_reason": command.reason}, {"reason": command.reason}


def _shut_down_later(worker: Worker, command: Shutdown, _at: int) -> Transition | None:
    if worker.shutdown_reason:
        return None
    return BUSY, {"shutdown_reason": command.reason}, {"reason": command.reason, "tasks": len(worker.tasks)}


_RESUMED: Final[dict[str, Any]] = {"hold": "", "hold_reason": "", "held_at": 0, "infra_failures": 0, "excused": ()}


def _hold_description(worker: Worker) -> str:
    state_text = "is drained" if worker.hold == DRAINED else "is quarantined"
    reason_text = f" ({worker.hold_reason})" if worker.hold_reason else ""
    return f"{state_text}{reason_text} and gets no new work; resume it, or choose another worker"


def _drain(worker: Worker, command: Drain, at: int) -> Transition | None:
    # The first drain stays. It also replaces a quarantine, which the next registration would end.
    if worker.hold == DRAINED:
        return None
    changes = {"hold": DRAINED, "hold_reason": command.reason, "held_at": at}
    metadata = {"hold": DRAINED, "reason": command.reason}
    return worker.state, changes, {**metadata, "was": worker.hold} if worker.hold else metadata


def _quarantine(worker: Worker, command: Quarantine, at: int) -> Transition | None:
    if worker.hold:
        return None
    if command.reason == REPEATED_INFRA_FAILURES and worker.infra_failures < MAX_INFRA_FAILURES:
        raise Refused(
            "bad_request",
            f"worker {worker.id} had {worker.infra_failures} of {MAX_INFRA_FAILURES} infrastructure failures in a row; "
            "give another reason",
        )
    changes = {"hold": QUARANTINED, "hold_reason": command.reason, "held_at": at}
    return worker.state, changes, {"hold": QUARANTINED, "reason": command.reason, "troubles": worker.infra_failures}


def _resume(worker: Worker, _command: Resume, _at: int) -> Transition | None:
    if not worker.hold:
        return None
    return worker.state, _RESUMED, {"hold": "", "was": worker.hold}


# fmt: off
MACHINE: Final[Machine[Worker]] = Machine(
    WORKER,
    Rule(ABSENT, Register, (Target(INITIALIZING, "registered"),), _register,
         ORCHESTRATOR, "a runner registered", ("WST-KA1",)),
    Rule(INITIALIZING, CompleteRegistration, (Target(IDLE, "registration_complete"),), _complete_registration,
         ORCHESTRATOR, "its capabilities are known", ("WST-K1", "WST-KG1")),
    *(Rule(state, UpdateCapabilities, (Target(state, "capabilities_registered"),), _update_capabilities, ORCHESTRATOR,
           "its runner registered again, or its capabilities changed", ("WST-KG1", "WST-KI1"))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    *(Rule(state, Drain, (Target(state, "drained"),), _drain, ORCHESTRATOR,
           "an operator put it on hold; it finishes its tasks", ("WST-KH1",))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    *(Rule(state, Quarantine, (Target(state, "quarantined", WARNING),), _quarantine, ORCHESTRATOR,
           "it is no longer trusted; it finishes its tasks", ("WST-KH3",))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    *(Rule(state, Resume, (Target(state, "resumed"),), _resume, ORCHESTRATOR,
           "its hold ended", ("WST-KH2",))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    Rule(IDLE, Assign, (Target(BUSY, "task_assigned"),), _assign,
         ORCHESTRATOR, "it was granted a lease", ("WST-K2", "WST-KG2")),
    Rule(BUSY, Assign, (Target(BUSY, "task_assigned"),), _assign,
         ORCHESTRATOR, "it was granted another lease, within its slots", ("WST-KI1",)),
    Rule(BUSY, Release,
         (Target(IDLE, "task_completed"), Target(BUSY, "task_completed"), Target(SHUTDOWN, "shutdown_requested")),
         _release, ORCHESTRATOR, "a lease ended; after the last one it is idle, or shut down if that was requested",
         ("WST-K3", "WST-K8", "WST-KI3")),
    *(Rule(state, Release, (), no_change,
           ORCHESTRATOR, "it holds no lease", ("WST-KI4",))
      for state in (IDLE, SHUTDOWN)),
    Rule(UNRESPONSIVE, Release, (Target(UNRESPONSIVE, "task_completed"),), _release, ORCHESTRATOR,
         "a lease of an unresponsive worker ended", ("WST-KI4",)),
    Rule(IDLE, ResumeTasks, (Target(BUSY, "task_assigned"),), _resume_tasks, ORCHESTRATOR,
         "it recovered while it still holds a lease", ("WST-KI1",)),
    Rule(BUSY, MissHealthChecks, (Target(UNRESPONSIVE, "health_check_timeout", ERROR),), _miss_health_checks,
         ORCHESTRATOR, "it missed too many health checks", ("WST-K4", "WST-KG4")),
    Rule(UNRESPONSIVE, Recover, (Target(IDLE, "health_check_recovered"),), _recover,
         ORCHESTRATOR, "it answers again", ("WST-K5", "WST-KG5")),
    Rule(UNRESPONSIVE, GiveUp, (Target(SHUTDOWN, "max_timeout_exceeded"),), _give_up, ORCHESTRATOR,
         "it did not recover in time", ("WST-K6",)),
    Rule(IDLE, Shutdown, (Target(SHUTDOWN, "shutdown_requested"),), _shut_down,
         ORCHESTRATOR, "shutdown requested, or presumed gone", ("WST-K7",)),
    Rule(BUSY, Shutdown, (Target(BUSY, "shutdown_requested"),), _shut_down_later, ORCHESTRATOR,
         "shutdown requested; it finishes its tasks first", ("WST-K8", "WST-KI3")),
    initial=INITIALIZING,
)
# fmt: on

TERMINAL: Final = MACHINE.terminal


# Why workers were shut down. Unless an operator removed it, a worker may return as a new incarnation.
LEFT: Final = "LEFT"
PRESUMED_GONE: Final = "PRESUMED_GONE"
REMOVED: Final = "REMOVED"
_MAY_RETURN: Final = frozenset({LEFT, PRESUMED_GONE, ""})  # The reason is empty after GiveUp.


def is_over(worker: Worker) -> bool:
    """Return whether this incarnation of the worker has shut down."""
    return worker.state in TERMINAL


def may_return(worker: Worker) -> bool:
    """Return whether a new incarnation of the worker may register.

    It may if this incarnation has ended and was not removed by an operator.
    """
    return is_over(worker) and worker.shutdown_reason in _MAY_RETURN


def is_unresponsive(worker: Worker) -> bool:
    """Return whether the worker is unresponsive, so that its next message recovers it."""
    return MACHINE.changes(worker.state, Recover)


def is_unresponsive_without_lease(worker: Worker) -> bool:
    """Return whether the worker may be shut down because of its silence."""
    return MACHINE.changes(worker.state, GiveUp) and not worker.tasks


def accepts_work(worker: Worker) -> bool:
    """Return whether the worker may get new work: it is idle or busy, neither on hold nor shutting down.

    Whether it has a free slot is not considered.
    """
    return MACHINE.changes(worker.state, Assign) and not worker.hold and not worker.shutdown_reason


def is_quarantined(worker: Worker) -> bool:
    """Return whether the worker is on hold because it is not trusted, not because an operator drained it."""
    return worker.hold == QUARANTINED


def carry_over_hold(previous_worker: Worker, next_id: str) -> Command | None:
    """Return the command that puts incarnation `next_id` on hold like `previous_worker`; None if that is not on hold.

    The command applies only to a newly registered worker.
    """
    reason, first_rev = previous_worker.hold_reason, 2  # The revision of a newly registered worker.
    if previous_worker.hold == DRAINED:
        return Drain(id=next_id, reason=reason, expected_rev=first_rev)
    if previous_worker.hold == QUARANTINED:
        return Quarantine(
            id=next_id, reason=f"from its previous incarnation: {reason}"[:MAX_REASON], expected_rev=first_rev
        )
    return None


# The condition of a worker in one word, for people. If several apply, `condition` returns the most important.
GONE: Final = "gone"
SILENT: Final = "silent"
STARTING: Final = "starting"
LEAVING: Final = "leaving"
READY: Final = "ready"
CONDITIONS: Final = (READY, BUSY.lower(), DRAINED.lower(), QUARANTINED.lower(), SILENT, LEAVING, STARTING, GONE)


def condition(worker: Worker, *, is_missed: bool) -> str:
    """Return the condition of the worker for people, one of `CONDITIONS`.

    `is_missed` means that its heartbeats stopped, which its record may not show yet.
    """
    if is_over(worker):
        return GONE
    if is_missed or is_unresponsive(worker):
        return SILENT
    if worker.state == INITIALIZING:
        return STARTING
    if worker.shutdown_reason:
        return LEAVING
    return (worker.hold or (BUSY if worker.tasks else READY)).lower()


def available_commands(state: str, hold: str, *, is_leaving: bool, tasks: int) -> frozenset[type[Command]]:
    """Return which of `Drain`, `Resume` and `Shutdown` an operator can apply to a worker in this state."""
    commands: set[type[Command]] = set()
    if hold and MACHINE.changes(state, Resume):
        commands.add(Resume)
    if hold != DRAINED and not is_leaving and MACHINE.changes(state, Drain):
        commands.add(Drain)
    if MACHINE.changes(state, Shutdown) and not is_leaving:
        commands.add(Shutdown)
    if MACHINE.changes(state, GiveUp) and not tasks:
        commands.add(Shutdown)
    return frozenset(commands)
