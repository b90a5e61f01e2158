"""Mistakes about rules and verdicts, from the runner that looks at them to the job that they fail.

One is missing, because it breaks no promise: a rule that begins without a look at its lease. A lease that is lost ends
the cell first, in which nothing begins any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

from deltaci.core import attempt, cascade, job
from deltaci.core.events import JOB, Event
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.protocol.messages import Complete, JobSpec, RuleResult
from deltaci.runner.result import JobResult
from deltaci.runner.steps.validation import RuleChecker
from deltaci.server.runner_api import message_handlers
from deltaci.server.runner_api.verdicts import verdict_of
from tests.simulation.planting import fault, instead, reaction


@fault
def a_failed_verdict_is_ignored() -> Iterator[None]:
    """A job that nobody else validates is valid, whatever its runner found."""

    def passed(world: UnitOfWork, event: Event) -> Iterable[Command]:
        if not world.job(event.entity_id).spec.has_validation:
            yield job.Validate(id=event.entity_id, is_passed=True)

    with reaction(JOB, ("VALIDATING",), cascade._validate_job, passed):
        yield


@fault
def a_passed_verdict_fails() -> Iterator[None]:
    """That rules were looked at is enough to fail."""
    real = cascade._validate_job

    def failed(world: UnitOfWork, event: Event) -> Iterable[Command]:
        verdict = world.attempt(world.job(event.entity_id).attempt_id).verdict
        if verdict is not None and verdict.is_passed:
            yield job.Validate(id=event.entity_id, is_passed=False)
        else:
            yield from real(world, event)

    with reaction(JOB, ("VALIDATING",), real, failed):
        yield


@fault
def a_failed_verdict_does_not_say_why() -> Iterator[None]:
    """What its runner found is not told by its job."""

    def failed(world: UnitOfWork, event: Event) -> Iterable[Command]:
        it = world.job(event.entity_id)
        verdict = world.attempt(it.attempt_id).verdict
        if verdict is not None and not verdict.is_passed:
            yield job.Validate(id=it.id, is_passed=False)
        elif not it.spec.has_validation:
            yield job.Validate(id=it.id, is_passed=True)

    with reaction(JOB, ("VALIDATING",), cascade._validate_job, failed):
        yield


@fault
def the_server_believes_the_first_rule() -> Iterator[None]:
    """Of all verdicts only one is looked at."""
    real = verdict_of

    def first(said: Complete, spec: JobSpec) -> attempt.Verdict | None:
        told = structs.replace(said, verdicts=(said.verdicts or [])[:1])
        return real(told, structs.replace(spec, rules=spec.rules[:1]))

    with instead((message_handlers, "verdict_of", first)):
        yield


@fault
def a_runner_tells_of_rules_that_it_did_not_run() -> Iterator[None]:
    """A runner in a hurry says that all of them hold."""

    async def check(self: RuleChecker, ended: JobResult) -> JobResult:
        good = [RuleResult(rule=rule.run, is_passed=True) for rule in self._job.spec.rules]
        return structs.replace(ended, verdicts=good)

    with instead((RuleChecker, "check", check)):
        yield
