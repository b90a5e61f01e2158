"""Is this canonical log legal? Reads it once, remembers only what is not over, and believes nothing.

Every line is checked on its own (shape, place in the log, transition, owner, severity), against its entity
(state, rev, time), through every view, and against everything that it is connected to. Events of one
transaction carry the same time: when a scope's time moves on, what is left must fit together.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from deltaci.audit.projections import views_of
from deltaci.audit.projections.canonical import LEASE_WORDS
from deltaci.audit.verify import attempts, jobs, runs, workers
from deltaci.audit.verify.log_lines import (
    AnyLine,
    Attempt,
    AttemptLine,
    Entity,
    Job,
    JobLine,
    LeaseLine,
    LeaseTold,
    Line,
    Run,
    RunLine,
    Scope,
    Worker,
    WorkerLine,
)
from deltaci.audit.verify.report import Recent, Report
from deltaci.core import attempt, job, lease, run, worker
from deltaci.core.events import ATTEMPT, JOB, LEASE, RUN, WORKER, actor_kind
from deltaci.core.ids import lease_name
from deltaci.core.machine import Machine
from deltaci.core.status.view import LEFT_OUT, Change, Edge, Extension

MACHINES: Final[dict[str, Machine[Any]]] = {
    RUN: run.MACHINE,
    JOB: job.MACHINE,
    ATTEMPT: attempt.MACHINE,
    WORKER: worker.MACHINE,
    LEASE: lease.MACHINE,
}
TERMINAL: Final = {name: machine.terminal for name, machine in MACHINES.items()}
DOCUMENT_RULE: Final = {RUN: "ORC-O1", JOB: "WST-V1", ATTEMPT: "QUE-T12", WORKER: "WST-V1", LEASE: "ORC-LF3"}

# (entity, from, to, trigger) -> who may act -> how severe it then is: everything that any rule allows.
LEGAL: Final[dict[tuple[str, str | None, str, str], dict[str, set[str]]]] = {}
for _name, _machine in MACHINES.items():
    for _rule in _machine.rules:
        for _to in _rule.targets:
            _actors = LEGAL.setdefault((_name, _rule.source or None, _to.state, _to.trigger), {})
            for _kind in _rule.command.by:
                _actors.setdefault(_kind, set()).add(_to.severity)

VIEWS: Final = {name: views_of(name) for name in MACHINES}
CHECKS: Final = {ATTEMPT: attempts.CHECKS, JOB: jobs.CHECKS, RUN: runs.CHECKS, WORKER: workers.CHECKS}

_decode = msgspec.json.Decoder(AnyLine).decode

EntityLine = RunLine | JobLine | AttemptLine | WorkerLine
Problem = tuple[str, str, str]  # The rule, what was found, what would have been legal.


def targets(entity: str, source: str | None) -> str:
    """What would have been legal from here, for people."""
    found = [f"{to} by {trigger}" for (name, from_, to, trigger) in LEGAL if (name, from_) == (entity, source)]
    return ", ".join(found) or "nothing: it is over"


def _step_problems(line: Line, actor: str) -> list[Problem]:
    """What is wrong with the step as such, whatever the entity's past."""
    kind, step = line.entity, f"{line.from_} → {line.to}"
    allowed_by = LEGAL.get((kind, line.from_, line.to, line.trigger))
    if allowed_by is None:
        return [(DOCUMENT_RULE[kind], f"{step} by {line.trigger}", f"from {line.from_}: {targets(kind, line.from_)}")]
    severities = allowed_by.get(actor)
    if severities is None:
        return [("ORC-O1", f"{step} by {line.trigger} was made by {line.actor}", " or ".join(sorted(allowed_by)))]
    if line.severity not in severities:
        return [("WST-E3", f"{step} has severity {line.severity}", " or ".join(sorted(severities)))]
    return []


