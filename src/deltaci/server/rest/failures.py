"""The failure rules of a tenant, and the flaky jobs and tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.api.schemas import failures as api_failures
from deltaci.api.schemas.inputs import FailureRulesInput, FlakyQuery
from deltaci.core import flaky
from deltaci.core.failures import RULES, FailureRule
from deltaci.core.flaky import History
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler
from deltaci.server.rest.serializers import to_datetime, to_optional_datetime


async def read_rules(call: Call) -> api_failures.FailureRules:
    """Return the rules in the order in which they are applied: the tenant's, the server's, the built-in ones."""
    failure_rules = call.app.failure_rules
    tenant_rules = await failure_rules.read(call.caller.tenant)
    return api_failures.FailureRules(
        text=tenant_rules.text,
        version=tenant_rules.version,
        set_at=to_optional_datetime(tenant_rules.at),
        set_by=tenant_rules.by,
        rules=[
            *_serialize(tenant_rules.rules, "tenant"),
            *_serialize(failure_rules.server, "server"),
            *_serialize(RULES, "built-in"),
        ],
    )


async def set_rules(call: Call) -> api_failures.FailureRules:
    """Replace the rules of the tenant. Earlier failures keep their class."""
    rules_input: FailureRulesInput = call.body
    await call.app.failure_rules.save(
        call.caller.tenant,
        rules_input.text,
        actor=call.actor,
        by=call.caller.person,
        at=call.app.keys.now(),
        expected_version=rules_input.expected_version,
    )
    return await read_rules(call)


def _serialize(rules: Iterable[FailureRule], source: api_failures.RuleSource) -> list[api_failures.FailureRule]:
    return [
        api_failures.FailureRule(
            source=source,
            name=rule.name,
            failure_class=rule.failure_class,
            is_retryable=rule.is_retryable,
            error_codes=list(rule.error_codes),
            exit_codes=list(rule.exit_codes),
            signals=list(rule.signals),
            log_pattern=rule.log_pattern,
            all_failed_tests_flaky=rule.all_failed_tests_flaky,
            has_failed_tests=rule.has_failed_tests,
        )
        for rule in rules
    ]


async def list_flaky(call: Call) -> api_failures.FlakyPage:
    """Return a page of flaky jobs and tests. Jobs and tests that have not been flaky recently are omitted."""
    query: FlakyQuery = call.query
    after_name = decode_cursor(query.cursor) if query.cursor else ""
    histories, next_name = await call.app.flaky.page(call.caller.tenant, query.project, after_name, query.limit)
    now = await call.app.store.now()
    jobs = [_flaky_job(history, now) for history in histories]
    return api_failures.FlakyPage(
        jobs=[job for job in jobs if job.is_flaky or job.tests], next=encode_cursor(next_name) if next_name else None
    )


def _flaky_job(history: History, now: int) -> api_failures.FlakyJob:
    """Return a job and its flaky tests as the API shows them, the latest first."""
    flake_by_test, flake = flaky.flaky_tests(history, now), history.flake
    is_flaky = flaky.is_current(flake, now)
    return api_failures.FlakyJob(
        project=history.project,
        job=history.job,
        is_flaky=is_flaky,
        times=flake.times if is_flaky else 0,
        last_at=to_optional_datetime(flake.last_at if is_flaky else 0),
        tests=[
            api_failures.FlakyTest(
                name=test_name,
                times=test_flake.times,
                last_at=to_datetime(test_flake.last_at),
                commit=test_flake.commit,
            )
            for test_name, test_flake in sorted(
                flake_by_test.items(), key=lambda test_and_flake: (-test_and_flake[1].last_at, test_and_flake[0])
            )
        ],
    )


HANDLERS: Final[dict[str, Handler]] = {
    "readFailureRules": read_rules,
    "setFailureRules": set_rules,
    "listFlaky": list_flaky,
}
