"""Verify the canonical log in one pass.

Each line is checked in this order:
1. on its own: schema, sequence number, transition, actor, severity (`_step_problems`);
2. against its entity: state, rev, tenant and time (`_check_continuity`);
3. through every view: each document must allow the step (`_project`);
4. against related entities: the checks in `attempts`, `jobs`, `runs`, `workers`, `approvals` and `resources`.

All events of one transaction have the same time. When the time of a scope (a run with all its entities, a worker, or an
attempt without a run) moves on, its last transaction is complete, and the `check_transaction` functions check the
entities that it changed. An entity is dropped when it has ended, so memory does not grow with the length of the log.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from deltaci.audit.projections import views_of
from deltaci.audit.projections.canonical import LEASE_WORDS
from deltaci.audit.verify import attempts, jobs, resources, runs, workers
from deltaci.audit.verify.log_lines import (
    AnyEventLine,
    AttemptEventLine,
    EventLine,
    JobEventLine,
    LeaseChange,
    LeaseEventLine,
    ResourceEventLine,
    RunEventLine,
    WorkerEventLine,
)
from deltaci.audit.verify.report import RecentIds, Report
from deltaci.audit.verify.tracked import (
    TrackedAttempt,
    TrackedEntity,
    TrackedJob,
    TrackedResource,
    TrackedRun,
    TrackedWorker,
    TransactionScope,
)
from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import lease
from deltaci.core import resource as core_resource
from deltaci.core import run as core_run
from deltaci.core import worker as core_worker
from deltaci.core.events import (
    ATTEMPT,
    CRITICAL,
    ERROR,
    INFO,
    JOB,
    LEASE,
    ORCHESTRATOR,
    RESOURCE,
    RUN,
    RUNNER,
    WORKER,
    actor_kind,
)
from deltaci.core.ids import lease_name
from deltaci.core.machine import Machine, stored_name
from deltaci.core.status.view import LEFT_OUT, Change, Edge, Extension

MACHINES: Final[dict[str, Machine[Any]]] = {
    RUN: core_run.MACHINE,
    JOB: core_job.MACHINE,
    ATTEMPT: core_attempt.MACHINE,
    WORKER: core_worker.MACHINE,
    LEASE: lease.MACHINE,
    RESOURCE: core_resource.MACHINE,
}
# (entity, from, to, command): the transitions that a command may imply.
IMPLIED: Final = frozenset(
    (name, step.source or None, target.state, stored_name(step.command))
    for name, machine in MACHINES.items()
    for step in machine.implied_steps
    if (rule := machine.rule(step.source, step.first)) is not None
    for target in rule.targets
)
TERMINAL: Final = {name: machine.terminal for name, machine in MACHINES.items()}
DOCUMENT_RULE: Final = {
    RUN: "ORC-O1",
    JOB: "WST-V1",
    ATTEMPT: "QUE-T12",
    WORKER: "WST-V1",
    LEASE: "ORC-LF3",
    RESOURCE: resources.RULE,
}

# (entity, from, to, trigger) -> kind of actor that may cause it -> severities that it may then have.
LEGAL: Final[dict[tuple[str, str | None, str, str], dict[str, set[str]]]] = {}
for _name, _machine in MACHINES.items():
    for _rule in _machine.rules:
        for _target in _rule.targets:
            _actors = LEGAL.setdefault((_name, _rule.source or None, _target.state, _target.trigger), {})
            for _kind in _rule.command.by:
                _actors.setdefault(_kind, set()).add(_target.severity)
# In older logs an acknowledgement and the begin of the uploads were called heartbeats, and an expiry a rejection; the
# time of waiting for approval counted for the run timeout (see `runs.check_timed_out`).
LEGACY: Final[dict[tuple[str, str | None, str, str], dict[str, set[str]]]] = {
    (ATTEMPT, core_attempt.LEASED, core_attempt.STARTING, "heartbeat"): {RUNNER: {INFO}},
    (ATTEMPT, core_attempt.RUNNING, core_attempt.UPLOADING, "heartbeat"): {RUNNER: {INFO}},
    (JOB, core_job.WAITING_APPROVAL, core_job.FAILED, "rejected"): {ORCHESTRATOR: {ERROR}},
    (RUN, core_run.WAITING_APPROVAL, core_run.TIMEOUT, "run_timed_out"): {ORCHESTRATOR: {CRITICAL}},
}

VIEWS: Final = {name: views_of(name) for name in MACHINES}
CHECKS: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    ATTEMPT: attempts.CHECKS,
    JOB: jobs.CHECKS,
    RUN: runs.CHECKS,
    WORKER: workers.CHECKS,
    RESOURCE: resources.CHECKS,
}

_decode = msgspec.json.Decoder(AnyEventLine).decode

EntityEventLine = RunEventLine | JobEventLine | AttemptEventLine | WorkerEventLine | ResourceEventLine
Problem = tuple[str, str, str]  # The rule, what the log says, and what would be legal.


def legal_targets(entity: str, from_state: str | None) -> str:
    """Return the transitions that are allowed from a state, as text for a message."""
    transitions = [
        f"{target} by {trigger}" for (kind, from_, target, trigger) in LEGAL if (kind, from_) == (entity, from_state)
    ]
    return ", ".join(transitions) or "nothing: the state is terminal"


def _implied_by(event: EventLine) -> str:
    """Return the command that implied the event; empty if the event's own command was sent."""
    metadata = event.metadata if isinstance(event, RunEventLine | AttemptEventLine) else None
    return (metadata.implied_by or "") if metadata is not None else ""


