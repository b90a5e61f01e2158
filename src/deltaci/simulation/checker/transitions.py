"""The transitions that the documents allow, with the trigger and the permitted actors of each.

The tables are written by hand from the documents, not derived from the core, so that a mistake in the core is found.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

SECOND: Final = 1_000_000  # Times in the log are in microseconds.

# Entity, from (comma-separated), to (= for an unchanged state), trigger, permitted kinds of actor.
_TRANSITIONS: Final = """
run -                                            CREATED          created                orchestrator,user
run CREATED                                      PLANNING         run_created            orchestrator
run PLANNING                                     =                group_awaited          orchestrator
run PLANNING                                     QUEUED           plan_returned          orchestrator
run PLANNING                                     PLAN_FAILED      plan_failed            orchestrator
run PLAN_FAILED                                  FAILED           run_finalized          orchestrator
run QUEUED                                       RUNNING          first_attempt_active   orchestrator
run RUNNING                                      WAITING_APPROVAL approval_gate_reached  orchestrator
run WAITING_APPROVAL                             RUNNING          approval_resolved      orchestrator
run QUEUED,RUNNING,WAITING_APPROVAL              =                optional_wait_began    orchestrator
run QUEUED,RUNNING,WAITING_APPROVAL              =                optional_wait_ended    orchestrator
run RUNNING                                      VALIDATING       all_jobs_done          orchestrator
run VALIDATING                                   SUCCESS          all_required_succeeded orchestrator
run VALIDATING                                   FAILED           validation_failed      orchestrator
run RUNNING,WAITING_APPROVAL                     FAILED           required_job_failed    orchestrator
run RUNNING,VALIDATING                           TIMEOUT          run_timed_out          orchestrator
run CREATED,PLANNING                             =                cancel_requested       orchestrator,user
run QUEUED,RUNNING,WAITING_APPROVAL,VALIDATING   CANCEL_REQUESTED cancel_requested       orchestrator,user
run CANCEL_REQUESTED                             CANCELED         cancel_finalized       orchestrator
run SUCCESS,FAILED,CANCELED,TIMEOUT              REPORTED         statuses_published     reporter
job -                                            PENDING          created                orchestrator
job PENDING                                      QUEUED           scheduler_assigned     orchestrator
job PENDING                                      WAITING_APPROVAL approval_opened        orchestrator
job QUEUED                                       RUNNING          worker_started         orchestrator
job RUNNING                                      =                worker_started         orchestrator
job RUNNING                                      VALIDATING       execution_completed    orchestrator
job RUNNING                                      RETRYING         execution_failed       orchestrator
job RUNNING                                      FAILED           execution_failed       orchestrator
job RETRYING                                     QUEUED           retry_delay_elapsed    orchestrator
job VALIDATING                                   SUCCEEDED        validation_passed      orchestrator
job VALIDATING                                   FAILED           validation_failed      orchestrator
job WAITING_APPROVAL                             =                approval_given         user
job WAITING_APPROVAL                             SUCCEEDED        approved               user
job WAITING_APPROVAL                             FAILED           rejected               user
job WAITING_APPROVAL                             FAILED           approval_expired       orchestrator
job PENDING,QUEUED,RUNNING,VALIDATING            CANCELED         user_cancelled         orchestrator,user
job RETRYING,WAITING_APPROVAL                    CANCELED         user_cancelled         orchestrator,user
attempt CREATED                                  QUEUED           enqueued               orchestrator,user
attempt QUEUED,STALE                             LEASED           claimed                worker
attempt LEASED                                   STARTING         acknowledged           worker
attempt STARTING                                 RUNNING          started                worker
attempt STARTING,RUNNING,UPLOADING               =                heartbeat              worker
attempt LEASED,STARTING,RUNNING,UPLOADING        =                marked_for_reassignment orchestrator
attempt CANCEL_REQUESTED                         =                heartbeat              worker
attempt CANCEL_REQUESTED                         =                acknowledged           worker
attempt RUNNING                                  UPLOADING        upload_began           worker
attempt UPLOADING                                SUCCEEDED        succeeded              worker
attempt UPLOADING                                FAILED           failed                 worker
attempt LEASED,STARTING,RUNNING,UPLOADING        STALE            stalled                orchestrator,user
attempt STALE                                    QUEUED           requeued               orchestrator,user
attempt STALE                                    FAILED           failed                 orchestrator,user
attempt RUNNING,UPLOADING                        TIMED_OUT        failed                 orchestrator
attempt QUEUED,STALE                             CANCEL_REQUESTED cancel_requested       orchestrator,user
attempt LEASED,STARTING,RUNNING,UPLOADING        CANCEL_REQUESTED cancel_requested       orchestrator,user
attempt CANCEL_REQUESTED                         CANCELED         failed                 orchestrator,worker
worker -                                         INITIALIZING     registered             orchestrator,worker
worker INITIALIZING                              IDLE             registration_complete  orchestrator,worker
worker IDLE,BUSY,UNRESPONSIVE                    =                capabilities_registered orchestrator,worker
worker IDLE,BUSY,UNRESPONSIVE                    =                drained                orchestrator,user
worker IDLE,BUSY,UNRESPONSIVE                    =                quarantined            orchestrator
worker IDLE,BUSY,UNRESPONSIVE                    =                resumed                orchestrator,user
worker IDLE                                      BUSY             task_assigned          orchestrator
worker BUSY                                      =                task_assigned          orchestrator
worker BUSY                                      IDLE             task_completed         orchestrator
worker BUSY,UNRESPONSIVE                         =                task_completed         orchestrator
worker BUSY                                      SHUTDOWN         shutdown_requested     orchestrator
worker BUSY                                      UNRESPONSIVE     health_check_timeout   orchestrator
worker UNRESPONSIVE                              IDLE             health_check_recovered orchestrator,worker
worker UNRESPONSIVE                              SHUTDOWN         max_timeout_exceeded   orchestrator
worker IDLE                                      SHUTDOWN         shutdown_requested     orchestrator,user,worker
worker BUSY                                      =                shutdown_requested     orchestrator,user,worker
"""
_LEASE_TRANSITIONS: Final = """
- GRANTED
GRANTED ACTIVE EXPIRED REVOKED
ACTIVE ACTIVE COMPLETED CANCELED EXPIRED REVOKED
"""

Edge = tuple[str, str | None, str, str]  # Entity, from, to, trigger; the trigger is empty for a lease.


def _parse_transitions() -> dict[Edge, frozenset[str]]:
    """Return the kinds of actors that may make each transition of the table."""
    transitions: dict[Edge, frozenset[str]] = {}
    for table_line in _TRANSITIONS.strip().splitlines():
        entity, sources, target, trigger, actors = table_line.split()
        for source in sources.split(","):
            to_state = source if target == "=" else target
            transitions[entity, None if source == "-" else source, to_state, trigger] = frozenset(actors.split(","))
    return transitions


TRANSITIONS: Final = _parse_transitions()
LEGAL_CHANGES: Final = frozenset((entity, source, to) for entity, source, to, _ in TRANSITIONS)
LEASE_TRANSITIONS: Final[dict[str | None, frozenset[str]]] = {
    None if line.split()[0] == "-" else line.split()[0]: frozenset(line.split()[1:])
    for line in _LEASE_TRANSITIONS.strip().splitlines()
}

JOB_TERMINAL_STATES: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELED"})
ATTEMPT_TERMINAL_STATES: Final = frozenset({"SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELED"})
RUN_OUTCOMES: Final = frozenset({"SUCCESS", "FAILED", "CANCELED", "TIMEOUT"})
ACTIVE_RUN_STATES: Final = frozenset({"QUEUED", "RUNNING", "WAITING_APPROVAL"})  # The run's jobs may still start.
# The job needs no person to continue.
ACTIVE_JOB_STATES: Final = frozenset({"QUEUED", "RUNNING", "VALIDATING", "RETRYING"})
LIVE_LEASE_STATES: Final = frozenset({"GRANTED", "ACTIVE"})
LEASED_STATES: Final = frozenset({"LEASED", "STARTING", "RUNNING", "UPLOADING"})
TERMINAL_STATES: Final = {
    "run": frozenset({"REPORTED"}),
    "job": JOB_TERMINAL_STATES,
    "attempt": ATTEMPT_TERMINAL_STATES,
    "worker": frozenset({"SHUTDOWN"}),
}
CLAIMABLE_ATTEMPT_STATES: Final = frozenset({"QUEUED", "STALE"})
STALE_REASONS: Final = frozenset({"LEASE_EXPIRED", "NOT_ACCEPTED", "HANDED_BACK", "STALLED"})


class LogEvent(Protocol):
    """The fields of an event that the checker reads. `entity` is the kind of record: run, job, attempt or worker."""

    @property
    def seq(self) -> int: ...
    @property
    def at(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def entity(self) -> str: ...
    @property
    def entity_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def from_(self) -> str | None: ...
    @property
    def to(self) -> str: ...
    @property
    def trigger(self) -> str: ...
    @property
    def actor(self) -> str: ...
    @property
    def request_id(self) -> str: ...
    @property
    def rev(self) -> int: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


class Violation(AssertionError):
    """Raised when the history breaks an invariant."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
