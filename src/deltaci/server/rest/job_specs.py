"""What somebody asks for, as job specifications of the core; refused as a whole when it makes no sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from deltaci.api.schemas.inputs import GateInput, InputRule, JobInput, PlanInput
from deltaci.core import job
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import JobSpec
from deltaci.core.plan import dependents, resolve_needs
from deltaci.core.worker import queue_key
from deltaci.engine.validation import json_copy


def specs(plan: PlanInput, env: Mapping[str, str] | None = None) -> tuple[JobSpec, ...]:
    """The jobs of a plan that makes sense. `env` is what every task finds in its environment beside its own."""
    found = tuple(_spec(each, needed, env or {}) for each, needed in zip(plan.jobs, needs_of(plan), strict=True))
    dependents(found)  # Refuses what makes no sense, before anything exists.
    return found


def needs_of(plan: PlanInput) -> tuple[tuple[str, ...], ...]:
    """What must succeed before each job, also where nobody says so."""
    # Who says what it comes after has said what it waits for.
    return resolve_needs([(each.name, () if each.needs is None and each.after else each.needs) for each in plan.jobs])


def _spec(asked: JobInput, needs: tuple[str, ...], env: Mapping[str, str]) -> JobSpec:
    common: dict[str, Any] = {"name": asked.name, "kind": asked.kind, "needs": needs, "after": tuple(asked.after)}
    common["is_required"] = not asked.allow_failure
    if asked.kind == job.APPROVAL:
        if asked.work is not None or asked.runs_on or asked.group:
            raise Refused(
                "bad_request", f"job {asked.name!r} is an approval; it has neither 'work' nor 'runs_on' nor 'group'"
            )
        gate = asked.approval or GateInput()
        return JobSpec(
            **common,
            approval_seconds=gate.expires_seconds,
            gate=Gate(role=gate.role, approvers=gate.approvers, not_by_starter=gate.not_by_starter),
        )
    if asked.approval is not None:
        raise Refused("bad_request", f"job {asked.name!r} is a task; only a job of kind 'approval' has an 'approval'")
    if asked.work is None:
        raise Refused("bad_request", f"job {asked.name!r} has no 'work'; say what its worker does, see docs/jobs.md")
    if asked.work.tree is not None:
        raise Refused("bad_request", f"job {asked.name!r} has a 'tree'; only the tasks of workstreams have one")
    json_copy(f"'contexts' of job {asked.name!r}", asked.work.contexts)
    work: dict[str, Any] = msgspec.to_builtins(asked.work)
    if env:
        work["env"] = {**env, **work.get("env", {})}
    return JobSpec(
        **common,
        max_attempts=asked.retry.max_attempts,
        base_delay_seconds=asked.retry.base_delay_seconds,
        max_delay_seconds=asked.retry.max_delay_seconds,
        jitter=asked.retry.jitter,
        timeout_seconds=asked.timeout_seconds,
        queue_key=queue_key(asked.runs_on),
        priority=asked.priority,
        retry_on=tuple(asked.retry.on),
        group=asked.group,
        work=work,
    )


def filled_in(rules: Mapping[str, InputRule], given: Mapping[str, str]) -> dict[str, str]:
    """Every input of a template with its value. What it does not know is refused, and so is what is missing."""
    unknown = sorted(set(given) - set(rules))
    if unknown:
        known = ", ".join(sorted(rules)) or "none"
        raise Refused("bad_request", f"the template has no input {unknown[0]!r}; it has {known}")
    found: dict[str, str] = {}
    for name, rule in rules.items():
        if name not in given and rule.required:
            raise Refused("bad_request", f"the template needs the input {name!r}; {rule.description or 'give it'}")
        value = given.get(name, rule.default)
        if rule.choices and value not in rule.choices and (name in given or rule.default):
            raise Refused("bad_request", f"the input {name!r} is {value[:80]!r}; it may be {', '.join(rule.choices)}")
        found[name] = value
    return found


def as_env(inputs: Mapping[str, str]) -> dict[str, str]:
    """Inputs as the variables in which tasks find them."""
    return {f"INPUT_{name.upper()}": value for name, value in inputs.items()}
