"""The rules by which failures are classed: show all that hold for the tenant, and set its own. And what is flaky."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.api.schemas import failures as api_failures
from deltaci.api.schemas.inputs import FailureRulesInput, FlakyQuery
from deltaci.core import flaky
from deltaci.core.failures import RULES, FailureRule
from deltaci.core.flaky import History
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.request import Call, Handler
from deltaci.server.rest.serializers import maybe, moment


async def read_rules(call: Call) -> api_failures.FailureRules:
    """In the order in which they are asked."""
    held = call.parts.rules
    own = await held.read(call.who.tenant)
    return api_failures.FailureRules(
        text=own.text,
        version=own.version,
        set_at=maybe(own.at),
        set_by=own.by,
        rules=[*_shown(own.rules, "tenant"), *_shown(held.server, "server"), *_shown(RULES, "built-in")],
    )


async def set_rules(call: Call) -> api_failures.FailureRules:
    """What failed before stays as it was classed."""
    asked: FailureRulesInput = call.body
    await call.parts.rules.save(
        call.who.tenant,
        asked.text,
        by=call.who.person,
        at=call.parts.keys.now(),
        expected_version=asked.expected_version,
    )
    return await read_rules(call)


def _shown(rules: Iterable[FailureRule], of: api_failures.RuleSource) -> list[api_failures.FailureRule]:
    return [
        api_failures.FailureRule(
            source=of,
            name=each.name,
            failure_class=each.failure_class,
            is_retryable=each.is_retryable,
            error_codes=list(each.error_codes),
            exit_codes=list(each.exit_codes),
            signals=list(each.signals),
            log_pattern=each.log_pattern,
            all_failed_tests_flaky=each.all_failed_tests_flaky,
            has_failed_tests=each.has_failed_tests,
        )
        for each in rules
    ]


async def list_flaky(call: Call) -> api_failures.FlakyPage:
    """What was not seen for too long is left out."""
    query: FlakyQuery = call.query
    after = read(query.cursor) if query.cursor else ""
    found, next = await call.parts.flaky.page(call.who.tenant, query.project, after, query.limit)
    now = await call.parts.store.now()
    jobs = [_job(each, now) for each in found]
    return api_failures.FlakyPage(
        jobs=[each for each in jobs if each.is_flaky or each.tests], next=written(next) if next else None
    )


def _job(history: History, now: int) -> api_failures.FlakyJob:
    known, flake = flaky.flaky_tests(history, now), history.flake
    is_flaky = flaky.is_current(flake, now)
    return api_failures.FlakyJob(
        project=history.project,
        job=history.job,
        is_flaky=is_flaky,
        times=flake.times if is_flaky else 0,
        last_at=maybe(flake.last_at if is_flaky else 0),
        tests=[
            api_failures.FlakyTest(name=name, times=each.times, last_at=moment(each.last_at), commit=each.commit)
            for name, each in sorted(known.items(), key=lambda item: (-item[1].last_at, item[0]))
        ],
    )


HANDLERS: Final[dict[str, Handler]] = {
    "readFailureRules": read_rules,
    "setFailureRules": set_rules,
    "listFlaky": list_flaky,
}
