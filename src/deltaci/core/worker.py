"""The worker: a runner as the fleet sees it. Who is there, who is busy, who stopped answering."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.events import ERROR, ORCHESTRATOR, RUNNER, USER, WARNING, WORKER
from deltaci.core.machine import ABSENT, Command, Machine, Record, Rule, Target, Transition, no_change

INITIALIZING: Final = "INITIALIZING"
IDLE: Final = "IDLE"
BUSY: Final = "BUSY"
UNRESPONSIVE: Final = "UNRESPONSIVE"
SHUTDOWN: Final = "SHUTDOWN"

# Why a worker that is there takes no new work: somebody wants it so, or it is no longer trusted.
DRAINED: Final = "DRAINED"
QUARANTINED: Final = "QUARANTINED"

MAX_INFRA_FAILURES: Final = 3  # So many in a row, and it is no longer trusted.
MAX_REASON: Final = 500  # Characters of a reason that is made from another.
REPEATED_INFRA_FAILURES: Final = (
    "REPEATED_TROUBLES"  # The reason of the quarantine that follows from that, and of no other.
)


class Worker(Record, frozen=True, kw_only=True):
    """`tasks` are the attempts whose live leases it holds: a set that is derived, never a count that can leak.

    `troubles` counts tasks in a row that came to grief by its infrastructure. What it held at the time of one is
    `excused`: whatever tore that one away takes the others too, and is one trouble, however much it had to do.
    """

    labels: tuple[str, ...] = ()
    max_concurrent_tasks: int = 1
    tasks: tuple[str, ...] = ()
    shutdown_reason: str = ""
    token_at: int = 0  # When the token was made with which it came in last, by the clock of whoever made it.
    hold: str = ""  # DRAINED or QUARANTINED: it finishes what it has and takes nothing new.
    hold_reason: str = ""
    held_at: int = 0
    infra_failures: int = 0
    excused: tuple[str, ...] = ()


class Register(Command, frozen=True, kw_only=True):
    """A runner came up."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})


class CompleteRegistration(Command, frozen=True, kw_only=True):
    """Its capabilities are known."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})


class UpdateCapabilities(Command, frozen=True, kw_only=True):
    """Its runner says anew what it can and how much of it at once; None: as before.

    `token_at` is when the registration token was made with which it comes in again; 0: it was never away.
    """

    stored_name: ClassVar[str] = "Offer"
    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})

    tenant: str
    labels: tuple[str, ...] | None = None
    slots: int | None = msgspec.field(default=None, name="places")
    token_at: int = 0


class Assign(Command, frozen=True, kw_only=True):
    """It was granted a lease. `queue_key` names the labels that the attempt requires."""

    attempt_id: str
    queue_key: str = ""


class Release(Command, frozen=True, kw_only=True):
    """One of its leases ended. `trouble`: by its infrastructure; False: it did its part; None: that says nothing."""

    attempt_id: str
    is_infra_failure: bool | None = msgspec.field(default=None, name="trouble")


class MissHealthChecks(Command, frozen=True, kw_only=True):
    """It missed too many health checks in a row."""


class Recover(Command, frozen=True, kw_only=True):
    """It answers again."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER})


class ResumeTasks(Command, frozen=True, kw_only=True):
    """It came back with leases that it still holds."""

    stored_name: ClassVar[str] = "TakeUp"


class GiveUp(Command, frozen=True, kw_only=True):
    """It did not come back within the maximum."""


class Shutdown(Command, frozen=True, kw_only=True):
    """It shall stop: at once when idle, after its current tasks when busy."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, RUNNER, USER})

    reason: str = "REQUESTED"


class Drain(Command, frozen=True, kw_only=True):
    """It takes no new work until it is resumed; what it has it finishes."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str


class Quarantine(Command, frozen=True, kw_only=True):
    """It is not trusted: it takes no new work until it is resumed, or its runner registers anew."""

    reason: str