def _is_recent(event: EventLine) -> bool:
    """Return whether the event has metadata that the events in `LEGACY` do not have."""
    if isinstance(event, AttemptEventLine):
        return event.metadata.message is not None or event.metadata.implied_by is not None
    return isinstance(event, JobEventLine) and event.metadata.approve_by is not None


def _step_problems(event: EventLine, actor: str) -> list[Problem]:
    """Return the problems of the event's transition, actor and severity.

    The entity's earlier events are not considered.
    """
    kind, step_text = event.entity, f"{event.from_} → {event.to}"
    transition = (kind, event.from_, event.to, event.trigger)
    allowed_by = LEGAL.get(transition, {})
    if not _is_recent(event):
        allowed_by = {**allowed_by, **LEGACY.get(transition, {})}
    if not allowed_by:
        legal_text = f"from {event.from_}: {legal_targets(kind, event.from_)}"
        return [(DOCUMENT_RULE[kind], f"{step_text} by {event.trigger}", legal_text)]
    severities = allowed_by.get(actor)
    if severities is None:
        return [
            ("ORC-O1", f"{step_text} by {event.trigger} was made by {event.actor}", " or ".join(sorted(allowed_by)))
        ]
    implied_by = _implied_by(event)
    if implied_by and (kind, event.from_, event.to, implied_by) not in IMPLIED:
        return [("MOD-13", f"{step_text} is implied by {implied_by}", "a command that implies it, or none")]
    if event.severity not in severities:
        return [("WST-E3", f"{step_text} has severity {event.severity}", " or ".join(sorted(severities)))]
    return []


