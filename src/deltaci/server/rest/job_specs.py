"""Convert the plan of a request to job specifications. An invalid plan is refused as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from deltaci.api.schemas.inputs import GateInput, InputRule, JobInput, PlanInput
from deltaci.core import job
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import JobSpec
from deltaci.core.json_values import json_copy
from deltaci.core.plan import dependents, resolve_needs
from deltaci.core.worker import queue_key


def specs(plan: PlanInput, env: Mapping[str, str] | None = None) -> tuple[JobSpec, ...]:
    """Return the specifications of the jobs of a plan. Raise Refused if the plan is invalid.

    `env` is added to the environment of every task; the task's own variables take precedence.
    """
    job_specs = tuple(_spec(params, needs, env or {}) for params, needs in zip(plan.jobs, needs_of(plan), strict=True))
    dependents(job_specs)  # Raises Refused for unknown dependencies and cycles.
    return job_specs


def needs_of(plan: PlanInput) -> tuple[tuple[str, ...], ...]:
    """Return the dependencies of each job, including the implicit ones."""
    # A job with `after` and without `needs` has no implicit dependencies.
    return resolve_needs([(job.name, () if job.needs is None and job.after else job.needs) for job in plan.jobs])


def _spec(params: JobInput, needs: tuple[str, ...], env: Mapping[str, str]) -> JobSpec:
    common_fields: dict[str, Any] = {
        "name": params.name,
        "kind": params.kind,
        "needs": needs,
        "after": tuple(params.after),
    }
    common_fields["is_required"] = not params.allow_failure
    if params.kind == job.APPROVAL:
        if params.work is not None or params.runs_on or params.group:
            raise Refused(
                "bad_request", f"job {params.name!r} is an approval; it has neither 'work' nor 'runs_on' nor 'group'"
            )
        gate = params.approval or GateInput()
        return JobSpec(
            **common_fields,
            approval_seconds=gate.expires_seconds,
            gate=Gate(role=gate.role, approvers=gate.approvers, not_by_starter=gate.not_by_starter),
        )
    if params.approval is not None:
        raise Refused("bad_request", f"job {params.name!r} is a task; only a job of kind 'approval' has an 'approval'")
    if params.work is None:
        raise Refused("bad_request", f"job {params.name!r} has no 'work'; say what its worker does, see docs/jobs.md")
    if params.work.tree is not None:
        raise Refused("bad_request", f"job {params.name!r} has a 'tree'; only the tasks of workstreams have one")
    json_copy(f"'contexts' of job {params.name!r}", params.work.contexts)
    work: dict[str, Any] = msgspec.to_builtins(params.work)
    if env:
        work["env"] = {**env, **work.get("env", {})}
    return JobSpec(
        **common_fields,
        max_attempts=params.retry.max_attempts,
        base_delay_seconds=params.retry.base_delay_seconds,
        max_delay_seconds=params.retry.max_delay_seconds,
        jitter=params.retry.jitter,
        timeout_seconds=params.timeout_seconds,
        queue_key=queue_key(params.runs_on),
        priority=params.priority,
        retry_on=tuple(params.retry.on),
        group=params.group,
        work=work,
    )


def resolve_inputs(rules: Mapping[str, InputRule], inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the value of every input of a template. Raise Refused for an unknown, missing or invalid input."""
    unknown = sorted(set(inputs) - set(rules))
    if unknown:
        listed_names = ", ".join(sorted(rules)) or "none"
        raise Refused("bad_request", f"the template has no input {unknown[0]!r}; it has {listed_names}")
    values: dict[str, str] = {}
    for name, rule in rules.items():
        if name not in inputs and rule.required:
            raise Refused("bad_request", f"the template needs the input {name!r}; {rule.description or 'give it'}")
        value = inputs.get(name, rule.default)
        if rule.choices and value not in rule.choices and (name in inputs or rule.default):
            raise Refused("bad_request", f"the input {name!r} is {value[:80]!r}; it may be {', '.join(rule.choices)}")
        values[name] = value
    return values


def as_env(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that contain the inputs."""
    return {f"INPUT_{name.upper()}": value for name, value in inputs.items()}