class CanonicalVerifier:
    """A verification under way."""

    def __init__(self) -> None:
        self.report = Report("canonical events")
        self.live: dict[str, Any] = {}
        self.groups: dict[tuple[str, str], Attempt] = {}  # Who had a group last.
        self.recent = Recent()
        self.number = 0
        self.seq = 0
        self.expected: tuple[Line, LeaseTold] | None = None
        self._judged: dict[tuple[Any, ...], tuple[tuple[str | None, ...], tuple[Problem, ...]]] = {}

    def bad(self, rule: str, found: str, legal: str) -> None:
        """Note that the current line breaks a rule."""
        self.report.add(self.number, rule, found, legal)

    def feed(self, number: int, raw: bytes) -> None:
        """Check one line."""
        self.number = number
        try:
            line = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.bad("MOD-E1", f"the line cannot be read: {error}", "one JSON object with the fields of an event")
            return
        if isinstance(line, LeaseLine):
            self._lease_line(line)
            return
        if self.expected is not None:
            self._missing_lease_line()
        if line.seq <= self.seq:
            self.bad("MOD-E1", f"seq {line.seq} after {self.seq}", f"a seq greater than {self.seq}")
        else:
            self.seq = line.seq
        entity = self.live.get(line.entity_id) or self._born(line)
        if entity is None:
            return
        if entity.kind != line.entity:
            self.bad("MOD-E1", f"{line.entity_id} is a {entity.kind}, not a {line.entity}", "one id for one entity")
            return
        self.touch(entity, line)
        if (
            line.rev != entity.rev + 1
            or line.from_ != entity.state
            or line.tenant != entity.tenant
            or line.run_id != entity.run_id
            or line.at < entity.at
        ):
            self._discontinuity(entity, line)
        self._judge(entity, line)
        for check in CHECKS[entity.kind].get(line.to, ()):
            check(self, entity, line, line.metadata)
        self._move(entity, line)

    def end(self) -> Report:
        """The log is over: what it leaves must fit together."""
        self._missing_lease_line()
        for scope in {id(entity.scope): entity.scope for entity in self.live.values()}.values():
            self._settle(scope)
        return self.report

    def _born(self, line: EntityLine) -> Entity | None:
        """The first event of an entity. Whatever it belongs to must be there."""
        self.report.entities += 1
        first = attempt.CREATED if line.entity == ATTEMPT else None
        if line.from_ != first or line.rev != 1 or line.entity_id in self.recent:
            over = "is over" if line.entity_id in self.recent else "was never born"
            rule = "MOD-9" if line.entity_id in self.recent else "MOD-10"
            self.bad(rule, f"{line.entity} {line.entity_id} {over}, and now goes {line.from_} → {line.to}", "a birth")
            self.report.entities -= 1
            return None
        entity = self._make(line)
        if entity is not None:
            self.live[line.entity_id] = entity
        return entity

    def _make(self, line: EntityLine) -> Entity | None:
        if line.entity == RUN:
            return Run(line.entity_id, line.tenant, line.run_id, Scope())
        if line.entity == WORKER:
            return Worker(line.entity_id, line.tenant, line.run_id, Scope())
        owner = self.live.get(line.run_id) if line.run_id else None
        if line.run_id and not isinstance(owner, Run):
            self.bad(
                "MOD-E1",
                f"{line.entity} {line.entity_id} belongs to run {line.run_id}, which is not there",
                "its run first",
            )
            return None
        if line.entity == JOB:
            if owner is None:
                self.bad("MOD-E1", f"job {line.entity_id} belongs to no run", "the run_id of its run")
                return None
            return Job(line.entity_id, line.tenant, line.run_id, owner.scope, run=owner)
        if owner is None:
            return Attempt(line.entity_id, line.tenant, line.run_id, Scope(), job=None)
        job_id = line.metadata.job_id if isinstance(line, AttemptLine) else None
        parent = owner.jobs.get(job_id or "")
        if parent is None:
            self.bad(
                "ORC-A1",
                f"attempt {line.entity_id} belongs to job {job_id!r}, which is not in its run",
                "its job first",
            )
            return None
        return Attempt(line.entity_id, line.tenant, line.run_id, owner.scope, job=parent)

    def touch(self, entity: Entity, line: Line) -> None:
        """The entity changes with this line. The first line at another time closes its scope's last transaction.

        Servers side by side may commit a little out of order, so only each entity's own time must not go back.
        """
        scope = entity.scope
        if line.at != scope.moment:
            self._settle(scope)
            scope.moment = line.at
        scope.line = self.number
        scope.touched[entity.id] = entity

    def _discontinuity(self, entity: Entity, line: Line) -> None:
        """The line does not go on where the entity stands."""
        kind = line.entity
        if line.rev != entity.rev + 1:
            self.bad("MOD-10", f"{kind} {entity.id} has rev {line.rev} after {entity.rev}", f"rev {entity.rev + 1}")
        if line.from_ != entity.state:
            rule = "MOD-9" if entity.state in TERMINAL[kind] else "WST-TI1"
            found = f"{kind} {entity.id} is {entity.state} and goes {line.from_} → {line.to}"
            self.bad(rule, found, f"from {entity.state}: {targets(kind, entity.state)}")
        if line.tenant != entity.tenant:
            self.bad(
                "STP-X1", f"{kind} {entity.id} moved from tenant {entity.tenant!r} to {line.tenant!r}", "its tenant"
            )
        if line.at < entity.at:
            found = f"{kind} {entity.id} changes at {line.at.isoformat()} after {entity.at.isoformat()}"
            self.bad("WST-V4", found, "a time that does not go back")
        if line.run_id != entity.run_id:
            self.bad("MOD-E1", f"{kind} {entity.id} moved from run {entity.run_id!r} to {line.run_id!r}", "its run")

    def _judge(self, entity: Entity, line: Line) -> None:
        """Is the step itself allowed, to this actor, and in every view? What was judged once need not be again."""
        actor = actor_kind(line.actor)
        key = (line.entity, entity.shown, line.from_, line.to, line.trigger, actor, line.severity)
        judged = self._judged.get(key)
        if judged is None:
            shown, seen = self._look(line, entity.shown)
            judged = self._judged[key] = (shown, (*_step_problems(line, actor), *seen))
        entity.shown, problems = judged
        for rule, found, legal in problems:
            self.bad(rule, f"{line.entity} {entity.id}: {found}", legal)

    def _look(self, line: Line, shown: tuple[str | None, ...]) -> tuple[tuple[str | None, ...], list[Problem]]:
        change = Change(line.from_, line.to, line.trigger, line.actor)
        after: list[str | None] = []
        problems: list[Problem] = []
        for index, view in enumerate(VIEWS[line.entity]):
            before = shown[index] if index < len(shown) else None
            if line.to not in MACHINES[line.entity].states:
                after.append(before)
                continue
            steps, now = view.project_change(before, change)
            after.append(now)
            for step in steps:
                if view.allows(step) is None:
                    known: tuple[Edge | Extension, ...] = (*view.edges, *view.extensions)
                    allowed = [each.target for each in known if each.source == step.source]
                    found = f"document {view.document} sees {step.source} → {step.target} by {step.word}"
                    problems.append(("MOD-V1", found, ", ".join(allowed) or "nothing"))
        return tuple(after), problems

    def _move(self, entity: Entity, line: EntityLine) -> None:
        """Believe the line from here on, right or wrong, so that one mistake is reported once."""
        before = entity.state
        entity.state, entity.rev, entity.at = line.to, line.rev, line.at
        if isinstance(entity, Run):
            if line.to in run.TERMINAL:
                self._settle(entity.scope)  # Nothing follows in its transaction; its memory can go.
        elif isinstance(entity, Job):
            jobs.count(entity, before)
            if entity.run.state in run.TERMINAL and line.to in job.TERMINAL:
                self._settle(entity.scope)
            if line.from_ is None and not entity.is_task:
                entity.shown = tuple(
                    LEFT_OUT if view.name == "003 task" else shown
                    for view, shown in zip(VIEWS[JOB], entity.shown, strict=True)
                )
        elif isinstance(entity, Attempt):
            told = line.metadata.lease if isinstance(line, AttemptLine) else None
            if told is not None:
                self.expected = (line, told)
            if entity.job is None and line.to in attempt.TERMINAL:
                self._forget(entity)
                return
        elif isinstance(entity, Worker) and line.to in worker.TERMINAL:
            self._settle(entity.scope)
            self._forget(entity)

    def _settle(self, scope: Scope) -> None:
        """A transaction of this scope is over: everything that it touched must fit together again."""
        if not scope.touched:
            return
        touched, scope.touched = list(scope.touched.values()), {}
        now, self.number = self.number, scope.line
        owner: Run | None = None
        for entity in touched:
            if isinstance(entity, Job):
                jobs.settle(self, entity)
                owner = entity.run
            elif isinstance(entity, Attempt):
                attempts.settle(self, entity)
            elif isinstance(entity, Worker):
                workers.settle(self, entity)
            elif isinstance(entity, Run):
                owner = entity
        if owner is not None:
            runs.settle(self, owner)
            if owner.state in run.TERMINAL and all(each.state in job.TERMINAL for each in owner.jobs.values()):
                for each in owner.jobs.values():
                    if each.attempt is not None:
                        self._forget(each.attempt)
                    self._forget(each)
                self._forget(owner)
        self.number = now

    def _forget(self, entity: Entity) -> None:
        self.live.pop(entity.id, None)
        self.recent.add(entity.id)

    def _lease_line(self, line: LeaseLine) -> None:
        """A lease's line stands right behind its attempt's and says the same."""
        expected, self.expected = self.expected, None
        if expected is None:
            self.bad(
                "MOD-E3", f"lease {line.entity_id} changes without its attempt", "its attempt's event right before"
            )
            return
        of, told = expected
        if (
            line.seq == of.seq
            and line.rev == of.rev
            and line.to == told.to
            and line.from_ == told.from_
            and line.at == of.at
            and line.actor == of.actor
            and line.tenant == of.tenant
            and line.run_id == of.run_id
            and line.request_id == of.request_id
            and line.metadata.worker_id == told.worker_id
            and line.entity_id == lease_name(of.entity_id, told.number)
            and (line.trigger, line.severity) == LEASE_WORDS.get((told.from_, told.to))
        ):
            return
        wanted = f"lease {told.number} of {told.worker_id}, {told.from_} → {told.to}, seq {of.seq}, rev {of.rev}"
        holder = f"lease {line.entity_id} of {line.metadata.worker_id}"
        found = f"{holder}, {line.from_} → {line.to}, seq {line.seq}, rev {line.rev}"
        self.bad("MOD-E3", f"{found} does not say what its attempt says", f"{wanted}, and all else as its attempt")

    def _missing_lease_line(self) -> None:
        if self.expected is not None:
            of, _ = self.expected
            self.expected = None
            self.bad(
                "MOD-E3",
                f"the lease of {of.entity_id} changed at seq {of.seq} without a line of its own",
                "that line next",
            )