class Resume(Command, frozen=True, kw_only=True):
    """It takes work again, and what went wrong before is forgiven."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


def queue_key(labels: Iterable[str]) -> str:
    """The canonical form of a set of required labels: the same set, the same queue."""
    return ",".join(sorted(set(labels)))


def required_labels(key: str) -> set[str]:
    """The labels that a worker must have to take from this queue."""
    return set(key.split(",")) if key else set()


def _register(worker: Worker, _command: Register, at: int) -> Transition:
    return INITIALIZING, {"created_at": at}, {}


def _check_slots(worker: Worker, places: int) -> None:
    if places < 1:
        raise Refused("bad_request", f"worker {worker.id} offers {places} places; it needs at least one")


def _complete_registration(worker: Worker, _command: CompleteRegistration, _at: int) -> Transition:
    _check_slots(worker, worker.max_concurrent_tasks)
    return IDLE, {}, {"labels": list(worker.labels), "max_concurrent_tasks": worker.max_concurrent_tasks}


def _update_capabilities(worker: Worker, command: UpdateCapabilities, _at: int) -> Transition | None:
    if command.tenant != worker.tenant:
        raise Refused("not_found", f"there is no worker {worker.id!r}; check the id")
    labels = worker.labels if command.labels is None else command.labels
    offered = worker.max_concurrent_tasks if command.slots is None else command.slots
    _check_slots(worker, offered)
    # Leases of before are still its own: until they end it has as many places as it needs for them.
    places = max(offered, len(worker.tasks))
    changes: dict[str, Any] = {"labels": labels, "max_concurrent_tasks": places}
    if command.token_at:
        if command.token_at <= worker.token_at:
            raise Refused(
                "bad_credential", f"runner {worker.id} came in with a token that is as new as this; make a new one"
            )
        changes["token_at"] = command.token_at
    elif (labels, places) == (worker.labels, worker.max_concurrent_tasks):
        return None
    told: dict[str, Any] = {"labels": list(labels), "max_concurrent_tasks": places}
    if command.token_at and worker.hold == QUARANTINED:
        # A runner that was set up anew is trusted anew. What somebody decided about this worker stays decided.
        changes.update(_RESUMED)
        told.update(hold="", was=worker.hold)
    return worker.state, changes, told


def _assign(worker: Worker, command: Assign, _at: int) -> Transition | None:
    if command.attempt_id in worker.tasks:
        return None
    if worker.shutdown_reason:
        raise Refused("not_eligible", f"worker {worker.id} is shutting down; it takes no new work")
    if worker.hold:
        raise Refused("not_eligible", f"worker {worker.id} {_hold_description(worker)}")
    missing = required_labels(command.queue_key) - set(worker.labels)
    if missing:
        raise Refused(
            "not_eligible", f"worker {worker.id} lacks {', '.join(sorted(missing))}; give it to one that has it"
        )
    if len(worker.tasks) >= worker.max_concurrent_tasks:
        raise Refused(
            "worker_full",
            f"worker {worker.id} has {len(worker.tasks)} of {worker.max_concurrent_tasks} tasks; let one end",
        )
    tasks = (*worker.tasks, command.attempt_id)
    return BUSY, {"tasks": tasks}, {"attempt_id": command.attempt_id, "tasks": len(tasks)}


def _release(worker: Worker, command: Release, _at: int) -> Transition | None:
    if command.attempt_id not in worker.tasks:
        return None
    tasks = tuple(task for task in worker.tasks if task != command.attempt_id)
    changes: dict[str, Any] = {"tasks": tasks}
    told: dict[str, Any] = {"attempt_id": command.attempt_id, "tasks": len(tasks)}
    troubles = _infra_failures_after(worker, command)
    if troubles != worker.infra_failures:
        changes["infra_failures"] = told["troubles"] = troubles
    if troubles > worker.infra_failures:
        changes["excused"] = tasks
    elif worker.excused:
        changes["excused"] = tuple(task for task in worker.excused if task != command.attempt_id)
    if tasks or worker.state == UNRESPONSIVE:
        return worker.state, changes, told
    if worker.shutdown_reason:
        return SHUTDOWN, changes, {**told, "reason": worker.shutdown_reason}
    return IDLE, changes, told


def _infra_failures_after(worker: Worker, release: Release) -> int:
    if release.is_infra_failure is None:
        return worker.infra_failures
    if not release.is_infra_failure:
        return 0
    return worker.infra_failures + (release.attempt_id not in worker.excused)


def should_quarantine(worker: Worker, release: Release) -> bool:
    """Whether this release is one trouble too many. One that takes nothing new anyway is left as it is."""
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
        raise Refused(
            "not_eligible", f"worker {worker.id} holds nothing that it could take up again; assign it something"
        )
    return BUSY, {}, {"attempt_id": worker.tasks[0], "tasks": len(worker.tasks)}


def _give_up(worker: Worker, _command: GiveUp, _at: int) -> Transition:
    if worker.tasks:
        raise Refused(
            "not_eligible", f"worker {worker.id} still holds {', '.join(worker.tasks)}; let those leases end first"
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
    word = "is drained" if worker.hold == DRAINED else "is quarantined"
    reason = f" ({worker.hold_reason})" if worker.hold_reason else ""
    return f"{word}{reason} and takes no new work; resume it, or give it to another one"


def _drain(worker: Worker, command: Drain, at: int) -> Transition | None:
    # The first word stands; but it also stands above a quarantine, which the next registration would end.
    if worker.hold == DRAINED:
        return None
    changes = {"hold": DRAINED, "hold_reason": command.reason, "held_at": at}
    return worker.state, changes, {"hold": DRAINED, "reason": command.reason}


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
         ORCHESTRATOR, "a runner came up", ("WST-KA1",)),
    Rule(INITIALIZING, CompleteRegistration, (Target(IDLE, "registration_complete"),), _complete_registration,
         ORCHESTRATOR, "its capabilities are known", ("WST-K1", "WST-KG1")),
    *(Rule(state, UpdateCapabilities, (Target(state, "capabilities_registered"),), _update_capabilities, ORCHESTRATOR,
           "its runner came in again, or offers something else than before", ("WST-KG1", "WST-KI1"))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    *(Rule(state, Drain, (Target(state, "drained"),), _drain, ORCHESTRATOR,
           "it finishes what it has and takes nothing new", ("WST-KH1",))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    *(Rule(state, Quarantine, (Target(state, "quarantined", WARNING),), _quarantine, ORCHESTRATOR,
           "it is no longer trusted with work", ("WST-KH3",))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    *(Rule(state, Resume, (Target(state, "resumed"),), _resume, ORCHESTRATOR,
           "it takes work again", ("WST-KH2",))
      for state in (IDLE, BUSY, UNRESPONSIVE)),
    Rule(IDLE, Assign, (Target(BUSY, "task_assigned"),), _assign,
         ORCHESTRATOR, "it was granted a lease", ("WST-K2", "WST-KG2")),
    Rule(BUSY, Assign, (Target(BUSY, "task_assigned"),), _assign,
         ORCHESTRATOR, "one lease more, within its places", ("WST-KI1",)),
    Rule(BUSY, Release,
         (Target(IDLE, "task_completed"), Target(BUSY, "task_completed"), Target(SHUTDOWN, "shutdown_requested")),
         _release, ORCHESTRATOR, "a lease ended; after the last one it is idle, or gone if it was asked to go",
         ("WST-K3", "WST-K8", "WST-KI3")),
    *(Rule(state, Release, (), no_change,
           ORCHESTRATOR, "it holds no lease any more", ("WST-KI4",))
      for state in (IDLE, SHUTDOWN)),
    Rule(UNRESPONSIVE, Release, (Target(UNRESPONSIVE, "task_completed"),), _release, ORCHESTRATOR,
         "a silent worker loses its leases one by one", ("WST-KI4",)),
    Rule(IDLE, ResumeTasks, (Target(BUSY, "task_assigned"),), _resume_tasks, ORCHESTRATOR,
         "it came back while it still has to stop something", ("WST-KI1",)),
    Rule(BUSY, MissHealthChecks, (Target(UNRESPONSIVE, "health_check_timeout", ERROR),), _miss_health_checks,
         ORCHESTRATOR, "it missed too many health checks", ("WST-K4", "WST-KG4")),
    Rule(UNRESPONSIVE, Recover, (Target(IDLE, "health_check_recovered"),), _recover,
         ORCHESTRATOR, "it answers again", ("WST-K5", "WST-KG5")),
    Rule(UNRESPONSIVE, GiveUp, (Target(SHUTDOWN, "max_timeout_exceeded"),), _give_up, ORCHESTRATOR,
         "it did not come back", ("WST-K6",)),
    Rule(IDLE, Shutdown, (Target(SHUTDOWN, "shutdown_requested"),), _shut_down,
         ORCHESTRATOR, "asked to go, or presumed gone", ("WST-K7",)),
    Rule(BUSY, Shutdown, (Target(BUSY, "shutdown_requested"),), _shut_down_later, ORCHESTRATOR,
         "asked to go; it finishes its tasks first", ("WST-K8", "WST-KI3")),
    initial=INITIALIZING,
)
# fmt: on

TERMINAL: Final = MACHINE.terminal


# Why workers went. Those that went by themselves may come back, in a new life under their name.
LEFT: Final = "LEFT"
PRESUMED_GONE: Final = "PRESUMED_GONE"
REMOVED: Final = "REMOVED"
_MAY_RETURN: Final = frozenset({LEFT, PRESUMED_GONE, ""})  # Who was given up has no reason of its own.


def is_over(record: Worker) -> bool:
    """Whether this life of the worker is over."""
    return record.state in TERMINAL


def may_return(record: Worker) -> bool:
    """Whether this life is over, and nobody wanted that."""
    return is_over(record) and record.shutdown_reason in _MAY_RETURN


def is_unresponsive(record: Worker) -> bool:
    """Whether it was found silent, and recovers by speaking."""
    return MACHINE.changes(record.state, Recover)


def accepts_work(record: Worker) -> bool:
    """Whether it may be given something, as soon as it has room for it: nobody holds it back, and it does not leave."""
    return MACHINE.changes(record.state, Assign) and not record.hold and not record.shutdown_reason


def is_quarantined(record: Worker) -> bool:
    """Whether it is held back because of what happened, and not because somebody wants it so."""
    return record.hold == QUARANTINED


def carry_over_hold(record: Worker, id: str) -> Command | None:
    """The order by which the next life of a worker, which was just born, is held back as the last one was; or none."""
    reason, born = record.hold_reason, 2  # The revision that a worker is born with.
    if record.hold == DRAINED:
        return Drain(id=id, reason=reason, expected_rev=born)
    if record.hold == QUARANTINED:
        return Quarantine(id=id, reason=f"since its last life: {reason}"[:MAX_REASON], expected_rev=born)
    return None


# How a worker is, in one word for people. What says most about it goes before the rest.
GONE: Final = "gone"
SILENT: Final = "silent"
STARTING: Final = "starting"
LEAVING: Final = "leaving"
READY: Final = "ready"
CONDITIONS: Final = (READY, BUSY.lower(), DRAINED.lower(), QUARANTINED.lower(), SILENT, LEAVING, STARTING, GONE)


def condition(record: Worker, *, is_missed: bool) -> str:
    """One of `CONDITIONS`. `is_missed`: it is not heard any more, whatever its record says."""
    if is_over(record):
        return GONE
    if is_missed or is_unresponsive(record):
        return SILENT
    if record.state == INITIALIZING:
        return STARTING
    if record.shutdown_reason:
        return LEAVING
    return (record.hold or (BUSY if record.tasks else READY)).lower()


def available_commands(state: str, hold: str, *, is_leaving: bool, tasks: int) -> frozenset[type[Command]]:
    """What people can want of a worker as it is: to drain it, to resume it, to have it removed."""
    found: set[type[Command]] = set()
    if hold and MACHINE.changes(state, Resume):
        found.add(Resume)
    if hold != DRAINED and not is_leaving and MACHINE.changes(state, Drain):
        found.add(Drain)
    if MACHINE.changes(state, Shutdown) and not is_leaving:
        found.add(Shutdown)
    if MACHINE.changes(state, GiveUp) and not tasks:
        found.add(Shutdown)
    return frozenset(found)
