"""Mistakes in validation rules and verdicts, from the runner that runs them to the job that they fail.

One is missing, because it breaks no invariant: a rule that starts without a check of its lease. A lost lease ends the
cell first, and no rule starts in it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

from deltaci.core import attempt, cascade, job
from deltaci.core.events import JOB, Event
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.protocol.messages import Complete, JobSpec, RuleResult
from deltaci.protocol.reports.rule_results import validation_verdict
from deltaci.runner.result import JobResult
from deltaci.runner.steps.validation import RuleChecker
from deltaci.server.runner_api import message_handlers
from tests.simulation.planting import fault, patched, replaced_follow_up


@fault
def failed_verdict_is_ignored() -> Iterator[None]:
    """A job without other validation is valid, whatever its runner reported."""

    def passed(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        if not unit.job(event.entity_id).spec.has_validation:
            yield job.Validate(id=event.entity_id, is_passed=True)

    with replaced_follow_up(JOB, ("VALIDATING",), cascade._validate_job, passed):
        yield


@fault
def passed_verdict_fails_the_job() -> Iterator[None]:
    """A job fails even if all rules passed."""
    real = cascade._validate_job

    def failed(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        verdict = unit.attempt(unit.job(event.entity_id).attempt_id).verdict
        if verdict is not None and verdict.is_passed:
            yield job.Validate(id=event.entity_id, is_passed=False)
        else:
            yield from real(unit, event)

    with replaced_follow_up(JOB, ("VALIDATING",), real, failed):
        yield


@fault
def failed_verdict_loses_its_details() -> Iterator[None]:
    """The details of the runner's verdict are not copied to its job."""

    def failed(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        it = unit.job(event.entity_id)
        verdict = unit.attempt(it.attempt_id).verdict
        if verdict is not None and not verdict.is_passed:
            yield job.Validate(id=it.id, is_passed=False)
        elif not it.spec.has_validation:
            yield job.Validate(id=it.id, is_passed=True)

    with replaced_follow_up(JOB, ("VALIDATING",), cascade._validate_job, failed):
        yield


@fault
def server_checks_only_the_first_rule() -> Iterator[None]:
    """The server evaluates only the first rule."""
    real = validation_verdict

    def first(message: Complete, spec: JobSpec) -> attempt.Verdict | None:
        shortened = structs.replace(message, verdicts=(message.verdicts or [])[:1])
        return real(shortened, structs.replace(spec, rules=spec.rules[:1]))

    with patched((message_handlers, "validation_verdict", first)):
        yield


@fault
def runner_reports_rules_without_running_them() -> Iterator[None]:
    """A runner reports that all rules passed without running them."""

    async def check(self: RuleChecker, ended: JobResult) -> JobResult:
        good = [RuleResult(rule=rule.run, is_passed=True) for rule in self._job.spec.rules]
        return structs.replace(ended, verdicts=good)

    with patched((RuleChecker, "check", check)):
        yield