class CanonicalVerifier:
    """Verifies one canonical log, line by line.

    The check functions of the other modules read `live` (the tracked entities), `workers` and `groups`, count
    `administrative_numbers`, and call `flag` and `touch`.
    """

    def __init__(self) -> None:
        self.report = Report("canonical events")
        self.live: dict[str, Any] = {}
        self.workers: dict[str, TrackedWorker] = {}
        self.groups: dict[tuple[str, str], TrackedAttempt] = {}  # (tenant, group) -> its latest attempt with a lease.
        self.administrative_numbers: dict[str, int] = {}  # The latest number by tenant.
        self.recent = RecentIds()
        self.line_number = 0
        self.seq = 0
        self._pending_lease: tuple[EventLine, LeaseChange] | None = None
        self._step_cache: dict[tuple[Any, ...], tuple[tuple[str | None, ...], tuple[Problem, ...]]] = {}

    def flag(self, rule: str, problem: str, legal_text: str) -> None:
        """Report that the current line breaks a rule, with the problem and the legal alternative as text."""
        self.report.add(self.line_number, rule, problem, legal_text)

    def feed(self, number: int, raw_event: bytes) -> None:
        """Verify one line: on its own, against its entity, through every view and against related entities."""
        self.line_number = number
        try:
            event = _decode(raw_event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.flag("MOD-E1", f"the line cannot be read: {error}", "one JSON object with the fields of an event")
            return
        if isinstance(event, LeaseEventLine):
            self._check_lease_event(event)
            return
        if self._pending_lease is not None:
            self._flag_missing_lease_event()
        if event.seq <= self.seq:
            self.flag("MOD-E1", f"seq {event.seq} after {self.seq}", f"a seq greater than {self.seq}")
        else:
            self.seq = event.seq
        entity = self.live.get(event.entity_id) or self._create(event)
        if entity is None:
            return
        if entity.kind != event.entity:
            self.flag("MOD-E1", f"{event.entity_id} is a {entity.kind}, not a {event.entity}", "one id for one entity")
            return
        self.touch(entity, event)
        if (
            event.rev != entity.rev + 1
            or event.from_ != entity.state
            or event.tenant != entity.tenant
            or event.run_id != entity.run_id
            or event.at < entity.at
        ):
            self._check_continuity(entity, event)
        self._check_step(entity, event)
        for check in CHECKS[entity.kind].get(event.to, ()):
            check(self, entity, event, event.metadata)
        self._apply_event(entity, event)

    def end(self) -> Report:
        """Check the unfinished transaction of each scope and return the report."""
        self._flag_missing_lease_event()
        for scope in {id(entity.scope): entity.scope for entity in self.live.values()}.values():
            self._close_transaction(scope)
        return self.report

    def _create(self, event: EntityEventLine) -> TrackedEntity | None:
        """Begin to track the entity of a first event, and return it.

        Report an event that cannot be the first of its entity, and return None.
        """
        self.report.entity_count += 1
        initial = core_attempt.CREATED if event.entity == ATTEMPT else None
        if event.from_ != initial or event.rev != 1 or event.entity_id in self.recent:
            status = "has ended" if event.entity_id in self.recent else "was never created"
            rule = "MOD-9" if event.entity_id in self.recent else "MOD-10"
            problem = f"{event.entity} {event.entity_id} {status}, and now goes {event.from_} → {event.to}"
            self.flag(rule, problem, "its creation first")
            self.report.entity_count -= 1
            return None
        entity = self._build_entity(event)
        if entity is not None:
            self.live[event.entity_id] = entity
        return entity

    def _build_entity(self, event: EntityEventLine) -> TrackedEntity | None:
        """Return a tracked entity for its first event; report one whose run or job is unknown, and return None."""
        if event.entity == RUN:
            return TrackedRun(event.entity_id, event.tenant, event.run_id, TransactionScope())
        if event.entity == WORKER:
            worker = TrackedWorker(event.entity_id, event.tenant, event.run_id, TransactionScope())
            self.workers[event.entity_id] = worker
            return worker
        if event.entity == RESOURCE:
            return TrackedResource(event.entity_id, event.tenant, event.run_id, TransactionScope())
        run = self.live.get(event.run_id) if event.run_id else None
        if event.run_id and not isinstance(run, TrackedRun):
            self.flag(
                "MOD-E1",
                f"{event.entity} {event.entity_id} belongs to run {event.run_id}, which does not exist",
                "its run first",
            )
            return None
        if event.entity == JOB:
            if run is None:
                self.flag("MOD-E1", f"job {event.entity_id} belongs to no run", "the run_id of its run")
                return None
            return TrackedJob(event.entity_id, event.tenant, event.run_id, run.scope, run=run)
        if run is None:
            return TrackedAttempt(event.entity_id, event.tenant, event.run_id, TransactionScope(), job=None)
        job_id = event.metadata.job_id if isinstance(event, AttemptEventLine) else None
        job = run.jobs.get(job_id or "")
        if job is None:
            self.flag(
                "ORC-A1",
                f"attempt {event.entity_id} belongs to job {job_id!r}, which is not in its run",
                "its job first",
            )
            return None
        return TrackedAttempt(event.entity_id, event.tenant, event.run_id, run.scope, job=job)

    def touch(self, entity: TrackedEntity, event: EventLine) -> None:
        """Add the entity to the transaction in progress of its scope.

        If the event has another time than that transaction, check and close the transaction first. Servers that write
        concurrently may commit slightly out of order, so time must be monotonic only per entity.
        """
        scope = entity.scope
        if event.at != scope.at:
            self._close_transaction(scope)
            scope.at = event.at
        scope.line_number = self.line_number
        scope.touched[entity.id] = entity

    def _check_continuity(self, entity: TrackedEntity, event: EventLine) -> None:
        """Report each of rev, state, tenant, time and run that does not follow from the entity's last event."""
        kind = event.entity
        if event.rev != entity.rev + 1:
            self.flag("MOD-10", f"{kind} {entity.id} has rev {event.rev} after {entity.rev}", f"rev {entity.rev + 1}")
        if event.from_ != entity.state:
            rule = "MOD-9" if entity.state in TERMINAL[kind] else "WST-TI1"
            problem = f"{kind} {entity.id} is {entity.state} and goes {event.from_} → {event.to}"
            self.flag(rule, problem, f"from {entity.state}: {legal_targets(kind, entity.state)}")
        if event.tenant != entity.tenant:
            self.flag(
                "STP-X1", f"{kind} {entity.id} moved from tenant {entity.tenant!r} to {event.tenant!r}", "its tenant"
            )
        if event.at < entity.at:
            problem = f"{kind} {entity.id} changes at {event.at.isoformat()} after {entity.at.isoformat()}"
            self.flag("WST-V4", problem, "a time that does not go back")
        if event.run_id != entity.run_id:
            self.flag("MOD-E1", f"{kind} {entity.id} moved from run {entity.run_id!r} to {event.run_id!r}", "its run")

    def _check_step(self, entity: TrackedEntity, event: EventLine) -> None:
        """Report the problems of the event's transition, on its own and in every view.

        Update the entity's state in each view. Logs repeat few distinct steps, so results are cached.
        """
        actor = actor_kind(event.actor)
        step_fields = (event.from_, event.to, event.trigger, actor, event.severity)
        cache_key = (event.entity, entity.state_per_view, step_fields, _implied_by(event), _is_recent(event))
        cached = self._step_cache.get(cache_key)
        if cached is None:
            state_per_view, view_problems = self._project(event, entity.state_per_view)
            cached = self._step_cache[cache_key] = (state_per_view, (*_step_problems(event, actor), *view_problems))
        entity.state_per_view, problems = cached
        for rule, problem, legal_text in problems:
            self.flag(rule, f"{event.entity} {entity.id}: {problem}", legal_text)

    def _project(
        self, event: EventLine, state_per_view: tuple[str | None, ...]
    ) -> tuple[tuple[str | None, ...], list[Problem]]:
        """Return the entity's state in each view after the event, and the steps that a document does not allow."""
        change = Change(event.from_, event.to, event.trigger, event.actor, _implied_by(event))
        new_states: list[str | None] = []
        problems: list[Problem] = []
        for index, view in enumerate(VIEWS[event.entity]):
            old_state = state_per_view[index] if index < len(state_per_view) else None
            if event.to not in MACHINES[event.entity].states:
                new_states.append(old_state)
                continue
            steps, new_state = view.project_change(old_state, change)
            new_states.append(new_state)
            for step in steps:
                if view.allows(step) is None:
                    edges: tuple[Edge | Extension, ...] = (*view.edges, *view.extensions)
                    allowed_targets = [edge.target for edge in edges if edge.source == step.source]
                    problem = f"document {view.document} sees {step.source} → {step.target} by {step.trigger}"
                    problems.append(("MOD-V1", problem, ", ".join(allowed_targets) or "nothing"))
        return tuple(new_states), problems

    def _apply_event(self, entity: TrackedEntity, event: EntityEventLine) -> None:
        """Change the tracked entity to the event's state.

        A worker, or an attempt without a job, is dropped at its end; a run with its jobs when all have ended.
        An illegal state is taken over as well, so that one mistake is reported once.
        """
        old_state = entity.state
        entity.state, entity.rev, entity.at = event.to, event.rev, event.at
        if isinstance(entity, TrackedRun):
            if event.to in core_run.TERMINAL:
                self._close_transaction(entity.scope)  # It is the transaction's last event, and the run can be dropped.
        elif isinstance(entity, TrackedJob):
            jobs.update_counters(entity, old_state)
            if entity.run.state in core_run.TERMINAL and event.to in core_job.TERMINAL:
                self._close_transaction(entity.scope)
            if event.from_ is None and not entity.is_task:
                entity.state_per_view = tuple(
                    LEFT_OUT if view.name == "003 task" else state
                    for view, state in zip(VIEWS[JOB], entity.state_per_view, strict=True)
                )
        elif isinstance(entity, TrackedAttempt):
            lease_change = event.metadata.lease if isinstance(event, AttemptEventLine) else None
            if lease_change is not None:
                self._pending_lease = (event, lease_change)
            if entity.job is None and event.to in core_attempt.TERMINAL:
                self._forget(entity)
                return
        elif isinstance(entity, TrackedWorker) and event.to in core_worker.TERMINAL:
            self._close_transaction(entity.scope)
            self._forget(entity)
            self.workers.pop(entity.id, None)

    def _close_transaction(self, scope: TransactionScope) -> None:
        """Check the entities that the scope's transaction changed, and drop the run if it and its jobs have ended."""
        if not scope.touched:
            return
        touched, scope.touched = list(scope.touched.values()), {}
        number_before, self.line_number = self.line_number, scope.line_number
        run: TrackedRun | None = None
        for entity in touched:
            if isinstance(entity, TrackedJob):
                jobs.check_transaction(self, entity)
                run = entity.run
            elif isinstance(entity, TrackedAttempt):
                attempts.check_transaction(self, entity)
            elif isinstance(entity, TrackedWorker):
                workers.check_transaction(self, entity)
            elif isinstance(entity, TrackedRun):
                run = entity
        if run is not None:
            runs.check_transaction(self, run)
            if run.state in core_run.TERMINAL and all(job.state in core_job.TERMINAL for job in run.jobs.values()):
                for job in run.jobs.values():
                    if job.latest_attempt is not None:
                        self._forget(job.latest_attempt)
                    self._forget(job)
                self._forget(run)
        self.line_number = number_before

    def _forget(self, entity: TrackedEntity) -> None:
        self.live.pop(entity.id, None)
        self.recent.add(entity.id)

    def _check_lease_event(self, event: LeaseEventLine) -> None:
        """Report a lease's line that does not follow its attempt's line immediately or has another content."""
        pending_lease, self._pending_lease = self._pending_lease, None
        if pending_lease is None:
            self.flag(
                "MOD-E3", f"lease {event.entity_id} changes without its attempt", "its attempt's event right before"
            )
            return
        attempt_event, change = pending_lease
        if (
            event.seq == attempt_event.seq
            and event.rev == attempt_event.rev
            and event.to == change.to
            and event.from_ == change.from_
            and event.at == attempt_event.at
            and event.actor == attempt_event.actor
            and event.tenant == attempt_event.tenant
            and event.run_id == attempt_event.run_id
            and event.request_id == attempt_event.request_id
            and event.metadata.worker_id == change.worker_id
            and event.entity_id == lease_name(attempt_event.entity_id, change.number)
            and (event.trigger, event.severity) == LEASE_WORDS.get((change.from_, change.to))
        ):
            return
        legal_text = f"lease {change.number} of {change.worker_id}, {change.from_} → {change.to}"
        legal_text += (
            f", seq {attempt_event.seq}, rev {attempt_event.rev}, and all other fields as in its attempt's event"
        )
        problem = f"lease {event.entity_id} of {event.metadata.worker_id}, {event.from_} → {event.to}"
        problem += f", seq {event.seq}, rev {event.rev} differs from its attempt's event"
        self.flag("MOD-E3", problem, legal_text)

    def _flag_missing_lease_event(self) -> None:
        """Report an attempt's event that changed its lease without a line for the lease after it."""
        if self._pending_lease is not None:
            cause, _ = self._pending_lease
            self._pending_lease = None
            self.flag(
                "MOD-E3",
                f"the lease of {cause.entity_id} changed at seq {cause.seq} without a line of its own",
                "that line next",
            )
